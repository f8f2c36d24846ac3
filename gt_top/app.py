"""The app: ties a feed to the model, the model to the screen, keys to actions. Decides nothing that a test would want
to ask.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from gt_top import actions
from gt_top.clock import Clock, SystemClock
from gt_top.cluster import Cluster, ClusterView
from gt_top.feed import Feed
from gt_top.screens.choose import Choice, ChooseScreen
from gt_top.screens.help import HelpScreen
from gt_top.screens.workers import WorkersScreen, debug_note
from gt_top.styles.palette import PALETTES, Palette
from gt_top.terminal import Ending
from gt_top.widgets.glyphs import Glyphs
from gt_top.widgets.table import LineTable

TICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """How it was started."""

    theme: str = "dark"
    readonly: bool = False
    debug: bool = False


class GtTop(App[None]):
    """gt-top on a terminal."""

    CSS_PATH = "styles/gt_top.tcss"
    TITLE = "gt-top"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(a.keys), f"do('{a.name}')", a.footer or a.help, show=False) for a in actions.ACTIONS
    ]

    def __init__(
        self,
        open_feed: Callable[[str], Feed],
        glyphs: Glyphs,
        options: Options = Options(),  # frozen
        *,
        cluster: str = "",
        choices: Sequence[Choice] = (),
        clock: Clock | None = None,
        ticking: bool = True,
    ) -> None:
        """``open_feed`` gets a cluster's key. ``choices``: ask which one first. ``ticking`` False: only ``tick()``
        draws.
        """
        palette = PALETTES[options.theme]
        super().__init__(ansi_color=True if not palette.coloured else None)
        self._open_feed = open_feed
        self._glyphs = glyphs
        self._options = options
        self._key = cluster
        self._choices = choices
        self._clock = clock or SystemClock()
        self._ticking = ticking
        self._actions = {a.name: a for a in actions.available(options.readonly)}
        self._model = Cluster(cluster)
        self._main = WorkersScreen(list(self._actions.values()), palette, glyphs)
        self._ending: Ending | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_cpu = (time.monotonic(), time.process_time())
        self._last_lines = 0
        self._cpu = 0.0
        self.animation_level = "none"
        for one in PALETTES.values():
            self.register_theme(one.theme())
        self.theme = palette.name

    @property
    def model(self) -> Cluster:
        """What is known."""
        return self._model

    @property
    def main(self) -> WorkersScreen:
        """The main screen."""
        return self._main

    def view(self) -> ClusterView:
        """What is known, as of now."""
        return self._model.view(self._clock.monotonic())

    async def on_mount(self) -> None:
        """Show the empty picture at once; then ask, or follow."""
        self._loop = asyncio.get_running_loop()
        if self._ending is not None:
            self._ending.on_signal(self._exit_soon)
        await self.push_screen(self._main)
        if self._choices:
            await self.push_screen(ChooseScreen("Which cluster?", self._choices), self._chosen)
        else:
            self._follow()
        self.tick()
        if self._ticking:
            self.set_interval(TICK_SECONDS, self.tick)

    def _chosen(self, key: str | None) -> None:
        if key is None:
            self.exit()
            return
        self._key = key
        self._model = Cluster(key)
        self._follow()
        self.tick()

    def _follow(self) -> None:
        self.run_worker(self._read(), name="feed", exit_on_error=True)

    async def _read(self) -> None:
        first = True
        async for batch in self._open_feed(self._key).batches():
            now = self._clock.monotonic()
            for item in batch:
                self._model.fold(item, now)
            if first and self._model.view(now).workers:
                first = False
                self.tick()

    def tick(self) -> None:
        """Draw what is known now."""
        view = self.view()
        self._main.show(view, self._debug(view) if self._options.debug else "")

    def _debug(self, view: ClusterView) -> str:
        now, used = time.monotonic(), time.process_time()
        passed = now - self._last_cpu[0]
        if passed >= TICK_SECONDS / 2:
            self._cpu = (used - self._last_cpu[1]) / passed
            self._last_cpu = (now, used)
        painted, self._last_lines = LineTable.repainted - self._last_lines, LineTable.repainted
        return debug_note(self._cpu, painted, view.seq, view.missed)

    def exit_on(self, ending: Ending) -> None:
        """Exit with the status of a signal that ``ending`` catches, before or while the app runs."""
        self._ending = ending

    def _exit_soon(self, status: int) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.exit, None, status)

    # --- actions ---

    def action_do(self, name: str) -> None:
        """Run an action of the registry."""
        action = self._actions.get(name)
        if action is not None:
            action.run(self)

    def move(self, rows: int) -> None:
        self._main.table.move(rows)

    def move_page(self, pages: int) -> None:
        self._main.table.move_page(pages)

    def move_end(self, last: bool) -> None:
        self._main.table.move_end(last)

    def other_table(self) -> None:
        self._main.other_table()

    def ask_filter(self) -> None:
        self._main.ask_filter()

    def clear(self) -> None:
        if not self._main.close_filter(keep=False):
            self._main.table.filter_by("")

    def ask_order(self) -> None:
        table = self._main.table
        choices = [Choice("", "default order", "as the cluster lists them")]
        choices += [Choice(c.key, c.title.lower(), c.help) for c in table.columns if c.sort is not None]
        self._main.hold_order(True)
        self.push_screen(ChooseScreen(f"Sort {table.title.lower()} by", choices, table.order.key), self._order_chosen)

    def _order_chosen(self, key: str | None) -> None:
        self._main.hold_order(False)
        if key is not None:
            self._main.order_by(key)

    def next_order(self, step: int) -> None:
        self._main.next_order(step)

    def reverse_order(self) -> None:
        self._main.order_by(self._main.table.order.key)

    def default_order(self) -> None:
        self._main.order_by("")

    def show_help(self) -> None:
        tables = [(t.title, t.columns) for t in (self._main.worker_table, self._main.session_table)]
        self.push_screen(HelpScreen(list(self._actions.values()), tables, self._main.palette, self._glyphs))

    def next_theme(self) -> None:
        names = list(PALETTES)
        self.use_palette(PALETTES[names[(names.index(self._main.palette.name) + 1) % len(names)]])

    def use_palette(self, palette: Palette) -> None:
        """Draw with another palette from now on."""
        self.ansi_color = True if not palette.coloured else None
        self.theme = palette.name
        self.call_after_refresh(partial(self._main.restyle, palette, self._glyphs))

    def to_shell(self) -> None:
        self.action_suspend_process()

    def quit(self) -> None:
        self.exit()
