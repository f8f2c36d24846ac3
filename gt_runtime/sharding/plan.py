"""Plans: which worker runs an instruction and which values must be copied there first. Pure functions of layouts and
sizes.

Later the same room plans a change of the effective configuration (edit, drain, join, loss) as moves between layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gt_runtime.sharding.layouts import Layout


@dataclass(frozen=True, slots=True)
class Move:
    """One copy of a whole value from a worker that holds it to one that needs it."""

    value: int
    source: str
    target: str


def place(layouts: Sequence[Layout], nbytes: Sequence[int], preferred: str) -> str:
    """The worker that holds most of an instruction's input bytes.

    Args:
        layouts: one an input.
        nbytes: one an input, its size.
        preferred: wins a tie, and takes an instruction whose inputs nobody holds.
    """
    held: dict[str, int] = {}
    for layout, size in zip(layouts, nbytes, strict=True):
        for worker in layout.workers:
            held[worker] = held.get(worker, 0) + size
    if not held:
        return preferred
    return max(held, key=lambda worker: (held[worker], worker == preferred))


def moves(values: Sequence[int], layouts: Sequence[Layout], target: str) -> list[Move]:
    """The copies that bring ``values`` to ``target``, each value once; what nobody holds any more isn't among them."""
    found: dict[int, Move] = {}
    for value, layout in zip(values, layouts, strict=True):
        if layout.workers and target not in layout.workers:
            found[value] = Move(value, layout.workers[0], target)
    return list(found.values())
