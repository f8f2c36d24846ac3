"""Values as a person reads them, and plain tables. Pure; knows no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gt_runtime.launch.sizes import parse_size

__all__ = ["count", "memory", "parse_size", "seconds", "share", "size", "table", "word"]

UNKNOWN = "-"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(value: float | None) -> str:
    """Bytes in binary units: ``512 B``, ``1.5 GiB``; ``-`` for unknown."""
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def count(value: float | None) -> str:
    """A number with thousands apart."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """0 to 1 as per cent."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def seconds(value: float | None) -> str:
    """A duration, coarse: ``0.3 s``, ``42 s``, ``5 min``, ``3 h 12 min``, ``2 d 4 h``."""
    if value is None:
        return UNKNOWN
    if value < 10:
        return f"{max(0.0, value):.1f} s"
    whole = int(value)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def word(value: Any) -> str:
    """Text as it is; ``-`` for None and for nothing. What could move a terminal's cursor is shown as ``?``."""
    if value is None or value == "" or value == []:
        return UNKNOWN
    text = ", ".join(str(v) for v in value) if isinstance(value, list) else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


def memory(row: Mapping[str, Any]) -> str:
    """Memory of a worker: used of total."""
    used, total = row.get("memory_used"), row.get("memory_total")
    return UNKNOWN if used is None and total is None else f"{size(used)} / {size(total)}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[str] = frozenset()) -> str:
    """Aligned columns, two spaces apart; those named in ``right`` are aligned right. No line ends in spaces."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in lines
    )
