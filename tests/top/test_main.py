"""The command: what it finds, what it prints, its exit statuses; and that torch is never imported."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gt_runtime.launch.connection import RuntimeDirectory
from gt_top import __main__ as command
from gt_top import once
from tests.top.fakes import FakeCluster, cpu_worker, frame, session

ROOT = Path(__file__).resolve().parents[2]


def gt_top(*arguments: str) -> int:
    """The exit status of a call in this process."""
    try:
        return command.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def cluster(folder: Path, directory: RuntimeDirectory) -> FakeCluster:
    fake = FakeCluster(folder, directory=directory)
    workers = [cpu_worker(0), cpu_worker(1, utilisation=None)]
    fake.newest = frame(3, workers=workers, sessions=[session(0), session(1)])
    return fake


def test_once_prints_every_worker_and_session(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster:
        assert gt_top("--once") == 0
    out = capsys.readouterr().out
    for word in ("lab-a", "2 workers", "2 sessions", "w0", "w1", "train_gpt.py", "digits.py", "1 of 2"):
        assert word in out
    assert "\x1b" not in out
    assert all(len(line) <= 120 for line in out.splitlines())


def test_once_json_is_one_object_in_base_units(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster:
        assert gt_top("--once", "--json", "--name", "lab-a") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cluster"], found["look"], found["totals"]["workers"]) == ("lab-a", "live", 2)
    assert found["workers"][0]["memory_total"] == 16 << 30
    assert found["workers"][1]["utilisation"] is None
    assert found["totals"]["utilisation"] == {"value": found["workers"][0]["utilisation"], "known": 1, "of": 2}
    assert [s["id"] for s in found["sessions"]] == ["s1", "s2"]


def test_the_address_of_the_environment_is_used(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster:
        monkeypatch.setenv("GT_ADDRESS", cluster.endpoints["front"])
        assert gt_top("--once") == 0
    assert "lab-a" in capsys.readouterr().out


def test_no_cluster_says_so_and_is_3(directory: RuntimeDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert gt_top("--once") == 3
    assert gt_top() == 3
    assert gt_top("--name", "lab-z") == 3
    said = capsys.readouterr().err
    assert "none is running here" in said and "gt up" in said and "lab-z" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json"],
        ["--connect", "nonsense", "--once"],
        ["--name", "a/b", "--once"],
        ["--name", "a", "--connect", "ipc://x"],
        ["--what"],
    ],
)  # fmt: skip
def test_wrong_usage_is_2(
    arguments: list[str], directory: RuntimeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gt_top(*arguments) == 2
    assert capsys.readouterr().err


def test_a_silent_cluster_is_1(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "WAIT_SECONDS", 0.2)
    cluster.newest = None
    with cluster:
        assert gt_top("--once") == 1
    assert "no frame came within 0.2 s" in capsys.readouterr().err


def test_several_clusters_must_be_named_for_once(
    cluster: FakeCluster, folder: Path, directory: RuntimeDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as stack:
        for fake in (cluster, FakeCluster(folder, "lab-b", directory)):
            stack.enter_context(fake)
        assert gt_top("--once") == 2
        said = capsys.readouterr().err
        assert "lab-a" in said and "lab-b" in said and "--name" in said
        assert [c.key for c in command._choices()] == ["lab-a", "lab-b"]


def test_a_screen_needs_a_terminal(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster:
        assert gt_top() == 2
    assert "--once" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert gt_top("--help") == 0
    assert "--readonly" in capsys.readouterr().out
    assert gt_top("--version") == 0
    assert capsys.readouterr().out.startswith("gt-top ")


def test_a_closed_pipe_is_no_error(cluster: FakeCluster) -> None:
    with cluster:
        process = subprocess.run(
            f"{sys.executable} -m gt_top --once --json | head -c 1; exit ${{PIPESTATUS[0]}}",
            shell=True, executable="/bin/bash", cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")


def test_torch_is_never_imported() -> None:
    program = (
        "import sys, gt_top.__main__, gt_top.app, gt_top.once, gt_top.links, gt_top.terminal\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'gt')]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_once_does_not_wait_for_textual() -> None:
    program = (
        "import sys, gt_top.__main__, gt_top.once, gt_top.links\n"
        "assert 'textual' not in sys.modules, 'the table without a screen imports Textual'\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60, env={**os.environ})
