"""Driving the app in tests: start it on a story, press keys, read the screen as text."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from textual.pilot import Pilot

from gt_top.app import GtTop, Options
from gt_top.cluster import ClusterView, Item
from gt_top.screens.choose import Choice
from gt_top.widgets.glyphs import BLOCKS, Glyphs
from tests.top.fakes import FakeClock, ScriptedFeed


@dataclass(slots=True)
class Driven:
    """A running app, its hands and its eyes."""

    app: GtTop
    pilot: Pilot[None]
    feed: ScriptedFeed
    clock: FakeClock
    opened: list[str]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def tell(self, *items: Item, after: float = 0.0) -> None:
        """Let the feed bring ``items`` ``after`` seconds from now, and draw."""
        self.clock.now += after
        self.feed.add(*items)
        await self.pilot.pause()
        await self.draw()

    async def draw(self, after: float = 0.0) -> None:
        self.clock.now += after
        self.app.tick()
        await self.pilot.pause()

    @property
    def view(self) -> ClusterView:
        return self.app.view()

    @property
    def lines(self) -> list[str]:
        """The screen, line by line, as a user sees it."""
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    def row(self, id: str) -> str:
        """The line of a worker or session."""
        found = [line for line in self.lines if line.lstrip("▸> ").startswith(f"{id} ")]
        assert len(found) == 1, f"{len(found)} rows of {id} in\n{self.text}"
        return found[0]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line_with(self, word: str) -> str:
        found = [line for line in self.lines if word in line]
        assert len(found) == 1, f"{len(found)} lines with {word!r} in\n{self.text}"
        return found[0]

    def column(self, title: str, table: str = "Workers", rows: int | None = None) -> list[str]:
        """The words under a heading, row by row."""
        start = next(i for i, line in enumerate(self.lines) if f" {table} " in line) + 1
        left = self.lines[start].index(title)
        right = left + len(title)
        words = []
        for line in self.lines[start + 1 :]:
            found = [w.group() for w in re.finditer(r"\S+", line) if w.start() < right and w.end() > left]
            if not found or line[:2] in ("─ ", "- "):
                break
            words.append(found[0])
        return words[:rows]


@contextlib.asynccontextmanager
async def driven(
    items: Sequence[Item] = (),
    size: tuple[int, int] = (120, 40),
    options: Options = Options(),  # noqa: B008  # frozen
    glyphs: Glyphs = BLOCKS,
    choices: Sequence[Choice] = (),
) -> AsyncIterator[Driven]:
    """The app on a story, with a clock that stands still; drawn once."""
    feed, clock = ScriptedFeed(items), FakeClock()
    opened: list[str] = []

    def open_feed(key: str) -> ScriptedFeed:
        opened.append(key)
        return feed

    app = GtTop(
        open_feed, glyphs, options, cluster="" if choices else "lab-a", choices=choices, clock=clock, ticking=False
    )
    async with app.run_test(size=size) as pilot:
        drive = Driven(app, pilot, feed, clock, opened)
        await pilot.pause()
        await drive.draw()
        yield drive


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A coroutine as a test."""

    def wrapper(*args: Any, **kwargs: Any) -> None:
        async def go() -> None:
            await asyncio.wait_for(test(*args, **kwargs), 60)

        asyncio.run(go())

    wrapper.__name__ = test.__name__
    wrapper.__doc__ = test.__doc__
    wrapper.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]  # pytest asks it for parameters
    if hasattr(test, "pytestmark"):
        wrapper.pytestmark = test.pytestmark  # type: ignore[attr-defined]
    return wrapper
