"""What the header says: which cluster, how fresh the picture is, and the pool's totals. Pure: a view in, lines out."""

from __future__ import annotations

from dataclasses import replace

from gt_top import units
from gt_top.cluster import ClusterView, Look, Sum
from gt_top.styles.roles import Role
from gt_top.widgets import cells
from gt_top.widgets.glyphs import Glyphs
from gt_top.widgets.spans import Bar, Line, Span, pack

HEIGHT = 2

_BAR_CELLS = 14
_LOOKS = {
    Look.LIVE: ("live", Role.GOOD),
    Look.CONNECTING: ("connecting", Role.BUSY),
    Look.LAGGING: ("lagging", Role.WARN),
    Look.STALE: ("stale", Role.WARN),
    Look.UNREACHABLE: ("unreachable", Role.BAD),
}


def header(view: ClusterView, width: int, glyphs: Glyphs) -> list[Line]:
    """The two lines of the header in ``width`` cells: what matters most stays where there is little room."""
    t = view.totals
    first: list[tuple[int, Line]] = [
        (0, [("GT ", Role.ACCENT), (view.name or "?", Role.STRONG)]),
        (0, _freshness(view, glyphs)),
        (6, _revision(view)),
        (1, _workers(view, glyphs)),
        (3, _number(t.sessions, "session")),
        (2, [*cells.count(t.instr_rate), (" instr/s", Role.DIM)]),
        (7, _uptime(view)),
    ]
    wide = width >= 100
    busy, memory = t.utilisation.value, _share(t.memory_used, t.memory_total)
    filled = units.pair(t.memory_used.value, t.memory_total.value)
    second: list[tuple[int, Line]] = [
        (0, _gauge("UTIL", t.utilisation, busy, units.percent(busy), Role.UTIL, wide)),
        (1, _gauge("MEMORY", t.memory_used, memory, filled, cells.memory_role(memory), wide)),
        (2, _figure("QUEUE", t.queue, units.count(t.queue.value))),
        (4, _figure("NET", t.net_rate, _rate(t.net_rate))),
        (3, _figure("HELD", t.value_bytes, units.size(t.value_bytes.value))),
        (5, _figure("VALUES", t.values, units.count(t.values.value))),
    ]
    if wide:
        spark = cells.history(view.instr_rate, 24 if width >= 150 else 12, glyphs, Role.RATE)
        second.append((6, [("INSTR/S ", Role.DIM), *spark]))
    inner = max(0, width - 4)
    if view.look >= Look.STALE:  # figures of the past: greyed, but for the name and what has happened
        first = [*first[:2], *((rank, _faded(line)) for rank, line in first[2:])]
        second = [(rank, _faded(line)) for rank, line in second]
    return [[("  ", Role.TEXT), *pack(first, inner)], [("  ", Role.TEXT), *pack(second, inner)]]


def _faded(line: Line) -> Line:
    return [replace(s, role=Role.STALE) if isinstance(s, Bar) else (s[0], Role.STALE) for s in line]


def _freshness(view: ClusterView, glyphs: Glyphs) -> list[Span]:
    word, role = _LOOKS[view.look]
    spans: list[Span] = [(f"{glyphs.states[word]} ", role), (word, role)]
    if view.age is not None:
        spans.append((f" {units.age(view.age, whole_seconds=view.look > Look.LAGGING)}", Role.DIM))
    if view.look is Look.UNREACHABLE and view.reason:
        spans.append((f" {glyphs.dot} {view.reason}", Role.DIM))
    return spans


def _revision(view: ClusterView) -> list[Span]:
    if not view.revision:
        return []
    note = f" “{view.revision_note}”" if view.revision_note else ""
    return [("rev ", Role.DIM), (f"r{view.revision}", Role.TEXT), (note, Role.DIM)]


def _uptime(view: ClusterView) -> list[Span]:
    if view.uptime is None:
        return []
    return [("up ", Role.DIM), (units.age(view.uptime, whole_seconds=True), Role.TEXT)]


def _workers(view: ClusterView, glyphs: Glyphs) -> list[Span]:
    """``8 workers · 7 ready · 1 lost``; states that all share are said once."""
    t = view.totals
    spans = _number(t.workers, "worker")
    for state, n in t.states:
        role = cells.STATE_ROLES.get(state, Role.WARN)
        spans += [(f" {glyphs.dot} ", Role.DIM), (f"{n} {state}", Role.DIM if role is Role.GOOD else role)]
    return spans


def _number(n: int, what: str) -> list[Span]:
    return [(str(n), Role.TEXT), (f" {what}{'' if n == 1 else 's'}", Role.DIM)]


def _gauge(label: str, total: Sum, share: float | None, written: str, role: Role, wide: bool) -> list[Span | Bar]:
    graph: Line = [Bar(share, _BAR_CELLS if wide else 8, role), (" ", Role.TEXT)]
    return [(f"{label} ", Role.DIM), *graph, *cells.figure(written), *_of(total)]


def _figure(label: str, total: Sum, written: str) -> list[Span | Bar]:
    return [(f"{label} ", Role.DIM), *cells.figure(written, zero=total.value == 0), *_of(total)]


def _of(total: Sum) -> list[Span]:
    """`` 7 of 8`` where some of what is summed is unknown."""
    return [(f" {total.known} of {total.of}", Role.DIM)] if 0 < total.known < total.of else []


def _rate(total: Sum) -> str:
    return units.UNKNOWN if total.value is None else units.size(total.value) + "/s"


def _share(used: Sum, total: Sum) -> float | None:
    return None if used.value is None or not total.value else used.value / total.value
