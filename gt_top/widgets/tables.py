"""Which columns the Workers and the Sessions table have. Pure: rows of the model in, spans out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gt_top import units
from gt_top.clean import natural
from gt_top.cluster import SessionView, WorkerView
from gt_top.styles.roles import Role
from gt_top.widgets import cells
from gt_top.widgets.columns import Column
from gt_top.widgets.glyphs import Glyphs
from gt_top.widgets.spans import Line

_HISTORY_CELLS = (12, 15, 20, 24, 30, 40)  # divisors of the 120 samples of a minute: no cell stays empty

WorkerColumn = Column[WorkerView]
SessionColumn = Column[SessionView]


def device_label(device: str | None, name: str | None) -> str | None:
    """``H200 #0`` for ``cuda:0`` on an "NVIDIA H200"; else the device as it is."""
    if device is None:
        return None
    kind, colon, index = device.partition(":")
    if colon and name:
        return f"{name.removeprefix('NVIDIA ')} #{index}"
    if colon:
        return f"{kind} #{index}"
    return device


def worker_state(w: WorkerView) -> str:
    return "gone" if w.gone else w.record.state


def session_state(s: SessionView) -> str:
    return "gone" if s.gone else s.record.state


def _pid(pid: int | None) -> str | None:
    return None if pid is None else str(pid)


def _share(used: float | None, total: float | None) -> float | None:
    return None if used is None or not total else min(1.0, max(0.0, used / total))


def _memory(w: WorkerView, width: int, glyphs: Glyphs) -> Line:
    share = _share(w.record.memory_used, w.record.memory_total)
    written = units.pair(w.record.memory_used, w.record.memory_total)
    return cells.share_bar(share, written, width, units.PAIR_WIDTH, cells.memory_role(share))


def _utilisation(w: WorkerView, width: int, glyphs: Glyphs) -> Line:
    share = w.record.utilisation
    return cells.share_bar(share, units.percent(share), width, units.PERCENT_WIDTH, Role.UTIL)


def _count(get: Callable[[WorkerView], float | None]) -> Callable[[WorkerView, int, Glyphs], Line]:
    return lambda w, width, glyphs: cells.count(get(w))


def _session_count(get: Callable[[SessionView], float | None]) -> Callable[[SessionView, int, Glyphs], Line]:
    return lambda s, width, glyphs: cells.count(get(s))


def worker_columns() -> Sequence[WorkerColumn]:
    """The Workers table, left to right."""
    return (
        WorkerColumn(
            "worker", "WORKER", "its id", 6, lambda w, _, g: [(w.id, Role.STRONG)],
            sort=lambda w: w.order[1:], most=14, text=lambda w: w.id,
        ),
        WorkerColumn(
            "host", "HOST", "machine it runs on", 6, lambda w, _, g: cells.text(w.record.host),
            sort=lambda w: natural(w.record.host) if w.record.host else None, rank=3, most=20,
            text=lambda w: w.record.host or "",
        ),
        WorkerColumn(
            "device", "DEVICE", "what it computes on", 6,
            lambda w, _, g: cells.text(device_label(w.record.device, w.record.device_name)),
            sort=lambda w: device_label(w.record.device, w.record.device_name), rank=1, most=20,
            text=lambda w: f"{w.record.device or ''} {device_label(w.record.device, w.record.device_name) or ''}",
        ),
        WorkerColumn(
            "state", "STATE", "what it is doing, with its age where that isn't news", 10,
            lambda w, _, g: cells.state(worker_state(w), w.look, w.age, g),
            sort=worker_state, most=18, text=worker_state, lively=True,
        ),
        WorkerColumn(
            "util", "UTIL", "share of the last half second its device was busy", units.PERCENT_WIDTH, _utilisation,
            sort=lambda w: w.record.utilisation, descending=True, right=True, graph=9, graph_rank=2, most=26,
        ),
        WorkerColumn(
            "history", "60 s", "utilisation over the last minute, now at the right", 10,
            lambda w, width, g: cells.history(w.utilisation, width, g, Role.UTIL, top=1.0),
            rank=4, graph=2, graph_rank=4, most=40, sizes=_HISTORY_CELLS,
        ),
        WorkerColumn(
            "memory", "MEMORY", "used of all: the device's (GPU), the process's (CPU)", units.PAIR_WIDTH, _memory,
            sort=lambda w: w.record.memory_used, descending=True, right=True, graph=9, graph_rank=7, most=36,
        ),
        WorkerColumn(
            "queue", "QUEUE", "instructions sent to it that haven't run", 5, _count(lambda w: w.record.queue),
            sort=lambda w: w.record.queue, descending=True, right=True,
        ),
        WorkerColumn(
            "instr", "INSTR/S", "instructions it ran in a second", 7, _count(lambda w: w.record.instr_rate),
            sort=lambda w: w.record.instr_rate, descending=True, right=True,
        ),
        WorkerColumn(
            "values", "VALUES", "tensors it holds", 6, _count(lambda w: w.record.values),
            sort=lambda w: w.record.values, descending=True, right=True, rank=5,
        ),
        WorkerColumn(
            "bytes", "HELD", "bytes of the tensors it holds", units.BYTES_WIDTH,
            lambda w, _, g: cells.size(w.record.value_bytes),
            sort=lambda w: w.record.value_bytes, descending=True, right=True, rank=6,
        ),
        WorkerColumn(
            "in", "NET IN", "bytes a second copied from other workers", units.BYTES_WIDTH + 2,
            lambda w, _, g: cells.size(w.record.bytes_in_rate, "/s"),
            sort=lambda w: w.record.bytes_in_rate, descending=True, right=True, rank=8,
        ),
        WorkerColumn(
            "out", "NET OUT", "bytes a second copied to other workers", units.BYTES_WIDTH + 2,
            lambda w, _, g: cells.size(w.record.bytes_out_rate, "/s"),
            sort=lambda w: w.record.bytes_out_rate, descending=True, right=True, rank=9,
        ),
        WorkerColumn(
            "total", "TOTAL", "instructions it has run", 5, _count(lambda w: w.record.instr_total),
            sort=lambda w: w.record.instr_total, descending=True, right=True, rank=10,
        ),
        WorkerColumn(
            "beat", "BEAT", "how long ago it last gave a sign of life", 5,
            lambda w, _, g: cells.figure(units.age(w.age, whole_seconds=True)),
            sort=lambda w: w.age, descending=True, right=True, rank=11,
        ),
        WorkerColumn(
            "pid", "PID", "its process", 7, lambda w, _, g: cells.text(_pid(w.record.pid)),
            sort=lambda w: w.record.pid, right=True, rank=12, text=lambda w: str(w.record.pid or ""),
        ),
    )  # fmt: skip


