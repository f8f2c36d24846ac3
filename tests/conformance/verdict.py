"""How a feature row or an operator's entry ended, and how an exception is told in one line."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import StrEnum

STORY_CHARACTERS = 600
STORY_FRAMES = 4


class Outcome(StrEnum):
    """``crashed``: the process died or hung, or the row itself is broken (it fails on the CPU)."""

    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"
    SKIPPED = "skipped"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``details``: one sentence a difference; empty when right."""

    key: str
    outcome: Outcome
    details: tuple[str, ...] = ()


def story(error: BaseException) -> str:
    """Type, message and the innermost frames of an exception."""
    frames = traceback.extract_tb(error.__traceback__)[-STORY_FRAMES:]
    lines = ["/".join(frame.filename.split("/")[-2:]) + f":{frame.lineno}" for frame in frames]
    return f"{type(error).__name__}: {str(error)[:STORY_CHARACTERS]} ({' > '.join(lines)})"
