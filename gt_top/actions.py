"""Everything a user can do, once: what it is called, its keys, its words of help, what it does.

Key bindings, the footer and the help page are made from ``ACTIONS``; nothing else binds a key on the main screen.
Pure: an action calls an ``Operator``, which the app is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Operator(Protocol):
    """What actions act on. Movement and order concern the table that has the keys."""

    def move(self, rows: int) -> None: ...
    def move_page(self, pages: int) -> None: ...
    def move_end(self, last: bool) -> None: ...
    def other_table(self) -> None: ...
    def ask_filter(self) -> None: ...
    def clear(self) -> None: ...
    def ask_order(self) -> None: ...
    def next_order(self, step: int) -> None: ...
    def reverse_order(self) -> None: ...
    def default_order(self) -> None: ...
    def show_help(self) -> None: ...
    def next_theme(self) -> None: ...
    def to_shell(self) -> None: ...
    def quit(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    ``keys`` are Textual's names, the first two are shown. ``footer``: the word in the footer, "" = not there.
    ``acts``: it changes the cluster, so ``--readonly`` takes it away.
    """

    name: str
    group: str
    help: str
    keys: tuple[str, ...]
    run: Callable[[Operator], None]
    footer: str = ""
    acts: bool = False


ACTIONS: tuple[Action, ...] = (
    Action("help", "Everywhere", "this page", ("f1", "question_mark"), lambda o: o.show_help(), "Help"),
    Action("filter", "Table", "show only rows with these words", ("slash", "f4"), lambda o: o.ask_filter(), "Filter"),
    Action("order", "Table", "choose what to sort by", ("s", "f6"), lambda o: o.ask_order(), "Sort"),
    Action("order_next", "Table", "sort by the next column", ("greater_than_sign",), lambda o: o.next_order(1)),
    Action("order_previous", "Table", "sort by the column before", ("less_than_sign",), lambda o: o.next_order(-1)),
    Action("order_reverse", "Table", "sort the other way round", ("r",), lambda o: o.reverse_order()),
    Action("order_default", "Table", "back to the default order", ("0",), lambda o: o.default_order()),
    Action("clear", "Table", "drop the filter", ("escape",), lambda o: o.clear()),
    Action("table", "Move", "the other table", ("tab", "shift+tab"), lambda o: o.other_table(), "Other table"),
    Action("up", "Move", "one row up", ("up", "k"), lambda o: o.move(-1)),
    Action("down", "Move", "one row down", ("down", "j"), lambda o: o.move(1)),
    Action("page_up", "Move", "one page up", ("pageup", "ctrl+b"), lambda o: o.move_page(-1)),
    Action("page_down", "Move", "one page down", ("pagedown", "ctrl+f"), lambda o: o.move_page(1)),
    Action("first", "Move", "first row", ("home", "g"), lambda o: o.move_end(False)),
    Action("last", "Move", "last row", ("end", "G"), lambda o: o.move_end(True)),
    Action("theme", "Everywhere", "next theme: dark, light, contrast, mono", ("t",), lambda o: o.next_theme(), "Theme"),
    Action("suspend", "Everywhere", "to the shell for a while (fg returns)", ("ctrl+z",), lambda o: o.to_shell()),
    Action("quit", "Everywhere", "quit", ("q", "f10", "ctrl+c", "ctrl+q"), lambda o: o.quit(), "Quit"),
)  # fmt: skip

GROUPS = ("Everywhere", "Table", "Move")

_KEY_NAMES = {
    "question_mark": "?", "slash": "/", "greater_than_sign": ">", "less_than_sign": "<", "escape": "Esc",
    "pageup": "PgUp", "pagedown": "PgDn", "home": "Home", "end": "End", "up": "Up", "down": "Down", "tab": "Tab",
    "shift+tab": "Shift+Tab",
}  # fmt: skip


def available(readonly: bool) -> Sequence[Action]:
    """The actions a user has; ``readonly`` leaves out those that change the cluster."""
    return [a for a in ACTIONS if not (readonly and a.acts)]


def key_name(key: str) -> str:
    """How a key is written for people: ``F1``, ``/``, ``^z``, ``G``."""
    if key in _KEY_NAMES:
        return _KEY_NAMES[key]
    if key.startswith("ctrl+"):
        return "^" + key.removeprefix("ctrl+")
    return key.upper() if len(key) > 1 and key[0] == "f" and key[1:].isdigit() else key
