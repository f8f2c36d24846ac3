"""The help page: keys from the registry, columns from the tables, and what the signs mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gt_top import cluster
from gt_top.actions import GROUPS, Action, key_name
from gt_top.styles.palette import Palette
from gt_top.styles.roles import Role
from gt_top.widgets.cells import STATE_ROLES
from gt_top.widgets.columns import Column
from gt_top.widgets.glyphs import Glyphs

_KEYS_CELLS = 17


class HelpScreen(ModalScreen[None]):
    """Scrolls; any of its own keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f1,question_mark,enter", "dismiss(None)", show=False),
        Binding("f10,ctrl+c", "app.do('quit')", show=False),
        Binding("j,down", "scroll(1)", show=False),
        Binding("k,up", "scroll(-1)", show=False),
        Binding("pagedown,space", "scroll(10)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
    ]

    def __init__(
        self,
        actions: Sequence[Action],
        tables: Sequence[tuple[str, Sequence[Column[Any]]]],
        palette: Palette,
        glyphs: Glyphs,
    ) -> None:
        super().__init__()
        self._actions = actions
        self._tables = tables
        self._palette = palette
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with Vertical(classes="dialog"), VerticalScroll(id="help-scroll"):
            yield Static(self.text(), id="help-text")

    def text(self) -> Text:
        """The whole page."""
        text = Text(no_wrap=True)
        for group in GROUPS:
            self._title(text, group)
            for action in self._actions:
                if action.group == group:
                    keys = "  ".join(key_name(k) for k in action.keys[:2])
                    self._line(text, keys, action.help, Role.ACCENT)
        self._title(text, "How fresh a row or the picture is")
        for word, meaning in (
            ("live", f"news within {cluster.LAGGING_AFTER:g} s"),
            ("lagging", f"none for {cluster.LAGGING_AFTER:g} s"),
            ("stale", f"none for {cluster.STALE_AFTER:g} s: greyed, the last values stay"),
            ("unreachable", "the dispatcher is gone, or silent; comes back by itself"),
            ("lost", "the dispatcher has given the worker up"),
            ("gone", f"left the feed; its row stays {cluster.GONE_SECONDS:g} s"),
        ):
            self._line(text, f"{self._glyphs.states[word]} {word}", meaning, STATE_ROLES[word])
        for title, columns in self._tables:
            self._title(text, f"{title}: columns")
            for column in columns:
                self._line(text, column.title, column.help, Role.TEXT)
        text.append("\n- is unknown, never 0. Sums say `n of m` where some are unknown.", self._palette.style(Role.DIM))
        return text

    def _title(self, text: Text, title: str) -> None:
        text.append(("\n" if text.plain else "") + title + "\n", self._palette.style(Role.STRONG))

    def _line(self, text: Text, left: str, right: str, role: Role) -> None:
        text.append("  " + left.ljust(_KEYS_CELLS), self._palette.style(role))
        text.append(right + "\n", self._palette.style(Role.DIM))

    def action_scroll(self, lines: int) -> None:
        """Scroll by ``lines``."""
        self.query_one("#help-scroll", VerticalScroll).scroll_relative(y=lines, animate=False)
