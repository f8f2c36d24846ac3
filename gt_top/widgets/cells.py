"""How one figure, state or graph is put into a cell. Shared by all tables and the header. Pure."""

from __future__ import annotations

from gt_top import units
from gt_top.cluster import Look
from gt_top.history import History
from gt_top.styles.roles import Role
from gt_top.widgets.glyphs import Glyphs, spark
from gt_top.widgets.spans import Bar, Line, Span, width_of

FULL_WARN, FULL_BAD = 0.90, 0.97  # shares of memory from which a bar warns

STATE_ROLES = {
    "ready": Role.GOOD, "live": Role.GOOD, "starting": Role.BUSY, "connecting": Role.BUSY, "draining": Role.BUSY,
    "drained": Role.DIM, "throttled": Role.WARN, "lagging": Role.WARN, "stale": Role.WARN, "silent": Role.WARN,
    "lost": Role.BAD, "gone": Role.BAD, "closed": Role.DIM, "unreachable": Role.BAD,
}  # fmt: skip


def text(value: str | None) -> Line:
    return [(value, Role.TEXT)] if value else [(units.UNKNOWN, Role.DIM)]


def figure(written: str, zero: bool = False) -> Line:
    """A figure with its unit set back: ``61.2/139`` and a dim `` GiB``. Unknown and 0 are set back whole."""
    if written == units.UNKNOWN:
        return [(written, Role.DIM)]
    value, space, unit = written.rpartition(" ")
    if not space:
        return [(written, Role.DIM if zero else Role.TEXT)]
    return [(value, Role.DIM if zero else Role.TEXT), (space + unit, Role.DIM)]


def count(value: float | None) -> Line:
    return figure(units.count(value), zero=value == 0)


def size(value: float | None, suffix: str = "") -> Line:
    return figure(units.size(value) + (suffix if value is not None else ""), zero=value == 0)


def share_bar(share: float | None, written: str, width: int, bare: int, role: Role) -> Line:
    """``written`` at the right, and a bar before it where ``width`` is more than ``bare`` cells."""
    spans = figure(written)
    if width <= bare:
        return spans
    used = width_of(spans)
    return [Bar(share, width - bare - 1, role), (" " * max(0, bare - used + 1), Role.TEXT), *spans]


def memory_role(share: float | None) -> Role:
    if share is None or share < FULL_WARN:
        return Role.MEMORY
    return Role.WARN if share < FULL_BAD else Role.BAD


def history(figures: History, cells: int, glyphs: Glyphs, role: Role, top: float | None = None) -> Line:
    """A sparkline over the last minute; scaled to ``top``, or to its own largest figure."""
    buckets = figures.buckets(cells)
    known = [b for b in buckets if b is not None]
    scale = top if top is not None else max(known, default=0.0)
    return [(spark(glyphs, buckets, scale), role)]


def state(word: str, look: Look, age: float | None, glyphs: Glyphs) -> Line:
    """Symbol, word and, where it is no news, how old: ``● ready``, ``◔ ready 12s``, ``✗ lost 6s``."""
    old = look >= Look.LAGGING or word in ("stale", "lost", "gone", "silent")
    shown = f" {units.age(age, whole_seconds=True)}" if old and age is not None else ""
    mark = word
    if look >= Look.STALE and STATE_ROLES.get(word) in (Role.GOOD, Role.BUSY):
        mark = "stale"
    elif look == Look.LAGGING and STATE_ROLES.get(word) is Role.GOOD:
        mark = "lagging"
    role = STATE_ROLES.get(mark, Role.WARN)
    symbol: Span = (glyphs.states.get(mark, glyphs.unknown_state) + " ", role)
    return [symbol, (word, role), (shown, Role.DIM)]
