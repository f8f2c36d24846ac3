"""Spans: text with a role, and bars. What cells and lines are made of before they have colours. Pure: no Textual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from gt_top.styles.roles import Role

Span = tuple[str, Role]


@dataclass(frozen=True, slots=True)
class Bar:
    """A span that is a bar of ``cells`` cells: drawn over a track, or in brackets where there is no track."""

    share: float | None
    cells: int
    role: Role


Line = Sequence[Span | Bar]


def width_of(line: Line) -> int:
    """Terminal cells that ``line`` takes."""
    return sum(s.cells if isinstance(s, Bar) else len(s[0]) if s[0].isascii() else cell_len(s[0]) for s in line)


def pack(parts: Sequence[tuple[int, Line]], width: int, gap: int = 3) -> list[Span | Bar]:
    """As many parts (rank, spans) as fit in ``width`` cells, ``gap`` cells between them: low ranks first, in their
    given order.
    """
    chosen: set[int] = set()
    left = width + gap
    for index in sorted(range(len(parts)), key=lambda i: (parts[i][0], i)):
        cost = width_of(parts[index][1]) + gap
        if cost == gap:
            continue
        if cost > left and chosen:
            break
        chosen.add(index)
        left -= cost
    line: list[Span | Bar] = []
    for index in sorted(chosen):
        if line:
            line.append((" " * gap, Role.TEXT))
        line += parts[index][1]
    return line
