"""``gt down``: ask a cluster to stop, and see to it that it does."""

from __future__ import annotations

import getpass
import os
import signal
import time

from gt_runtime.commands.common import Exit, Unreachable, ask, print_json, say
from gt_runtime.control.client import ControlError
from gt_runtime.launch import parent
from gt_runtime.launch.connection import Connection, RuntimeDirectory
from gt_runtime.launch.errors import LaunchError

_ASKED_SECONDS = 10.0  # for a cluster that agreed to stop; its own steps take less
_TERM_SECONDS = 16.0  # for a launcher that got SIGTERM: above the bounds of LocalCluster.stop
_KILL_SECONDS = 5.0


def down(where: Connection, as_json: bool) -> int:
    """Stop the cluster at ``where``, wait until it is gone and say so. Returns the exit status.

    Raises:
        LaunchError: it didn't stop, or nothing was reached.
        ControlError: it refuses.
    """
    gone = _stop(where)
    name = where.name or where.front
    if as_json:
        print_json({"cluster": where.name, "address": where.front, "gone": gone})
    else:
        print(f"cluster '{name}' has stopped" if gone else f"cluster '{name}' was told to stop")
    return Exit.OK


def _stop(where: Connection) -> bool:
    """Whether it is known to be gone: what runs on other hosts, or was found by its address, isn't seen from here."""
    reason = f"gt down by {_user()}"
    if not where.pid or not where.local:
        ask(where, "stop", reason=reason)
        return False
    try:
        ask(where, "stop", reason=reason)
    except (ControlError, Unreachable) as error:
        if where.embedded:
            raise  # its process is a program of the user's: not ours to end
        if not where.alive():
            return _gone()
        say(f"it can't be asked ({error}); its process {where.pid} is told to end")
    else:
        if where.embedded:
            return _wait_file(where)
        if parent.wait_end(where.pid, _ASKED_SECONDS, where.pid_started or None):
            return _gone()
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        _signal(where, number)
        if parent.wait_end(where.pid, seconds, where.pid_started or None):
            return _gone()
    found = f"its process {where.pid} doesn't end"
    raise LaunchError(f"to stop the cluster '{where.name}'", found, "see its log with `gt logs`")


def _gone() -> bool:
    """Its launcher has ended: whatever it left is removed."""
    RuntimeDirectory.open().tidy()
    return True


def _wait_file(where: Connection) -> bool:
    """Wait until an embedded cluster is over: its program lives on, so its connection file tells."""
    file = RuntimeDirectory.open().file(where.name)
    deadline = time.monotonic() + _ASKED_SECONDS
    while file.exists():
        if time.monotonic() > deadline:
            found = f"it agreed, and is still there after {_ASKED_SECONDS:.0f} s"
            raise LaunchError(f"to stop the cluster '{where.name}'", found, f"end its program, process {where.pid}")
        time.sleep(0.05)
    return True


def _signal(where: Connection, number: int) -> None:
    """Signal the launcher, if the process of that number is still it."""
    if not where.alive():
        return
    try:
        os.kill(where.pid, number)
    except ProcessLookupError:
        pass


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
