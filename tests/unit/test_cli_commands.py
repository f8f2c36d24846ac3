"""The command line without a cluster: what is parsed, which exit status an error has, what stays unimported."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from gt_runtime import cli
from gt_runtime.commands import common, doctor, logs, show
from gt_runtime.control.client import ControlError
from gt_runtime.launch.connection import Connection, RuntimeDirectory
from gt_runtime.launch.errors import LaunchError


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory without clusters."""
    for name in ("GT_ADDRESS", "GT_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GT_RUNTIME_DIR", str(tmp_path / "gt"))
    return tmp_path / "gt"


@pytest.mark.parametrize("command", ["status", "workers", "sessions", "down", "logs", "worker"])
def test_no_cluster_is_status_3_with_advice(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "gt up" in captured.err


@pytest.mark.parametrize(
    "argv",
    [[], ["nonsense"], ["up", "--workers", "0"], ["up", "--device", "tpu"], ["up", "--session-memory", "x"],
     ["up", "--listen", "ipc://x"], ["status", "--name", "a", "--connect", "tcp://h:1"], ["logs", "-n", "0"],
     ["up", "--work", "2"], ["run"], ["run", "--name", "x"], ["run", "--nonsense", "x.py"]],
)  # fmt: skip
def test_wrong_usage_is_status_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


def test_a_session_to_kill_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sessions", "kill"]) == 2
    assert "gt sessions" in capsys.readouterr().err


def test_a_bad_address_is_status_2_and_a_bad_file_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--connect", "nowhere"]) == 2
    assert "tcp://HOST:PORT" in capsys.readouterr().err
    bad = tmp_path / "pool.yaml"
    bad.write_text("signals:\n  a: {replica: 2}\n")
    assert cli.main(["up", "--config", str(bad)]) == 1
    assert "pool.yaml:2:7: a.replica: is no known key (did you mean 'replicas'?)" in capsys.readouterr().err


def test_no_answer_is_status_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "ASK_SECONDS", 0.05)
    with pytest.raises(common.Unreachable, match="no answer"):
        common.ask(Connection(endpoints={"front": f"ipc://{tmp_path}/none.sock"}), "status", 0.05)
    assert cli._status_of(common.Unreachable("a", "b", "c")) == 3
    assert cli._status_of(ControlError("a", "b", "c")) == 1
    assert cli._status_of(LaunchError("a", "b", "c")) == 1
    assert cli._status_of(ZeroDivisionError()) is None


@pytest.mark.parametrize(
    ("argv", "at"),
    [(["x.py", "--name", "y"], 0), (["--name", "c", "x.py", "-m"], 2), (["-m", "mod", "a"], 1), (["--name=c", "x"], 1),
     (["--connect", "ipc:///a", "-m", "m"], 3), ([], 0), (["-m"], 1)],
)  # fmt: skip
def test_where_the_program_stands(argv: list[str], at: int) -> None:
    assert cli._first_positional(argv) == at


def answers(monkeypatch: pytest.MonkeyPatch, **by_method: Any) -> None:
    monkeypatch.setattr(show, "ask", lambda where, method, **arguments: by_method[method])


HEADER = ["WORKER", "STATE", "DEVICE", "HOST", "PID", "UTIL", "MEMORY", "QUEUE", "INSTR/S", "VALUES", "BEAT"]
WHERE = Connection(endpoints={"front": "ipc:///x"})


def test_status_for_people_and_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said: dict[str, Any] = {"cluster": "one", "state": "ready", "workers": 2, "ready": 1, "uptime": 61.0}
    said["endpoints"] = {"front": "ipc:///f"}
    answers(monkeypatch, status=said)
    show.status(WHERE, False)
    shown = capsys.readouterr().out
    assert "one (ready)" in shown and "1 of 2 ready" in shown and "ipc:///f" in shown and "61 s" in shown
    show.status(WHERE, True)
    assert json.loads(capsys.readouterr().out) == said


def test_workers_show_unknown_as_a_dash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first = {"id": "w0", "state": "ready", "queue": 1200, "memory_used": 1 << 30, "memory_total": 4 << 30}
    answers(monkeypatch, workers=[{"id": "w10"}, first])
    show.workers(WHERE, False)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == HEADER
    assert "1.0 GiB / 4.0 GiB" in lines[0] and "1,200" in lines[0]
    assert lines[1].split() == ["w10", *["-"] * 10]
    show.workers(WHERE, True)
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found] == ["w0", "w10"]
    assert found[0]["memory"] == {"used": 1 << 30, "total": 4 << 30}


def test_sessions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers(monkeypatch, sessions=[], kill_session={"session": "s1"})
    show.sessions(WHERE, False)
    assert capsys.readouterr().out == "no sessions\n"
    one = {"id": "s1", "program": "a\x1bb", "workers": ["w0", "w1"]}
    answers(monkeypatch, sessions=[one], kill_session={"session": "s1"})
    show.sessions(WHERE, False)
    shown = capsys.readouterr().out
    assert "a?b" in shown and "w0, w1" in shown
    show.kill_session(WHERE, "s1", "because", False)
    assert "s1 has been killed" in capsys.readouterr().out


def test_logs_of_a_cluster_that_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    folder = RuntimeDirectory.open().log_dir("one")
    folder.mkdir(parents=True)
    (folder / "w0.log").write_text("hello\n\x1b[2Jbad\n")
    (folder / "dispatcher.log").write_text("hi\n")
    (folder / "w0.log.1").write_text("old\n")
    assert cli.main(["logs", "--name", "one"]) == 0
    assert capsys.readouterr().out.splitlines() == ["dispatcher | hi", "w0         | hello", "w0         | ?[2Jbad"]
    assert cli.main(["logs", "--name", "one", "w0", "-n", "1"]) == 0
    assert capsys.readouterr().out == "?[2Jbad\n"
    assert cli.main(["logs", "--name", "one", "--json"]) == 0
    assert [entry["id"] for entry in json.loads(capsys.readouterr().out)] == ["dispatcher", "w0"]
    assert cli.main(["logs", "--name", "one", "w9"]) == 1
    assert "dispatcher, w0" in capsys.readouterr().err
    with pytest.raises(LaunchError, match="--name"):
        logs.folder(None, "tcp://127.0.0.1:1")


def test_doctor_tells_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> Any:
        raise OSError("nope")

    monkeypatch.setattr(doctor, "CHECKS", (doctor._limits, breaks))
    assert doctor.doctor(True) == 1
    found = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["breaks"]["state"] == "failed" and "nope" in found["breaks"]["found"]
    assert found["files"]["state"] in ("ok", "warning")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (16, 16))
    monkeypatch.setattr(doctor, "CHECKS", (doctor._limits,))
    assert doctor.doctor(False) == 0
    assert "ulimit -n" in capsys.readouterr().out


def test_doctor_looks_at_everything_here() -> None:
    found = {finding.id: finding for finding in doctor.examine()}
    assert {"python", "torch", "native", "compiler", "directory", "memfd", "pidfd", "files", "nvml"} <= set(found)
    assert {"tcp", "ipc"} <= set(found)
    assert all(finding.do for finding in found.values() if finding.state is not doctor.State.OK)
