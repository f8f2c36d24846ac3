"""The terminal as it was, however the app ends.

Textual restores it when it stops by itself. What it leaves open: signals that end a process, and errors where it can't
stop in order any more. Knows no app beyond "something that can be asked to exit".
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
GRACE_SECONDS = 3.0  # for an orderly exit after a signal

_MODES_OFF = (1049, 1000, 1002, 1003, 1006, 1015, 1004, 2004)  # alternate screen, mouse, focus reports, bracketed paste
_RESTORE = "\x1b[<u" + "".join(f"\x1b[?{m}l" for m in _MODES_OFF) + "\x1b[?7h\x1b[?25h\x1b[0m"  # wrap, cursor, colours


class Ending:
    """Signals that asked the process to end. ``status`` is 128 + the signal's number, 0 before."""

    def __init__(self) -> None:
        self.status = 0
        self._exit: Callable[[int], None] | None = None

    def on_signal(self, exit_with: Callable[[int], None]) -> None:
        """Call ``exit_with(status)``, from the main thread between two steps of the program, once a signal has come."""
        self._exit = exit_with
        if self.status:
            exit_with(self.status)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        first, self.status = self.status == 0, 128 + number
        if first and self._exit is not None:
            self._exit(self.status)


@contextlib.contextmanager
def guarded() -> Iterator[Ending]:
    """Catches the signals of ``SIGNALS`` within, and leaves the terminal as it was on entry.

    If an orderly exit takes longer than ``GRACE_SECONDS`` after a signal, the terminal is restored and the process
    ends there.
    """
    ending = Ending()
    fd = _terminal()
    before = None if fd is None else _attributes(fd)
    done = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if ending.status == 0:
            threading.Thread(target=give_up, args=(128 + number,), daemon=True, name="gt-top-end").start()
        ending.handle(number, frame)

    def give_up(status: int) -> None:
        if not done.wait(GRACE_SECONDS):
            _restore(fd, before)
            os._exit(status)

    old = {s: signal.signal(s, handle) for s in SIGNALS}
    try:
        yield ending
    finally:
        done.set()
        _restore(fd, before)
        for s, handler in old.items():
            signal.signal(s, handler)


def _terminal() -> int | None:
    """The terminal that Textual writes to."""
    try:
        fd = sys.__stderr__.fileno() if sys.__stderr__ is not None else -1
    except (ValueError, OSError):
        return None
    return fd if fd >= 0 and os.isatty(fd) else None


def _attributes(fd: int) -> list[object] | None:
    try:
        return termios.tcgetattr(fd)  # type: ignore[no-any-return, unused-ignore]
    except termios.error:
        return None


def _restore(fd: int | None, before: list[object] | None) -> None:
    """Harmless where everything is restored already, or where the terminal is gone."""
    if fd is None:
        return
    try:
        if before is not None:
            termios.tcsetattr(fd, termios.TCSANOW, before)  # type: ignore[arg-type, unused-ignore]
        os.set_blocking(fd, True)
        os.write(fd, _RESTORE.encode())
    except (OSError, termios.error):
        pass
