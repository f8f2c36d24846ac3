"""A table drawn line by line: any number of rows, and only lines that changed are painted.

Knows columns, rows with an ``id`` and a palette; knows nothing of clusters. The cursor holds an id, never a position.
Line 0 is a rule with the title and everything that is hidden or special about the picture, line 1 the headings, the
rest rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gt_top.styles.palette import Palette
from gt_top.styles.roles import Role
from gt_top.widgets.columns import GAP, Column, Layout, layout
from gt_top.widgets.glyphs import Glyphs, fit
from gt_top.widgets.lines import strip_of
from gt_top.widgets.spans import Bar, Line, Span, width_of

HEAD = 2  # lines above the rows: rule and headings
MARGIN = 2  # cells left of the first column: the cursor's sign


class Row(Protocol):
    """Whatever a table shows: ``id`` says which it is, ``stamp`` is equal as long as it looks the same."""

    @property
    def id(self) -> str: ...

    @property
    def stamp(self) -> tuple[object, ...]: ...


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class Order:
    """How rows are sorted. ``key`` "" is the default: the order they come in."""

    key: str = ""
    reverse: bool = False


class LineTable(ScrollView, Generic[R], can_focus=True):
    """Rows under headings. Give it rows with ``show`` once a tick."""

    DEFAULT_CSS = """
    LineTable { overflow: hidden; scrollbar-size: 0 0; }
    """

    class Picked(Message):
        """The cursor is on another row now, or on none (``row_id`` "")."""

        def __init__(self, table: LineTable[Any], row_id: str) -> None:
            self.table = table
            self.row_id = row_id
            super().__init__()

    class Sorted(Message):
        """A heading was clicked: the user wants that order."""

        def __init__(self, table: LineTable[Any], key: str) -> None:
            self.table = table
            self.key = key
            super().__init__()

    repainted: ClassVar[int] = 0  # lines painted by all tables so far, for the debug footer

    def __init__(
        self,
        title: str,
        columns: Sequence[Column[R]],
        palette: Palette,
        glyphs: Glyphs,
        *,
        faded: Callable[[R], bool],
        empty: str = "",
        id: str | None = None,
    ) -> None:
        """``faded``: whether a row is greyed. ``empty``: what stands there when there are no rows."""
        super().__init__(id=id)
        self.title = title
        self.columns = columns
        self.order = Order()
        self.filter = ""
        self.empty = empty
        self.frozen = False  # while a dialog is open rows stay where they are
        self.cursor = ""  # id of the selected row
        self._palette = palette
        self._glyphs = glyphs
        self._faded = faded
        self._all: Sequence[R] = ()
        self._rows: list[R] = []
        self._positions: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        self._measured: set[str] = set()
        self._layout: Layout[R] = Layout((), 0)
        self._lines: list[Strip] = []
        self._drawn: dict[str, tuple[tuple[object, ...], Strip]] = {}  # rows in sight, and what they were drawn from

    # --- what is shown ---

    @property
    def rows(self) -> Sequence[R]:
        """The rows as shown: filtered and sorted."""
        return self._rows

    @property
    def selected(self) -> R | None:
        """The row under the cursor."""
        position = self._positions.get(self.cursor)
        return None if position is None else self._rows[position]

    def show(self, rows: Sequence[R]) -> None:
        """Show ``rows`` from now on."""
        self._all = rows
        self._arrange()

    def restyle(self, palette: Palette, glyphs: Glyphs) -> None:
        """Draw with another palette."""
        self._palette, self._glyphs = palette, glyphs
        self._lines = []
        self._drawn.clear()
        self._paint()

    def sort_by(self, order: Order) -> None:
        """Sort from now on by ``order``."""
        self.order = order
        self._arrange()

    def filter_by(self, text: str) -> None:
        """Show only rows in which every word of ``text`` occurs, in any text column, small or capital."""
        self.filter = text.strip()
        self._arrange()

    def column(self, key: str) -> Column[R] | None:
        return next((c for c in self.columns if c.key == key), None)

    def _arrange(self) -> None:
        before = self.cursor
        rows = [r for r in self._all if self._matches(r)]
        if self.frozen:
            last = len(rows)
            rows.sort(key=lambda r: self._positions.get(r.id, last))
        else:
            rows = self._sorted(rows)
        at = self._positions.get(self.cursor, 0)
        self._rows = rows
        self._positions = {r.id: i for i, r in enumerate(rows)}
        if self.cursor not in self._positions:
            self.cursor = rows[min(at, len(rows) - 1)].id if rows else ""
        self._measure()
        size = Size(self.size.width, len(rows) + HEAD)
        if size != self.virtual_size:
            self.virtual_size = size
            self.scroll_to(y=min(self.scroll_offset.y, self.max_scroll_y), animate=False, force=True)
        self._paint()
        if self.cursor != before:
            self.post_message(self.Picked(self, self.cursor))

    def _matches(self, row: R) -> bool:
        if not self.filter:
            return True
        text = "\n".join(c.text(row) for c in self.columns if c.text is not None).lower()
        return all(word in text for word in self.filter.lower().split())

    def _sorted(self, rows: list[R]) -> list[R]:
        """In the order asked for; rows whose figure is unknown come last, ties stay in default order."""
        column = self.column(self.order.key)
        if column is None or column.sort is None:
            return rows
        keyed: list[tuple[Any, R]] = [(column.sort(r), r) for r in rows]
        known = [(k, r) for k, r in keyed if k is not None]
        known.sort(key=lambda kr: kr[0], reverse=self.order.reverse)
        return [r for _, r in known] + [r for k, r in keyed if k is None]

    # --- layout ---

    def _measure(self) -> None:
        """Text columns are as wide as their widest text so far: they never shrink while one looks at them."""
        fresh = [r for r in self._rows if r.id not in self._measured]
        top = self.scroll_offset.y
        in_sight = self._rows[top : top + self.visible_rows]
        for c in self.columns:
            if c.text is None or c.graph or c.most <= c.width:
                continue
            for row in in_sight if c.lively else fresh:
                self._wanted[c.key] = max(self._wanted.get(c.key, 0), width_of(c.cell(row, c.most, self._glyphs)))
        self._measured.update(r.id for r in fresh)
        found = layout(self.columns, self._inner_width, self._wanted)
        if found != self._layout:
            self._layout = found
            self._drawn.clear()

    @property
    def _inner_width(self) -> int:
        return max(0, self.size.width - MARGIN - 2)  # one cell for the scroll bar and one before it

    @property
    def visible_rows(self) -> int:
        """How many rows there is room for."""
        return max(0, self.size.height - HEAD)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out anew; the cursor stays in sight."""
        self._wanted.clear()
        self._measured.clear()
        self._drawn.clear()
        self._lines = []
        self._arrange()
        self._keep_in_sight()

    # --- painting ---

    def _paint(self) -> None:
        """Compose all lines in sight and repaint those that differ."""
        height = self.size.height
        before, self._drawn = self._drawn, {}
        lines = [self._line(y, before) for y in range(height)]
        if len(lines) != len(self._lines):
            self._lines = lines
            LineTable.repainted += height
            self.refresh()
            return
        changed = [y for y, (new, old) in enumerate(zip(lines, self._lines, strict=True)) if new != old]
        if not changed:
            return
        self._lines = lines
        LineTable.repainted += len(changed)
        self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """Line ``y`` of the widget as it was last composed."""
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling changes which rows are in sight."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._paint()

    def watch_has_focus(self, value: bool) -> None:
        """The cursor's bar shows only where keys go."""
        super().watch_has_focus(value)
        self._paint()

    def _line(self, y: int, drawn: dict[str, tuple[tuple[object, ...], Strip]]) -> Strip:
        """Line ``y``; a row that looks as when it was ``drawn`` last is not drawn again."""
        if y == 0:
            return self._rule()
        if y == 1:
            return self._headings()
        position = y - HEAD + self.scroll_offset.y
        if position < len(self._rows):
            row, thumb = self._rows[position], self._thumb(y)
            stamp = (*row.stamp, row.id == self.cursor, self.has_focus, thumb)
            known = drawn.get(row.id)
            strip = known[1] if known is not None and known[0] == stamp else self._row(row, thumb)
            self._drawn[row.id] = (stamp, strip)
            return strip
        if not self._rows and y == HEAD:
            text = f"no match for “{self.filter}”" if self.filter and self._all else self.empty
            return self._strip([(" " * MARGIN, Role.TEXT), (text, Role.DIM)])
        return self._strip([])

    def _rule(self) -> Strip:
        """The title line: name, how many, and whatever is hidden or changed about the picture."""
        g = self._glyphs
        left: list[Span] = [(f"{g.rule} ", Role.FAINT), (self.title, Role.STRONG if self.has_focus else Role.TEXT)]
        count = f"{len(self._rows)} of {len(self._all)}" if self.filter else f"{len(self._all)}"
        left += [(f" {count} ", Role.DIM)]
        notes = self._notes()
        right = f" {f' {g.dot} '.join(notes)} {g.rule}" if notes else ""
        width = self.size.width
        used = sum(len(t) for t, _ in left)
        if used + len(right) > width:
            right = fit(g, right, max(0, width - used)) if width - used > 8 else ""
        return self._strip([*left, (g.rule * max(0, width - used - len(right)), Role.FAINT), (right, Role.DIM)])

    def _notes(self) -> list[str]:
        notes = []
        if self.filter:
            notes.append(f"filter “{self.filter}”" if self._glyphs.name != "ascii" else f'filter "{self.filter}"')
        column = self.column(self.order.key)
        if column is not None:
            notes.append(f"by {column.title.lower()} {self._glyphs.down if self.order.reverse else self._glyphs.up}")
        if self.frozen:
            notes.append("order held")
        room = self.visible_rows
        if len(self._rows) > room:
            first = self.scroll_offset.y + 1
            last = min(len(self._rows), first + room - 1)
            notes.append(f"{first}-{last} of {len(self._rows)}" if room else f"+{len(self._rows)} rows")
        if self._layout.hidden:
            notes.append(f"{self._layout.hidden} column{'s' if self._layout.hidden != 1 else ''} hidden")
        return notes

    def _headings(self) -> Strip:
        """Titles; the sorted column's has an arrow, in the gap beside it where the column is narrow."""
        spans: list[Span | Bar] = []
        gap = MARGIN
        for p in self._layout.placed:
            title, right = p.column.title, p.column.right and not p.graph
            role, width = Role.DIM, p.width
            if p.column.key == self.order.key:
                role, width = Role.ACCENT, p.width + 1
                arrow = self._glyphs.down if self.order.reverse else self._glyphs.up
                title = arrow + title if right else title + arrow
            before = gap - 1 if width > p.width and right else gap
            spans += [(" " * before, Role.DIM), (fit(self._glyphs, title, width, right), role)]
            gap = GAP - 1 if width > p.width and not right else GAP
        return self._strip(spans)

    def _row(self, row: R, thumb: Span) -> Strip:
        g = self._glyphs
        under = row.id == self.cursor
        spans: list[Span | Bar] = [(f"{g.cursor} " if under and self.has_focus else "  ", Role.ACCENT)]
        for i, p in enumerate(self._layout.placed):
            if i:
                spans.append((" " * GAP, Role.TEXT))
            spans += _aligned(p.column.cell(row, p.width, g), p.width, p.column.right, g)
        return self._strip(spans, faded=self._faded(row), under=under and self.has_focus, end=thumb)

    def _thumb(self, y: int) -> Span:
        """The scroll bar's sign on line ``y``; blank where everything is in sight."""
        room, total = self.visible_rows, len(self._rows)
        if total <= room or room <= 0:
            return (" ", Role.FAINT)
        length = max(1, room * room // total)
        start = round(self.scroll_offset.y / max(1, total - room) * (room - length))
        on = start <= y - HEAD < start + length
        return (self._glyphs.thumb, Role.DIM) if on else (self._glyphs.thumb_track, Role.FAINT)

    def _strip(self, spans: Line, *, faded: bool = False, under: bool = False, end: Span | None = None) -> Strip:
        """Spans as one strip of the widget's width. The scroll bar keeps to the background."""
        styles = self._palette.on_cursor if under else self._palette.on_base
        return strip_of(spans, self.size.width, styles, self._glyphs, faded=faded, end=end)

    # --- moving ---

    def move(self, rows: int) -> None:
        """Move the cursor by ``rows``."""
        self._go(self._positions.get(self.cursor, 0) + rows)

    def move_page(self, pages: int) -> None:
        """Move the cursor by as many rows as are in sight."""
        self.move(pages * max(1, self.visible_rows - 1))

    def move_end(self, last: bool) -> None:
        """Move the cursor to the first or the last row."""
        self._go(len(self._rows) - 1 if last else 0)

    def _go(self, position: int) -> None:
        if not self._rows:
            return
        target = self._rows[min(len(self._rows) - 1, max(0, position))].id
        if target != self.cursor:
            self.cursor = target
            self.post_message(self.Picked(self, target))
        self._keep_in_sight()
        self._paint()

    def _keep_in_sight(self) -> None:
        position, room = self._positions.get(self.cursor), self.visible_rows
        if position is None or room <= 0:
            return
        top = self.scroll_offset.y
        wanted = min(position, max(top, position - room + 1))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)

    def on_click(self, event: events.Click) -> None:
        """A click on a row selects it, on a heading sorts by it."""
        if event.y >= HEAD:
            position = event.y - HEAD + self.scroll_offset.y
            if position < len(self._rows):
                self._go(position)
            return
        x = MARGIN
        for p in self._layout.placed:
            if event.y == 1 and x <= event.x < x + p.width and p.column.sort is not None:
                self.post_message(self.Sorted(self, p.column.key))
            x += p.width + GAP


def _aligned(cell: Line, width: int, right: bool, glyphs: Glyphs) -> list[Span | Bar]:
    """``cell`` in exactly ``width`` cells."""
    used = width_of(cell)
    if used == width:
        return list(cell)
    if used < width:
        padding: Span = (" " * (width - used), Role.TEXT)
        return [padding, *cell] if right else [*cell, padding]
    out: list[Span | Bar] = []
    left = width
    for s in cell:
        length = width_of([s])
        if length < left or (length == left and s is cell[-1]):
            out.append(s)
            left -= length
            continue
        if not isinstance(s, Bar):
            out.append((fit(glyphs, s[0] + "  ", left), s[1]))  # two cells more than it has: so it is cut, and says so
        break
    return out
