"""A flood of lines is cut short and counted; other lines are not touched."""

from __future__ import annotations

import logging

from gt_runtime.dispatcher.sparing import LINES, WINDOW_SECONDS, Sparing


def test_a_flood_is_counted() -> None:
    now, told = [0.0], list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(Sparing(lambda: now[0]))
    logger = logging.Logger("flooded")
    logger.addHandler(handler)
    for i in range(1000):
        logger.warning("malformed message: %d", i)
    logger.warning("another")
    assert told == [f"malformed message: {i}" for i in range(LINES)] + ["another"]
    now[0] = WINDOW_SECONDS
    logger.warning("malformed message: %d", 5000)
    logger.warning("malformed message: %d", 5001)
    assert told[-2:] == [
        f"malformed message: 5000 ({1000 - LINES} more like this were left out)",
        "malformed message: 5001",
    ]
