"""What a piece of text on screen is for. Apart from the palettes, so that text can be made without Textual."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What a piece of text is for."""

    TEXT = "text"
    STRONG = "strong"
    DIM = "dim"  # labels, units, what is secondary
    FAINT = "faint"  # rules
    TRACK = "track"  # the empty part of a bar
    ACCENT = "accent"  # keys, the sorted column, the brand
    GOOD = "good"
    BUSY = "busy"  # on the way to something: starting, draining
    WARN = "warn"
    BAD = "bad"
    UTIL = "util"  # graph of utilisation
    MEMORY = "memory"  # graph of memory
    RATE = "rate"  # graph of instructions a second
    CURSOR = "cursor"  # laid under the selected row
    STALE = "stale"  # everything in a row that can't be trusted
