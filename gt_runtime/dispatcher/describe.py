"""The state in the words of the telemetry feed and of the control replies. Reads the state, changes only its rates."""

from __future__ import annotations

from gt_runtime.dispatcher.records import Session, SessionState, Worker, number, whole_number
from gt_runtime.dispatcher.state import State
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import CREDIT_BYTES, CREDIT_INSTRUCTIONS
from gt_runtime.telemetry.records import Frame, SessionRecord, WorkerRecord

STALE_SECONDS = 1.0  # four beats missed: shown, before the worker counts as lost
_THROTTLED = 16  # less than a 16th of the window left


def worker_state(worker: Worker, now: float) -> m.Worker:
    """The state of a worker as people see it."""
    if worker.lost_at is not None:
        return m.Worker.LOST
    if not worker.ready:
        return m.Worker.STARTING
    return m.Worker.STALE if now - (worker.beat_at or worker.joined) > STALE_SECONDS else m.Worker.READY


def worker_record(worker: Worker, now: float) -> WorkerRecord:
    """One worker. What it hasn't said is None, never 0; a lost one says nothing any more."""
    lost = worker.lost_at is not None
    beat, facts = {} if lost else worker.beat, worker.facts
    source = beat.get("source")
    return WorkerRecord(
        id=worker.id,
        state=str(worker_state(worker, now)),
        host=text(facts.get("host")),
        pid=worker.peer.pid or whole_number(facts.get("pid")),
        device=text(facts.get("device")),
        device_name=text(facts.get("device_name")),
        source=source if source in ("nvml", "psutil") else None,
        utilisation=number(beat.get("utilisation")),
        memory_used=whole_number(beat.get("memory_used")),
        memory_total=whole_number(beat.get("memory_total")) or whole_number(facts.get("memory_total")),
        queue=None if lost else max(0, worker.queue),
        instr_rate=None if lost else worker.rates.rate(0),
        instr_total=whole_number(beat.get("instructions")),
        heartbeat_age=None if worker.beat_at is None else max(0.0, now - worker.beat_at),
        values=whole_number(beat.get("values")),
        value_bytes=whole_number(beat.get("value_bytes")),
        bytes_in_rate=None if lost else worker.rates.rate(1),
        bytes_out_rate=None if lost else worker.rates.rate(2),
    )


def session_state(session: Session) -> SessionState:
    """The state of a session that is there."""
    if session.silent:
        return SessionState.SILENT
    left = min(
        (CREDIT_INSTRUCTIONS - session.taken_instructions) / CREDIT_INSTRUCTIONS,
        (CREDIT_BYTES - session.taken_bytes) / CREDIT_BYTES,
    )
    return SessionState.THROTTLED if left < 1 / _THROTTLED or session.held else SessionState.LIVE


def session_record(session: Session, memory_cap: int, offset: float) -> SessionRecord:
    """One session. ``offset``: unix time minus the core's time."""
    values = [link.values for link in session.links.values()]
    sizes = [link.value_bytes for link in session.links.values()]
    return SessionRecord(
        id=session.id,
        program=text(session.facts.get("program")),
        pid=session.peer.pid or whole_number(session.facts.get("pid")),
        user=text(session.facts.get("user")),
        uid=session.peer.uid,
        host=text(session.facts.get("host")),
        tenant=text(session.facts.get("tenant")),
        state=str(session_state(session)),
        since=session.since + offset,
        instr_rate=session.rates.rate(0),
        instr_total=session.finished,
        values=total(values),
        value_bytes=total(sizes),
        memory_cap=memory_cap or None,
        credit=CREDIT_INSTRUCTIONS - session.taken_instructions,
        workers=list(session.links),
        last_error=session.last_error,
    )


def read_rates(state: State, now: float) -> None:
    """Take the readings that rates are made of; called once a frame."""
    for worker in state.workers.values():
        counters = [whole_number(worker.beat.get(key)) for key in ("instructions", "bytes_in", "bytes_out")]
        if worker.beat_at is not None and counters[0] is not None:
            worker.rates.read(worker.beat_at, tuple(c or 0 for c in counters))
    for session in state.sessions.values():
        session.rates.read(now, (session.finished,))


def frame(
    state: State, lost: list[Worker], epoch: int, now: float, started: float, offset: float, finished: int, rate: float
) -> Frame:
    """The whole cluster; sequence number and time are the publisher's. ``finished``: instructions of all sessions,
    ended ones too.
    """
    workers = [*state.workers.values(), *lost]
    return Frame(
        seq=0,
        time=0.0,
        cluster=state.options.name,
        epoch=epoch,
        uptime=now - started,
        instr_rate=rate,
        instr_total=finished,
        workers=[worker_record(w, now) for w in workers],
        sessions=[session_record(s, state.options.session_memory, offset) for s in state.sessions.values()],
    )


def text(value: object) -> str | None:
    """A claim of a Hello that ought to be text, cut to what a screen can take."""
    return value[:200] if isinstance(value, str) else None


def total(parts: list[int | None]) -> int | None:
    """The sum; None as long as a part isn't known."""
    known = [p for p in parts if p is not None]
    return sum(known) if len(known) == len(parts) else None
