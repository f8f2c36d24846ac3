"""One child process of a cluster: started with its log, watched, ended, described. Knows nothing of what it runs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import gt_runtime
from gt_runtime.launch import parent

_POLL_SECONDS = 0.1  # how often children are looked at where the kernel has no pidfd
_LINE_BYTES = 400  # of a log, generously: what is read for so many lines
TAIL_LINES = 15  # of a log, in an error


class Child:
    """A process in a session of its own (so that a terminal's Ctrl-C reaches the launcher alone)."""

    def __init__(self, who: str, argv: Sequence[str], environment: Mapping[str, str], log: Path, pipe: bool) -> None:
        """Start ``argv``. Standard output goes to ``log`` too, or, if ``pipe``, to ``self.output``.

        Raises:
            OSError: it can't be started.
        """
        self.who = who
        self.log = log
        self.reported = False  # whether its end has been told
        with open(log, "ab", buffering=0) as file:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else file,
                stderr=file,
                env=dict(environment),
                cwd=log.parent,  # where a core file would be found with the log
                start_new_session=True,
                bufsize=0,
            )
        self.pid = self._process.pid
        self.output = self._process.stdout.fileno() if self._process.stdout else -1
        try:
            self.pidfd = parent.open_pidfd(self.pid)
        except ProcessLookupError:  # not before it is waited for; no reason to fail
            self.pidfd = None

    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send it ``number`` if it still runs."""
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Let go of the descriptors; the process has ended."""
        if self._process.stdout:
            self._process.stdout.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def ending(self) -> str:
        """How it ended, in words."""
        status = self.status()
        if status is None:
            return "still runs"
        if status < 0:
            try:
                return f"was ended by {signal.Signals(-status).name}"
            except ValueError:
                return f"was ended by signal {-status}"
        return f"ended with exit status {status}"

    def tail(self) -> str:
        """The last lines of its log, with a line that says which."""
        lines = tail(self.log, TAIL_LINES)
        if not lines:
            return f"its log {self.log} is empty"
        return "\n".join([f"the end of its log {self.log}:", *(f"  | {line}" for line in lines)])


def tail(path: Path, lines: int) -> list[str]:
    """The last ``lines`` lines of a text file, fewer if they are very long; empty if it can't be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - lines * _LINE_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def wait_any(children: Iterable[Child], others: Sequence[int], seconds: float | None) -> list[int]:
    """Wait until a child has ended or one of ``others`` can be read, at most ``seconds`` (None: for ever).

    Returns those that can be read; who has ended, ``Child.status`` tells. Leave out children whose end is known.
    """
    children = list(children)
    blind = any(child.pidfd is None for child in children)
    poller = select.poll()
    for fd in [*others, *(child.pidfd for child in children if child.pidfd is not None)]:
        poller.register(fd, select.POLLIN)
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        step = min(_POLL_SECONDS, left if left is not None else _POLL_SECONDS) if blind else left
        ready = [fd for fd, _ in poller.poll(None if step is None else step * 1000)]
        if ready or any(child.status() is not None for child in children) or left == 0:
            return [fd for fd in ready if fd in others]


def wait_all(children: Iterable[Child], seconds: float) -> bool:
    """Wait until all have ended, at most ``seconds``; True if they have."""
    deadline = time.monotonic() + seconds
    while running := [child for child in children if child.status() is None]:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        wait_any(running, (), left)
    return True


def end_all(children: Sequence[Child], term_seconds: float = 3.0, kill_seconds: float = 5.0) -> None:
    """End what still runs: SIGTERM, and SIGKILL for those that don't listen. Returns once they are gone."""
    for number, seconds in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, kill_seconds)):
        for child in children:
            child.signal(number)
        if wait_all(children, seconds):
            break
    for child in children:
        if child.status() is not None:
            child.close()


def python(module: str) -> tuple[str, ...]:
    """The command that runs one of our modules; ``-P`` keeps the working directory off the interpreter's path."""
    return (sys.executable, "-P", "-m", module)


def watched_python(module: str) -> tuple[str, ...]:
    """The same, for a module that is slow to look after its ``--parent`` itself."""
    return (*python("gt_runtime.launch.child"), module)


def environment(threads: int = 0, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this process's, with what our processes need.

    ``threads`` is for its compute libraries; 0 leaves them as they are.
    """
    found = dict(os.environ)
    found.pop("PYTHONINSPECT", None)  # it would keep an ended child at a prompt
    found["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    found["PYTHONUNBUFFERED"] = "1"
    paths = [os.path.abspath(p) for p in found.get("PYTHONPATH", "").split(os.pathsep) if p]
    root = os.path.dirname(os.path.dirname(os.path.abspath(gt_runtime.__file__)))
    if os.path.basename(root) not in ("site-packages", "dist-packages") and root not in paths:
        paths.insert(0, root)  # run from a source tree: the child must find the same one
    if paths:
        found["PYTHONPATH"] = os.pathsep.join(paths)
    if threads:
        found["OMP_NUM_THREADS"] = found["MKL_NUM_THREADS"] = str(threads)
    return found | dict(more or {})
