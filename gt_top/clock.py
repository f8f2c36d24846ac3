"""What time it is. One place, so that tests and screenshots can stand still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only go forward."""

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own."""

    def monotonic(self) -> float:
        return time.monotonic()
