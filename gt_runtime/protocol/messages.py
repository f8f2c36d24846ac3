"""Every message of the protocol, as a frozen dataclass; ``docs/protocol.md`` is this file in prose.

A message is ``[kind, field...]``: one letter, then the fields in the order they stand here. Those that leave together
travel as one ZeroMQ message: a head, which is the MessagePack list of them, then their payloads (instruction words,
tensor bytes) as raw frames that are never copied into the head (``codec``).

``session`` is absent between a client and the dispatcher (the socket's identity says it) and present between dispatcher
and worker. Ids of values, templates, signals and requests belong to one session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, ClassVar

# ---------------------------------------------------------------------------------------------------------------------
# Shared records (they travel inside messages as MessagePack lists or maps)
# ---------------------------------------------------------------------------------------------------------------------

#: ``[dtype, sizes, strides, storage_offset]``: ``dtype`` is ATen's ScalarType number, sizes and strides count elements.
Meta = list[Any]

#: ``[template, operator, overload, arguments, input metas, output metas or None, flags]``, see ``words.TemplateFlag``.
#: Output metas: one entry a returned tensor, None for an undefined one (it takes an id all the same).
#: ``arguments`` is nested lists: a literal (None, bool, int, str, float) stands for itself; a list is tagged by its
#: first item: ``["t"]`` next input value, ``["f"]`` next literal word as float64, ``["i"]`` next literal word as int64,
#: ``["z"]`` next two literal words as complex128, ``["c", dtype, wrapped]`` a 0-dim CPU tensor made from the next
#: literal word (two if complex), ``["d"]`` the worker's device, ``["g"]`` a generator seeded from the instruction,
#: ``["l", item...]`` a list.
Definition = list[Any]


class FailureKind(StrEnum):
    """Why an instruction has no result."""

    OPERATOR = "operator"  # PyTorch refused or failed the call
    MEMORY = "memory"  # the worker or the session is over its memory
    LOST = "lost"  # a worker died with the only copy
    PROTOCOL = "protocol"  # the message made no sense (unknown id, bad words)
    REFUSED = "refused"  # the dispatcher would not do it


@dataclass(frozen=True, slots=True)
class Failure:
    """The first cause of a missing value; flows along uses to whoever fetches it."""

    kind: str  # a FailureKind
    type: str  # Python exception type to raise: "RuntimeError", "IndexError", ...
    message: str  # the operator's own words
    operator: str = ""  # "aten::mm.default"
    shapes: str = ""  # "float32[4, 3] x float32[5, 2]"
    worker: str = ""  # "w0"
    site: int = 0  # client's number for a source line; 0 = unknown
    signal: str = ""

    def pack(self) -> list[Any]:
        return [self.kind, self.type, self.message, self.operator, self.shapes, self.worker, self.site, self.signal]

    @staticmethod
    def unpack(fields: Any) -> Failure | None:
        return None if fields is None else Failure(*fields)


class Worker(StrEnum):
    """States of a worker, the same words on wire, screen and page."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    STALE = "stale"  # heartbeat late
    LOST = "lost"


# ---------------------------------------------------------------------------------------------------------------------
# Messages
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a client or a worker. ``facts`` is a map so that either side may be newer
    (``handshake.Facts``)."""

    KIND: ClassVar[str] = "H"
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a good Hello. ``facts``: session or worker id, epoch, cluster, credit, same_host, limits, pulse
    endpoint."""

    KIND: ClassVar[str] = "W"
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a Hello or a message that is not accepted: what was asked, what was found, what to do."""

    KIND: ClassVar[str] = "X"
    asked: str
    found: str
    do: str


@dataclass(frozen=True, slots=True)
class Open:
    """Dispatcher to worker: a session will send work here. ``facts``: pid, uid, same_host, memory (bytes, 0 = no cap),
    label."""

    KIND: ClassVar[str] = "O"
    session: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Close:
    """Dispatcher to worker: free everything this session holds. Client to dispatcher (session ''): goodbye."""

    KIND: ClassVar[str] = "Q"
    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Instructions, in order. Payload: one frame of int64 words (``words``).

    ``base`` is the id of the first output; the batch makes ids ``base .. base+outputs-1``. A non-zero ``verdict`` is a
    request id: the worker answers it with a Result once the batch has run: the output metas of the last instruction, or
    its failure.
    """

    KIND: ClassVar[str] = "B"
    session: str
    seq: int
    base: int
    outputs: int
    instructions: int
    verdict: int
    definitions: list[Definition]
    signals: list[list[Any]]  # [[id, name], ...] new since the last batch
    words: Any = field(default=b"")  # payload


