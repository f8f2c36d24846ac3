"""Large tensors where there is no shared memory: pieces beside the control socket, each acknowledged, a few under
way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import zmq

from gt.link import Link
from gt_runtime.protocol import limits, messages


@dataclass(slots=True)
class _Transfer:
    memory: memoryview  # of the whole tensor
    moved: int = 0  # pieces that were acknowledged (upload), or bytes that have arrived (fetch)
    done: bool = False

    def open(self, number: int) -> bool:
        """Whether piece ``number`` may leave."""
        return self.done or number - self.moved < limits.CHUNK_WINDOW


class Bulk:
    """Connects at the first use. Transfers are numbered by the session's requests."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, session: str, key: str) -> None:
        self._context, self._endpoint, self._session, self._key = context, endpoint, session, key
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._transfers: dict[int, _Transfer] = {}

    def upload(self, transfer: int, memory: memoryview) -> None:
        """Stages ``memory`` at the worker; returns once all of it has arrived there."""
        link = self._connected()
        state = self._transfers[transfer] = _Transfer(memory)
        try:
            total = memory.nbytes
            for number, offset in enumerate(range(0, total, limits.CHUNK_BYTES)):
                link.wait(partial(state.open, number))
                if state.done:  # its worker was lost: the Upload will say so
                    return
                end = min(offset + limits.CHUNK_BYTES, total)
                link.send(
                    messages.Chunk(self._session, transfer, offset, total, end == total, bytes(memory[offset:end]))
                )
            link.wait(lambda: state.done)
        finally:
            del self._transfers[transfer]

    def expect(self, transfer: int, memory: memoryview) -> None:
        """Chunks of ``transfer`` go to ``memory`` from now on."""
        self._connected()
        self._transfers[transfer] = _Transfer(memory)

    def wait(self, transfer: int, given_up: Callable[[], bool]) -> None:
        """Returns once an expected transfer is complete, or ``given_up`` says that it won't be."""
        state = self._transfers[transfer]
        self._connected().wait(lambda: state.done or given_up())

    def forget(self, transfer: int) -> None:
        """Chunks of ``transfer`` that still come are dropped."""
        self._transfers.pop(transfer, None)

    def fail(self, error: BaseException) -> None:
        if self._link is not None:
            self._link.fail(error)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _connected(self) -> Link:
        with self._lock:
            if self._link is None:
                self._link = Link(self._context, self._endpoint)
                self._link.on(messages.Chunk, self._arrived)
                self._link.send(messages.Beat(self._session, 0, {"key": self._key}))
            return self._link

    def _arrived(self, chunk: messages.Chunk) -> None:
        state = self._transfers.get(chunk.transfer)
        data = memoryview(chunk.data)
        if data.nbytes == 0 and chunk.nbytes > 0:  # an acknowledgement of ours
            if state is not None:
                state.moved += 1
                state.done = state.done or chunk.last
            return
        if state is not None and chunk.offset + data.nbytes <= state.memory.nbytes:
            state.memory[chunk.offset : chunk.offset + data.nbytes] = data
            state.moved += data.nbytes
            state.done = state.moved >= state.memory.nbytes
        assert self._link is not None
        self._link.send(messages.Chunk(self._session, chunk.transfer, chunk.offset, chunk.nbytes, chunk.last, b""))
