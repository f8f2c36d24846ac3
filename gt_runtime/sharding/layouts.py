"""Where a value lives. A ``Layout`` names the workers that hold the whole value, one or several: a copy adds a worker
to it.

Pure; knows neither sessions nor messages nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

#: Bytes of an element by ATen's ScalarType number (c10/core/ScalarType.h). Others (quantised, sub-byte) count 1: sizes
#: are weights here.
ITEM_BYTES: Mapping[int, int] = MappingProxyType(
    {
        0: 1, 1: 1, 2: 2, 3: 4, 4: 8,  # uint8, int8, int16, int32, int64
        5: 2, 6: 4, 7: 8,  # float16, float32, float64
        8: 4, 9: 8, 10: 16,  # complex32, complex64, complex128
        11: 1, 15: 2,  # bool, bfloat16
        23: 1, 24: 1, 25: 1, 26: 1,  # float8: e5m2, e4m3fn, e5m2fnuz, e4m3fnuz
        27: 2, 28: 4, 29: 8,  # uint16, uint32, uint64
        44: 1,  # float8_e8m0fnu
    }
)  # fmt: skip
COMPLEX = frozenset({8, 9, 10})  # ScalarType numbers of complex32, complex64, complex128


@dataclass(frozen=True, slots=True)
class Layout:
    """The workers that hold a whole value, in the order in which they got it.

    Made by ``whole``, ``added`` and ``without`` only: they return one object for equal layouts, so a hot loop may
    compare by identity first. No worker at all: the value is gone, ``lost`` names the worker that died with the last
    copy.
    """

    workers: tuple[str, ...]
    lost: str = ""

    def added(self, worker: str) -> Layout:
        """This layout and a copy on ``worker``."""
        return self if worker in self.workers else _interned((*self.workers, worker), "")

    def without(self, worker: str) -> Layout:
        """What is left of it when ``worker`` is gone."""
        if worker not in self.workers:
            return self
        left = tuple(w for w in self.workers if w != worker)
        return _interned(left, "" if left else worker)


def whole(worker: str) -> Layout:
    """The layout of a value that ``worker`` alone holds."""
    return _interned((worker,), "")


def gone(worker: str) -> Layout:
    """The layout of a value that was on ``worker`` alone when it was lost."""
    return _interned((), worker)


@lru_cache(maxsize=4096)
def _interned(workers: tuple[str, ...], lost: str) -> Layout:
    return Layout(workers, lost)


def meta_bytes(meta: Sequence[Any] | None) -> int:
    """Bytes of a value with this meta (``[dtype, sizes, ...]``), contiguous; 0 for an undefined one (None).

    Raises:
        ValueError: a dtype that is no number, or sizes that aren't a list of integers from 0.
    """
    if meta is None:
        return 0
    if not isinstance(meta, (list, tuple)) or len(meta) < 2:
        raise ValueError(f"a meta is [dtype, sizes, strides, offset], this is {str(meta)[:80]}")
    dtype, sizes = meta[0], meta[1]
    if type(dtype) is not int:
        raise ValueError(f"dtype {str(dtype)[:40]!r} is no ScalarType number")
    if not isinstance(sizes, (list, tuple)) or not all(type(n) is int and n >= 0 for n in sizes):
        raise ValueError(f"sizes {str(sizes)[:80]} are not a list of integers from 0")
    return ITEM_BYTES.get(dtype, 1) * prod(sizes)
