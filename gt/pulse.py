"""The client's heartbeat: a thread with a socket of its own, so that a busy or waiting program still shows that it
lives and still learns that the cluster is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

from gt_runtime.protocol import codec, limits, messages

_SILENCE = 5.0  # seconds without the dispatcher's beat after which it counts as gone


class Pulse:
    """Beats until ``stop``; calls ``gone(reason)`` once if the dispatcher ends or falls silent."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        session: str,
        key: str,
        dispatcher_pid: int | None,
        gone: Callable[[str], None],
    ) -> None:
        self._context, self._endpoint, self._session, self._gone = context, endpoint, session, gone
        self._key = key
        self._pid = dispatcher_pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gt-pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _run(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._endpoint)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        pidfd = _pidfd(self._pid)
        if pidfd is not None:
            poller.register(pidfd, zmq.POLLIN)
        heard = time.monotonic()
        beat = codec.encode(messages.Beat(self._session, 0, {"key": self._key}))
        try:
            while not self._stop.is_set():
                try:
                    socket.send_multipart(beat, zmq.NOBLOCK)
                except zmq.Again:
                    pass
                events = dict(poller.poll(int(limits.BEAT_SECONDS * 1000)))
                if pidfd is not None and pidfd in events:
                    return self._gone("its dispatcher has ended")
                before = heard
                while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                    socket.recv_multipart()
                    heard = time.monotonic()
                if heard > before:
                    self._stop.wait(limits.BEAT_SECONDS)  # answered at once: sleep the rest of the beat
                elif time.monotonic() - heard > _SILENCE:
                    return self._gone(f"its dispatcher has been silent for {_SILENCE:.0f} s")
        except zmq.ContextTerminated:
            pass
        finally:
            if pidfd is not None:
                os.close(pidfd)
            socket.close()


def _pidfd(pid: int | None) -> int | None:
    if pid is None:
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
