"""What the parts of the core share: who is there, what goes out, and where new values go. No sockets, no clock, no
threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gt_runtime.dispatcher.options import DispatcherOptions
from gt_runtime.dispatcher.placement import Candidate, Wheel, turn_limit
from gt_runtime.dispatcher.records import Address, Link, Session, Worker, number
from gt_runtime.protocol import messages as m
from gt_runtime.sharding.layouts import Layout
from gt_runtime.telemetry.records import Event


@dataclass(frozen=True, slots=True)
class Watch:
    """For the heartbeat thread: expect beats of ``who`` from this uid (None = unknown), look at ``pid`` where it is
    known.
    ``silence``: seconds after which it counts as gone, None = never for silence alone. ``key``: what its beats say."""

    who: str
    uid: int | None
    pid: int | None
    ip: str
    silence: float | None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Forget:
    """For the heartbeat thread: ``who`` is no longer expected."""

    who: str


@dataclass(frozen=True, slots=True)
class Epoch:
    """For the heartbeat thread: what to answer beats with."""

    epoch: int


Action = Watch | Forget | Epoch


@dataclass(eq=False, slots=True)
class State:
    """The dispatcher's whole state. ``out``, ``chunks``, ``events`` and ``actions`` are emptied by whoever does the
    IO.
    """

    options: DispatcherOptions
    workers: dict[str, Worker] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    epoch: int = 0
    transfers: int = 0  # numbers of copies, one global order
    wheel: Wheel = field(default_factory=Wheel)
    out: list[tuple[Address, Any]] = field(default_factory=list)
    chunks: list[tuple[str, m.Chunk]] = field(default_factory=list)  # (worker or session id, chunk)
    events: list[Event] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def link(self, session: Session, worker: Worker) -> Link:
        """The session's link to ``worker``; opens it there the first time."""
        link = session.links.get(worker.id)
        if link is None:
            link = session.links[worker.id] = Link(worker)
            facts = {
                "pid": session.peer.pid or session.facts.get("pid", 0),
                "uid": session.peer.uid,
                "same_host": session.same_host and worker.peer.local,
                "memory": self.options.session_memory,
                "label": session.who,
            }
            self.out.append((worker.address, m.Open(session.id, facts)))
        return link

    def eligible(self, session: Session) -> list[Worker]:
        """Workers that may take the session's new values. A session that passes memfds stays on its own host."""
        return [w for w in self.workers.values() if w.ready and (w.peer.local or not session.same_host)]

    def turn(self, session: Session) -> bool:
        """Choose where the session's next new values go. A session that turns to another worker becomes spread.

        Returns:
            False if there is no worker to choose.
        """
        workers = self.eligible(session)
        self.settle(session)
        taken = self.wheel.take(
            Candidate(w.id, number(w.facts.get("speed")) or 0.0, w.free_share, w.queue, w.tenants) for w in workers
        )
        if taken is None:
            return False
        worker = self.workers[taken]
        worker.tenants += 1
        session.current = link = self.link(session, worker)
        session.turn_left = session.turn_limit = turn_limit(self.options.turn_bytes, worker.free_bytes)
        session.turn_start = link.value_bytes or 0
        if session.spread is None:
            if session.single is None and session.next_id == 1:
                session.single = link
            # With turns of 0 bytes each value takes one: its words must be read, unless there is only one worker to
            # choose.
            if session.single is not link or (session.turn_limit == 0 and len(workers) > 1):
                session.enter_spread()
        return True

    def place(self, session: Session, nbytes: int) -> Link | None:
        """Where a new value of ``nbytes`` goes, taking a turn if the last one is used up; None without a worker."""
        if session.turn_left <= 0 and not self.turn(session):
            return None
        session.turn_left -= nbytes
        return session.current

    def settle(self, session: Session) -> None:
        """The session has no current worker any more."""
        if session.current is not None:
            session.current.worker.tenants -= 1
        session.current, session.turn_left = None, 0

    def lost_failure(self, worker: str, operator: str = "") -> m.Failure:
        """Why a value that was on ``worker`` is missing."""
        text = f"the value was on worker {worker} alone when it was lost; make it again"
        return m.Failure(m.FailureKind.LOST, "RuntimeError", text, operator=operator, worker=worker)

    def poison(self, session: Session, link: Link, lost: Iterable[tuple[int, Layout]]) -> None:
        """Tell the link's worker that these values are lost, and by whom."""
        by_worker: dict[str, list[int]] = {}
        for value, layout in lost:
            by_worker.setdefault(layout.lost, []).append(value)
        for worker, values in by_worker.items():
            failure = self.lost_failure(worker).pack()
            self.out.append((link.worker.address, m.Poison(session.id, values, failure)))

    def event(self, event: str, subject: str, text: str, who: str = "") -> None:
        """For the feed; sequence number and time are the publisher's."""
        self.events.append(Event(event=event, subject=subject, who=who, text=text))
