"""Sizes as people write them. Pure."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp])(?:i?b)?|b)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """``512M``, ``1.5GiB``, ``4096`` in bytes; K, M, G, T, P are powers of 1024, with or without ``B`` or ``iB``.

    Raises:
        ValueError: it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size: expected a number, or one with a unit, such as 512M or 4GiB")
    power = 1 + "kmgtp".index(match[2].lower()) if match[2] else 0
    return int(float(match[1]) * 1024**power)
