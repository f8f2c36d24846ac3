"""The heartbeat thread: beats with figures every quarter of a second, and the end of the process when nobody is left
to work for.

Its own thread and socket, so that a long operator doesn't look like a dead worker.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

from gt_runtime.protocol import codec
from gt_runtime.protocol.limits import BEAT_SECONDS
from gt_runtime.protocol.messages import Beat

SILENCE_SECONDS = 5.0  # without the dispatcher's beats: the cluster has ended


def end_process(reason: str) -> None:
    """End the whole process at once: its main loop may be deep inside an operator that nobody needs any more."""
    print(f"worker ends: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


class Pulse(threading.Thread):
    """``facts`` is called in this thread for each beat; ``end`` once, with the reason, when the cluster or the parent
    is gone."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        worker: str,
        epoch: int,
        facts: Callable[[], dict[str, Any]],
        *,
        watched: dict[str, int],
        end: Callable[[str], None] = end_process,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        """``watched``: pids of this host whose end is our end, by what to call them; 0 = unknown, not watched."""
        super().__init__(name="pulse", daemon=True)
        self._context, self._endpoint = context, endpoint
        self._worker = worker
        self.epoch = epoch  # set by the main loop
        self._facts, self._end = facts, end
        self._silence = silence
        self._watched = watched
        self._ending = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def stop(self) -> None:
        """End the thread."""
        os.eventfd_write(self._ending, 1)

    def run(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.connect(self._endpoint)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._ending, zmq.POLLIN)
        pidfds: dict[int, str] = {}
        for name, pid in self._watched.items():
            fd = open_pidfd(pid)
            if fd is not None:
                pidfds[fd] = name
                poller.register(fd, zmq.POLLIN)
            elif pid:
                return self._end(f"{name} (pid {pid}) has ended")
        reason = self._beat(socket, poller, pidfds)
        for fd in pidfds:
            os.close(fd)
        socket.close()
        if reason:
            self._end(reason)
        return None

    def _beat(self, socket: zmq.Socket[Any], poller: zmq.Poller, pidfds: dict[int, str]) -> str:
        """Beat until told to stop (""), or until there is a reason to end."""
        heard = time.monotonic()
        due = heard
        while True:
            now = time.monotonic()
            if now >= due:
                socket.send_multipart(codec.encode(Beat(self._worker, self.epoch, self._facts())))
                due = now + BEAT_SECONDS
            ready = dict(poller.poll(max(0, int((due - time.monotonic()) * 1000))))
            if self._ending in ready:
                return ""
            for fd, name in pidfds.items():
                if fd in ready:
                    return f"{name} has ended"
            if socket in ready:
                _drain(socket)
                heard = time.monotonic()
            elif time.monotonic() - heard > self._silence:
                return f"no beat from the dispatcher for {self._silence:g} s"


def _drain(socket: zmq.Socket[Any]) -> None:
    while True:
        try:
            socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when ``pid`` ends; None if it isn't there (any more) or ``pid`` is 0."""
    if pid <= 0:
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
