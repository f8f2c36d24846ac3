"""Settings of this program: ``gt.config.set({...})``, ``gt.config.get(name)``.

All are checked and kept; none acts yet (docs/device.md says which will).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gt_runtime.launch import sizes


@dataclass(frozen=True, slots=True)
class _Setting:
    default: Any
    read: Callable[[Any], Any]
    expected: str


def _size(value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    if type(value) is str:
        return sizes.parse_size(value)
    raise ValueError


def _count(value: Any) -> int:
    if type(value) is int and value >= 1:
        return value
    raise ValueError


def _share(value: Any) -> float:
    if type(value) in (int, float) and 0 <= value <= 1:
        return float(value)
    raise ValueError


_SETTINGS = {
    "memory_pool_size": _Setting(None, _size, 'a size in bytes, or a text like "8GiB"'),
    "nvlink_group_size": _Setting(1, _count, "a number of GPUs, at least 1"),
    "cpu_spill_threshold": _Setting(1.0, _share, "a share of a worker's memory, 0 to 1"),
    "prefetch_buffer_size": _Setting(0, _size, 'a size in bytes, or a text like "256MiB"'),
}
_values: dict[str, Any] = {name: s.default for name, s in _SETTINGS.items()}


def set(settings: Mapping[str, Any]) -> None:  # the name users know
    """Changes settings, all or none.

    Raises:
        KeyError: an unknown name; the nearest known one is named.
        ValueError: a value that the setting doesn't take.
    """
    checked = {}
    for name, value in settings.items():
        setting = _known(name)
        try:
            checked[name] = setting.read(value)
        except ValueError:
            raise ValueError(f"gt.config {name} is {setting.expected}, not {value!r}") from None
    _values.update(checked)


def get(name: str) -> Any:
    """The value of a setting (sizes in bytes). Raises KeyError for an unknown name."""
    _known(name)
    return _values[name]


def _known(name: str) -> _Setting:
    if name in _SETTINGS:
        return _SETTINGS[name]
    near = difflib.get_close_matches(str(name), _SETTINGS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(_SETTINGS)}"
    raise KeyError(f"gt.config has no setting {name!r}{hint}")
