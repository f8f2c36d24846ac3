"""Clusters through the command line, with the real dispatcher and workers."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gt_runtime
from gt_runtime.launch import connection
from gt_runtime.launch.connection import RuntimeDirectory
from gt_runtime.launch.errors import NoCluster
from tests.system.clusters import (
    GONE_SECONDS,
    START_SECONDS,
    command,
    environment,
    gt,
    gt_json,
    processes,
    until,
)

CPU = ("--device", "cpu")


@pytest.fixture
def names() -> Iterator[list[str]]:
    """Names of clusters a test starts; whatever is left of them at its end is ended."""
    used: list[str] = []
    yield used
    for name in used:
        try:
            os.kill(connection.find(name).pid, signal.SIGKILL)
        except (NoCluster, ProcessLookupError):
            pass
        for pid in processes(name):
            os.kill(pid, signal.SIGKILL)


def gone(name: str) -> None:
    """Nothing of a cluster is left: no process, no file, no socket."""
    until(lambda: not processes(name), GONE_SECONDS, lambda: processes(name))
    directory = RuntimeDirectory.open()
    directory.tidy()
    assert not directory.file(name).exists()
    assert not directory.run_dir(name).exists()


def test_round_trip_of_a_detached_cluster(names: list[str], tmp_path: Path) -> None:
    names.append("round")
    config = tmp_path / "pool.yaml"
    config.write_text("signals:\n  layer1: {strategy: data_parallel, batch_split: 2}\n")
    told = gt("up", "--name", "round", "--workers", "2", *CPU, "--config", str(config), "--detach")
    assert "cluster 'round' is ready: 2 workers (cpu, cpu)" in told.stdout
    directory = RuntimeDirectory.open()
    assert stat.S_IMODE(directory.file("round").stat().st_mode) == 0o600
    assert (directory.run_dir("round") / "revisions" / "1.yaml").read_text() == config.read_text()

    status = gt_json("status")  # found without a name: it is the only one
    assert status["cluster"] == "round" and status["state"] == "ready"
    assert status["ready"] == status["workers"] == 2
    assert set(status["endpoints"]) == {"front", "back", "pulse", "bulk", "telemetry"}
    assert "2 of 2 ready" in gt("status", "--name", "round").stdout
    workers = gt_json("workers", "--connect", status["endpoints"]["front"])
    assert [w["id"] for w in workers] == ["w0", "w1"]
    for worker in workers:
        assert worker["device"] == "cpu" and worker["state"] == "ready" and worker["host"] and worker["queue"] == 0
        assert worker["memory"]["total"] > worker["memory"]["used"] > 0
        assert worker["pid"] in processes("round")
    assert gt_json("sessions") == []
    assert "s9" in gt("sessions", "kill", "s9", status=1).stderr
    assert "gt: cluster 'round' is ready" in gt("logs", "up").stdout

    told = gt("up", "--name", "round", *CPU, status=1)
    assert f"process {connection.find('round').pid} has it" in told.stderr

    assert "has stopped" in gt("down").stdout
    gone("round")
    gt("status", "--name", "round", status=3)
    assert "it was asked to stop" in gt("logs", "--name", "round", "up").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cluster_in_the_foreground_ends_cleanly_on(names: list[str], number: signal.Signals) -> None:
    name = f"front-{number.name.lower()}"
    names.append(name)
    up = subprocess.Popen(
        command("up", "--name", name, "--workers", "1", *CPU),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert up.stdout is not None
    assert up.stdout.readline() == f"cluster '{name}' is ready: 1 workers (cpu)\n"
    assert connection.find(name).front in up.stdout.readline()
    up.send_signal(number)
    _, errors = up.communicate(timeout=30)
    assert up.returncode == 0
    assert errors == f"gt: cluster '{name}' has stopped ({number.name})\n"
    gone(name)


def test_interrupted_before_it_is_ready(names: list[str]) -> None:
    names.append("early")
    up = subprocess.Popen(
        command("up", "--name", "early", "--workers", "1", *CPU), stderr=subprocess.PIPE, text=True, env=environment()
    )
    until(lambda: processes("early"), START_SECONDS)
    up.send_signal(signal.SIGTERM)
    _, errors = up.communicate(timeout=30)
    assert up.returncode == 1 and "called off" in errors
    gone("early")


def test_two_clusters_side_by_side(names: list[str]) -> None:
    names += ["left", "right"]
    ups = [command("up", "--name", name, "--workers", "1", *CPU, "--detach") for name in names]
    starts = [subprocess.Popen(up, env=environment()) for up in ups]
    assert [start.wait(START_SECONDS) for start in starts] == [0, 0]
    told = gt("status", status=3).stderr
    assert "left" in told and "right" in told and "--name" in told
    assert gt_json("status", "--name", "left")["cluster"] == "left"
    assert "right (ready)" in gt("status", GT_CLUSTER="right").stdout
    gt("down", "--name", "left")
    gone("left")
    assert gt_json("status")["cluster"] == "right", "it isn't touched, and now the only one"
    gt("down")
    gone("right")


def test_nothing_is_left_whoever_is_killed(names: list[str]) -> None:
    names.append("killed")
    gt("up", "--name", "killed", "--workers", "2", *CPU, "--detach")
    launcher = connection.find("killed").pid
    # A worker: told once, and the cluster goes on.
    os.kill(gt_json("workers")[0]["pid"], signal.SIGKILL)
    until(lambda: gt_json("status")["ready"] == 1, 10)
    log = RuntimeDirectory.open().log_dir("killed") / "up.log"
    until(lambda: "was ended by SIGKILL; the cluster goes on with 1 of 2 workers" in log.read_text(), 10, log.read_text)
    assert log.read_text().count("SIGKILL") == 1
    # The dispatcher: that is the end of it.
    os.kill(gt_json("status")["pid"], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{launcher}").exists(), GONE_SECONDS + 5)
    gone("killed")
    assert "the dispatcher was ended by SIGKILL" in log.read_text()
    # The launcher: the others see that it is gone.
    gt("up", "--name", "killed", "--workers", "1", *CPU, "--detach")
    os.kill(connection.find("killed").pid, signal.SIGKILL)
    until(lambda: not processes("killed"), GONE_SECONDS, lambda: processes("killed"))
    gt("status", status=3)
    gone("killed")


def test_the_foreground_ends_with_status_1_if_the_dispatcher_dies(names: list[str]) -> None:
    names.append("lost")
    up = subprocess.Popen(
        command("dispatcher", "--name", "lost"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert up.stdout is not None
    assert "none yet: join with `gt worker`" in up.stdout.readline()
    os.kill(gt_json("status", "--name", "lost")["pid"], signal.SIGKILL)
    _, errors = up.communicate(timeout=30)
    assert up.returncode == 1
    assert "the dispatcher was ended by SIGKILL, so it has stopped; the end of its log" in errors
    gone("lost")


def test_a_worker_joins_a_bare_dispatcher_over_tcp(names: list[str]) -> None:
    names.append("bare")
    up = subprocess.Popen(
        command("dispatcher", "--name", "bare", "--listen", "tcp://127.0.0.1", "--json"),
        stdout=subprocess.DEVNULL,
        env=environment(),
    )
    until(lambda: RuntimeDirectory.open().file("bare").exists(), START_SECONDS)
    front = connection.find("bare").tcp["front"]
    assert front.startswith("tcp://127.0.0.1:")
    joined = subprocess.Popen(command("worker", "--connect", front, "--id", "w7"), env=environment())
    try:
        until(lambda: gt_json("status", "--name", "bare")["ready"] == 1, START_SECONDS)
        assert [w["id"] for w in gt_json("workers", "--connect", front)] == ["w7"]
        gt("down", "--name", "bare")
        assert up.wait(30) == 0
        joined.wait(GONE_SECONDS + 5)
    finally:
        for process in (joined, up):
            process.kill()
            process.wait()
    gone("bare")


def test_doctor_finds_the_cluster_and_nothing_in_the_way(names: list[str]) -> None:
    names.append("seen")
    up = subprocess.Popen(command("dispatcher", "--name", "seen"), stdout=subprocess.DEVNULL, env=environment())
    try:
        until(lambda: RuntimeDirectory.open().file("seen").exists(), START_SECONDS)
        found = {entry["id"]: entry for entry in gt_json("doctor")}
        assert "seen" in found["clusters"]["found"]
        assert [entry for entry in found.values() if entry["state"] == "failed"] == []
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["status"], ["doctor"], ["up", "--help"]])
def test_the_command_line_never_imports_torch(argv: list[str]) -> None:
    code = f"""
import sys
from gt_runtime.cli import main
try:
    main({argv!r})
except SystemExit:
    pass
print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'gt', 'textual', 'numpy')), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment())
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("module", ["gt_runtime", "gt_runtime.cli", "gt"])
def test_version(module: str) -> None:
    argv = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stdout) == (0, f"gt {gt_runtime.__version__}\n")
