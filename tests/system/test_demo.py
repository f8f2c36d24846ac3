"""``make demo``'s program: it trains, it tells, and it leaves nothing running, whichever way it ends."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, str(ROOT / "examples" / "demo.py"))
TRAINED = re.compile(r"^ {2}(gpt|digits) +([\d,]+) steps +([\d.]+) steps/s +loss ([\d.]+) -> ([\d.]+)", re.MULTILINE)
SECONDS = 120  # to end once it was told to, or its time is over
GONE_SECONDS = 10

pytestmark = pytest.mark.slow


def left_running(demo: int) -> list[str]:
    """Processes of the demo with that pid, itself apart, by the cluster's name in their environment or arguments."""
    mark = f"demo-{demo}"
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == demo or process.status() == psutil.STATUS_ZOMBIE:
                continue
            command = process.cmdline()
            if process.environ().get("GT_CLUSTER") == mark or any(mark in word for word in command):
                found.append(f"{process.pid}: {' '.join(command)}")
        except psutil.Error:  # gone meanwhile, or not ours to look at
            continue
    return found


@pytest.fixture
def start(wait_until: Callable[..., None], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the demo without a terminal; at the end whatever it left is killed, and told."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
        wait_until(lambda pid=process.pid: not left_running(pid), GONE_SECONDS, "the demo's processes end with it")


def both_trained(output: str) -> None:
    steps = {name: int(count.replace(",", "")) for name, count, *_ in TRAINED.findall(output)}
    assert set(steps) == {"gpt", "digits"}, output
    assert all(count > 0 for count in steps.values()), output


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Reads until a line holds ``text``; fails with what was read if the output ends before."""
    assert process.stdout
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    pytest.fail(f"never said {text!r}:\n{''.join(seen)}")


def test_ends_by_itself_and_tells_what_was_trained(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("--seconds", "15")
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    both_trained(output)
    assert "w0" in output and "w1" in output, "no table of workers was printed"
    assert not left_running(process.pid)


def test_a_signal_ends_it_in_good_order(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start()
    wait_for_line(process, "w1")  # the first table: all is up
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    both_trained(output)
    assert not left_running(process.pid)


def test_killed_outright_it_takes_everything_with_it(
    start: Callable[..., subprocess.Popen[str]], wait_until: Callable[..., None]
) -> None:
    process = start()
    wait_for_line(process, "w1")
    assert len(left_running(process.pid)) >= 5  # gt up, dispatcher, two workers, two programs: or the test sees nothing
    process.kill()
    process.wait()
    wait_until(lambda: not left_running(process.pid), GONE_SECONDS, "all processes of a killed demo end")


def test_in_a_terminal_q_leaves_gt_top_and_tells(wait_until: Callable[..., None]) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "36"}
        os.execv(COMMAND[0], COMMAND)
    seen = b""
    pressed = False
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            seen += data
            if not pressed and b"gpt.py" in seen.partition(b"\x1b[?1049h")[2]:  # gt-top shows the session
                os.write(terminal, b"q")
                pressed = True
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
    text = seen.decode(errors="replace")
    assert pressed, f"gt-top never showed the program's session:\n{text[-2000:]}"
    assert os.waitstatus_to_exitcode(status) == 0, text[-2000:]
    _, _, after = text.rpartition("\x1b[?1049l")
    both_trained(after.replace("\r\n", "\n"))
    wait_until(lambda: not left_running(pid), GONE_SECONDS, "nothing is left of the demo")
