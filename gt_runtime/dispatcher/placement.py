"""Which worker takes a session's next new values: smooth weighted round robin. Pure: no clock, no sockets, no sessions.

The wheel is nginx's "smooth weighted round robin" (commit 52327e0627f4, 2012): each turn every worker gains its weight,
the richest one is taken and pays the sum. Over many turns each gets its share, and heavy workers don't come in runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

TURN_MIN_BYTES = 64 << 20  # a turn is worth at least this much, else small workers would split every session
MIN_SHARE = 0.01  # a full worker, or one that measured 0, keeps a chance: a weight of 0 would starve it for ever


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a worker's weight is made of.

    Attributes:
        worker: id.
        speed: measured float32 GFLOP/s, 0 = unknown.
        free: free share of its memory, 0 to 1.
        queue: instructions sent to it that have not run.
        tenants: other sessions whose new values go there now.
    """

    worker: str
    speed: float
    free: float
    queue: int
    tenants: int

    def weight(self) -> float:
        """Measured speed x share of free memory / (1 + queue in thousands) / (1 + tenants)."""
        speed = self.speed if self.speed > 0 else 1.0
        share = min(1.0, max(MIN_SHARE, self.free))
        return speed * share / (1 + max(0, self.queue) / 1000) / (1 + self.tenants)


def turn_limit(turn_bytes: int | None, free_bytes: int) -> int:
    """Bytes of new values in one turn: as told, else half of what was free when the turn began, at least
    ``TURN_MIN_BYTES``.
    """
    return turn_bytes if turn_bytes is not None else max(TURN_MIN_BYTES, free_bytes // 2)


class Wheel:
    """The turning state: how much each worker is owed."""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}

    def take(self, candidates: Iterable[Candidate]) -> str | None:
        """The next worker, or None without candidates. Ties go to the earlier candidate."""
        total, best = 0.0, None
        for candidate in candidates:
            weight = candidate.weight()
            total += weight
            owed = self._owed[candidate.worker] = self._owed.get(candidate.worker, 0.0) + weight
            if best is None or owed > self._owed[best] + 1e-9:
                best = candidate.worker
        if best is not None:
            self._owed[best] -= total
        return best

    def forget(self, worker: str) -> None:
        """A worker that left takes no debts along."""
        self._owed.pop(worker, None)
