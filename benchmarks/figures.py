"""One measured thing, and how two things are timed so that their ratio means something: in turn, because a shared
machine's speed drifts. Medians throughout. Knows nothing of what is measured (`measures.py`), nor of tables and files
(`report.py`).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing, on mux and (where it makes sense) in plain PyTorch, beside what is aimed at.

    ``mux`` and ``eager`` are medians in ``unit``, ``spread`` the quartiles of mux's. ``ratio`` is mux's time over
    eager's: the median of the ratios of neighbouring runs. ``target`` bounds ``ratio`` if ``of`` is "ratio", else
    ``mux``: from above, or from below where more is better (``at_least``).
    """

    name: str
    unit: str
    mux: float
    eager: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    target: float | None = None
    of: str = "mux"
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        value = self.ratio if self.of == "ratio" else self.mux
        if self.target is None or value is None:
            return None
        return value >= self.target if self.at_least else value <= self.target


@dataclasses.dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of neighbouring runs."""

    mux: list[float]
    eager: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(m / e for m, e in zip(self.mux, self.eager, strict=True))

    def figure(
        self, name: str, unit: str, scale: Callable[[float], float],
        *, target: float | None = None, of: str = "mux", at_least: bool = False,
    ) -> Figure:  # fmt: skip
        """``scale`` turns seconds into ``unit``."""
        low, high = quartiles([scale(s) for s in self.mux])
        mux, eager = scale(statistics.median(self.mux)), scale(statistics.median(self.eager))
        return Figure(name, unit, mux, eager, self.ratio, (low, high), target, of, at_least)


def quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    cut = statistics.quantiles(values, n=4)
    return cut[0], cut[2]


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def in_turn(mux: Callable[[], object], eager: Callable[[], object], rounds: int, warm: int = 1) -> Timed:
    """Run both ``warm`` times untimed, then one after the other ``rounds`` times; who begins changes each round."""
    for _ in range(warm):
        mux()
        eager()
    timed = Timed([], [])
    for number in range(rounds):
        for on_mux in (True, False) if number % 2 else (False, True):
            (timed.mux if on_mux else timed.eager).append(seconds(mux if on_mux else eager))
    return timed
