"""The main screen: header, workers, sessions, events, keys. Draws a ``ClusterView``; owns only what is selected and
sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Input, Static

from gt_top import units
from gt_top.actions import Action, key_name
from gt_top.cluster import ClusterView, Look, SessionView, WorkerView, latest
from gt_top.styles.palette import Palette
from gt_top.styles.roles import Role
from gt_top.widgets.events import events as event_lines
from gt_top.widgets.glyphs import Glyphs
from gt_top.widgets.header import HEIGHT as HEADER_HEIGHT
from gt_top.widgets.header import header
from gt_top.widgets.lines import Lines
from gt_top.widgets.spans import Line, Span, pack, width_of
from gt_top.widgets.table import HEAD, LineTable, Order
from gt_top.widgets.tables import session_columns, worker_columns


@dataclass(frozen=True, slots=True)
class Heights:
    """Lines for each part of the screen; 0 = not shown. They add up to the screen's, or less."""

    header: int
    workers: int
    sessions: int
    events: int
    footer: int


def arrange(height: int, workers: int, sessions: int) -> Heights:
    """How ``height`` lines are shared. Workers first; sessions and events where there is room; what is left goes to
    events.
    """
    footer = 1 if height >= 4 else 0
    head = HEADER_HEIGHT if height >= 8 else min(1, height)
    left = height - footer - head
    if left < 9:
        return Heights(head, max(0, left), 0, 0, footer)
    event = 1 if left < 24 else max(4, left // 6)
    left -= event
    session = min(HEAD + max(1, sessions), max(HEAD + 2, left * 3 // 10))
    worker = left - session
    spare = worker - (HEAD + max(1, workers) + 1)  # one blank line below the rows
    if spare > 0 and event > 1:
        more = min(spare, HEAD + max(1, sessions) + 1 - session)
        session, spare = session + max(0, more), spare - max(0, more)
        worker, event = worker - spare - max(0, more), event + spare
    return Heights(head, worker, session, event, footer)


class WorkersScreen(Screen[None]):
    """Workers on top, then sessions and events, as the height allows."""

    def __init__(self, actions: Sequence[Action], palette: Palette, glyphs: Glyphs) -> None:
        super().__init__()
        self._actions = actions
        self.palette, self.glyphs = palette, glyphs
        self._view: ClusterView | None = None
        self._note = ""
        self._heights = Heights(0, 0, 0, 0, 0)
        self.worker_table: LineTable[WorkerView] = LineTable(
            "Workers",
            worker_columns(),
            palette,
            glyphs,
            faded=_faded,
            empty="waiting for the first frame",
            id="workers",
        )
        self.session_table: LineTable[SessionView] = LineTable(
            "Sessions", session_columns(), palette, glyphs, faded=_faded, empty="no program is connected", id="sessions"
        )

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield Lines(self.palette, self.glyphs, id="header")
        yield self.worker_table
        yield self.session_table
        yield Lines(self.palette, self.glyphs, id="events")
        with Horizontal(id="filter-bar"):
            yield Static("Filter", id="filter-label")
            yield Input(id="filter", compact=True, select_on_focus=False)
        yield Lines(self.palette, self.glyphs, id="footer")

    def on_mount(self) -> None:
        """Keys go to the workers."""
        self.worker_table.focus()

    def on_resize(self, event: events.Resize) -> None:
        """Share the lines anew."""
        self.draw()

    # --- drawing ---

    def show(self, view: ClusterView, note: str = "") -> None:
        """Draw ``view``. ``note`` stands at the right of the footer."""
        self._view, self._note = view, note
        self.draw()

    def draw(self) -> None:
        """Draw the last view: whatever is on screen and differs is painted, nothing else."""
        view = self._view
        if view is None or not self.is_mounted:
            return
        width, height = self.size
        filtering = self.query_one("#filter-bar").has_class("open")
        heights = arrange(height - filtering, len(view.workers), len(view.sessions))
        self._set_heights(heights)
        self.query_one("#header", Lines).show(header(view, width, self.glyphs)[: heights.header])
        self.worker_table.empty = _empty(view)
        self.worker_table.show(view.workers)
        if heights.sessions:
            self.session_table.show(view.sessions)
        elif self.session_table.has_focus:
            self.worker_table.focus()
        newest = latest(view.events, heights.events)
        lines = event_lines(newest, len(view.events), width, heights.events, self.glyphs)
        self.query_one("#events", Lines).show(lines)
        self.query_one("#footer", Lines).show([self._footer(width, view, heights)])

    def _set_heights(self, heights: Heights) -> None:
        if heights == self._heights:
            return
        self._heights = heights
        for name in ("header", "workers", "sessions", "events", "footer"):
            lines = getattr(heights, name)
            widget = self.query_one(f"#{name}")
            widget.styles.height = lines
            widget.display = lines > 0

    def _footer(self, width: int, view: ClusterView, heights: Heights) -> Line:
        if self.query_one("#filter-bar").has_class("open"):
            return [("  Enter", Role.ACCENT), (" keep   ", Role.DIM), ("Esc", Role.ACCENT), (" drop", Role.DIM)]
        parts: list[tuple[int, Line]] = []
        rank = {"quit": 0, "help": 2}
        for action in self._actions:
            if action.footer:
                keys: list[Span] = [(key_name(action.keys[0]), Role.ACCENT), (f" {action.footer}", Role.DIM)]
                parts.append((rank.get(action.name, 3), keys))
        if not heights.sessions and view.sessions:
            n = len(view.sessions)
            parts.append((1, [(f"+{n} session{'s' if n != 1 else ''} hidden", Role.DIM)]))
        note: list[Span] = [(self._note, Role.DIM)] if self._note else []
        left = pack(parts, max(0, width - 4 - (len(self._note) + 2 if note else 0)), gap=3)
        used = width_of(left)
        gap = max(1, width - 4 - used - len(self._note))
        return [("  ", Role.TEXT), *left, (" " * gap, Role.TEXT), *note]

    def restyle(self, palette: Palette, glyphs: Glyphs) -> None:
        """Draw with another palette."""
        self.palette, self.glyphs = palette, glyphs
        for table in (self.worker_table, self.session_table):
            table.restyle(palette, glyphs)
        for lines in self.query(Lines):
            lines.restyle(palette, glyphs)
        self.draw()

    # --- the table that has the keys ---

    @property
    def table(self) -> LineTable[WorkerView] | LineTable[SessionView]:
        """The table that has the keys."""
        return self.session_table if self.session_table.has_focus else self.worker_table

    def other_table(self) -> None:
        """Give the keys to the other table, if it is on screen."""
        target = self.worker_table if self.session_table.has_focus else self.session_table
        if target.display:
            target.focus()

    def hold_order(self, held: bool) -> None:
        """While a dialog is open, rows stay where they are."""
        for table in (self.worker_table, self.session_table):
            table.frozen = held
        self.draw()

    def next_order(self, step: int) -> None:
        """Sort by the next column that is shown, in the direction one looks for in it."""
        keys = ["", *(c.key for c in self.table.columns if c.sort is not None)]
        now = keys.index(self.table.order.key) if self.table.order.key in keys else 0
        self.order_by(keys[(now + step) % len(keys)])

    def order_by(self, key: str) -> None:
        """Sort by column ``key`` ("" = default order); the same again turns it round."""
        table = self.table
        column = table.column(key)
        if column is None:
            table.sort_by(Order())
        elif table.order.key == key:
            table.sort_by(Order(key, not table.order.reverse))
        else:
            table.sort_by(Order(key, column.descending))

    @on(LineTable.Sorted)
    def _heading_clicked(self, message: LineTable.Sorted) -> None:
        message.table.focus()
        self.call_after_refresh(self.order_by, message.key)

    # --- the filter ---

    def ask_filter(self) -> None:
        """Open the filter's line."""
        table = self.table
        self.query_one("#filter-bar").add_class("open")
        field = self.query_one("#filter", Input)
        field.value = table.filter
        field.cursor_position = len(table.filter)
        self._filtered = table
        field.focus()
        self.draw()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, message: Input.Changed) -> None:
        if self.query_one("#filter-bar").has_class("open"):
            self._filtered.filter_by(message.value)

    @on(Input.Submitted, "#filter")
    def _filter_kept(self) -> None:
        self.close_filter(keep=True)

    def close_filter(self, keep: bool) -> bool:
        """Close the filter's line; True if it was open."""
        bar = self.query_one("#filter-bar")
        if not bar.has_class("open"):
            return False
        bar.remove_class("open")
        if not keep:
            self._filtered.filter_by("")
        self._filtered.focus()
        self.draw()
        return True


def _faded(row: WorkerView | SessionView) -> bool:
    return row.look >= Look.STALE


def _empty(view: ClusterView) -> str:
    if view.age is not None:
        return "no worker has joined yet"
    if view.look is Look.UNREACHABLE:
        return f"unreachable: {view.reason}"
    return "waiting for the first frame"


def debug_note(cpu: float, lines: float, seq: int, missed: int) -> str:
    """The right of the footer with ``--debug``: own CPU share, lines painted a tick, sequence number, losses."""
    return f"cpu {cpu * 100:.1f}%  {units.count(lines)} lines/tick  seq {seq}  missed {missed}"
