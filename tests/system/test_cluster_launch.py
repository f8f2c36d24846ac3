"""Starting and ending clusters from a program: all or nothing, whoever fails; embedded clusters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gt_runtime.launch import children, connection
from gt_runtime.launch.connection import RuntimeDirectory
from gt_runtime.launch.devices import Slot
from gt_runtime.launch.embedded import Embedded, start_embedded
from gt_runtime.launch.errors import LaunchError, NoCluster
from gt_runtime.launch.local import ClusterOptions, Commands, Ending, LocalCluster, Wake
from tests.system.clusters import GONE_SECONDS, START_SECONDS, environment, processes, until

CPU = Slot("cpu")
PYTHON = (sys.executable, "-c")
SLEEPS = (*PYTHON, "import time; time.sleep(600)")
ENDS = (*PYTHON, "import sys; sys.exit('this device is on fire')")
# Fails once the test has put a file `go` into the run directory.
FAILS_LATER = (
    *PYTHON,
    "import os, sys, time\n"
    "run = os.path.dirname(sys.argv[sys.argv.index('--connect') + 1].removeprefix('ipc://'))\n"
    "while not os.path.exists(run + '/go'): time.sleep(0.01)\n"
    "sys.exit('this device is on fire')",
)
DEAF = (*PYTHON, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")


@pytest.fixture
def home() -> RuntimeDirectory:
    return RuntimeDirectory.open()


def program(*lines: str) -> str:
    return "\n".join(lines)


def nothing_left(name: str, home: RuntimeDirectory) -> None:
    assert processes(name) == {}
    assert not home.file(name).exists() and not home.run_dir(name).exists()
    home.reserve(name).release()


@pytest.mark.parametrize(
    ("commands", "slots", "words"),
    [
        (Commands(worker=ENDS), 2, ["worker w", "ended with exit status 1 while starting", "this device is on fire"]),
        (Commands(dispatcher=ENDS, worker=SLEEPS), 2, ["the dispatcher ended with exit status 1", "on fire"]),
        (Commands(worker=("/nonexistent/python",)), 1, ["can't be started", "gt doctor"]),
        (Commands(dispatcher=(*PYTHON, "print('hello', flush=True); input()"), worker=SLEEPS), 1, ["hello"]),
        (Commands(dispatcher=(*PYTHON, "import os, time; os.close(1); time.sleep(60)")), 0, ["where it listens"]),
    ],
)
def test_a_start_that_fails_leaves_nothing(
    home: RuntimeDirectory, commands: Commands, slots: int, words: list[str]
) -> None:
    cluster = LocalCluster(ClusterOptions("fails", (CPU,) * slots), home, commands=commands)
    with pytest.raises(LaunchError) as caught:
        cluster.start(START_SECONDS)
    for word in words:
        assert word in str(caught.value)
    assert all(child.status() is not None for child in cluster.processes)
    nothing_left("fails", home)


def test_a_start_that_takes_too_long_says_what_it_waits_for(home: RuntimeDirectory) -> None:
    cluster = LocalCluster(ClusterOptions("slow", (CPU, CPU)), home, commands=Commands(worker=SLEEPS))
    with pytest.raises(LaunchError, match="0 of 2 workers are ready"):
        cluster.start(3.0)
    nothing_left("slow", home)


def test_a_child_that_ignores_everything_is_killed(home: RuntimeDirectory) -> None:
    wake = Wake()
    cluster = LocalCluster(ClusterOptions("deaf", (CPU,)), home, wake=wake, commands=Commands(worker=DEAF))
    cluster.begin()
    worker = cluster.processes[1]
    until(lambda: "SigIgn:\t" in (text := Path(f"/proc/{worker.pid}/status").read_text()) and _ignores_term(text), 10)
    children.end_all(cluster.processes, term_seconds=0.2)
    assert worker.status() == -signal.SIGKILL
    cluster.stop("the test is over")
    nothing_left("deaf", home)


def _ignores_term(status: str) -> bool:
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def test_the_last_runs_logs_are_kept_apart(home: RuntimeDirectory) -> None:
    for word in ("first", "second"):
        say = (*PYTHON, f"import sys; sys.exit({word!r})")
        with pytest.raises(LaunchError, match=word):
            LocalCluster(ClusterOptions("logs", (CPU,)), home, commands=Commands(worker=say)).start(START_SECONDS)
    folder = home.log_dir("logs")
    assert (folder / "w0.log").read_text() == "second\n"
    assert (folder / "w0.log.1").read_text() == "first\n"


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Embedded]]:
    """Embedded clusters of this process: one at a time, ended with the test."""
    started: list[Embedded] = []
    monkeypatch.delenv("GT_WORKERS", raising=False)
    yield started
    for one in started:
        one.stop()


def test_an_embedded_cluster(embedded: list[Embedded], home: RuntimeDirectory) -> None:
    one = start_embedded(workers=1, device="cpu")
    embedded.append(one)
    name = f"embedded-{os.getpid()}"
    found = connection.find(name)
    assert found == one.connection and found.embedded and found.pid == os.getpid()
    with pytest.raises(NoCluster):
        connection.find()
    assert len(processes(name)) == 2
    assert "joined w0" in (home.log_dir(name) / "dispatcher.log").read_text()
    child = os.fork()
    if child == 0:
        one.stop()  # not the child's to stop
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(processes(name)) == 2
    one.stop()
    one.stop()
    assert one.error is None
    one.check()
    nothing_left(name, home)


def test_an_embedded_clusters_last_worker_is_its_end(embedded: list[Embedded], home: RuntimeDirectory) -> None:
    one = start_embedded(workers=1, device="cpu")
    embedded.append(one)
    name = f"embedded-{os.getpid()}"
    (worker,) = (pid for pid, line in processes(name).items() if "gt_runtime.worker" in line)
    os.kill(worker, signal.SIGKILL)
    until(lambda: one.error is not None, GONE_SECONDS)
    assert "worker w0 (cpu) was ended by SIGKILL" in str(one.error)
    with pytest.raises(LaunchError):
        one.check()
    nothing_left(name, home)


def test_an_embedded_cluster_that_cannot_start(embedded: list[Embedded], home: RuntimeDirectory) -> None:
    with pytest.raises(LaunchError, match="this device is on fire"):
        start_embedded(workers=1, device="cpu", commands=Commands(worker=ENDS))
    nothing_left(f"embedded-{os.getpid()}", home)
    one = start_embedded(workers=1, device="cpu", commands=Commands(worker=FAILS_LATER), wait=False)
    embedded.append(one)
    (home.run_dir(one.connection.name) / "go").touch()
    with pytest.raises(LaunchError, match="this device is on fire"):
        one.wait_ready(START_SECONDS)
    one.stop()


def test_stopped_while_it_starts(embedded: list[Embedded], home: RuntimeDirectory) -> None:
    one = start_embedded(workers=1, device="cpu", commands=Commands(worker=SLEEPS), wait=False)
    one.stop()
    assert one.error is None
    nothing_left(f"embedded-{os.getpid()}", home)


ENDINGS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "crashed": "import ctypes; ctypes.string_at(0)",
    "exited at once": "os._exit(3)",
    "ended": "",
    "raised": "raise SystemExit(4)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_embedded_cluster_ends_with_its_program(ending: str, home: RuntimeDirectory) -> None:
    code = program(
        "import os, signal, sys",
        "from gt_runtime.launch.embedded import start_embedded",
        "started = start_embedded(workers=1, device='cpu', wait=False)",
        "print(started.connection.name, flush=True)",
        "sys.stdin.readline()",
        ENDINGS[ending],
    )
    user = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip
    assert user.stdin is not None and user.stdout is not None
    name = user.stdout.readline().strip()
    assert name == f"embedded-{user.pid}"
    until(lambda: len(processes(name)) == 2, START_SECONDS)
    user.stdin.write("\n")
    user.stdin.close()
    user.wait(30)
    until(lambda: not processes(name), GONE_SECONDS, lambda: processes(name))
    home.tidy()
    nothing_left(name, home)


def test_watch_tells_the_endings_apart(home: RuntimeDirectory) -> None:
    told: list[str] = []
    wake = Wake()
    cluster = LocalCluster(ClusterOptions("endings", ()), home, wake=wake, report=told.append)
    cluster.start(START_SECONDS)
    wake.set()
    assert cluster.watch() is Ending.WOKEN
    os.kill(cluster.processes[0].pid, signal.SIGKILL)
    os.waitid(os.P_PID, cluster.processes[0].pid, os.WEXITED | os.WNOWAIT)
    assert cluster.watch() is Ending.DISPATCHER_LOST
    assert "was ended by SIGKILL" in str(cluster.failure(Ending.DISPATCHER_LOST))
    cluster.stop("the test is over")
    cluster.stop("twice is fine")
    assert told == []
    nothing_left("endings", home)
