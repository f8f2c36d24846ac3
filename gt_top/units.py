"""Numbers as people read them: short, of bounded width, with their unit.

Knows nothing of widgets or records. Everything here takes whatever a feed may carry and never raises: unknown (None,
NaN, infinite) is ``-`` and never 0, numbers outside their range are clamped.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache

UNKNOWN = "-"

BYTES_WIDTH = 8  # cells of the widest ``size``: "1023 GiB"
PAIR_WIDTH = 13  # cells of the widest ``pair``: "1023/1023 GiB"
COUNT_WIDTH = 5  # cells of the widest ``count``: "42.1k"
AGE_WIDTH = 6  # cells of the widest ``age``: "23h59m"
PERCENT_WIDTH = 4  # "100%"

_LARGEST = sys.float_info.max
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def number(value: object) -> float | None:
    """``value`` if it is a finite number (not a bool), else None."""
    if type(value) is float:
        return value if -_LARGEST <= value <= _LARGEST else None  # NaN is neither
    if type(value) is int:
        return float(value) if -_LARGEST <= value <= _LARGEST else None
    return None


def share(value: object) -> float | None:
    """A share clamped to 0..1, None if unknown."""
    known = number(value)
    return None if known is None else min(1.0, max(0.0, known))


def plain(text: object, limit: int = 256) -> str:
    """``text`` in one line without control characters, so that no name from a feed can steer the terminal."""
    return _plain(text[:limit]) if isinstance(text, str) else ""


@lru_cache(maxsize=1 << 14)  # the same names come with every frame
def _plain(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join("�" if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def size(value: object) -> str:
    """Bytes with a binary unit, three digits: ``0 B``, ``8.1 GiB``, ``139 GiB``. At most ``BYTES_WIDTH`` cells."""
    known = number(value)
    if known is None:
        return UNKNOWN
    known = max(0.0, known)
    power = _power(known, 1024, len(_BINARY) - 1)
    return f"{_digits(known / 1024**power, whole=power == 0)} {_BINARY[power]}"


def pair(used: object, total: object) -> str:
    """``61.2/139 GiB``: both in the unit of ``total``. One that is unknown is ``-``. At most ``PAIR_WIDTH`` cells."""
    whole = number(total)
    part = number(used)
    if whole is None:
        return UNKNOWN if part is None else f"{size(part)}/{UNKNOWN}"
    whole = max(0.0, whole)
    power = _power(whole, 1024, len(_BINARY) - 1)
    left = UNKNOWN if part is None else _digits(max(0.0, part) / 1024**power, whole=power == 0)
    return f"{left}/{_digits(whole / 1024**power, whole=power == 0)} {_BINARY[power]}"


def count(value: object) -> str:
    """A number of things, or of things a second: ``140``, ``1.2k``, ``42.1k``, ``6.1M``. At most ``COUNT_WIDTH`` cells.

    Between 0 and 10 a fraction shows one digit (``0.5``); what would round to 0 but isn't is ``<0.1``.
    """
    known = number(value)
    if known is None:
        return UNKNOWN
    known = max(0.0, known)
    if known < 1000:
        if known == 0 or known >= 9.95 or known == int(known):
            return f"{known:.0f}" if known < 999.5 else "1.0k"
        return f"{known:.1f}" if known >= 0.05 else "<0.1"
    power = _power(known, 1000, len(_DECIMAL) - 1)
    return f"{_digits(known / 1000**power, top=999)}{_DECIMAL[power]}"


def percent(value: object) -> str:
    """A share of 0 to 1 as ``82%``."""
    known = share(value)
    return UNKNOWN if known is None else f"{known * 100:.0f}%"


def age(seconds: object, whole_seconds: bool = False) -> str:
    """How long ago, or how long: ``0.4s``, ``12s``, ``3m05s``, ``2h14m``, ``3d04h``, ``123d``. At most ``AGE_WIDTH``
    cells.

    ``whole_seconds`` leaves out tenths below ten seconds, for figures that should change rarely.
    """
    known = number(seconds)
    if known is None:
        return UNKNOWN
    known = max(0.0, known)
    if whole_seconds and known < _MINUTE:
        return f"{int(known)}s"
    if known < 9.95:
        return f"{known:.1f}s"
    whole = int(min(known + 0.5, 9999 * _DAY))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    days = whole // _DAY
    return f"{days}d{whole % _DAY // _HOUR:02d}h" if days < 100 else f"{days}d"


def _power(value: float, base: int, top: int) -> int:
    """The power of ``base`` to show ``value`` in, so that rounding never needs one digit more than the unit allows."""
    power = 0
    while power < top and value >= base - 0.5:
        value /= base
        power += 1
    return power


def _digits(value: float, whole: bool = False, top: int = 1023) -> str:
    """Three digits, four for 1000..1023; one decimal below 100."""
    if whole or value >= 99.95:
        return f"{min(value, float(top)):.0f}"
    return f"{value:.1f}"
