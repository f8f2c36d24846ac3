"""Pictures of the screen, compared cell by cell. After a wanted change: ``pytest tests/top/test_snapshots.py
--snapshot-update``, and look at them (``screenshots/make.py`` makes PNGs of most)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from textual.pilot import Pilot

from gt_top.app import GtTop, Options
from gt_top.cluster import Item, Linked, Unlinked
from gt_top.screens.choose import Choice
from gt_top.widgets.glyphs import ASCII, BLOCKS, Glyphs
from tests.top.fakes import FakeClock, ScriptedFeed, frame, story

EMPTY: list[Item] = [Linked("lab-a", "ipc://x"), frame(1)]


def picture(
    items: Sequence[Item],
    *,
    theme: str = "dark",
    glyphs: Glyphs = BLOCKS,
    age: float = 0.4,
    then: Sequence[Item] = (),
    keys: str = "",
    choices: Sequence[Choice] = (),
) -> tuple[GtTop, Callable[[Pilot[Any]], Awaitable[None]]]:
    """The app, and what to do before the picture is taken: play ``items``, wait ``age`` seconds, play ``then``, press
    ``keys``.
    """
    feed, clock = ScriptedFeed(items), FakeClock()
    name = "" if choices else "lab-a"
    app = GtTop(lambda _: feed, glyphs, Options(theme), cluster=name, choices=choices, clock=clock, ticking=False)

    async def before(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        clock.now += age
        feed.add(*then)
        await pilot.pause()
        app.tick()
        await pilot.pause()
        if keys:
            await pilot.press(*keys.split())
        await pilot.pause()

    return app, before


STUDIES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "80x24": ((80, 24), {"items": story()}),
    "120x40": ((120, 40), {"items": story()}),
    "200x60": ((200, 60), {"items": story(64, 5)}),
    "30x10": ((30, 10), {"items": story()}),
    "cpu": ((100, 30), {"items": story(4, 2, cpu=True)}),
    "connecting": ((100, 24), {"items": []}),
    "empty": ((100, 24), {"items": EMPTY}),
    "stale": ((120, 30), {"items": story(), "age": 7.0}),
    "unreachable": ((120, 30), {"items": story(), "then": [Unlinked("its process has ended")], "age": 12.0}),
    "ascii": ((120, 30), {"items": story(), "glyphs": ASCII}),
    "light": ((120, 30), {"items": story(), "theme": "light"}),
    "contrast": ((120, 30), {"items": story(), "theme": "contrast"}),
    "mono": ((120, 30), {"items": story(), "theme": "mono"}),
    "help": ((100, 30), {"items": story(), "keys": "f1"}),
    "sort": ((100, 30), {"items": story(), "keys": "s"}),
    "sorted": ((120, 30), {"items": story(), "keys": "s down down down down down enter"}),
    "filter": ((100, 24), {"items": story(), "keys": "slash n o d e 2"}),
    "sessions": ((120, 30), {"items": story(), "keys": "tab down"}),
    "choose": (
        (100, 24),
        {"items": [], "choices": [Choice("lab-a", "lab-a", "node1"), Choice("mine", "mine", "laptop")]},
    ),
}


@pytest.mark.parametrize("name", STUDIES)
def test_picture(name: str, snap_compare: Callable[..., bool]) -> None:
    size, study = STUDIES[name]
    app, before = picture(**study)
    assert snap_compare(app, terminal_size=size, run_before=before)
