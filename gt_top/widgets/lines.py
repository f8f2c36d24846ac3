"""A few lines of spans as a widget: what header, event strip and footer are made of. Only lines that changed are
painted.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from gt_top.styles.palette import Palette
from gt_top.styles.roles import Role
from gt_top.widgets.glyphs import Glyphs, bar
from gt_top.widgets.spans import Bar, Line, Span


def segments_of(span: Span | Bar, palette: Palette, glyphs: Glyphs, base: Style, faded: bool) -> list[Segment]:
    """A span with its style. ``base`` lies under it; a faded span has no colour of its own."""
    if isinstance(span, Bar):
        full, empty = bar(glyphs, span.share, span.cells)
        role = Role.STALE if faded else span.role
        return [Segment(full, base + palette.style(role)), Segment(empty, base + palette.style(Role.TRACK))]
    text, role = span
    if not text:
        return []
    return [Segment(text, base + palette.style(Role.STALE if faded and role is not Role.FAINT else role))]


class Lines(Widget):
    """Lines of spans, given with ``show``."""

    def __init__(self, palette: Palette, glyphs: Glyphs, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._palette = palette
        self._glyphs = glyphs
        self._spans: Sequence[Line] = ()
        self._strips: list[Strip] = []

    def show(self, lines: Sequence[Line]) -> None:
        """Show ``lines`` from now on; what doesn't fit is cut."""
        self._spans = lines
        self._paint()

    def restyle(self, palette: Palette, glyphs: Glyphs) -> None:
        """Draw with another palette."""
        self._palette, self._glyphs = palette, glyphs
        self._strips = []
        self._paint()

    def on_resize(self, event: events.Resize) -> None:
        """Cut anew."""
        self._strips = []
        self._paint()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many as there are lines."""
        return len(self._spans)

    def _paint(self) -> None:
        width, height = self.size
        strips = [self._strip(self._spans[y] if y < len(self._spans) else (), width) for y in range(height)]
        if len(strips) != len(self._strips):
            self._strips = strips
            self.refresh()
            return
        changed = [y for y, (new, old) in enumerate(zip(strips, self._strips, strict=True)) if new != old]
        if changed:
            self._strips = strips
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def _strip(self, line: Line, width: int) -> Strip:
        base = self._palette.base
        segments = [s for span in line for s in segments_of(span, self._palette, self._glyphs, base, False)]
        return Strip(segments).adjust_cell_length(width, base)

    def render_line(self, y: int) -> Strip:
        """Line ``y`` as it was last composed."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)
