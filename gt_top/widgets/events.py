"""What has happened lately, newest first: one line an event. Pure: events in, lines out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gt_runtime.telemetry.records import Event
from gt_top.styles.roles import Role
from gt_top.widgets.glyphs import Glyphs, fit
from gt_top.widgets.spans import Line, Span

_KIND_CELLS = 16
_SUBJECT_CELLS = 8
_BAD = ("lost", "killed", "failed", "error", "stopping")
_GOOD = ("joined", "started", "resumed", "ready")


def events(newest_first: Sequence[Event], total: int, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """A rule and as many events as fit in ``height`` lines; one event alone, without a rule, where there is a single
    line.
    """
    if height <= 0:
        return []
    if height == 1:
        return [_event(newest_first[0], width, glyphs)] if newest_first else [[]]
    title: list[Span] = [(f"{glyphs.rule} ", Role.FAINT), ("Events", Role.TEXT), (f" {total} ", Role.DIM)]
    rest = max(0, width - sum(len(t) for t, _ in title))
    lines: list[Line] = [[*title, (glyphs.rule * rest, Role.FAINT)]]
    shown = [_event(e, width, glyphs) for e in newest_first[: height - 1]]
    return lines + (shown or [[("  nothing has happened yet", Role.DIM)]])


def _event(event: Event, width: int, glyphs: Glyphs) -> list[Span]:
    kind = event.event.replace("_", " ")
    role = Role.TEXT
    if any(w in kind for w in _BAD):
        role = Role.BAD
    elif any(w in kind for w in _GOOD):
        role = Role.GOOD
    by = f"by {event.who}" if event.who else ""
    text = f" {glyphs.dot} ".join(t for t in (event.text, by) if t)
    left = width - 2 - 10 - _KIND_CELLS - _SUBJECT_CELLS - 2
    return [
        ("  " + clock_time(event.time) + "  ", Role.DIM),
        (fit(glyphs, kind, _KIND_CELLS), role),
        (fit(glyphs, event.subject, _SUBJECT_CELLS) + "  ", Role.STRONG),
        (text if len(text) <= left else fit(glyphs, text, max(0, left)), Role.TEXT),
    ]


def clock_time(seconds: float) -> str:
    """``seconds`` of unix time as local ``HH:MM:SS``; blanks if it is no time."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "--:--:--"
