"""A program's own life with the device: fork, Ctrl-C, threads, how it ends, when its values die."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.system.clusters import until
from tests.system.programs import facts, finish, run, start

ONE: Any = {"GT_WORKERS": "1"}

FORK = """
import json, os, sys, time
import gt, torch
x = torch.ones(3, device="mux")
print(x.sum().item(), flush=True)
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    began = time.monotonic()
    said = []
    for call in (lambda: x.sum().item(), lambda: torch.ones(2, device="mux"), lambda: x + 1, gt.synchronize):
        try:
            call()
            said.append("nothing was raised")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    host = (torch.ones(2) * 2).tolist()  # the CPU is none of GT's business
    del x
    os.write(writes, json.dumps({"said": said, "host": host, "seconds": time.monotonic() - began}).encode())
    os._exit(0)
os.close(writes)
told = b""
while piece := os.read(reads, 65536):
    told += piece
_, status = os.waitpid(child, 0)
found = json.loads(told)
found["status"] = status
found["parent"] = (x * 2).tolist()
print(json.dumps(found))
"""


def test_a_forked_child_is_told_at_once_and_its_parent_goes_on() -> None:
    found = facts(FORK, **ONE)
    assert found["status"] == 0
    assert found["parent"] == [2.0, 2.0, 2.0]
    assert found["host"] == [2.0, 2.0]
    assert found["seconds"] < 5.0
    for said in found["said"]:
        assert "nothing was raised" not in said and "fork" in said.lower(), said


def test_a_forked_child_ends_like_any_other() -> None:
    code = """
    import os, sys
    import gt, torch
    x = torch.ones(3, device="mux", requires_grad=True)
    (x * 2).sum().backward()
    child = os.fork()
    if child == 0:
        sys.exit(0)  # the interpreter's whole end, with the parent's tensors in its memory
    print(os.waitpid(child, 0)[1], x.grad.tolist())
    """
    assert run(code, **ONE).strip() == "0 [2.0, 2.0, 2.0]"


def test_multiprocessing_spawn_has_a_session_of_its_own() -> None:
    code = """
    import subprocess, sys
    import gt, torch
    print(torch.ones(1, device="mux").item())
    child = "import gt, torch; print((torch.ones(1, device='mux') * 2).item())"
    print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout.strip())
    """
    assert run(code, **ONE).split() == ["1.0", "2.0"]


SLOW = """
import sys
import gt, torch
x = torch.ones(2048, 2048, device="mux")
small = torch.ones(2, device="mux")
print((small * 3).tolist(), flush=True)
for _ in range(60):
    x = (x @ x) * 1e-4
print("fetching", flush=True)
try:
    x.sum().item()
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print((small * 2).tolist(), flush=True)
"""


def test_ctrl_c_during_a_fetch_raises_and_the_session_goes_on() -> None:
    process = start(SLOW, **ONE)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "[3.0, 3.0]", process.stderr.read() if process.stderr else ""
    assert process.stdout.readline().strip() == "fetching"
    until(lambda: _sleeps(process.pid), 20, lambda: "the program never waited for its fetch")
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert status == 0, err
    assert out.split("\n")[:2] == ["interrupted", "[2.0, 2.0]"]


def _sleeps(pid: int) -> bool:
    """Is the main thread waiting? In /proc/PID/stat the state stands behind the name in parentheses."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "S"


def test_uncaught_ctrl_c_ends_the_program_and_leaves_nothing(tmp_path: object) -> None:
    process = start(SLOW.replace("except KeyboardInterrupt", "except ZeroDivisionError"), **ONE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    children = _descendants(process.pid)
    assert children
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status in (1, 130, -signal.SIGINT), err
    assert "KeyboardInterrupt" in err
    until(lambda: not [pid for pid in children if _alive(pid)], 10, lambda: f"left: {children}")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_no_process(end: signal.Signals) -> None:
    process = start(
        "import gt, torch\nprint(torch.ones(1, device='mux').item(), flush=True)\nimport signal; signal.pause()", **ONE
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "1.0"
    children = _descendants(process.pid)
    assert children
    process.send_signal(end)
    finish(process)
    until(lambda: not [pid for pid in children if _alive(pid)], 10, lambda: f"left: {children}")


def _descendants(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_threads_share_one_session() -> None:
    code = """
    import threading
    import gt, torch
    results = {}
    def work(index):
        x = torch.full((64, 64), float(index), device="mux", requires_grad=True)
        for _ in range(20):
            y = (x @ x).sum()
        y.backward()
        results[index] = x.grad.sum().item()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(all(abs(results[i] - 2 * 64**3 * i) < 1 for i in range(6)), len(results))
    """
    assert run(code, **ONE).split() == ["True", "6"]


def test_uncaught_exception_prints_its_traceback_and_ends() -> None:
    process = start("import gt, torch\nx = torch.ones(2, 3, device='mux')\nx @ x", **ONE)
    status, _, err = finish(process)
    assert status == 1
    assert "RuntimeError" in err and "cannot be multiplied (2x3 and 2x3)" in err


def test_interpreter_ends_with_tensors_everywhere() -> None:
    code = """
    import builtins, sys, threading, types
    import gt, torch
    model = torch.nn.Linear(4, 4).to("mux")
    builtins.kept = model(torch.ones(2, 4, device="mux"))
    sys.modules["fake"] = types.ModuleType("fake")
    sys.modules["fake"].tensor = builtins.kept * 2
    local = threading.local()
    local.tensor = builtins.kept.sum()
    cycle = [model, builtins.kept]
    cycle.append(cycle)
    local.tensor.backward()
    print("end")
    """
    assert run(code, **ONE).strip() == "end"


LIFETIME = """
import json, threading, time
import gt, torch
import gt.session
from gt_runtime.control.client import ControlClient

control = ControlClient(gt.session.current().connection.front)

def held(wanted, seconds=5.0):
    deadline = time.monotonic() + seconds  # the count comes with the workers' heartbeats
    while True:
        gt.synchronize()
        (session,) = control.request("sessions")
        if wanted(session["value_bytes"] or 0) or time.monotonic() > deadline:
            return session["value_bytes"] or 0
        time.sleep(0.05)

MIB = 1 << 20
big = [torch.ones(MIB, device="mux") for _ in range(20)]  # 4 MiB each
full = held(lambda n: n >= 80 * MIB)
half = big[:10]
del big
after_del = held(lambda n: n < 60 * MIB)
killer = threading.Thread(target=half.clear)
killer.start()
killer.join()
after_thread = held(lambda n: n < 20 * MIB)
print(json.dumps([full / MIB, after_del / MIB, after_thread / MIB]))
"""


def test_values_die_with_their_last_reference_from_any_thread() -> None:
    full, after_del, after_thread = facts(LIFETIME, **ONE)
    assert full >= 80
    assert 40 <= after_del < 60
    assert after_thread < 20


def test_gt_run_runs_an_unchanged_script(tmp_path: object) -> None:
    import subprocess
    from pathlib import Path

    from tests.system.clusters import command, environment

    script = Path(str(tmp_path)) / "script.py"
    script.write_text("import sys, torch\nprint((torch.ones(2, device=sys.argv[1]) * 3).tolist(), __name__)\n")
    done = subprocess.run(
        command("run", str(script), "mux"),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(**ONE),
        cwd=os.sep,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[3.0, 3.0] __main__"
