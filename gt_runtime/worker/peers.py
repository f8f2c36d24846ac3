"""Copies from worker to worker, past the dispatcher: one link a peer, a process group of two under each.

Every worker hosts a store; a pair meets in the store of the one with the lower id. Both reach the first copy between
them in the one global order, so its number names the meeting. A link has one thread that moves its copies in that
order, both directions, so that each side waits only for what the other will surely do; the main loop never waits for a
send, and for a receive only where the value is used.

On the wire of a pair: a header of four int64 (state, bytes of meta, bytes of data, transfer), the meta or the failure
as MessagePack, the data as uint8 in pieces. A link that fails once stays failed: its two ends could no longer agree
where they are.
"""

from __future__ import annotations

import datetime
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
_CONNECT = datetime.timedelta(seconds=30)  # once both are there
_FOR_EVER = datetime.timedelta(days=365)  # a peer may compute for hours before it comes to a copy; loss is told apart
_TAGS = 1 << 31


class PeerLost(Exception):
    """The other end of a link is gone."""


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
    """A value that comes from ``peer``. Once ``done``: ``meta`` and ``data`` (uint8, on the device), or a packed
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


class StoreServer:
    """This worker's store: where others meet it. Listens on ``host`` alone."""

    def __init__(self, host: str) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.bind((host, 0))
        listener.listen(512)
        port = listener.getsockname()[1]
        self.address = f"{host}:{port}"
        self._store = dist.TCPStore(
            host,
            port,
            None,
            True,
            datetime.timedelta(seconds=30),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


class Link(threading.Thread):
    """The copies between this worker and one peer, in order."""

    def __init__(
        self,
        me: str,
        peer: str,
        store: str,
        host: str,
        device: torch.device,
        counters: Counters,
        finish: Callable[[Copy], None],
    ) -> None:
        """``store``: address of the store to meet in; ``host``: where this worker's side of the group listens.
        ``finish`` is called from this link's thread, or from the one that abandons it, once for every copy."""
        super().__init__(name=f"link-{peer}", daemon=True)
        self.me, self.peer = me, peer
        self._store_address, self._host = store, host
        self._device = device
        self._counters = counters
        self._finish = finish
        self._queue: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[Copy] = []  # posted and not finished
        self._lost: str | None = None
        self._group: Any = None

    def post(self, copy: Copy) -> None:
        """Move ``copy`` once its turn comes; on a lost link it fails at once."""
        with self._lock:
            lost = self._lost
            if lost is None:
                self._open.append(copy)
                self._queue.put(copy)
        if lost is not None:
            self._fail(copy, lost)

    def abandon(self, why: str) -> None:
        """The peer is gone: every copy that isn't finished fails now, whatever the thread is stuck in."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = why
            copies, self._open = self._open, []
            self._group = None
        self._queue.put(None)
        for copy in copies:
            self._fail(copy, why)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        group: Any = None
        while (copy := self._queue.get()) is not None:
            try:
                if group is None:
                    group = self._meet(copy.transfer)
                if isinstance(copy, Outgoing):
                    self._send(group, copy)
                else:
                    self._receive(group, copy)
            except (
                Exception
            ) as error:  # torch says RuntimeError and its subclasses for whatever happens to a connection
                self.abandon(f"the connection to worker {self.peer} broke ({str(error).splitlines()[0][:200]})")
                return
            self._finished(copy)

    def _finished(self, copy: Copy) -> None:
        with self._lock:
            if copy not in self._open:
                return  # abandoned meanwhile, and told so
            self._open.remove(copy)
        self._finish(copy)

    def _fail(self, copy: Copy, why: str) -> None:
        if isinstance(copy, Incoming):
            copy.meta = copy.data = None
            text = f"the copy of a value from worker {self.peer} to {self.me} didn't come: {why}"
            copy.failure = Failure(FailureKind.LOST, "RuntimeError", text, worker=self.peer).pack()
        self._finish(copy)

    def _meet(self, number: int) -> Any:
        """The group of the two, made once both are here."""
        low, high = sorted((self.me, self.peer))
        host, _, port = self._store_address.rpartition(":")
        client = dist.TCPStore(host, int(port), None, False, _CONNECT, wait_for_workers=False)
        store = dist.PrefixStore(f"pair/{low}/{high}/{number}", client)
        store.set(f"here/{self.me}", "1")
        while not store.check([f"here/{self.peer}"]):
            if self._lost is not None:
                raise PeerLost(self._lost)
            time.sleep(_MEETING_SECONDS)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = _FOR_EVER
        return dist.ProcessGroupGloo(store, 0 if self.me == low else 1, 2, options)

    @property
    def _other(self) -> int:
        return 1 if self.me < self.peer else 0

    def _send(self, group: Any, copy: Outgoing) -> None:
        poison = copy.failure is not None
        about = codec.pack(copy.failure if poison else copy.meta)
        data = None if poison or copy.data is None else copy.data.cpu()
        nbytes = 0 if data is None else data.numel()
        header = torch.tensor(
            [_STATE_POISON if poison else _STATE_VALUE, len(about), nbytes, copy.transfer], dtype=torch.int64
        )
        tensors = [header, torch.frombuffer(bytearray(about), dtype=torch.uint8)]
        if data is not None and nbytes:
            tensors += data.split(PIECE_BYTES)
        tag = copy.transfer % _TAGS
        for work in [group.send([tensor], self._other, tag) for tensor in tensors]:
            work.wait()
        self._counters.add(went=nbytes)

    def _receive(self, group: Any, copy: Incoming) -> None:
        tag = copy.transfer % _TAGS
        header = torch.zeros(_HEADER_WORDS, dtype=torch.int64)
        group.recv([header], self._other, tag).wait()
        state, meta_bytes, nbytes, transfer = header.tolist()
        if transfer != copy.transfer or not 0 < meta_bytes <= MAX_META_BYTES or nbytes < 0:
            raise PeerLost(f"it sent transfer {transfer} where {copy.transfer} was due")
        about = torch.empty(meta_bytes, dtype=torch.uint8)
        group.recv([about], self._other, tag).wait()
        fields = codec.unpack(about.numpy().tobytes())
        try:
            data = torch.empty(nbytes, dtype=torch.uint8)
        except RuntimeError:  # no memory: the bytes come all the same and must be taken off the connection
            self._discard(group, tag, nbytes)
            text = f"worker {self.me} has no memory for a copy of {nbytes} bytes"
            copy.failure = Failure(FailureKind.MEMORY, "OutOfMemoryError", text, worker=self.me).pack()
            return
        if nbytes:
            for work in [group.recv([piece], self._other, tag) for piece in data.split(PIECE_BYTES)]:
                work.wait()
        self._counters.add(came=nbytes)
        if state == _STATE_POISON:
            copy.failure = fields
        else:
            copy.meta, copy.data = fields, data.to(self._device)

    def _discard(self, group: Any, tag: int, nbytes: int) -> None:
        while nbytes > 0:
            piece = torch.empty(min(PIECE_BYTES, nbytes), dtype=torch.uint8)
            group.recv([piece], self._other, tag).wait()
            nbytes -= piece.numel()


class Peers:
    """All links of this worker. Everything but ``finish`` (see ``Link``) is called from the main loop."""

    def __init__(self, host: str, device: str) -> None:
        """``host``: the address under which other workers reach this one."""
        self._server = StoreServer(host)
        self._host = host
        self._device = torch.device(device)
        self._links: dict[str, Link] = {}
        self._members: dict[str, str] = {}  # worker id -> address of its store
        self._newest: dict[str, str] = {}  # the same, by the newest word received
        self.counters = Counters()

    @property
    def store(self) -> str:
        """``host:port`` for the Hello."""
        return self._server.address

    def lose(self, members: Mapping[str, Any]) -> None:
        """News of the membership, perhaps from further back in the stream than what is being handled: who is gone is
        gone now, since we may be waiting for them. Who is new counts only when its turn comes (``set_members``), for
        an id may have changed hands."""
        self._newest = _stores(members)
        for name, store in list(self._members.items()):
            if self._newest.get(name) != store:
                del self._members[name]
                if link := self._links.pop(name, None):
                    link.abandon(f"worker {name} was lost")

    def set_members(self, members: Mapping[str, Any]) -> None:
        """The membership from here on in the stream, less those of whose loss we have heard meanwhile."""
        for name, store in _stores(members).items():
            if self._newest.get(name) == store and name not in self._members:
                self._links.pop(name, None)  # one that failed because there was no such member
                self._members[name] = store

    def post(self, me: str, copy: Copy, finish: Callable[[Copy], None]) -> None:
        """Begin ``copy``; ``finish`` is called once it has moved or can't."""
        link = self._links.get(copy.peer)
        if link is None:
            low = min(me, copy.peer)
            store = self.store if low == me else self._members.get(copy.peer, "")
            link = self._links[copy.peer] = Link(me, copy.peer, store, self._host, self._device, self.counters, finish)
            if copy.peer in self._members:
                link.start()
            else:
                link.abandon(f"worker {copy.peer} was lost, or never was a member")
        link.post(copy)

    def close(self) -> None:
        """Abandon every link."""
        self.lose({})


def _stores(members: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(facts.get("store", "")) for name, facts in members.items() if isinstance(facts, dict)}
