"""Who is there: the mutable records of workers, sessions and what lies between them. No behaviour beyond their own
bookkeeping.

A session is either *single* (all its values are on one worker; nothing is known of single ids) or *spread* (each id's
layout is known).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple

from gt_runtime.dispatcher.templates import Template
from gt_runtime.protocol import messages as m
from gt_runtime.sharding.layouts import Layout, gone, whole


class Side(IntEnum):
    """Which of the dispatcher's sockets a peer is on."""

    FRONT = 0
    BACK = 1


class Address(NamedTuple):
    """Where a message came from or goes to; opaque here beyond being equal for one connection."""

    side: int
    identity: bytes


@dataclass(frozen=True, slots=True)
class Peer:
    """What the kernel says of a connection: ``uid`` and ``pid`` on ipc (None on tcp or where it can't be seen), else
    the ip.
    """

    uid: int | None = None
    pid: int | None = None
    ip: str = ""

    @property
    def local(self) -> bool:
        """On an ipc socket, with an identity from the kernel."""
        return self.uid is not None


class SessionState(StrEnum):
    """States of a session, the same words on wire and screen."""

    LIVE = "live"
    THROTTLED = "throttled"  # its credit is nearly used up
    SILENT = "silent"  # its heartbeat is late, its process is there
    CLOSED = "closed"


class Ask(Enum):
    """What a request id waits for."""

    VERDICT = "verdict"
    UPLOAD = "upload"
    FETCH = "fetch"
    SYNC = "sync"


@dataclass(eq=False, slots=True)
class Worker:
    """One worker process. ``queue`` counts instructions sent to it that have not run; ``tenants`` sessions whose new
    values go there.
    """

    id: str
    address: Address
    peer: Peer
    facts: dict[str, Any]  # its Hello
    joined: float
    key: str = ""  # only it and we know it
    ready: bool = True
    lost_at: float | None = None
    queue: int = 0
    tenants: int = 0
    beat: dict[str, Any] = field(default_factory=dict)  # facts of its newest Beat
    beat_at: float | None = None
    rates: Rates = field(default_factory=lambda: Rates())

    @property
    def free_bytes(self) -> int:
        """Free memory by its newest figures."""
        total = whole_number(self.beat.get("memory_total")) or whole_number(self.facts.get("memory_total")) or 0
        return max(0, total - (whole_number(self.beat.get("memory_used")) or 0))

    @property
    def free_share(self) -> float:
        """Free share of its memory, 1 where nothing is known."""
        total = whole_number(self.beat.get("memory_total")) or whole_number(self.facts.get("memory_total")) or 0
        return self.free_bytes / total if total else 1.0


@dataclass(slots=True)
class Rates:
    """Rates a second between two readings of rising counters; None until there are two."""

    at: float | None = None
    counters: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()

    def read(self, at: float, counters: tuple[int, ...]) -> None:
        """Take a new reading; one that isn't newer is ignored."""
        if self.at is not None and at <= self.at:
            return
        if self.at is not None:
            seconds = at - self.at
            self.rates = tuple(max(0, new - old) / seconds for new, old in zip(counters, self.counters, strict=True))
        self.at, self.counters = at, counters

    def rate(self, index: int) -> float | None:
        """The rate of one counter."""
        return self.rates[index] if self.rates else None


@dataclass(eq=False, slots=True)
class Link:
    """A session on a worker: what was sent there and has not run, and which definitions it got."""

    worker: Worker
    under_way: deque[tuple[int, int, int, int]] = field(default_factory=deque)  # (seq, instructions, uploads, bytes)
    templates: set[int] = field(default_factory=set)
    signals: set[int] = field(default_factory=set)
    values: int | None = None  # by the worker's newest Beat
    value_bytes: int | None = None


@dataclass(slots=True)
class Pending:
    """A request id that waits for workers' Results."""

    ask: Ask
    waiting: set[str]  # workers
    template: int | None = None  # verdict: whose output metas the answer teaches
    body: list[Any] = field(default_factory=list)  # sync: the answers so far
    failure: list[Any] | None = None


