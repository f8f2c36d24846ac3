"""Records with every field of the type it promises: a feed may carry anything, the model is built on these. Pure."""

from __future__ import annotations

from dataclasses import replace

from gt_runtime.telemetry.records import Event, SessionRecord, WorkerRecord
from gt_top.units import number, plain, share

_INT64 = 1 << 63


def natural(text: str) -> tuple[object, ...]:
    """A key that sorts ``w2`` before ``w10``: prefix, number, whole text."""
    digits = len(text) - len(text.rstrip("0123456789"))
    tail = text[-digits:] if 0 < digits < 18 else ""
    return (text[: len(text) - len(tail)], int(tail) if tail else -1, text)


def clean_worker(record: WorkerRecord) -> WorkerRecord:
    """The record with every field of the type it promises. By position: it runs for each worker of each frame."""
    return WorkerRecord(
        plain(record.id) or "?",
        plain(record.state) or "?",
        plain(record.host) or None,
        whole(record.pid),
        plain(record.device) or None,
        plain(record.device_name) or None,
        plain(record.source) or None,
        share(record.utilisation),
        whole(record.memory_used),
        whole(record.memory_total),
        whole(record.queue),
        number(record.instr_rate),
        whole(record.instr_total),
        number(record.heartbeat_age),
        whole(record.values),
        whole(record.value_bytes),
        number(record.bytes_in_rate),
        number(record.bytes_out_rate),
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
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    known = number(value)
    return None if known is None else int(known)
