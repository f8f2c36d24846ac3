"""What gt-top knows of a cluster: folds the feed's records into frozen views for the screen.

Pure: no Textual, no socket, no clock (``now`` comes in, seconds of any monotonic clock). An item goes in with
``Cluster.fold``; at a tick ``Cluster.view`` gives everything that is shown, with its age. Ages count from when a
record arrived here, so that a dispatcher whose clock is off can't look fresh or old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice
from typing import Generic, TypeVar

from gt_runtime.protocol.messages import Worker
from gt_runtime.telemetry.records import FRAME_SECONDS, Event, Frame, SessionRecord, WorkerRecord
from gt_top.clean import clean_event, clean_session, clean_worker, natural
from gt_top.history import History, Ring
from gt_top.units import number, plain

LAGGING_AFTER = 1.5  # seconds without news: three frames
STALE_AFTER = 5.0  # seconds: what is shown is greyed from here
UNREACHABLE_AFTER = 15.0  # seconds: nobody answers, whatever the connection says
GONE_SECONDS = 30.0  # how long the row of a worker or session that left the feed stays
HISTORY_SECONDS = 60.0
MAX_EVENTS = 500


class Look(IntEnum):
    """How far what is shown can be trusted; larger is worse."""

    LIVE = 0
    CONNECTING = 1  # nothing has come yet
    LAGGING = 2
    STALE = 3
    UNREACHABLE = 4


# --- what goes in: records of the feed, and these
# ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Linked:
    """The feed is subscribed to a dispatcher. ``fresh``: not the one it was subscribed to before."""

    name: str
    address: str
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Unlinked:
    """Nobody answers there, and why: words for the header."""

    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The dispatcher's answer to ``snapshot``: its newest frame (None if it has made none yet) and its last events."""

    frame: Frame | None
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Missed:
    """``records`` of the feed were lost on the way here."""

    records: int


Item = Linked | Unlinked | Snapshot | Missed | Frame | Event


