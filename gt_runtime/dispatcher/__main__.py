"""``python -m gt_runtime.dispatcher``: the same as ``gt dispatcher``."""

from __future__ import annotations

import argparse
import logging
import sys

from gt_runtime.dispatcher.options import add_arguments, from_arguments
from gt_runtime.dispatcher.server import run
from gt_runtime.dispatcher.sparing import Sparing


def main(argv: list[str] | None = None) -> int:
    """Parse ``argv`` and run; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="gt dispatcher", description="Run the dispatcher of a cluster; gt up does this for you."
    )
    add_arguments(parser)
    options = from_arguments(parser.parse_args(argv))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(Sparing())
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
