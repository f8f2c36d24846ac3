"""Is that process still the one it was, and waiting for its end. Linux only; knows nothing of clusters.

A pid alone names a process only while it lives: the kernel gives the number away again. So a process is named here by
its pid and its start time (clock ticks since boot, field 22 of ``/proc/PID/stat``).
"""

from __future__ import annotations

import os
import select
import time

_POLL_SECONDS = 0.25  # how often a parent is looked at where the kernel has no pidfd (before Linux 5.3)
_DEAD_STATES = ("Z", "X")  # zombie, dead: its work is over though its number is still taken


def start_time(pid: int) -> int | None:
    """When process ``pid`` started, in clock ticks since boot; None if it isn't there or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything, so count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0].decode() in _DEAD_STATES:
        return None
    return int(fields[19])


def alive(pid: int, started: int | None = None) -> bool:
    """Whether ``pid`` runs and, where ``started`` is given, is the process that started then."""
    found = start_time(pid)
    return found is not None and (started is None or found == started)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when ``pid`` ends; None where the kernel has none.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def wait_end(pid: int, seconds: float | None, started: int | None = None) -> bool:
    """Wait until ``pid`` (of that start time) ends, at most ``seconds``; None waits for ever. True if it ended.

    Works for any process of this host, children or not.
    """
    if not alive(pid, started):
        return True
    try:
        fd = open_pidfd(pid)
    except ProcessLookupError:
        return True
    deadline = None if seconds is None else time.monotonic() + seconds
    if fd is None:
        while alive(pid, started):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True
    try:
        if not alive(pid, started):  # the number changed hands between the look and the open
            return True
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        return bool(poller.poll(left))
    finally:
        os.close(fd)
