"""Figures of the last minute in fixed memory, and how they are cut to a number of cells.

Pure. Unknown (None) is kept apart from 0.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class History:
    """Samples, oldest first; ``end`` counts all that ever went in, so that buckets keep their borders from tick to
    tick.
    """

    samples: tuple[float | None, ...] = ()
    end: int = 0
    capacity: int = 0

    def buckets(self, cells: int) -> list[float | None]:
        """``cells`` figures over the whole capacity, newest last: each the mean of its samples, None where there are
        none.

        Borders lie at multiples of the bucket's length in the count of all samples: a cell that is complete never
        changes again, it only moves left when a new one begins.
        """
        if cells <= 0:
            return []
        length = max(1, -(-self.capacity // cells))
        last = (self.end - 1) // length  # number of the newest bucket
        first = self.end - len(self.samples)  # number of the oldest sample
        means: list[float | None] = []
        for bucket in range(last - cells + 1, last + 1):
            start = bucket * length - first
            part = self.samples[max(0, start) : max(0, start + length)]
            means.append(_mean(part))
        return means


def _mean(samples: tuple[float | None, ...]) -> float | None:
    """Over those that are known; None if none is."""
    if None not in samples:
        return sum(samples) / len(samples) if samples else None  # type: ignore[arg-type]  # none is None
    known = [s for s in samples if s is not None]
    return sum(known) / len(known) if known else None


class Ring:
    """A fixed number of samples; the oldest goes when a new one comes."""

    __slots__ = ("_end", "_samples")

    def __init__(self, capacity: int) -> None:
        self._samples: deque[float | None] = deque(maxlen=max(1, capacity))
        self._end = 0

    def append(self, sample: float | None, steps: int = 1) -> None:
        """Add a sample; ``steps`` > 1: as many samples' time has passed, those between are unknown."""
        for _ in range(min(steps - 1, self._samples.maxlen or 1)):
            self._samples.append(None)
        self._samples.append(sample)
        self._end += max(1, steps)

    @property
    def end(self) -> int:
        """How many samples ever went in."""
        return self._end

    def history(self) -> History:
        """The samples as of now."""
        return History(tuple(self._samples), self._end, self._samples.maxlen or 1)