def session_columns() -> Sequence[SessionColumn]:
    """The Sessions table, left to right."""
    return (
        SessionColumn(
            "session", "SESSION", "its id", 7, lambda s, _, g: [(s.id, Role.STRONG)],
            sort=lambda s: s.order, most=14, text=lambda s: s.id,
        ),
        SessionColumn(
            "program", "PROGRAM", "the client's script", 8, lambda s, _, g: cells.text(s.record.program),
            sort=lambda s: s.record.program, most=28, text=lambda s: s.record.program or "",
        ),
        SessionColumn(
            "user", "USER", "who runs it", 4, lambda s, _, g: cells.text(s.record.user),
            sort=lambda s: s.record.user, rank=1, most=16, text=lambda s: s.record.user or "",
        ),
        SessionColumn(
            "host", "HOST", "where it runs", 6, lambda s, _, g: cells.text(s.record.host),
            sort=lambda s: s.record.host, rank=3, most=20, text=lambda s: s.record.host or "",
        ),
        SessionColumn(
            "pid", "PID", "its process", 7, lambda s, _, g: cells.text(_pid(s.record.pid)),
            sort=lambda s: s.record.pid, right=True, rank=1, text=lambda s: str(s.record.pid or ""),
        ),
        SessionColumn(
            "state", "STATE", "what it is doing", 10, lambda s, _, g: cells.state(session_state(s), s.look, s.age, g),
            sort=session_state, most=18, text=session_state, lively=True,
        ),
        SessionColumn(
            "instr", "INSTR/S", "instructions it ran in a second", 7, _session_count(lambda s: s.record.instr_rate),
            sort=lambda s: s.record.instr_rate, descending=True, right=True,
        ),
        SessionColumn(
            "history", "60 s", "instructions a second over the last minute, now at the right", 10,
            lambda s, width, g: cells.history(s.instr_rate, width, g, Role.RATE),
            rank=4, graph=2, graph_rank=4, most=40, sizes=_HISTORY_CELLS,
        ),
        SessionColumn(
            "values", "VALUES", "live tensors", 6, _session_count(lambda s: s.record.values),
            sort=lambda s: s.record.values, descending=True, right=True,
        ),
        SessionColumn(
            "bytes", "HELD", "bytes of its live tensors", units.BYTES_WIDTH,
            lambda s, _, g: cells.size(s.record.value_bytes),
            sort=lambda s: s.record.value_bytes, descending=True, right=True, rank=1,
        ),
        SessionColumn(
            "since", "UP", "how long it has been connected", 6,
            lambda s, _, g: cells.figure(units.age(s.duration, whole_seconds=True)),
            sort=lambda s: s.duration, descending=True, right=True, rank=5,
        ),
        SessionColumn(
            "total", "TOTAL", "instructions it has run", 5, _session_count(lambda s: s.record.instr_total),
            sort=lambda s: s.record.instr_total, descending=True, right=True, rank=6,
        ),
        SessionColumn(
            "workers", "ON", "workers that hold its values", 4, lambda s, _, g: cells.text(",".join(s.record.workers)),
            rank=7, most=24, text=lambda s: ",".join(s.record.workers),
        ),
        SessionColumn(
            "cap", "CAP", "most bytes it may hold", units.BYTES_WIDTH,
            lambda s, _, g: cells.size(s.record.memory_cap or None),
            sort=lambda s: s.record.memory_cap, descending=True, right=True, rank=8,
        ),
        SessionColumn(
            "error", "LAST ERROR", "the last failure it was told of", 12,
            lambda s, _, g: [(s.record.last_error or "", Role.WARN)],
            rank=9, most=60, text=lambda s: s.record.last_error or "",
        ),
    )  # fmt: skip