# --- what comes out
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One row of the Workers table. ``age``: seconds since the worker is known to have lived, None if never."""

    record: WorkerRecord
    look: Look
    age: float | None
    gone: bool  # no longer in the feed; the record is its last
    order: tuple[object, ...]
    ring: Ring  # of utilisation; goes on filling, so ``utilisation`` is to be read at the tick

    @property
    def stamp(self) -> tuple[object, ...]:
        """Equal for two views that look the same."""
        return (self.record, self.look, int(self.age or 0), self.gone, self.ring.end)

    @property
    def utilisation(self) -> History:
        """The last minute. Cut when it is asked for: only rows in sight are."""
        return self.ring.history()

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True, slots=True)
class SessionView:
    """One row of the Sessions table. ``duration``: seconds since it connected, None if unknown."""

    record: SessionRecord
    look: Look
    age: float | None
    gone: bool
    duration: float | None
    order: tuple[object, ...]
    ring: Ring  # of instructions a second; as a worker's

    @property
    def stamp(self) -> tuple[object, ...]:
        """Equal for two views that look the same."""
        return (self.record, self.look, int(self.age or 0), self.gone, self.ring.end, int(self.duration or 0))

    @property
    def instr_rate(self) -> History:
        """The last minute, as a worker's."""
        return self.ring.history()

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True, slots=True)
class Sum:
    """A figure over the workers that report it: ``known`` of ``of``; None where none does."""

    value: float | None = None
    known: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """The header's figures. Shares 0 to 1, bytes, counts, a second."""

    workers: int = 0
    states: tuple[tuple[str, int], ...] = ()  # only those that occur, in the order of ``messages.Worker``
    sessions: int = 0
    utilisation: Sum = Sum()
    memory_used: Sum = Sum()
    memory_total: Sum = Sum()
    queue: Sum = Sum()
    values: Sum = Sum()
    value_bytes: Sum = Sum()
    net_rate: Sum = Sum()  # bytes a second between workers, as received
    instr_rate: float | None = None
    instr_total: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything there is to show at one moment. ``age``: seconds since the newest frame arrived, None before the
    first.
    """

    name: str
    address: str
    look: Look
    age: float | None
    reason: str  # why it is unreachable
    epoch: int
    revision: int
    revision_note: str
    uptime: float | None
    seq: int
    missed: int  # records lost since gt-top started
    dispatchers: int  # how many dispatchers have been seen under this name
    totals: Totals
    instr_rate: History
    workers: tuple[WorkerView, ...]
    sessions: tuple[SessionView, ...]
    events: tuple[Event, ...]  # oldest first


# --- folding
# -----------------------------------------------------------------------------------------------------------


_R = TypeVar("_R", WorkerRecord, SessionRecord)


@dataclass(slots=True)
class _Tracked(Generic[_R]):
    """A worker or session as folded so far."""

    record: _R
    ring: Ring
    order: tuple[object, ...]
    gone_at: float | None = None  # local time


class Cluster:
    """The folded state of one cluster. Not thread safe: one loop owns it."""

    def __init__(self, name: str = "", address: str = "") -> None:
        self._name = name
        self._address = address
        self._reason = ""
        self._linked = False
        self._missed = 0
        self._dispatchers = 0
        self._forget()

    def _forget(self) -> None:
        self._frame: Frame | None = None
        self._arrived = 0.0
        self._seq = 0
        self._replaced = False  # another dispatcher is linked, and none of its frames has come yet
        self._workers: dict[str, _Tracked[WorkerRecord]] = {}
        self._sessions: dict[str, _Tracked[SessionRecord]] = {}
        self._instr = Ring(_samples())
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def fold(self, item: Item, now: float) -> None:
        """Take in one item that arrived at ``now``. Records that make no sense change nothing."""
        if isinstance(item, Frame):
            self._fold_frame(item, now)
        elif isinstance(item, Event):
            self._fold_event(item)
        elif isinstance(item, Snapshot):
            self._fold_snapshot(item, now)
        elif isinstance(item, Missed):
            self._missed += max(0, item.records)
        elif isinstance(item, Linked):
            self._fold_linked(item)
        else:
            self._linked, self._reason = False, plain(item.reason)

    def _fold_linked(self, item: Linked) -> None:
        self._linked, self._reason = True, ""
        self._name = plain(item.name) or self._name
        self._address = plain(item.address)
        if item.fresh and self._frame is not None:
            self._replaced = True

    def _fold_snapshot(self, snapshot: Snapshot, now: float) -> None:
        """A snapshot may be older than what the feed has brought meanwhile: then only its events are news."""
        frame = snapshot.frame
        if frame is not None and (self._frame is None or self._replaced or frame.seq > self._seq):
            self._fold_frame(frame, now)
        known = {(e.seq, e.time, e.event) for e in self._events}
        fresh = [clean_event(e) for e in snapshot.events if (e.seq, e.time, e.event) not in known]
        if fresh:
            merged = sorted((*self._events, *fresh), key=lambda e: (e.time, e.seq))
            self._events = deque(merged, maxlen=MAX_EVENTS)

    def _fold_event(self, event: Event) -> None:
        self._linked = True
        self._seq = max(self._seq, event.seq)
        self._events.append(clean_event(event))

    def _fold_frame(self, frame: Frame, now: float) -> None:
        if self._frame is None:
            self._dispatchers = max(1, self._dispatchers)
        elif self._replaced or frame.seq < self._frame.seq:
            # A new dispatcher under the same name: of what was before, only what happened is still true.
            self._dispatchers += 1
            events = self._events
            self._forget()
            self._events = events
        steps = self._steps_since(frame)
        self._linked, self._reason = True, ""
        self._frame, self._arrived, self._seq = frame, now, frame.seq
        self._name = plain(frame.cluster) or self._name
        self._instr.append(number(frame.instr_rate), steps)
        self._fold_workers(frame.workers, steps, now)
        self._fold_sessions(frame.sessions, steps, now)

    def _steps_since(self, frame: Frame) -> int:
        """How many frames' time has passed since the last one: 1, or more where some were lost."""
        if self._frame is None:
            return 1
        elapsed = (number(frame.time) or 0.0) - (number(self._frame.time) or 0.0)
        return max(1, min(_samples(), round(elapsed / _interval(frame))))

    def _fold_workers(self, records: Iterable[WorkerRecord], steps: int, now: float) -> None:
        present, moved = set(), False
        for raw in records:
            record = clean_worker(raw)
            present.add(record.id)
            tracked = self._workers.get(record.id)
            if tracked is None or tracked.record.pid != record.pid:  # an id may be used again by another process
                tracked = _Tracked(record, Ring(_samples()), ())
                self._workers[record.id] = tracked
            if not tracked.order or tracked.record.host != record.host:
                tracked.order = (natural(record.host or ""), natural(record.id))
                moved = True
            tracked.record, tracked.gone_at = record, None
            tracked.ring.append(None if record.state == Worker.LOST else record.utilisation, steps)
        _let_go(self._workers, present, now)
        if moved:  # kept in order: a view needn't sort
            self._workers = dict(sorted(self._workers.items(), key=lambda kt: kt[1].order))

    def _fold_sessions(self, records: Iterable[SessionRecord], steps: int, now: float) -> None:
        present = set()
        for raw in records:
            record = clean_session(raw)
            present.add(record.id)
            tracked = self._sessions.get(record.id)
            if tracked is None:
                tracked = self._sessions[record.id] = _Tracked(record, Ring(_samples()), natural(record.id))
            tracked.record, tracked.gone_at = record, None
            tracked.ring.append(record.instr_rate, steps)
        _let_go(self._sessions, present, now)
        self._sessions = dict(sorted(self._sessions.items(), key=lambda kt: kt[1].order))

    # --- the picture ---

    def view(self, now: float) -> ClusterView:
        """Everything there is to show at ``now``."""
        frame = self._frame
        age = None if frame is None else max(0.0, now - self._arrived)
        look = self._look(age)
        workers = [self._worker_view(t, look, age or 0.0, now) for t in self._workers.values()]
        sessions = [self._session_view(t, look, age or 0.0, now) for t in self._sessions.values()]
        uptime = None if frame is None else number(frame.uptime)
        return ClusterView(
            name=self._name,
            address=self._address,
            look=look,
            age=age,
            reason=self._reason,
            epoch=0 if frame is None else int(number(frame.epoch) or 0),
            revision=0 if frame is None else int(number(frame.revision) or 0),
            revision_note="" if frame is None else plain(frame.revision_note),
            uptime=None if uptime is None else uptime + (age or 0.0 if look < Look.STALE else 0.0),
            seq=self._seq,
            missed=self._missed,
            dispatchers=self._dispatchers,
            totals=_totals(frame, [w.record for w in workers if not w.gone], sum(not s.gone for s in sessions)),
            instr_rate=self._instr.history(),
            workers=tuple(workers),
            sessions=tuple(sessions),
            events=tuple(self._events),
        )

    def _look(self, age: float | None) -> Look:
        if self._reason and not self._linked:
            return Look.UNREACHABLE
        if age is None:
            return Look.CONNECTING
        return _look_of(age) if age < UNREACHABLE_AFTER else Look.UNREACHABLE

    def _worker_view(self, tracked: _Tracked[WorkerRecord], look: Look, frame_age: float, now: float) -> WorkerView:
        record = tracked.record
        gone = tracked.gone_at is not None
        age = (record.heartbeat_age or 0.0) + frame_age
        if tracked.gone_at is not None:
            age = now - tracked.gone_at
        own = _look_of(age)
        if gone or record.state == Worker.LOST:
            own = Look.UNREACHABLE
        elif record.state == Worker.STALE:
            own = max(own, Look.STALE)
        return WorkerView(record, max(own, look), age, gone, tracked.order, tracked.ring)

    def _session_view(self, tracked: _Tracked[SessionRecord], look: Look, frame_age: float, now: float) -> SessionView:
        record, frame = tracked.record, self._frame
        gone = tracked.gone_at is not None
        age = frame_age if tracked.gone_at is None else now - tracked.gone_at
        own = Look.UNREACHABLE if gone else max(look, _look_of(age))
        since = number(record.since)
        duration = None if since is None or frame is None else max(0.0, (number(frame.time) or 0.0) - since) + frame_age
        return SessionView(record, own, age, gone, duration, tracked.order, tracked.ring)


