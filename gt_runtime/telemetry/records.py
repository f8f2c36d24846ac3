"""What the telemetry feed carries; ``docs/telemetry.md`` is this file in prose.

The dispatcher's XPUB socket sends two frames a record: the topic (``frame`` or ``event``) and a MessagePack map. A
reader ignores keys it doesn't know and takes a missing one as unknown (None), so version n reads n+1. Unknown is None,
never 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

VERSION = 1
FRAME = b"frame"
EVENT = b"event"
FRAME_SECONDS = 0.5


class _Record:
    """Map <-> frozen dataclass, tolerant of other versions."""

    def pack(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass

    @classmethod
    def unpack(cls, fields: Mapping[str, Any]) -> Self:
        known = cls.__dataclass_fields__  # type: ignore[attr-defined]  # every subclass is a dataclass
        return cls(**{k: v for k, v in fields.items() if k in known})


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerRecord(_Record):
    """One worker at one moment. Shares are 0 to 1, memory in bytes, times in seconds, rates a second."""

    id: str
    state: str = "starting"  # messages.Worker
    host: str | None = None
    pid: int | None = None
    device: str | None = None  # "cpu", "cuda:0", "MIG-..."
    device_name: str | None = None
    source: str | None = None  # where the device's figures come from: "nvml" or "psutil"
    utilisation: float | None = None
    memory_used: int | None = None  # of the device (nvml) or of the process (psutil)
    memory_total: int | None = None
    queue: int | None = None  # instructions sent to it that have not run
    instr_rate: float | None = None
    instr_total: int | None = None
    heartbeat_age: float | None = None
    values: int | None = None
    value_bytes: int | None = None
    bytes_in_rate: float | None = None  # copied from other workers
    bytes_out_rate: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRecord(_Record):
    """One connected client."""

    id: str
    program: str | None = None
    pid: int | None = None
    user: str | None = None
    uid: int | None = None
    host: str | None = None
    tenant: str | None = None
    state: str = "live"  # live, throttled, silent, closed
    since: float | None = None  # unix time
    instr_rate: float | None = None
    instr_total: int | None = None
    values: int | None = None
    value_bytes: int | None = None
    memory_cap: int | None = None
    credit: int | None = None  # instructions it may still send
    workers: list[str] = dataclasses.field(default_factory=list)
    last_error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Event(_Record):
    """Something that happened. ``event``: joined, lost, session_opened, session_closed, session_killed, started,
    stopping, ..."""

    event: str
    seq: int = 0  # of the feed: frames and events count together
    time: float = 0.0  # unix time
    subject: str = ""  # the worker or session
    who: str = ""
    text: str = ""
    v: int = VERSION


@dataclasses.dataclass(frozen=True, slots=True)
class Frame(_Record):
    """The whole cluster at one moment; every frame is complete, so a reader that joins late misses nothing but
    history."""

    seq: int
    time: float
    cluster: str
    epoch: int
    revision: int = 0  # of the live YAML
    revision_note: str = ""
    interval: float = FRAME_SECONDS
    uptime: float = 0.0
    instr_rate: float = 0.0
    instr_total: int = 0
    workers: list[WorkerRecord] = dataclasses.field(default_factory=list)
    sessions: list[SessionRecord] = dataclasses.field(default_factory=list)
    v: int = VERSION

    @classmethod
    def unpack(cls, fields: Mapping[str, Any]) -> Self:
        more = dict(fields)
        more["workers"] = [WorkerRecord.unpack(w) for w in fields.get("workers", [])]
        more["sessions"] = [SessionRecord.unpack(s) for s in fields.get("sessions", [])]
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in more.items() if k in known})
