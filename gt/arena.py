"""Shared memory of this client: sealed memfds that workers on the same host map once and keep.

A segment is filled from the front and starts over when nothing in it is under way. Descriptors are never closed while
the session lives: a worker knows a segment by its number.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from dataclasses import dataclass, field

_SEGMENT_BYTES = 64 << 20  # the usual segment; a larger tensor gets one of its own size
_ALIGN = 64  # a cache line: copies into aligned memory are faster
_KEEP_BYTES = 256 << 20  # an idle segment larger than this gives its pages back


@dataclass(slots=True)
class _Segment:
    fd: int
    map: mmap.mmap
    size: int
    used: int = 0
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a segment: ``view`` is its memory, ``[fd, offset, nbytes]`` its address for a worker."""

    segment: _Segment = field(repr=False)
    offset: int
    nbytes: int

    @property
    def view(self) -> memoryview:
        return memoryview(self.segment.map)[self.offset : self.offset + self.nbytes]

    @property
    def address(self) -> list[int | str]:
        return ["m", self.segment.fd, self.offset, self.nbytes]


class Arena:
    """Hands out regions; ``free`` gives one back, from any thread."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Region:
        """A region of ``nbytes`` bytes.

        Raises:
            OSError: no shared memory or no descriptor left; the caller sends the bytes another way.
        """
        need = -(-nbytes // _ALIGN) * _ALIGN
        with self._lock:
            segment = min(
                (s for s in self._segments if s.size - s.used >= need), key=lambda s: s.size, default=None
            ) or self._new(need)
            region = Region(segment, segment.used, nbytes)
            segment.used += need
            segment.under_way += 1
            return region

    def free(self, region: Region) -> None:
        """Nobody reads or writes the region any more."""
        segment = region.segment
        with self._lock:
            segment.under_way -= 1
            if segment.under_way == 0:
                segment.used = 0
                if segment.size > _KEEP_BYTES:
                    segment.map.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Lets everything go; regions that are still used stay valid in this process only."""
        with self._lock:
            for segment in self._segments:
                os.close(segment.fd)
            self._segments.clear()

    def _new(self, need: int) -> _Segment:
        size = max(_SEGMENT_BYTES, -(-need // mmap.PAGESIZE) * mmap.PAGESIZE)
        fd = os.memfd_create("gt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            # a worker maps this: sealed, it can't be cut short under its feet
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            segment = _Segment(fd, mmap.mmap(fd, size), size)
        except BaseException:
            os.close(fd)
            raise
        self._segments.append(segment)
        return segment
