"""Makes the pictures of gt-top in the README: ``python screenshots/make.py``. Needs ``resvg-py`` and the font DejaVu
Sans Mono for PNG.

A story with a fixed clock is played, so the pictures change only when gt-top does.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gt_top.app import GtTop, Options  # noqa: E402
from gt_top.widgets.glyphs import BLOCKS  # noqa: E402
from tests.top.fakes import FakeClock, ScriptedFeed, story  # noqa: E402

#: name -> (columns, lines, theme, keys, story's arguments)
SHOTS: dict[str, tuple[int, int, str, str, dict[str, Any]]] = {
    "workers": (120, 34, "dark", "", {}),
    "workers-80": (80, 24, "dark", "", {}),
    "workers-200": (200, 60, "dark", "", {"workers": 64, "sessions": 5}),
    "workers-light": (120, 34, "light", "", {}),
    "demo": (100, 28, "dark", "", {"workers": 4, "sessions": 2, "cpu": True}),
    "help": (100, 44, "dark", "f1", {}),
}


async def shoot(name: str) -> str:
    """One picture as SVG."""
    columns, lines, theme, keys, told = SHOTS[name]
    feed = ScriptedFeed(story(**told))
    clock = FakeClock()
    app = GtTop(lambda _: feed, BLOCKS, Options(theme=theme), cluster="lab-a", clock=clock, ticking=False)
    async with app.run_test(size=(columns, lines)) as pilot:
        await pilot.pause()
        clock.now += 0.4
        app.tick()
        if keys:
            await pilot.press(*keys.split())
        await pilot.pause()
        return tidy(app.export_screenshot(title="gt-top"))


def tidy(svg: str) -> str:
    """The same picture for the same screen: Rich puts a number made from the content's hash into every name; the font
    is one that a converter has."""
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    return svg.replace("Fira Code", "DejaVu Sans Mono")


def to_png(svg: Path) -> None:
    """The same as PNG, larger where it is small, for sharp screens."""
    import resvg_py

    zoom = 1.5 if svg.stat().st_size < 150_000 else 1
    svg.with_suffix(".png").write_bytes(bytes(resvg_py.svg_to_bytes(svg_path=str(svg), zoom=zoom)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which (default: all): {', '.join(SHOTS)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--no-png", action="store_true")
    options = parser.parse_args()
    png = not options.no_png
    if png and importlib.util.find_spec("resvg_py") is None:
        print("no PNG: `pip install resvg-py` makes them too", file=sys.stderr)
        png = False
    os.environ["TZ"] = "UTC"
    time.tzset()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or SHOTS:
        path = options.out / f"{name}.svg"
        path.write_text(asyncio.run(shoot(name)))
        if png:
            to_png(path)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
