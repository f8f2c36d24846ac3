"""Sessions' streams: what a client sends goes to workers, what workers answer goes back, credit included. No sockets,
no clock.

The hot path is ``batch`` for a single session and ``done``: they touch no instruction, only counts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from gt_runtime.dispatcher.errors import StreamError
from gt_runtime.dispatcher.records import Ask, Link, Pending, Session, Transfer, Worker
from gt_runtime.dispatcher.rewrite import Rewriter, last_template, signals_of
from gt_runtime.dispatcher.state import State
from gt_runtime.dispatcher.templates import check_definition, knows_outputs, learned
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import (
    CREDIT_BYTES,
    CREDIT_INSTRUCTIONS,
    MAX_DEFINITIONS,
    MAX_TEMPLATES,
    MAX_WORDS,
)
from gt_runtime.sharding.layouts import Layout, gone, meta_bytes, whole

MAX_HELD = (
    1 << 17
)  # messages of one session that wait for a worker; credit bounds batches and uploads, this bounds the rest
MAX_REQUESTS = 1 << 16  # of one session that wait for an answer; credit doesn't bound fetches
_QUARTER_INSTRUCTIONS = (
    CREDIT_INSTRUCTIONS // 4
)  # credit goes back in pieces of this size, or when nothing is under way
_QUARTER_BYTES = CREDIT_BYTES // 4

StreamMessage = m.Batch | m.Upload | m.Fetch | m.Sync


class Streams:
    """Handlers of stream messages and of workers' answers, on the shared state."""

    def __init__(self, state: State) -> None:
        self.state = state

    # -- from a client ------------------------------------------------------------------------------------------------

    def receive(self, session: Session, message: StreamMessage) -> None:
        """The next message of a session's stream.

        Raises:
            StreamError: the stream can't go on.
        """
        if type(message) is m.Batch or type(message) is m.Upload:
            if message.seq <= session.seq:
                # Sent again: the client was interrupted before it could note that this had left. It paid again, too.
                self._charge(session, message)
                self._credit(session, *cost(message))
                return
            if message.seq != session.seq + 1:
                raise StreamError(f"to take message {message.seq} of the stream", f"message {session.seq + 1} is next")
            session.seq += 1
            self._charge(session, message)
        elif message.seq > session.seq:
            raise StreamError(
                f"to answer after message {message.seq} of the stream", f"message {session.seq + 1} is next"
            )
        if session.held or not self._run(session, message):
            if len(session.held) >= MAX_HELD:
                raise StreamError(
                    "to wait for a worker", f"{len(session.held)} messages wait already", "start a worker"
                )
            session.held.append(message)

    def release(self, session: Session) -> None:
        """A worker may have come: run what was held, as far as it goes.

        Raises:
            StreamError: the stream can't go on.
        """
        while session.held and self._run(session, session.held[0]):
            session.held.popleft()

    def _run(self, session: Session, message: StreamMessage) -> bool:
        """Run a message; False if it has to wait for a worker."""
        if type(message) is m.Batch:
            return self._batch(session, message)
        if type(message) is m.Upload:
            return self._upload(session, message)
        if type(message) is m.Fetch:
            self._fetch(session, message)
        elif type(message) is m.Sync:
            self._sync(session, message)
        return True

    def _batch(self, session: Session, message: m.Batch) -> bool:
        state = self.state
        # A session that has no worker for new values waits even if this batch makes none: which it is isn't known
        # without reading.
        if (session.current is None or (session.spread is None and session.turn_left <= 0)) and not state.turn(session):
            return False
        if message.base < session.next_id or message.outputs > MAX_WORDS:
            raise StreamError(f"to make {message.outputs} values from {message.base}", f"the next is {session.next_id}")
        if message.definitions or message.signals:
            self._define(session, message)
        if message.verdict:
            self._ask(session, message.verdict)
        link = session.single
        if link is None:
            self._rewrite(session, message)
        else:
            if message.verdict:
                self._expect_verdict(session, message.verdict, link.worker.id, self._unlearned(session, message))
            session.next_id = message.base + message.outputs
            link.under_way.append((message.seq, message.instructions, 0, 0))
            link.worker.queue += message.instructions
            session.under_way += 1
            # Positional and by hand: this runs a thousand times a second.
            state.out.append(
                (
                    link.worker.address,
                    m.Batch(
                        session.id, message.seq, message.base, message.outputs, message.instructions, message.verdict,
                        message.definitions, message.signals, message.words,
                    ),
                )
            )  # fmt: skip
        return True

    def _rewrite(self, session: Session, message: m.Batch) -> None:
        assert session.spread is not None, "a session is single or spread"
        template, worker = Rewriter(self.state, session, session.spread, message).run()
        session.next_id = message.base + message.outputs
        if message.verdict:
            self._expect_verdict(session, message.verdict, worker, template if template in session.unlearned else None)

    def _define(self, session: Session, message: m.Batch) -> None:
        """Keep a batch's definitions and signals: another worker may need them later."""
        new, known = len(message.definitions), len(session.definitions)
        if new > MAX_DEFINITIONS or known > MAX_TEMPLATES or len(session.signals) > MAX_TEMPLATES:
            found = f"{new} in one batch, {known} before, {len(session.signals)} signals"
            raise StreamError("to define templates", found)
        for definition in message.definitions:
            number = check_definition(definition)
            if number in session.definitions:
                raise StreamError(f"to define template {number}", "it is defined already")
            session.definitions[number] = definition
            if not knows_outputs(definition):
                session.unlearned.add(number)
            if session.single is not None:
                session.single.templates.add(number)
        names = signals_of(message.signals)
        session.signals.update(names)
        if session.single is not None:
            session.single.signals.update(names)

    def _unlearned(self, session: Session, message: m.Batch) -> int | None:
        """The template of a single session's batch, if its verdict will teach how many outputs it has. Only then are
        words read.
        """
        if not session.unlearned:
            return None
        template = last_template(session, message.words)
        return template if template in session.unlearned else None

    def _expect_verdict(self, session: Session, request: int, worker: str, template: int | None) -> None:
        session.requests[request] = Pending(Ask.VERDICT, {worker}, template)

    def _upload(self, session: Session, message: m.Upload) -> bool:
        transfer = staged(message)
        try:
            nbytes = meta_bytes(message.meta)
        except ValueError as error:
            raise StreamError(f"to upload value {message.id}", str(error)) from error
        if message.id < session.next_id:
            raise StreamError(f"to make value {message.id}", f"the next is {session.next_id}")
        link: Link | None
        if transfer is None:
            link = self.state.place(session, nbytes)
            if link is None:
                return False
        else:
            link = self._staged_link(session, transfer)
        if message.request:
            self._ask(session, message.request)
        if link is None or link is not session.single:
            session.enter_spread()
        session.next_id = message.id + 1
        if link is None:
            self._staged_lost(session, message)
            return True
        if session.spread is not None:
            session.spread.where[message.id] = whole(link.worker.id)
        if message.request:
            session.requests[message.request] = Pending(Ask.UPLOAD, {link.worker.id})
        link.under_way.append((message.seq, 0, *cost(message)))
        session.under_way += 1
        self._send(link, dataclasses.replace(message, session=session.id))
        return True

    def _staged_link(self, session: Session, number: int) -> Link | None:
        """The link to the worker that has the chunks; None if it was lost."""
        transfer = session.transfers.pop(number, None)
        if transfer is None or not transfer.upload:
            raise StreamError(f"to upload what was staged as transfer {number}", "no chunks of it were seen")
        return transfer.link

    def _staged_lost(self, session: Session, message: m.Upload) -> None:
        assert session.spread is not None, "entered just before"
        session.spread.where[message.id] = gone("that had its bytes")
        if message.request:
            failure = self.state.lost_failure("that had its bytes").pack()
            self.state.out.append((session.address, m.Result("", message.request, failure, None)))
        self._credit(session, *cost(message))

    def _fetch(self, session: Session, message: m.Fetch) -> None:
        self._ask(session, message.request)
        link, failure = self._holder(session, message.id)
        if link is None:
            self.state.out.append((session.address, m.Result("", message.request, failure, None)))
            return
        session.requests[message.request] = Pending(Ask.FETCH, {link.worker.id})
        if message.sink is not None and message.sink[:1] == ["s"]:
            if len(message.sink) != 3 or type(message.sink[1]) is not int or message.sink[1] in session.transfers:
                raise StreamError(f"to fetch value {message.id} in chunks", f"sink {str(message.sink)[:80]}")
            session.transfers[message.sink[1]] = Transfer(
                link, link.worker.id, message.sink[2], upload=False, request=message.request
            )
        self._send(link, dataclasses.replace(message, session=session.id))

    def _holder(self, session: Session, value: int) -> tuple[Link | None, list[Any]]:
        """A link to a worker that has ``value``, else why there is none (packed)."""
        layout: Layout | None
        if session.single is not None:
            layout = whole(session.single.worker.id) if 0 < value < session.next_id else None
        else:
            layout = session.spread.locate(value) if session.spread is not None else None
        if layout is None:
            text = f"value {value} does not exist (never made, or freed)"
            return None, m.Failure(m.FailureKind.PROTOCOL, "RuntimeError", text).pack()
        if not layout.workers:
            return None, self.state.lost_failure(layout.lost).pack()
        return session.links[layout.workers[0]], []

    def _sync(self, session: Session, message: m.Sync) -> None:
        self._ask(session, message.request)
        if not session.links:
            self.state.out.append((session.address, m.Result("", message.request, None, [])))
            return
        session.requests[message.request] = Pending(Ask.SYNC, set(session.links))
        for link in session.links.values():
            self._send(link, m.Sync(session.id, message.seq, message.request, message.want_log))

    def _ask(self, session: Session, request: int) -> None:
        if request == 0 or request in session.requests:
            raise StreamError(f"to answer request {request}", "0 is no request" if request == 0 else "it waits already")
        if len(session.requests) >= MAX_REQUESTS:
            raise StreamError(f"to answer request {request}", f"{MAX_REQUESTS} wait already", "wait for their answers")

    def _send(self, link: Link, message: Any) -> None:
        self.state.out.append((link.worker.address, message))

    # -- from a worker ------------------------------------------------------------------------------------------------

    def done(self, worker: Worker, message: m.Done) -> None:
        """A message of a session has run: its credit goes back, in pieces, or at once when the session has nothing else
        under way.
        """
        session = self.state.sessions.get(message.session)
        link = session.links.get(worker.id) if session is not None else None
        if session is None or link is None or link.worker is not worker:
            return  # the session ended meanwhile
        queue, seq = link.under_way, message.seq
        instructions = uploads = nbytes = 0
        while queue and queue[0][0] <= seq:
            _, ran, loaded, size = queue.popleft()
            instructions += ran
            uploads += loaded
            nbytes += size
            session.under_way -= 1
        worker.queue -= instructions
        session.finished += instructions
        self._credit(session, instructions + uploads, nbytes)

    def result(self, worker: Worker, message: m.Result) -> None:
        """An answer to one of a session's requests."""
        session = self.state.sessions.get(message.session)
        pending = session.requests.get(message.request) if session is not None else None
        if session is None or pending is None or worker.id not in pending.waiting:
            return  # the session ended meanwhile, or has its answer
        if message.failure is not None:
            session.last_error = error_text(message.failure)
        if pending.ask is Ask.SYNC:
            pending.body += message.body if type(message.body) is list else []
            pending.failure = pending.failure or message.failure
            self._answer_part(session, message.request, pending, worker.id)
            return
        if pending.template is not None and message.failure is None and type(message.body) is list:
            session.definitions[pending.template] = learned(session.definitions[pending.template], message.body)
            session.templates.pop(pending.template, None)
            session.unlearned.discard(pending.template)
        del session.requests[message.request]
        self.state.out.append(
            (session.address, m.Result("", message.request, message.failure, message.body, message.data))
        )

    def _answer_part(self, session: Session, request: int, pending: Pending, worker: str) -> None:
        """One worker less to wait for."""
        pending.waiting.discard(worker)
        if not pending.waiting:
            del session.requests[request]
            self.state.out.append((session.address, m.Result("", request, pending.failure, pending.body)))

    # -- loss ---------------------------------------------------------------------------------------------------------

    def lose(self, session: Session, worker: Worker) -> None:
        """``worker`` is gone: give back what was under way there, answer what waited for it, forget what it held."""
        link = session.links.pop(worker.id, None)
        if link is None:
            return
        if session.single is link:
            session.enter_spread()
        if session.spread is not None:
            session.spread.lose(worker.id)
        if session.current is link:
            self.state.settle(session)
        self._answer_lost(session, link, self.state.lost_failure(worker.id).pack())
        session.under_way -= len(link.under_way)
        self._credit(session, sum(e[1] + e[2] for e in link.under_way), sum(e[3] for e in link.under_way))

    def _answer_lost(self, session: Session, link: Link, failure: list[Any]) -> None:
        """Answer what waits for the lost ``link``, so that no caller waits for ever."""
        worker, answered = link.worker.id, set()
        for request, pending in list(session.requests.items()):
            if worker not in pending.waiting:
                continue
            answered.add(request)
            pending.failure = pending.failure or failure
            if pending.ask is Ask.SYNC:
                self._answer_part(session, request, pending, worker)
            else:
                del session.requests[request]
                self.state.out.append((session.address, m.Result("", request, failure, None)))
        for number, transfer in list(session.transfers.items()):
            if transfer.link is not link:
                continue
            transfer.link = None
            if transfer.upload:
                self.state.chunks.append((session.id, m.Chunk("", number, 0, transfer.nbytes, True)))
            else:
                del session.transfers[number]
                if (
                    transfer.request not in answered
                ):  # its Result went ahead of the chunks: a second one says they won't come
                    self.state.out.append((session.address, m.Result("", transfer.request, failure, None)))

    def collapse(self, session: Session) -> None:
        """A spread session whose values have all ended on its current worker is single again: cheap from here on."""
        spread, link = session.spread, session.current
        if spread is None or link is None or session.held or not spread.sole(link.worker.id):
            return
        if session.turn_limit == 0 and len(self.state.eligible(session)) > 1:
            return
        session.single, session.spread = link, None
        missing = [d for number, d in session.definitions.items() if number not in link.templates]
        names = [[number, name] for number, name in session.signals.items() if number not in link.signals]
        link.templates.update(session.definitions)
        link.signals.update(session.signals)
        # From here on words aren't read, so the worker must know whatever they may name.
        while missing or names:
            some, missing = missing[:MAX_DEFINITIONS], missing[MAX_DEFINITIONS:]
            self._send(link, m.Batch(session.id, session.seq, session.next_id, 0, 0, 0, some, names, b""))
            names = []

    # -- credit -------------------------------------------------------------------------------------------------------

    def _charge(self, session: Session, message: m.Batch | m.Upload) -> None:
        """Raises StreamError for a client far over its credit: twice the window is more than any race explains, except
        for one single message that is larger than the window."""
        if session.taken_instructions > 2 * CREDIT_INSTRUCTIONS or session.taken_bytes > 2 * CREDIT_BYTES:
            raise StreamError(
                "to take more work",
                f"over the credit: {session.taken_instructions} instructions, {session.taken_bytes} bytes under way",
            )
        instructions, nbytes = cost(message)
        session.taken_instructions += instructions
        session.taken_bytes += nbytes

    def _credit(self, session: Session, instructions: int, nbytes: int) -> None:
        """That much has run. Given back when it is worth a message, or the client may be waiting for it."""
        session.owed_instructions += instructions
        session.owed_bytes += nbytes
        worth = session.owed_instructions >= _QUARTER_INSTRUCTIONS or session.owed_bytes >= _QUARTER_BYTES
        if worth or (session.under_way == 0 and (session.owed_instructions or session.owed_bytes)):
            self.state.out.append((session.address, m.Credit(session.owed_instructions, session.owed_bytes)))
            session.taken_instructions -= session.owed_instructions
            session.taken_bytes -= session.owed_bytes
            session.owed_instructions = session.owed_bytes = 0


