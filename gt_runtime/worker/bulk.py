"""Large tensors in pieces, from and to clients that share no memory with this worker: the bulk socket and its thread.

An upload is staged here before its Upload message comes; a fetch's chunks go out with at most ``CHUNK_WINDOW``
unacknowledged.
"""

from __future__ import annotations

import mmap
import os
import queue
import sys
import threading
from dataclasses import dataclass
from typing import Any

import zmq

from gt_runtime.protocol import codec
from gt_runtime.protocol.limits import CHUNK_BYTES, CHUNK_WINDOW
from gt_runtime.protocol.messages import Beat, Chunk, Failure, FailureKind

Key = tuple[str, int]  # session, transfer


@dataclass(slots=True)
class _Staged:
    data: mmap.mmap | None  # None once refused
    nbytes: int
    got: int = 0


class Staging:
    """Uploads as they come in. Locked: the bulk thread fills it, the main loop takes from it."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes that may be staged at a time, all sessions together; 0 = no limit."""
        self._limit = limit
        self._lock = threading.Lock()
        self._staged: dict[Key, _Staged] = {}
        self._closed: set[str] = set()
        self._bytes = 0

    def add(self, chunk: Chunk) -> Chunk | None:
        """Take a piece; the acknowledgement, or None if the session has ended. A transfer that is refused (no memory)
        is acknowledged all the same, and ``take`` says why it isn't there."""
        data = memoryview(chunk.data)
        key = (chunk.session, chunk.transfer)
        with self._lock:
            if chunk.session in self._closed:
                return None
            staged = self._staged.get(key)
            if staged is None:
                staged = self._staged[key] = _Staged(self._room(chunk.nbytes), chunk.nbytes)
            end = chunk.offset + data.nbytes
            if staged.data is not None and chunk.nbytes == staged.nbytes and end <= staged.nbytes:
                staged.data[chunk.offset : end] = data
            staged.got += data.nbytes
            return Chunk(chunk.session, chunk.transfer, chunk.offset, chunk.nbytes, staged.got >= staged.nbytes)

    def take(self, session: str, transfer: int, nbytes: int) -> mmap.mmap | Failure:
        """The bytes of a complete transfer, or why they aren't here. They are the caller's from here on."""
        with self._lock:
            staged = self._staged.pop((session, transfer), None)
            if staged is None:
                return _failure(FailureKind.PROTOCOL, f"nothing was staged as transfer {transfer}")
            if staged.data is None:
                text = f"no room for an upload of {staged.nbytes} bytes beside {self._bytes} bytes of others under way"
                return _failure(FailureKind.MEMORY, text, "OutOfMemoryError")
            self._bytes -= staged.nbytes
            if staged.got < staged.nbytes or staged.nbytes != nbytes:
                return _failure(
                    FailureKind.PROTOCOL,
                    f"transfer {transfer} has {staged.got} of {staged.nbytes} bytes, {nbytes} are asked for",
                )
            return staged.data

    def drop(self, session: str) -> None:
        """The session has ended: forget its transfers, and whatever still comes."""
        with self._lock:
            self._closed.add(session)
            for key in [key for key in self._staged if key[0] == session]:
                staged = self._staged.pop(key)
                if staged.data is not None:
                    self._bytes -= staged.nbytes

    def _room(self, nbytes: int) -> mmap.mmap | None:
        """Pages that come into being as they are written: a bytearray would clear gigabytes at once, with the GIL held,
        and this worker's heartbeat would stop."""
        if self._limit and self._bytes + nbytes > self._limit:
            return None
        try:
            data = mmap.mmap(-1, nbytes)
        except (OSError, ValueError, OverflowError):
            return None
        self._bytes += nbytes
        return data


@dataclass(slots=True)
class _Outgoing:
    data: memoryview
    sent: int = 0
    under_way: int = 0


class Bulk(threading.Thread):
    """The bulk socket's thread. ``send`` may be called from any thread."""

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, worker: str, key: str, epoch: int, staging: Staging
    ) -> None:
        super().__init__(name="bulk", daemon=True)
        self._context, self._endpoint = context, endpoint
        self._worker, self._key, self._epoch = worker, key, epoch
        self._staging = staging
        self._orders: queue.SimpleQueue[tuple[Key, memoryview] | str | None] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._outgoing: dict[Key, _Outgoing] = {}

    def send(self, session: str, transfer: int, data: memoryview) -> None:
        """Send the bytes of a fetch in chunks; ``data`` is kept until all are on their way."""
        self._order(((session, transfer), data))

    def drop(self, session: str) -> None:
        """The session has ended: nothing more goes to it."""
        self._order(session)

    def stop(self) -> None:
        """End the thread and close the socket."""
        self._order(None)

    def _order(self, order: tuple[Key, memoryview] | str | None) -> None:
        self._orders.put(order)
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set_hwm(0)
        socket.connect(self._endpoint)
        socket.send_multipart(codec.encode(Beat(self._worker, self._epoch, {"key": self._key})))  # says who we are
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake in ready:
                os.eventfd_read(self._wake)
                if not self._obey(socket):
                    break
            if socket in ready:
                self._receive(socket)
        socket.close()
        os.close(self._wake)

    def _obey(self, socket: zmq.Socket[Any]) -> bool:
        while not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return False
            if isinstance(order, str):
                for key in [key for key in self._outgoing if key[0] == order]:
                    del self._outgoing[key]
                continue
            key, data = order
            self._outgoing[key] = _Outgoing(data)
            self._pump(socket, key)
        return True

    def _receive(self, socket: zmq.Socket[Any]) -> None:
        try:
            message = codec.decode(socket.recv_multipart(copy=False))
        except codec.ProtocolError as error:
            print(f"bulk: dropped a message: {error}", file=sys.stderr, flush=True)
            return
        if type(message) is not Chunk:
            return  # the dispatcher's answer to our Beat
        key = (message.session, message.transfer)
        outgoing = self._outgoing.get(key)
        if outgoing is None:
            answer = self._staging.add(message)
            if answer is not None:
                socket.send_multipart(codec.encode(answer))
            return
        outgoing.under_way -= 1
        self._pump(socket, key)

    def _pump(self, socket: zmq.Socket[Any], key: Key) -> None:
        """Send what the window allows; forget the transfer once all of it is acknowledged."""
        outgoing = self._outgoing[key]
        total = outgoing.data.nbytes
        while outgoing.under_way < CHUNK_WINDOW and outgoing.sent < total:
            piece = outgoing.data[outgoing.sent : outgoing.sent + CHUNK_BYTES]
            last = outgoing.sent + piece.nbytes == total
            chunk = Chunk(key[0], key[1], outgoing.sent, total, last, piece)
            socket.send_multipart(codec.encode(chunk), copy=False)
            outgoing.sent += piece.nbytes
            outgoing.under_way += 1
        if outgoing.sent == total and outgoing.under_way <= 0:
            del self._outgoing[key]


def _failure(kind: FailureKind, text: str, error: str = "RuntimeError") -> Failure:
    return Failure(kind, error, text)
