"""What a worker does with each message: the native executor, clients' memory, staged uploads and copies, behind one
``handle``.

Takes messages in their order and answers through ``send``; knows no sockets. Where a value is still under way from a
peer, it calls ``wait``, which returns when something may have changed.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import Any, Protocol

from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import MAX_FRAME_BYTES
from gt_runtime.worker._native import Contents
from gt_runtime.worker._native import Executor as Native
from gt_runtime.worker.bulk import Staging
from gt_runtime.worker.channel import Copy, Incoming, Outgoing
from gt_runtime.worker.memory import ClientMemory, MemoryRefused

Finish = Callable[[Copy], None]


class Copies(Protocol):
    """Who moves values between workers (``peers.Peers``)."""

    def post(self, me: str, copy: Copy, finish: Finish) -> None: ...
    def set_members(self, members: dict[str, Any]) -> None: ...


class Chunks(Protocol):
    """Who sends fetches in chunks (``bulk.Bulk``)."""

    def send(self, session: str, transfer: int, data: memoryview) -> None: ...
    def drop(self, session: str) -> None: ...


class Executor:
    """Handles messages in order. Everything but ``stats`` belongs to the main loop's thread."""

    def __init__(
        self,
        worker: str,
        device: str,
        limit: int,
        *,
        copies: Copies,
        chunks: Chunks,
        staging: Staging,
        send: Callable[[Any], None],
        wait: Callable[[], None],
    ) -> None:
        """``limit``: bytes that values may take on this worker, 0 = what the allocator gives. ``wait`` is called while
        a value that is needed is under way; it returns once a copy may have finished (``wake`` can be polled)."""
        self.worker = worker
        self.epoch = 0
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._native = Native(worker, device, limit)
        self._copies, self._chunks, self._staging = copies, chunks, staging
        self._send, self._wait = send, wait
        self._finished: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        self._memory: dict[str, ClientMemory] = {}
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            m.Batch: self._batch,
            m.Upload: self._upload,
            m.Fetch: self._fetch,
            m.Sync: self._sync,
            m.Send: self._lend,
            m.Recv: self._borrow,
            m.Poison: self._poison,
            m.Open: self._open,
            m.Close: self._close,
            m.Peers: self._peers,
        }

    def handle(self, message: Any) -> None:
        """Run one message to its end. Messages of kinds that aren't for a worker are ignored."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    def refuse(self, message: Any, why: str) -> None:
        """``handle`` has raised: the session has lost what it asked for; answer whoever waits."""
        session = getattr(message, "session", "")
        if not self._native.known(session):
            failure = self._failure(why).pack()
        else:
            failure = self._native.broken(session, why)
        request = getattr(message, "verdict", 0) or getattr(message, "request", 0)
        if request:
            self._answer(session, request, failure)
        if isinstance(message, m.Batch | m.Upload):
            self._send(m.Done(session, message.seq, getattr(message, "instructions", 0), 0))
        if isinstance(message, m.Send):
            outgoing = Outgoing(message.peer, message.transfer, None, None, failure)
            self._copies.post(self.worker, outgoing, self._finish)

    def settle(self) -> None:
        """Take in the copies that have finished since the last call."""
        while not self._finished.empty():
            copy = self._finished.get()
            if isinstance(copy, Outgoing):
                self._native.release(copy.token)
            elif self._native.known(copy.session):
                self._arrive(copy)

    def stats(self) -> dict[str, Any]:
        """Figures for the heartbeat; may be called from any thread."""
        return self._native.stats()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _open(self, message: m.Open) -> None:
        facts = message.facts
        uid = facts.get("uid")
        self._native.open(message.session, _number(facts.get("memory")))
        self._memory[message.session] = ClientMemory(
            _number(facts.get("pid")), uid if type(uid) is int else None, bool(facts.get("same_host"))
        )

    def _close(self, message: m.Close) -> None:
        self._native.close(message.session)
        self._staging.drop(message.session)
        self._chunks.drop(message.session)
        if memory := self._memory.pop(message.session, None):
            memory.close()

    def _missing(self, session: str, request: int) -> bool:
        """True, and the request answered, if the session isn't open here."""
        if self._native.known(session):
            return False
        if request:
            self._answer(
                session, request, self._failure(f"no session {session} is open on worker {self.worker}").pack()
            )
        return True

    # -- instructions -------------------------------------------------------------------------------------------------

    def _batch(self, message: m.Batch) -> None:
        session, native = message.session, self._native
        if not self._missing(session, message.verdict):
            if message.definitions:
                native.define(session, message.definitions)
            if message.signals:
                native.signals(session, message.signals)
            words, verdict = memoryview(message.words), message.verdict != 0
            position, following, awaited = native.run(session, words, 0, message.base, verdict)
            while awaited >= 0:
                self._until_settled(session, awaited)
                position, following, awaited = native.run(session, words, position, following, verdict)
            if verdict:
                failure, metas = native.verdict(session)
                self._send(m.Done(session, message.seq, message.instructions, 0))  # leaves with the answer
                self._answer(session, message.verdict, failure, metas)
                return
        self._send(m.Done(session, message.seq, message.instructions, 0))

    def _until_settled(self, session: str, value: int) -> None:
        self.settle()
        while self._native.state(session, value) == "pending":
            self._wait()
            self.settle()

    def _poison(self, message: m.Poison) -> None:
        if not self._missing(message.session, 0):
            self._native.poison(message.session, message.ids, message.failure)

    def _sync(self, message: m.Sync) -> None:
        session, native = message.session, self._native
        if self._missing(session, message.request):
            return
        log = native.trace(session) if message.want_log else None
        self._answer(
            session, message.request, native.unreported(session), [[self.worker, native.instructions(session), log]]
        )

    # -- from and to clients ------------------------------------------------------------------------------------------

    def _upload(self, message: m.Upload) -> None:
        session = message.session
        nbytes = memoryview(message.data).nbytes if message.source is None else _number(message.source[-1])
        if not self._missing(session, message.request):
            failure = self._take(message)
            if message.request:
                self._answer(session, message.request, failure)
        self._send(m.Done(session, message.seq, 0, nbytes))

    def _take(self, message: m.Upload) -> list[Any] | None:
        """Make the value; None, or the failure it has become."""
        session, source = message.session, message.source
        if source is None:
            return self._native.put(session, message.id, message.meta, memoryview(message.data))
        match source:
            case ["m", int(fd), int(offset), int(nbytes)]:
                try:
                    with self._memory[session].view(fd, offset, nbytes) as view:
                        return self._native.put(session, message.id, message.meta, view)
                except MemoryRefused as error:
                    problem = error.failure(self.worker)
            case ["s", int(transfer), int(nbytes)]:
                data = self._staging.take(session, transfer, nbytes)
                if not isinstance(data, m.Failure):
                    return self._native.put(session, message.id, message.meta, data)
                problem = data
            case _:
                problem = self._failure(f"an upload from {str(source)[:80]}, which is no source")
        self._native.poison(session, [message.id], problem.pack())
        return problem.pack()

    def _fetch(self, message: m.Fetch) -> None:
        session = message.session
        if self._missing(session, message.request):
            return
        self._until_settled(session, message.id)
        failure, meta, contents = self._native.read(session, message.id)
        if contents is None:
            self._answer(session, message.request, failure)
            return
        match message.sink:
            case None if contents.nbytes <= MAX_FRAME_BYTES:
                self._answer(session, message.request, None, meta, contents)
                return
            case ["m", int(fd), int(offset), int(nbytes)] if nbytes >= contents.nbytes:
                try:
                    with self._memory[session].view(fd, offset, nbytes, write=True) as view:
                        contents.copy_to(view)
                except MemoryRefused as error:
                    self._answer(session, message.request, error.failure(self.worker).pack())
                    return
                self._answer(session, message.request, None, meta)
            case ["s", int(transfer), int(nbytes)] if nbytes == contents.nbytes:
                self._answer(session, message.request, None, meta)
                self._chunks.send(session, transfer, memoryview(contents))
            case sink:
                text = f"a value of {contents.nbytes} bytes can't be fetched into {str(sink)[:80]}"
                self._answer(session, message.request, self._failure(text).pack())

    # -- from and to other workers ------------------------------------------------------------------------------------

    def _lend(self, message: m.Send) -> None:
        """The peer waits for this, so it always gets something: the value, or why there is none."""
        session = message.session
        if self._native.known(session):
            self._until_settled(session, message.id)
            failure, meta, data, token = self._native.lend(session, message.id)
        else:
            failure, meta, data, token = (
                self._failure(f"no session {session} is open on worker {self.worker}").pack(),
                None,
                None,
                0,
            )
        self._copies.post(
            self.worker, Outgoing(message.peer, message.transfer, meta, data, failure, token), self._finish
        )

    def _borrow(self, message: m.Recv) -> None:
        if self._native.known(message.session):
            self._native.expect(message.session, message.id)
        self._copies.post(
            self.worker, Incoming(message.session, message.id, message.peer, message.transfer), self._finish
        )

    def _finish(self, copy: Copy) -> None:
        """Called by a link's thread: the main loop takes it from here."""
        self._finished.put(copy)
        os.eventfd_write(self.wake, 1)

    def _arrive(self, copy: Incoming) -> None:
        if copy.data is not None:
            self._native.settle(copy.session, copy.id, copy.meta, copy.data)
        elif self._native.state(copy.session, copy.id) == "pending":
            failure = copy.failure if copy.failure is not None else self._failure("a copy brought nothing").pack()
            self._native.poison(copy.session, [copy.id], failure)
        copy.data = None

    def _peers(self, message: m.Peers) -> None:
        self.epoch = message.epoch
        self._copies.set_members(message.members)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answer(
        self, session: str, request: int, failure: list[Any] | None, body: Any = None, data: Contents | bytes = b""
    ) -> None:
        self._send(m.Result(session, request, failure, body, data))

    def _failure(self, text: str) -> m.Failure:
        return m.Failure(m.FailureKind.PROTOCOL, "RuntimeError", text, worker=self.worker)


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
