"""The command ``gt-top``. Exit status: 0 well, 1 failed, 2 wrong usage, 3 no cluster, 128 + n ended by signal n."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gt_runtime import __version__
from gt_runtime.launch.errors import AmbiguousCluster, LaunchError, NoCluster

if TYPE_CHECKING:
    from gt_runtime.launch.connection import Connection
    from gt_top.screens.choose import Choice
    from gt_top.widgets.glyphs import Glyphs

OK, FAILED, USAGE, NO_CLUSTER = 0, 1, 2, 3
NO_SCREEN = "a screen was asked for: standard input and error are no terminal that can show one; use --once"
THEMES = ("dark", "light", "contrast", "mono")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run gt-top and return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.json and not options.once:
        parser.error("--json prints one object and leaves: say --once --json")
    from gt_runtime.launch.connection import find

    try:
        connection: Connection | None = find(options.name, options.connect, embedded=True)
    except AmbiguousCluster as error:
        if options.once:
            return _say(error, USAGE)
        connection = None
    except NoCluster as error:
        return _say(error, NO_CLUSTER)
    except LaunchError as error:
        return _say(error, USAGE)
    return _once(connection, options) if options.once and connection is not None else _screen(connection, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gt-top",
        description="The pool of workers, live. With no arguments it finds the cluster that runs here.",
        epilog="Environment: GT_CLUSTER (name), GT_ADDRESS (address), NO_COLOR, GT_TOP_THEME. Keys: F1 inside.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--name", metavar="NAME", help="the cluster of that name")
    which.add_argument("--connect", metavar="ADDR", help="the cluster at that address (ipc://PATH, tcp://HOST:PORT)")
    parser.add_argument("--once", action="store_true", help="print one table and leave")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON object")
    parser.add_argument("--readonly", action="store_true", help="offer nothing that changes the cluster")
    parser.add_argument("--theme", choices=THEMES, help="colours (default: dark; mono where NO_COLOR is set)")
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    parser.add_argument("--debug", action="store_true", help="show its own cost in the footer")
    parser.add_argument("--version", action="version", version=f"gt-top {__version__}")
    return parser


def _say(error: Exception | str, status: int) -> int:
    print(f"gt-top: {error}", file=sys.stderr)
    return status


def _glyphs(ascii_only: bool) -> Glyphs:
    from gt_top.widgets.glyphs import choose

    return choose(ascii_only)


def _once(connection: Connection, options: argparse.Namespace) -> int:
    from gt_top import once
    from gt_top.clock import SystemClock
    from gt_top.feed import LiveFeed
    from gt_top.links import ClusterLinks

    feed = LiveFeed(ClusterLinks(connection.name or None, None if connection.name else connection.front))
    try:
        view = asyncio.run(once.look(feed, connection.name or connection.front, SystemClock()))
    except once.NoPicture as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return 130
    if options.json:
        text = once.as_json(view)
    else:
        text = once.table(view, shutil.get_terminal_size((120, 24)).columns, _glyphs(options.ascii))
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `gt-top --once | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UnicodeEncodeError:
        print(text.encode("ascii", "replace").decode(), flush=True)
    return OK


def _screen(connection: Connection | None, options: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or os.environ.get("TERM") == "dumb":
        return _say(NO_SCREEN, USAGE)
    from gt_top import terminal
    from gt_top.app import GtTop, Options
    from gt_top.feed import Feed, LiveFeed
    from gt_top.links import ClusterLinks

    theme = options.theme or os.environ.get("GT_TOP_THEME", "dark")
    if os.environ.get("NO_COLOR") or theme not in THEMES:
        theme = "mono" if os.environ.get("NO_COLOR") else "dark"
    address = connection.front if connection is not None and not connection.name else None
    key = "" if connection is None else connection.name or connection.front

    def open_feed(chosen: str) -> Feed:
        return LiveFeed(ClusterLinks(None, address) if address else ClusterLinks(chosen))

    with terminal.guarded() as ending:
        app = GtTop(
            open_feed,
            _glyphs(options.ascii),
            Options(theme, options.readonly, options.debug),
            cluster=key,
            choices=_choices() if connection is None else (),
        )
        app.exit_on(ending)
        app.run()
        return ending.status or app.return_code or OK


def _choices() -> list[Choice]:
    from gt_top.links import running
    from gt_top.screens.choose import Choice
    from gt_top.units import age

    def note(c: Connection) -> str:
        up = age(time.time() - c.started, whole_seconds=True)
        return f"{c.host}  pid {c.pid}  up {up}{'  embedded' if c.embedded else ''}"

    return [Choice(c.name, c.name, note(c)) for c in running()]


if __name__ == "__main__":
    sys.exit(main())
