"""The client's socket: sends in one order, receives whoever waits, and the credit that bounds what is under way.

There is no receiving thread. Whoever waits first reads the socket for all (the leader); others sleep until the
leader, or a sender that found something to read, has put their answer down. So a fetch costs no thread switch.

Interrupts: Ctrl-C may strike between any two Python operations of the main thread. A multipart message therefore
leaves inside one C call, and a batch stays in the native queue until it has left; the dispatcher drops a batch that
it has seen.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq
from zmq.backend import Socket as _RawSocket

from gt.errors import ClusterError
from gt_runtime.protocol import codec, messages

_NOTICE_AFTER = 5.0  # seconds without credit before the user is told
_WAKE = 0.25  # seconds; a waiting leader looks around at least this often


class Link:
    """A DEALER to the dispatcher's front (or bulk) endpoint."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(endpoint)
        self._fd: int = self._socket.getsockopt(zmq.FD)
        self._send_part = partial(_RawSocket.send, self._socket)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._leading = False
        self._draining = False
        self._handlers: dict[type[Any], Callable[[Any], None]] = {}
        self.failure: BaseException | None = None  # set once: the session is over

    def on(self, message: type[Any], handler: Callable[[Any], None]) -> None:
        """``handler`` gets every received ``message``; it runs under the link's lock and must not block."""
        self._handlers[message] = handler

    def send(self, *messages: Any) -> None:
        """Sends them together; never blocks (credit bounds what is under way)."""
        frames = codec.encode(*messages)
        flags = (zmq.SNDMORE,) * (len(frames) - 1) + (0,)
        with self._lock:
            deque(map(self._send_part, frames, flags), maxlen=0)
            self._drain()

    def pump(self) -> None:
        """Reads what has come, without waiting."""
        with self._lock:
            self._drain()

    def wait(self, ready: Callable[[], Any], timeout: float | None = None, what: str = "") -> Any:
        """What ``ready`` returns once it is true. Raises the link's failure, or ClusterError after ``timeout``
        seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while True:
                self._drain()
                if result := ready():
                    return result
                if self.failure is not None:
                    raise self.failure
                if deadline is not None and time.monotonic() > deadline:
                    raise ClusterError(f"no answer for {timeout:.0f} s ({what}); is the cluster alive? see gt status")
                if self._leading:
                    self._arrived.wait(_WAKE)
                else:
                    self._lead()

    def fail(self, error: BaseException) -> None:
        """Everyone who waits, now or later, gets ``error``. From any thread."""
        with self._lock:
            if self.failure is None:
                self.failure = error
            self._arrived.notify_all()
        self._nudge()

    def close(self) -> None:
        with self._lock:
            self._socket.close()
            os.close(self._wake)
            if self.failure is None:
                self.failure = ClusterError("this session is closed")

    def _lead(self) -> None:
        """Sleeps, without the lock, until the socket or a sender has something; the lock is held again afterwards."""
        self._leading = True
        self._lock.release()
        try:
            self._poll.poll(_WAKE * 1000)
        finally:
            self._lock.acquire()
            self._leading = False
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass
            self._arrived.notify()

    def _nudge(self) -> None:
        try:
            os.eventfd_write(self._wake, 1)
        except OSError:
            pass

    def _drain(self) -> None:
        """Reads all there is; under the lock. The socket's descriptor is edge-triggered: whoever sent must look too.
        A handler that sends doesn't read, too: the reading it was called from goes on.
        """
        if self._draining:
            return
        self._draining = True
        got = False
        try:
            while not self._socket.closed and self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                for message in codec.decode_all([f.buffer for f in frames]):
                    handler = self._handlers.get(type(message))
                    if handler is not None:
                        handler(message)
                got = True
        finally:
            self._draining = False
        if got:
            self._arrived.notify_all()
            if self._leading:
                self._nudge()


class Credit:
    """How much more may be sent; grows with the dispatcher's Credit messages."""

    def __init__(self, link: Link, instructions: int, nbytes: int) -> None:
        self._link = link
        self.instructions, self.nbytes = instructions, nbytes
        self._window = (instructions, nbytes)
        link.on(messages.Credit, self._grow)
        self.acknowledged: Callable[[int], None] = lambda n: None

    def take(self, instructions: int, nbytes: int) -> None:
        """Waits until the window is open, then takes. A single piece larger than the window passes when nothing
        else is under way.
        """
        if not self._open():
            told = time.monotonic() + _NOTICE_AFTER
            while True:
                try:
                    self._link.wait(self._open, max(0.05, told - time.monotonic()), "credit")
                    break
                except ClusterError:
                    if self._link.failure is not None:
                        raise
                    print(
                        "gt: this program is throttled: its workers are behind "
                        f"({self._window[0] - self.instructions:,} instructions under way); see gt workers",
                        file=sys.stderr,
                        flush=True,
                    )
                    self._link.wait(self._open)
                    break
        self.instructions -= instructions
        self.nbytes -= nbytes

    def _open(self) -> bool:
        return self.instructions > 0 and self.nbytes > 0

    def _grow(self, message: messages.Credit) -> None:
        self.instructions += message.instructions
        self.nbytes += message.nbytes
        self.acknowledged(message.instructions)
