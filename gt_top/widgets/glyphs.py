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
    """One set of signs. ``full``, ``half``, ``empty``: of a bar; ``levels``: of a sparkline, low to high."""

    name: str
    full: str
    half: str
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
    full="━",
    half="╸",
    empty="─",
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
        "ready": "●", "live": "●", "starting": "◌", "connecting": "◌", "draining": "◐", "drained": "○",
        "throttled": "◐", "lagging": "◑", "stale": "◔", "silent": "◔", "lost": "✗", "gone": "✗",
        "closed": "○", "unreachable": "✗",
    },
    unknown_state="?",
)  # fmt: skip

ASCII = Glyphs(
    name="ascii",
    full="=",
    half="-",
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
        "ready": "*", "live": "*", "starting": "+", "connecting": "+", "draining": "%", "drained": "o",
        "throttled": "%", "lagging": "~", "stale": "!", "silent": "!", "lost": "x", "gone": "x",
        "closed": "o", "unreachable": "x",
    },
    unknown_state="?",
)  # fmt: skip


def choose(ascii_only: bool) -> Glyphs:
    """ASCII where it was asked for, or where the terminal's encoding or kind can't do better."""
    if ascii_only or os.environ.get("TERM", "") in ("linux", "dumb", "vt100"):
        return ASCII
    return BLOCKS if "utf" in locale.getpreferredencoding(False).lower().replace("-", "") else ASCII


def bar(glyphs: Glyphs, share: float | None, cells: int) -> tuple[str, str]:
    """A horizontal bar of ``cells`` cells: its filled and its empty part. Both are blank if unknown.

    A share above 0 is never drawn as nothing, one below 1 never as full.
    """
    if cells <= 0:
        return "", ""
    if share is None:
        return "", " " * cells
    halves = round(min(1.0, max(0.0, share)) * cells * 2)
    if share > 0:
        halves = max(1, halves)
    if share < 1:
        halves = min(cells * 2 - 1, halves)
    full, half = divmod(halves, 2)
    return glyphs.full * full + glyphs.half * half, glyphs.empty * (cells - full - half)


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
