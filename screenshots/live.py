"""The README's picture, of the real thing: ``python screenshots/live.py`` (a minute). Needs what ``make.py`` needs.

Starts the demo's cluster and programs, attaches gt-top without a terminal, lets it watch, and keeps what it shows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from make import tidy, to_png  # noqa: E402

from examples.demo import Demo, Options  # noqa: E402
from gt_top.app import GtTop  # noqa: E402
from gt_top.app import Options as TopOptions  # noqa: E402
from gt_top.feed import LiveFeed  # noqa: E402
from gt_top.links import ClusterLinks  # noqa: E402
from gt_top.widgets.glyphs import BLOCKS  # noqa: E402

SIZE = (120, 22)  # columns, lines


async def watch(cluster: str, seconds: float) -> str:
    """What gt-top shows of that cluster after so many seconds, as SVG."""
    app = GtTop(lambda name: LiveFeed(ClusterLinks(name)), BLOCKS, TopOptions(theme="dark"), cluster=cluster)
    async with app.run_test(size=SIZE) as pilot:
        await asyncio.sleep(seconds)  # not for a state: so that the histories have something to show
        await pilot.pause()
        return tidy(app.export_screenshot(title="gt-top"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch before (default: 60)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="gt-live-") as folder:
        os.environ["GT_RUNTIME_DIR"] = f"{folder}/gt"  # so that no other program of this user joins the picture
        demo = Demo(Options(workers=2, seconds=None), Path(folder))
        try:
            demo.start()
            svg = asyncio.run(watch(demo.name, seconds))
        finally:
            demo.end()
    path = Path(__file__).resolve().parent / "live.svg"
    path.write_text(svg)
    to_png(path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
