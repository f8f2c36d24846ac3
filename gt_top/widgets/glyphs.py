"""The signs that are drawn with, in two sets: block characters, and ASCII where an encoding or a font can't do them.

Pure text; knows no colour. Everything returned has exactly the cells that were asked for.
"""

from __future__ import annotations

import locale
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. ``eighths``: what follows the full blocks of a bar, by eighths filled; ``levels``: of a sparkline, low to high."""

    name: str
    full: str
    eighths: str
    empty: str
    levels: str
    rule: str
    cursor: str
    ellipsis: str
    up: str
    down: str
    dot: str  # separates words
    arrow: str
    thumb: str  # of the scroll bar
    thumb_track: str
    states: Mapping[str, str]
    unknown_state: str


BLOCKS = Glyphs(
    name="blocks",
    full="█",
    eighths=" ▏▎▍▌▋▊▉",
    empty=" ",
    levels="▁▂▃▄▅▆▇█",
    rule="─",
    cursor="▸",
    ellipsis="…",
    up="▲",
    down="▼",
    dot="·",
    arrow="→",
    thumb="┃",
    thumb_track="│",
    states={
        "ready": "●", "live": "●", "starting": "◌", "connecting": "◌", "draining": "◐", "drained": "○", "throttled": "◐",
        "lagging": "◑", "stale": "◔", "silent": "◔", "lost": "✗", "gone": "✗", "closed": "○", "unreachable": "✗",
    },
    unknown_state="?",
)  # fmt: skip

ASCII = Glyphs(
    name="ascii",
    full="#",
    eighths="        ",
    empty=".",
    levels="_.:-=+*#",
    rule="-",
    cursor=">",
    ellipsis="~",
    up="^",
    down="v",
    dot="|",
    arrow="->",
    thumb="#",
    thumb_track="|",
    states={
        "ready": "*", "live": "*", "starting": "+", "connecting": "+", "draining": "%", "drained": "o", "throttled": "%",
        "lagging": "~", "stale": "!", "silent": "!", "lost": "x", "gone": "x", "closed": "o", "unreachable": "x",
    },
    unknown_state="?",
)  # fmt: skip


def choose(ascii_only: bool) -> Glyphs:
    """ASCII where it was asked for, or where the terminal's encoding or kind can't do better."""
    if ascii_only or os.environ.get("TERM", "") in ("linux", "dumb", "vt100"):
        return ASCII
    return BLOCKS if "utf" in locale.getpreferredencoding(False).lower().replace("-", "") else ASCII


def bar(glyphs: Glyphs, share: float | None, cells: int) -> str:
    """A horizontal bar of ``cells`` cells, ``share`` of it filled; all blank if unknown. A share above 0 is never drawn as nothing."""
    if cells <= 0:
        return ""
    if share is None:
        return " " * cells
    eighths = round(min(1.0, max(0.0, share)) * cells * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    if glyphs is ASCII or not glyphs.eighths.strip():
        filled = min(cells, max(1 if share > 0 else 0, round(share * cells)))
        return glyphs.full * filled + glyphs.empty * (cells - filled)
    part = glyphs.eighths[rest] if rest else ""
    return (glyphs.full * full + part).ljust(cells, glyphs.empty)[:cells]


def spark(glyphs: Glyphs, figures: Sequence[float | None], top: float) -> str:
    """One cell a figure, scaled to ``top``. Unknown is blank, 0 the lowest line."""
    levels = len(glyphs.levels) - 1
    cells = []
    for figure in figures:
        if figure is None:
            cells.append(" ")
        elif top <= 0:
            cells.append(glyphs.levels[0])
        else:
            cells.append(glyphs.levels[round(min(1.0, max(0.0, figure / top)) * levels)])
    return "".join(cells)


def fit(glyphs: Glyphs, text: str, cells: int, right: bool = False) -> str:
    """``text`` in exactly ``cells`` cells: padded, or cut with an ellipsis."""
    if cells <= 0:
        return ""
    length = len(text) if text.isascii() else cell_len(text)
    if length == cells:
        return text
    if length > cells:
        return set_cell_size(text, cells - 1) + glyphs.ellipsis
    padding = " " * (cells - length)
    return padding + text if right else text + padding
