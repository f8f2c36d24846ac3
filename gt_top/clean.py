"""Records with every field of the type it promises: a feed may carry anything, the model is built on these. Pure."""

from __future__ import annotations

from dataclasses import replace

from gt_runtime.telemetry.records import Event, SessionRecord, WorkerRecord
from gt_top.units import number, plain, share


def natural(text: str) -> tuple[object, ...]:
    """A key that sorts ``w2`` before ``w10``: prefix, number, whole text."""
    digits = len(text) - len(text.rstrip("0123456789"))
    tail = text[-digits:] if 0 < digits < 18 else ""
    return (text[: len(text) - len(tail)], int(tail) if tail else -1, text)


def clean_worker(record: WorkerRecord) -> WorkerRecord:
    """The record with every field of the type it promises: a feed may carry anything."""
    return replace(
        record,
        id=plain(record.id) or "?",
        state=plain(record.state) or "?",
        host=plain(record.host) or None,
        pid=whole(record.pid),
        device=plain(record.device) or None,
        device_name=plain(record.device_name) or None,
        source=plain(record.source) or None,
        utilisation=share(record.utilisation),
        memory_used=whole(record.memory_used),
        memory_total=whole(record.memory_total),
        queue=whole(record.queue),
        instr_rate=number(record.instr_rate),
        instr_total=whole(record.instr_total),
        heartbeat_age=number(record.heartbeat_age),
        values=whole(record.values),
        value_bytes=whole(record.value_bytes),
        bytes_in_rate=number(record.bytes_in_rate),
        bytes_out_rate=number(record.bytes_out_rate),
    )


def clean_session(record: SessionRecord) -> SessionRecord:
    """As ``clean_worker``."""
    return replace(
        record,
        id=plain(record.id) or "?",
        program=plain(record.program) or None,
        pid=whole(record.pid),
        user=plain(record.user) or None,
        host=plain(record.host) or None,
        tenant=plain(record.tenant) or None,
        state=plain(record.state) or "?",
        since=number(record.since),
        instr_rate=number(record.instr_rate),
        instr_total=whole(record.instr_total),
        values=whole(record.values),
        value_bytes=whole(record.value_bytes),
        memory_cap=whole(record.memory_cap),
        credit=whole(record.credit),
        workers=[plain(w) for w in record.workers] if isinstance(record.workers, list) else [],
        last_error=plain(record.last_error) or None,
    )


def clean_event(event: Event) -> Event:
    """As ``clean_worker``."""
    return replace(
        event,
        event=plain(event.event) or "?",
        seq=whole(event.seq) or 0,
        time=number(event.time) or 0.0,
        subject=plain(event.subject),
        who=plain(event.who),
        text=plain(event.text),
    )


def whole(value: object) -> int | None:
    """A finite number cut to an integer, else None."""
    known = number(value)
    return None if known is None else int(known)
