"""A few lines of spans as a widget: what header, event strip and footer are made of. Only lines that changed are
painted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
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


def strip_of(
    line: Line,
    width: int,
    styles: Mapping[Role, Style],
    glyphs: Glyphs,
    *,
    faded: bool = False,
    end: Span | None = None,
) -> Strip:
    """``line`` as a strip of ``width`` cells: padded, or cut. ``end`` stands in the last cell. A faded line has one
    colour.
    """
    texts: list[str] = []
    roles: list[Role] = []
    used = 0
    for span in line:
        if isinstance(span, Bar):
            texts += bar(glyphs, span.share, span.cells)
            roles += (Role.STALE if faded else span.role, Role.TRACK)
            used += span.cells
            continue
        text, role = span
        used += len(text) if text.isascii() else cell_len(text)
        if texts and text.isspace():  # blanks have no colour: fewer segments are less to paint
            texts[-1] += text
        elif text:
            texts.append(text)
            roles.append(Role.STALE if faded and role is not Role.FAINT else role)
    room = max(0, width - (1 if end else 0))
    segments = [Segment(text, styles[role]) for text, role in zip(texts, roles, strict=True)]
    if used > room:
        segments = [*Strip(segments, used).crop(0, room)]
    elif used < room:
        segments.append(Segment(" " * (room - used), styles[Role.TEXT]))
    if end is not None and width > 0:
        segments.append(Segment(end[0], styles[end[1]]))
    return Strip(segments, width)


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
        styles, spans = self._palette.on_base, self._spans
        strips = [strip_of(spans[y] if y < len(spans) else (), width, styles, self._glyphs) for y in range(height)]
        if len(strips) != len(self._strips):
            self._strips = strips
            self.refresh()
            return
        changed = [y for y, (new, old) in enumerate(zip(strips, self._strips, strict=True)) if new != old]
        if changed:
            self._strips = strips
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        """Line ``y`` as it was last composed."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)
