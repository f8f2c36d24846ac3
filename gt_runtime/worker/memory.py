"""Clients' shared memory: memfds of client processes on this host, mapped once and kept.

Large tensors pass through them without a copy on the way. A client could shrink its file under our feet, and the next
access would kill this process: so only memfds that are sealed against shrinking are mapped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass

from gt_runtime.protocol.messages import Failure, FailureKind


class MemoryRefused(Exception):
    """A memfd that can't or may not be used. The text says what was found."""

    def failure(self, worker: str) -> Failure:
        return Failure(FailureKind.REFUSED, "RuntimeError", str(self), worker=worker)


@dataclass(slots=True)
class _Mapping:
    device: int
    inode: int
    size: int
    memory: mmap.mmap
    writable: bool


class ClientMemory:
    """The memfds of one session's client."""

    def __init__(self, pid: int, uid: int | None, same_host: bool) -> None:
        """``pid`` and ``uid`` as the kernel told the dispatcher; ``same_host``: whether they mean anything here."""
        self._pid = pid
        self._uid = uid
        self._same_host = same_host and pid > 0
        self._mappings: dict[int, _Mapping] = {}

    def view(self, fd: int, offset: int, nbytes: int, *, write: bool = False) -> memoryview:
        """``nbytes`` at ``offset`` of the client's descriptor ``fd``; release it when done. The mapping stays until
        ``close``.

        Raises:
            MemoryRefused: the client isn't on this host, ``fd`` is no memfd of it or isn't sealed, or the range isn't
            in it.
        """
        mapping = self._mapping(fd)
        if offset < 0 or nbytes < 0 or offset + nbytes > mapping.size:
            raise MemoryRefused(f"bytes {offset} to {offset + nbytes} of descriptor {fd}, which has {mapping.size}")
        if write and not mapping.writable:
            raise MemoryRefused(f"to write into descriptor {fd}, which is sealed against writing")
        with memoryview(mapping.memory) as whole:
            return whole[offset : offset + nbytes]

    def close(self) -> None:
        """Unmap everything. Views must have been released; what is still in use goes with its last view."""
        for mapping in self._mappings.values():
            _unmap(mapping)
        self._mappings.clear()

    def _mapping(self, fd: int) -> _Mapping:
        """The mapping of ``fd``, made anew if the client's number means another file by now, or the file has grown."""
        if not self._same_host:
            raise MemoryRefused(
                "the client isn't on this worker's host: its memory can't be mapped, send the tensor in chunks"
            )
        path = f"/proc/{self._pid}/fd/{fd}"
        try:
            if self._uid is not None and os.stat(f"/proc/{self._pid}").st_uid != self._uid:
                raise MemoryRefused(f"process {self._pid} isn't the client's any more")
            found = os.stat(path)
        except OSError as error:
            raise MemoryRefused(
                f"descriptor {fd} of the client's process {self._pid} can't be looked at ({error.strerror})"
            ) from error
        known = self._mappings.get(fd)
        if known is not None:
            if (known.device, known.inode, known.size) == (found.st_dev, found.st_ino, found.st_size):
                return known
            _unmap(self._mappings.pop(fd))
        mapping = self._mappings[fd] = _attach(path)
        return mapping


def _attach(path: str) -> _Mapping:
    try:
        own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MemoryRefused(f"the client's memory {path} can't be opened ({error.strerror})") from error
    try:
        try:
            seals = fcntl.fcntl(own, fcntl.F_GET_SEALS)
        except OSError as error:
            raise MemoryRefused(f"{path} is no memfd") from error
        if not seals & fcntl.F_SEAL_SHRINK:
            raise MemoryRefused(f"the client's memory {path} isn't sealed against shrinking (F_SEAL_SHRINK)")
        writable = not seals & (fcntl.F_SEAL_WRITE | getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10))
        found = os.fstat(own)
        if found.st_size == 0:
            raise MemoryRefused(f"the client's memory {path} is empty")
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        try:
            memory = mmap.mmap(own, found.st_size, mmap.MAP_SHARED, access)
        except (OSError, ValueError) as error:
            raise MemoryRefused(f"the client's memory {path} can't be mapped ({error})") from error
        return _Mapping(found.st_dev, found.st_ino, found.st_size, memory, writable)
    finally:
        os.close(own)


def _unmap(mapping: _Mapping) -> None:
    try:
        mapping.memory.close()
    except BufferError:  # a view is still out (a message on its way): the mapping goes with it
        pass
