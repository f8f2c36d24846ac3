"""The wire between two workers: a process group of two, and how a value, or its failure, is put on it.

For each copy: a header of four int64 (state, bytes of meta, bytes of data, transfer), the meta or the failure as
MessagePack, then the data as uint8 in pieces. Header and meta always go through Gloo; the data goes from device to
device where both ends can (``Direct``), else through Gloo and host memory.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as _dist

from gt_runtime.protocol import codec
from gt_runtime.protocol.messages import Failure, FailureKind

dist: Any = _dist  # its stubs hide the stores and a group's options

PIECE_BYTES = 16 << 20  # of a value: what a receiver without memory must be able to throw away at a time
MAX_META_BYTES = 1 << 20
_STATE_VALUE, _STATE_POISON = 0, 1
_HEADER_WORDS = 4
_MEETING_SECONDS = 0.01  # how often the store is asked whether the peer has come
_WATCH_SECONDS = 0.0005  # how often a device is asked whether a copy has arrived
_CONNECT = datetime.timedelta(seconds=30)  # once both are there
_FOR_EVER = datetime.timedelta(days=365)  # a peer may compute for hours before it comes to a copy; loss is told apart
_TAGS = 1 << 31

Lost = Callable[[], str | None]  # why the peer was given up, if it was


class PeerLost(Exception):
    """The other end is gone, or doesn't say what it should."""


@dataclass(eq=False, slots=True)
class Outgoing:
    """A value that goes to ``peer``: ``meta`` and ``data`` (uint8, on the device), or a packed ``failure``. ``token``:
    of the loan."""

    peer: str
    transfer: int
    meta: list[Any] | None
    data: torch.Tensor | None
    failure: list[Any] | None
    token: int = 0


@dataclass(eq=False, slots=True)
class Incoming:
    """A value that comes from ``peer``. Once it has: ``meta`` and ``data`` (uint8, on the device), or a packed
    ``failure``."""

    session: str
    id: int
    peer: str
    transfer: int
    meta: list[Any] | None = None
    data: torch.Tensor | None = None
    failure: list[Any] | None = None


Copy = Outgoing | Incoming


@dataclass(slots=True)
class Counters:
    """Bytes copied; written by link threads, read by the heartbeat."""

    bytes_in: int = 0
    bytes_out: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, came: int = 0, went: int = 0) -> None:
        with self.lock:
            self.bytes_in += came
            self.bytes_out += went


class Direct(Protocol):
    """A way from device memory to device memory. Both calls return once the bytes are there, or raise."""

    def send(self, data: torch.Tensor) -> None: ...
    def receive(self, data: torch.Tensor) -> None: ...


MakeDirect = Callable[[Any, int, Lost], Direct]  # (store, rank, lost)


class Channel:
    """One end of a pair, used by one thread. Every call blocks until its copy has moved.

    Raises (all calls): RuntimeError of torch's, or PeerLost, if the connection is of no use any more.
    """

    def __init__(self, group: Any, rank: int, device: torch.device, counters: Counters, direct: Direct | None) -> None:
        self._group = group
        self._other = 1 - rank
        self._device = device
        self._counters = counters
        self._direct = direct

    def send(self, copy: Outgoing) -> None:
        """Put a value or a failure on the wire."""
        poison = copy.failure is not None
        about = codec.pack(copy.failure if poison else copy.meta)
        data = None if poison else copy.data
        nbytes = 0 if data is None else data.numel()
        header = [_STATE_POISON if poison else _STATE_VALUE, len(about), nbytes, copy.transfer]
        tensors = [torch.tensor(header, dtype=torch.int64), torch.frombuffer(bytearray(about), dtype=torch.uint8)]
        if data is not None and nbytes and self._direct is None:
            tensors += data.cpu().split(PIECE_BYTES)
        tag = copy.transfer % _TAGS
        for work in [self._group.send([tensor], self._other, tag) for tensor in tensors]:
            work.wait()
        if data is not None and nbytes and self._direct is not None:
            for piece in data.split(PIECE_BYTES):
                self._direct.send(piece)
        self._counters.add(went=nbytes)

    def receive(self, copy: Incoming) -> None:
        """Take a value or a failure off the wire. Where there is no memory for it the copy becomes a failure, and its
        bytes are taken off all the same: the next copy stands behind them."""
        tag = copy.transfer % _TAGS
        header = torch.zeros(_HEADER_WORDS, dtype=torch.int64)
        self._group.recv([header], self._other, tag).wait()
        state, meta_bytes, nbytes, transfer = header.tolist()
        if transfer != copy.transfer or not 0 < meta_bytes <= MAX_META_BYTES or nbytes < 0:
            raise PeerLost(f"it sent transfer {transfer} where {copy.transfer} was due")
        about = torch.empty(meta_bytes, dtype=torch.uint8)
        self._group.recv([about], self._other, tag).wait()
        fields = codec.unpack(about.numpy().tobytes())
        data = self._room(nbytes)
        if data is None:
            self._discard(tag, nbytes)
            copy.failure = self._no_memory(nbytes)
            return
        self._fill(data, tag)
        self._counters.add(came=nbytes)
        if state == _STATE_POISON:
            copy.failure = fields
            return
        try:
            copy.data = data.to(self._device)
            copy.meta = fields
        except torch.OutOfMemoryError:
            copy.failure = self._no_memory(nbytes)

    @property
    def _landing(self) -> torch.device:
        """Where bytes arrive."""
        return torch.device("cpu") if self._direct is None else self._device

    def _room(self, nbytes: int) -> torch.Tensor | None:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._landing)
        except RuntimeError:  # both the CPU's and CUDA's way to say that there is no memory
            return None

    def _fill(self, data: torch.Tensor, tag: int) -> None:
        if not data.numel():
            return
        pieces = data.split(PIECE_BYTES)
        if self._direct is not None:
            for piece in pieces:
                self._direct.receive(piece)
            return
        for work in [self._group.recv([piece], self._other, tag) for piece in pieces]:
            work.wait()

    def _discard(self, tag: int, nbytes: int) -> None:
        while nbytes > 0:
            piece = torch.empty(min(PIECE_BYTES, nbytes), dtype=torch.uint8, device=self._landing)
            self._fill(piece, tag)
            nbytes -= piece.numel()

    def _no_memory(self, nbytes: int) -> list[Any]:
        text = f"the worker has no memory for a copy of {nbytes} bytes from another one"
        return Failure(FailureKind.MEMORY, "OutOfMemoryError", text).pack()