@dataclass(frozen=True, slots=True)
class Upload:
    """A value from the client. ``source``: None (bytes are the payload), ``["m", fd, offset, nbytes]`` (the client's
    memfd, same host) or ``["s", transfer, nbytes]`` (staged before by Chunks). Bytes are contiguous, row major,
    whatever the strides: the worker lays them out with the meta's strides. A non-zero ``request`` is answered when the
    source may be reused."""

    KIND: ClassVar[str] = "U"
    session: str
    seq: int
    request: int
    id: int
    meta: Meta
    source: list[Any] | None
    data: Any = field(default=b"")  # payload


@dataclass(frozen=True, slots=True)
class Fetch:
    """A value back to the client, contiguous. ``sink``: None (payload of the Result), ``["m", fd, offset, nbytes]`` or
    ``["s", transfer, nbytes]`` (Chunks follow on the bulk socket)."""

    KIND: ClassVar[str] = "F"
    session: str
    seq: int
    request: int
    id: int
    sink: list[Any] | None


@dataclass(frozen=True, slots=True)
class Sync:
    """Answer when everything sent before has run. The Result's body is a list with one entry a worker:
    ``[worker, executed instructions, log]``; ``log`` is the trace since the last Sync (``want_log``) as bytes of int64
    triples (template, first output id, 1 if it ran or 0 if it failed), else None. Its failure is the first one not yet
    reported."""

    KIND: ClassVar[str] = "Y"
    session: str
    seq: int
    request: int
    want_log: bool


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a request. ``failure`` is packed (``Failure.unpack``) or None. Body: verdict -> list of Metas (None
    for an undefined output); fetch -> Meta; upload -> None; sync -> see Sync."""

    KIND: ClassVar[str] = "R"
    session: str
    request: int
    failure: list[Any] | None
    body: Any
    data: Any = field(default=b"")  # payload


@dataclass(frozen=True, slots=True)
class Done:
    """Worker to dispatcher: message ``seq`` of a session has run; ``instructions`` and ``nbytes`` go back as credit."""

    KIND: ClassVar[str] = "D"
    session: str
    seq: int
    instructions: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Dispatcher to client: that much of the window is free again."""

    KIND: ClassVar[str] = "K"
    instructions: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Send:
    """Dispatcher to worker: give value ``id`` to ``peer``. The twin ``Recv`` carries the same ``transfer`` number;
    numbers rise in one global order."""

    KIND: ClassVar[str] = "S"
    session: str
    transfer: int
    id: int
    peer: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Recv:
    """Dispatcher to worker: value ``id`` comes from ``peer``. The sender says meta and poison ahead of the bytes."""

    KIND: ClassVar[str] = "V"
    session: str
    transfer: int
    id: int
    peer: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Poison:
    """Dispatcher to worker: these ids have no value, and why. Whatever uses them fails with that cause."""

    KIND: ClassVar[str] = "P"
    session: str
    ids: list[int]
    failure: list[Any]


@dataclass(frozen=True, slots=True)
class Peers:
    """Dispatcher to worker, on every change of membership: ``members`` maps worker id -> ``{"store": "host:port"}``.
    Groups with a worker that is no longer named are aborted."""

    KIND: ClassVar[str] = "G"
    epoch: int
    members: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """On the bulk sockets: a piece of a large tensor at ``offset`` bytes. Receivers answer every chunk with a Chunk of
    no bytes (``last`` set once all is there): the sender keeps at most ``limits.CHUNK_WINDOW`` under way.
    ``transfer`` is unique in the session."""

    KIND: ClassVar[str] = "C"
    session: str
    transfer: int
    offset: int
    nbytes: int  # of the whole transfer
    last: bool
    data: Any = field(default=b"")  # payload


@dataclass(frozen=True, slots=True)
class Notice:
    """To a client or worker: something a person should read. ``level``: "info", "warning", "fatal" (the session or
    worker is over: a killed session, a worker that was declared lost, a cluster that stops)."""

    KIND: ClassVar[str] = "N"
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """A control request (``docs/protocol.md``, "Control"): needs no Hello. ``version`` is the protocol's."""

    KIND: ClassVar[str] = "c"
    version: int
    request: int
    method: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a Request. ``error`` is None or ``{"what", "found", "do"}``."""

    KIND: ClassVar[str] = "r"
    request: int
    error: dict[str, Any] | None
    result: Any


@dataclass(frozen=True, slots=True)
class Beat:
    """On the pulse socket, from its own thread, both ways. ``who`` is a worker or session id; ``facts``: statistics
    (worker: utilisation, memory, queue, instructions, sessions). The dispatcher answers each with its own Beat."""

    KIND: ClassVar[str] = "b"
    who: str
    epoch: int
    facts: dict[str, Any]


class Payload(IntEnum):
    """How many raw frames follow the body."""

    NONE = 0
    ONE = 1


MESSAGES: dict[str, type[Any]] = {
    m.KIND: m
    for m in (
        Hello, Welcome, Refused, Open, Close, Batch, Upload, Fetch, Sync, Result, Done, Credit, Send, Recv, Poison,
        Peers, Chunk, Notice, Request, Reply, Beat,
    )
}  # fmt: skip