def _samples() -> int:
    return round(HISTORY_SECONDS / FRAME_SECONDS)


def _interval(frame: Frame) -> float:
    return max(0.05, number(frame.interval) or FRAME_SECONDS)


def _look_of(age: float) -> Look:
    if age <= LAGGING_AFTER:
        return Look.LIVE
    return Look.LAGGING if age <= STALE_AFTER else Look.STALE


def _let_go(tracked: dict[str, _Tracked[_R]], present: set[str], now: float) -> None:
    """Mark what left the feed, and forget what left it long ago."""
    for key in [k for k in tracked if k not in present]:
        one = tracked[key]
        if one.gone_at is None:
            one.gone_at = now
        elif now - one.gone_at > GONE_SECONDS:
            del tracked[key]


def _totals(frame: Frame | None, workers: list[WorkerRecord], sessions: int) -> Totals:
    if frame is None:
        return Totals()
    alive = [w for w in workers if w.state != Worker.LOST]
    known_states = [s.value for s in Worker]
    states: dict[str, int] = {}
    for w in workers:
        states[w.state] = states.get(w.state, 0) + 1
    rank = {s: i for i, s in enumerate(known_states)}
    utilisation = _sum([w.utilisation for w in alive])
    if utilisation.value is not None:
        utilisation = replace(utilisation, value=utilisation.value / utilisation.known)
    used, total = _memory(alive)
    return Totals(
        workers=len(workers),
        states=tuple(sorted(states.items(), key=lambda s: (rank.get(s[0], len(rank)), s[0]))),
        sessions=sessions,
        utilisation=utilisation,
        memory_used=used,
        memory_total=total,
        queue=_sum([w.queue for w in alive]),
        values=_sum([w.values for w in alive]),
        value_bytes=_sum([w.value_bytes for w in alive]),
        net_rate=_sum([w.bytes_in_rate for w in alive]),
        instr_rate=number(frame.instr_rate),
        instr_total=number(frame.instr_total),
    )


def _memory(workers: list[WorkerRecord]) -> tuple[Sum, Sum]:
    """Used and total over devices. CPU workers of one host report the host's memory as their total: it is counted
    once.
    """
    used = _sum([w.memory_used for w in workers])
    seen: set[tuple[str | None, int]] = set()
    total, known = 0.0, 0
    for w in workers:
        if w.memory_total is None:
            continue
        known += 1
        if w.source == "psutil":
            if (w.host, w.memory_total) in seen:
                continue
            seen.add((w.host, w.memory_total))
        total += w.memory_total
    return used, Sum(total if known else None, known, len(workers))


def _sum(values: Iterable[float | int | None]) -> Sum:
    listed = list(values)
    known = [v for v in listed if v is not None]
    return Sum(float(sum(known)) if known else None, len(known), len(listed))


def latest(events: tuple[Event, ...], n: int) -> list[Event]:
    """The last ``n`` events, newest first."""
    return list(islice(reversed(events), max(0, n)))
