"""gt-top as a process on a real (pseudo) terminal: however it ends, the terminal is as before and the exit status says
how.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from gt_runtime.launch.connection import RuntimeDirectory
from tests.top.fakes import FakeCluster, frame, gpu_worker, session

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0  # for a process to start or end on a busy machine

#: what Textual switches on, and what must come last for each
MODES = {
    "1049": "alternate screen",
    "1000": "mouse",
    "1003": "mouse",
    "1006": "mouse",
    "2004": "paste",
    "1004": "focus",
}


class Terminal:
    """A pseudo terminal with a program in its foreground."""

    def __init__(self, command: list[str], size: tuple[int, int] = (100, 30), **environment: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(slave)
        self.output = b""
        self.slave = slave

        def own_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, preexec_fn=own_the_terminal,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", **environment},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.slave)
        if self.master >= 0:
            os.close(self.master)

    def read(self, seconds: float = 0.05) -> None:
        if self.master >= 0 and select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 1 << 16)

    def until(self, text: str) -> None:
        """Read until ``text`` has been written."""
        deadline = time.monotonic() + SECONDS
        while text.encode() not in self.output:
            assert time.monotonic() < deadline, f"no {text!r} in {self.output[-2000:]!r}"
            assert self.process.poll() is None, f"ended {self.process.returncode}: {self.output[-4000:]!r}"
            self.read()

    def ended(self) -> int:
        """Its exit status, once it has ended; all output read."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running: {self.output[-500:]!r}"
            self.read()
        while self.master >= 0 and select.select([self.master], [], [], 0.1)[0]:
            self.output += os.read(self.master, 1 << 16)
        return self.process.returncode

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def assert_restored(self) -> None:
        assert termios.tcgetattr(self.slave) == self.before
        for mode, what in MODES.items():
            switches = re.findall(rb"\x1b\[\?%s([hl])" % mode.encode(), self.output)
            assert switches and switches[-1] == b"l", f"{what} ({mode}) is still on"
        assert re.findall(rb"\x1b\[\?25([hl])", self.output)[-1] == b"h", "the cursor is hidden"


@pytest.fixture
def cluster(folder: Path, directory: RuntimeDirectory) -> Iterator[FakeCluster]:
    with FakeCluster(folder, directory=directory) as fake:
        fake.newest = frame(3, workers=[gpu_worker(i) for i in range(3)], sessions=[session(0)])
        yield fake


GT_TOP = [sys.executable, "-m", "gt_top"]


@pytest.mark.parametrize(("keys", "status"), [(b"q", 0), (b"\x03", 0), (b"\x1b[21~", 0)], ids=["q", "ctrl-c", "f10"])
def test_keys_quit(cluster: FakeCluster, keys: bytes, status: int) -> None:
    with Terminal(GT_TOP) as t:
        t.until("train_gpt.py")
        t.type(keys)
        assert t.ended() == status
        t.assert_restored()
        assert b"Traceback" not in t.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_restore(cluster: FakeCluster, number: signal.Signals) -> None:
    with Terminal(GT_TOP) as t:
        t.until("train_gpt.py")
        t.process.send_signal(number)
        assert t.ended() == 128 + number
        t.assert_restored()
        assert b"Traceback" not in t.output


def test_a_signal_while_starting_restores(cluster: FakeCluster) -> None:
    with Terminal(GT_TOP) as t:
        t.until("\x1b[?1049h")
        t.process.terminate()
        assert t.ended() == 128 + signal.SIGTERM
        t.assert_restored()


def test_a_terminal_that_goes_away_ends_it(cluster: FakeCluster) -> None:
    with Terminal(GT_TOP) as t:
        t.until("train_gpt.py")
        os.close(t.master)
        t.master = -1
        assert t.ended() == 128 + signal.SIGHUP


CRASH = """
import sys
from gt_top import app, screens
from gt_top.screens import workers
def crash(*a, **k):
    raise RuntimeError("injected")
old = workers.header
def header(view, *rest):
    if view.workers:
        crash()
    return old(view, *rest)
workers.header = header
from gt_top.__main__ import main
sys.exit(main())
"""


def test_a_crash_restores_says_why_and_fails(cluster: FakeCluster) -> None:
    with Terminal([sys.executable, "-c", CRASH]) as t:
        assert t.ended() == 1
        t.assert_restored()
        assert b"injected" in t.output


STUCK = """
import sys, time
from gt_top import terminal
terminal.GRACE_SECONDS = 0.2
from gt_top.app import GtTop
GtTop.quit = lambda self: time.sleep(1000)
from gt_top.__main__ import main
sys.exit(main())
"""


def test_an_app_that_hangs_still_obeys_a_signal(cluster: FakeCluster) -> None:
    with Terminal([sys.executable, "-c", STUCK]) as t:
        t.until("train_gpt.py")
        t.type(b"q")
        t.process.terminate()
        assert t.ended() == 128 + signal.SIGTERM
        t.assert_restored()


def test_no_color_means_no_colour(cluster: FakeCluster) -> None:
    with Terminal(GT_TOP, NO_COLOR="1") as t:
        t.until("train_gpt.py")
        t.type(b"q")
        assert t.ended() == 0
        colours = [c for c in _sgr(t.output) if c.startswith(("38", "48")) or re.fullmatch(r"[349][0-7]", c)]
        assert not colours, colours[:5]


def test_ascii_writes_ascii(cluster: FakeCluster) -> None:
    with Terminal([*GT_TOP, "--ascii"]) as t:
        t.until("train_gpt.py")
        t.type(b"q")
        assert t.ended() == 0
        assert t.output.decode().isascii()


def _sgr(output: bytes) -> list[str]:
    found: list[Any] = re.findall(rb"\x1b\[([0-9;]*)m", output)
    return [code for codes in found for code in re.findall(r"(?:38|48);(?:2;\d+;\d+;\d+|5;\d+)|\d+", codes.decode())]
