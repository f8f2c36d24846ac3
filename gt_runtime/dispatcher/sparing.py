"""A log that nobody can flood: lines of one kind are written a few times, then counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES = 10  # of one kind in WINDOW_SECONDS
WINDOW_SECONDS = 10.0
_KINDS = 1024  # that are remembered; a kind is a format string of ours, so there are a few dozen


class Sparing(logging.Filter):
    """For a handler. Lines are of one kind if they have logger, level and format string in common. The first line of a
    kind after a flood says how many were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int, str], list[float]] = {}  # when the window began, lines in it

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = (record.name, record.levelno, str(record.msg)), self._clock()
        window = self._seen.get(kind)
        if window is None or now - window[0] >= WINDOW_SECONDS:
            left_out = 0 if window is None else int(window[1]) - LINES
            if len(self._seen) >= _KINDS:
                self._seen.clear()
            self._seen[kind] = [now, 1]
            if left_out > 0:
                record.msg, record.args = f"{record.getMessage()} ({left_out} more like this were left out)", ()
            return True
        window[1] += 1
        return window[1] <= LINES
