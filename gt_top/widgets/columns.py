"""Columns of a table: what they show, how wide they are, which of them fit.

Pure: no Textual. ``Column.cell`` turns a row into spans (text and role); ``layout`` decides from a width alone which
columns are shown and how wide, so that a wider terminal never shows less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gt_top.widgets.glyphs import Glyphs
from gt_top.widgets.spans import Line

RowT = TypeVar("RowT")
GAP = 2  # cells between columns


@dataclass(frozen=True)  # no slots: Python 3.11 can't call `Column[Row](...)` then
class Column(Generic[RowT]):
    """One column.

    ``rank`` orders what is given room: 0 always, then 1, 2, ... while there is room. A column with a graph is first
    shown without it (``width`` cells), gets ``graph`` cells more at ``graph_rank``, and shares what is left over up to
    ``most`` cells. A text column is as wide as its texts, between ``width`` and ``most``.
    """

    key: str
    title: str
    help: str
    width: int
    cell: Callable[[RowT, int, Glyphs], Line]
    sort: Callable[[RowT], float | int | str | tuple[object, ...] | None] | None = None
    descending: bool = False  # what "sorted" means at first: the largest on top
    right: bool = False
    rank: int = 0
    graph: int = 0
    graph_rank: int = 0
    most: int = 0
    sizes: tuple[int, ...] = ()  # widths that a graph may have, rising; () = any
    text: Callable[[RowT], str] | None = None  # what the filter looks at
    lively: bool = False  # its text changes while the row stays


@dataclass(frozen=True, slots=True)
class Placed(Generic[RowT]):
    """A column that is shown, and its cells."""

    column: Column[RowT]
    width: int

    @property
    def graph(self) -> bool:
        """Whether its graph is shown."""
        return self.column.graph > 0 and self.width > self.column.width


@dataclass(frozen=True, slots=True)
class Layout(Generic[RowT]):
    """What is shown of the columns. ``hidden``: how many are not."""

    placed: tuple[Placed[RowT], ...]
    hidden: int


def layout(columns: Sequence[Column[RowT]], width: int, wanted: dict[str, int] | None = None) -> Layout[RowT]:
    """Which columns fit in ``width`` cells. ``wanted``: cells that the content of text columns asks for (at most
    ``most``).
    """
    wanted = wanted or {}
    cells: dict[str, int] = {}
    left = width
    steps: list[tuple[int, bool, int, str, int]] = []  # rank, more than its base, position, key, cost
    for position, c in enumerate(columns):
        steps.append((c.rank, False, position, c.key, c.width + GAP))
        if c.graph:
            steps.append((c.graph_rank, True, position, c.key, c.graph))
        elif c.most > c.width and wanted.get(c.key, 0) > c.width:
            steps.append((c.rank, True, position, c.key, min(c.most, wanted[c.key]) - c.width))
    left += GAP  # the last column needs no gap
    for rank, more, _, key, cost in sorted(steps):
        if cost > left and (rank > 0 or more):
            break
        cells[key] = cells.get(key, -GAP) + cost
        left -= cost
    _grow(columns, cells, left)
    placed = tuple(Placed(c, cells[c.key]) for c in columns if c.key in cells)
    return Layout(placed, len(columns) - len(placed))


def _grow(columns: Sequence[Column[RowT]], cells: dict[str, int], left: int) -> None:
    """Share what is left among graphs, a cell each in turn; those with ``sizes`` give back what is between two of
    them.
    """
    growing = [c for c in columns if c.graph and cells.get(c.key, 0) >= c.width + c.graph]
    left = _share(growing, cells, left)
    for c in growing:
        if c.sizes:
            fitting = max((s for s in c.sizes if s <= cells[c.key]), default=cells[c.key])
            left += cells[c.key] - fitting
            cells[c.key] = fitting
    _share([c for c in growing if not c.sizes], cells, left)


def _share(growing: Sequence[Column[RowT]], cells: dict[str, int], left: int) -> int:
    """Give ``left`` cells to columns, one each in turn, up to their ``most``. Returns what nobody wants."""
    while left > 0:
        hungry = [c for c in growing if cells[c.key] < c.most]
        if not hungry:
            break
        for c in hungry[:left]:
            cells[c.key] += 1
        left -= len(hungry[:left])
    return left
