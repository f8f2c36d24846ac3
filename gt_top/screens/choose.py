"""A small dialog that asks for one of several: which cluster, which order. Returns the chosen key, None if none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several: ``key`` is returned, ``name`` and ``note`` are shown."""

    key: str
    name: str
    note: str = ""


class ChooseScreen(ModalScreen[str | None]):
    """Asks for one choice with the arrow keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", show=False),
        Binding("f10,ctrl+c", "app.do('quit')", show=False),
        Binding("j", "down", show=False),
        Binding("k", "up", show=False),
    ]

    def __init__(self, question: str, choices: Sequence[Choice], chosen: str = "") -> None:
        """``chosen``: key of the choice that is marked first."""
        super().__init__()
        self._question = question
        self._choices = choices
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """Question, choices, keys."""
        widest = max((len(c.name) for c in self._choices), default=0)
        options = [Option(Text.assemble(c.name.ljust(widest + 2), (c.note, "dim"))) for c in self._choices]
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="dialog-title", markup=False)
            yield OptionList(*options)
            yield Static("Enter choose   Esc back", classes="dialog-hint", markup=False)

    def on_mount(self) -> None:
        """Mark the present choice."""
        options = self.query_one(OptionList)
        keys = [c.key for c in self._choices]
        options.highlighted = keys.index(self._chosen) if self._chosen in keys else 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """That one."""
        self.dismiss(self._choices[event.option_index].key)

    def action_down(self) -> None:
        self.query_one(OptionList).action_cursor_down()

    def action_up(self) -> None:
        self.query_one(OptionList).action_cursor_up()