def cost(message: m.Batch | m.Upload) -> tuple[int, int]:
    """Instructions and bytes that a message takes of the window: a batch its instructions, an upload one and its bytes.

    Raises:
        StreamError: an upload without a good source.
    """
    if isinstance(message, m.Batch):
        return message.instructions, 0
    return 1, source_bytes(message)


def source_bytes(message: m.Upload) -> int:
    """Bytes that an upload takes of the window.

    Raises:
        StreamError: a source that is none of the three.
    """
    source = message.source
    if source is None:
        return memoryview(message.data).nbytes
    kinds = {"m": 4, "s": 3}
    kind = source[0] if source else None
    if type(kind) is not str or kinds.get(kind) != len(source) or any(type(n) is not int or n < 0 for n in source[1:]):
        raise StreamError(f"to upload value {message.id}", f"source {str(source)[:80]}")
    size: int = source[-1]
    return size


def staged(message: m.Upload) -> int | None:
    """The transfer that an upload's bytes came by, None if it brings them itself."""
    return message.source[1] if message.source and message.source[0] == "s" else None


def error_text(failure: list[Any]) -> str:
    """One line of a packed failure, for people."""
    texts = [str(part) for part in failure[1:4]] if type(failure) is list else [str(failure)]
    return ": ".join(t for t in (texts[-1:] + texts[:-1]) if t)[:200]