@dataclass(slots=True)
class Transfer:
    """Chunks of one tensor of ``nbytes`` between a client and a worker. ``link`` is None once that worker was lost."""

    link: Link | None
    worker: str
    nbytes: int
    upload: bool
    request: int = 0  # of the fetch


@dataclass(slots=True)
class Spread:
    """Where a spread session's values are: ids below ``boundary`` (made while the session was single) on ``base``
    unless ``where`` says otherwise, later ones as ``where`` says."""

    boundary: int
    base: Layout
    where: dict[int, Layout] = field(default_factory=dict)

    def locate(self, value: int) -> Layout | None:
        """The value's layout; None for an id that doesn't exist (ids below the boundary are taken on trust: their
        worker checks).
        """
        found = self.where.get(value)
        if found is None and 0 < value < self.boundary:
            return self.base
        return found

    def lose(self, worker: str) -> None:
        """``worker`` is gone: forget its copies; values it alone held become lost."""
        self.base = self.base.without(worker)
        where = self.where
        for value, layout in where.items():
            if worker in layout.workers:
                where[value] = layout.without(worker)

    def sole(self, worker: str) -> bool:
        """Whether every value is on ``worker`` and nowhere else."""
        alone = (worker,)
        if self.boundary > 1 and self.base.workers != alone:
            return False
        return all(layout.workers == alone for layout in self.where.values())


@dataclass(eq=False, slots=True)
class Session:
    """One connected client and its stream.

    Credit: ``taken_*`` is what the client has used of its window, ``owed_*`` the part of that which has run and was not
    yet given back.
    """

    id: str
    address: Address
    peer: Peer
    facts: dict[str, Any]  # its Hello
    since: float
    same_host: bool  # memfds may be used between it and its workers
    key: str = ""  # only it and we know it
    seq: int = 0  # of the newest message
    next_id: int = 1
    single: Link | None = None
    spread: Spread | None = None
    current: Link | None = None  # where new values go
    turn_left: int = 0  # bytes
    turn_limit: int = 0
    turn_start: int = 0  # bytes it held on the current worker when the turn began
    links: dict[str, Link] = field(default_factory=dict)
    definitions: dict[int, m.Definition] = field(default_factory=dict)
    templates: dict[int, Template] = field(default_factory=dict)
    unlearned: set[int] = field(default_factory=set)  # templates whose number of outputs isn't known
    signals: dict[int, str] = field(default_factory=dict)
    requests: dict[int, Pending] = field(default_factory=dict)
    transfers: dict[int, Transfer] = field(default_factory=dict)
    held: deque[Any] = field(default_factory=deque)  # stream messages that wait for a worker
    held_chunks: list[m.Chunk] = field(default_factory=list)
    waits_since: float | None = None  # steady clock; infinite once its program was told
    taken_instructions: int = 0
    taken_bytes: int = 0
    owed_instructions: int = 0
    owed_bytes: int = 0
    under_way: int = 0  # messages
    finished: int = 0  # instructions
    silent: bool = False
    last_error: str | None = None
    rates: Rates = field(default_factory=Rates)

    def enter_spread(self) -> None:
        """From here on each id's layout is kept."""
        if self.spread is None:
            base = whole(self.single.worker.id) if self.single else gone("")
            self.spread, self.single = Spread(self.next_id, base), None

    @property
    def who(self) -> str:
        """How a person would call it."""
        return f"{self.facts.get('program', '?')} of {self.facts.get('user', '?')}"


def whole_number(value: Any) -> int | None:
    """``value`` if it is an integer from 0, else None: facts of a Beat are only claims."""
    return value if type(value) is int and value >= 0 else None


def number(value: Any) -> float | None:
    """``value`` if it is a finite number from 0."""
    return float(value) if type(value) in (int, float) and 0 <= value < float("inf") else None


def names(workers: Iterable[Worker]) -> str:
    """Ids for a message to a person."""
    return ", ".join(w.id for w in workers) or "none"