class NcclDirect:
    """GPU to GPU through NCCL: NVLink or PCIe in a host, RDMA between hosts.

    NCCL's kernels wait on the device for the other side. So they get a stream of their own, which the worker's main
    stream never waits for: this thread watches it, and aborts the communicator if the peer is given up.
    """

    def __init__(self, store: Any, rank: int, lost: Lost, device: torch.device) -> None:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _FOR_EVER
        torch.cuda.set_device(device)  # of this thread
        self._group = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, 2, options)
        self._other = 1 - rank
        self._device = device
        self._lost = lost
        self._stream = torch.cuda.Stream(device)

    def send(self, data: torch.Tensor) -> None:
        self._move(lambda: self._group.send([data], self._other, 0))

    def receive(self, data: torch.Tensor) -> None:
        self._move(lambda: self._group.recv([data], self._other, 0))

    def _move(self, begin: Callable[[], Any]) -> None:
        # `data` was written, or its memory last used, on the main stream
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            begin().wait()  # makes the stream wait, not this thread
            arrived = self._stream.record_event()
        while not arrived.query():
            if why := self._lost():
                self._group.abort()
                raise PeerLost(why)
            time.sleep(_WATCH_SECONDS)


def direct_facts(device: torch.device) -> tuple[str, MakeDirect | None]:
    """What this worker says of its device when it meets another: "" or the uuid of a GPU that NCCL can use; and how
    the direct way is then made."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return "", None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid, lambda store, rank, lost: NcclDirect(store, rank, lost, device)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where and as whom a pair meets. ``store``: address of the store; ``host``: where this side listens;
    ``facts`` and ``make_direct`` as from ``direct_facts``."""

    me: str
    peer: str
    store: str
    host: str
    device: torch.device
    facts: str = ""
    make_direct: MakeDirect | None = None

    def open(self, number: int, lost: Lost, counters: Counters) -> Channel:
        """This end of the channel, once both are here. ``number``: of the first copy between the two, which names the
        meeting for both.

        Raises:
            PeerLost: ``lost`` says so.
            RuntimeError: the store or the peer can't be reached.
        """
        low, high = sorted((self.me, self.peer))
        host, _, port = self.store.rpartition(":")
        client = dist.TCPStore(host, int(port), None, False, _CONNECT, wait_for_workers=False)
        store = dist.PrefixStore(f"pair/{low}/{high}/{number}", client)
        store.set(f"here/{self.me}", f"device {self.facts}")
        while not store.check([f"here/{self.peer}"]):
            if why := lost():
                raise PeerLost(why)
            time.sleep(_MEETING_SECONDS)
        theirs = store.get(f"here/{self.peer}").decode().removeprefix("device ")
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.host)]
        options._timeout = _FOR_EVER
        rank = 0 if self.me == low else 1
        group = dist.ProcessGroupGloo(store, rank, 2, options)
        # NCCL refuses two ranks on one GPU
        direct = self.make_direct if self.facts and theirs and self.facts != theirs else None
        return Channel(group, rank, self.device, counters, direct(store, rank, lost) if direct else None)
