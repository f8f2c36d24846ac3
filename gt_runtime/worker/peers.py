"""Copies from worker to worker, past the dispatcher: one link a peer, a ``Channel`` under each.

Every worker hosts a store; a pair meets in the store of the one with the lower id. Both reach the first copy between
them in the one global order, so its number names the meeting. A link has one thread that moves its copies in that
order, both directions, so that each side waits only for what the other will surely do; the main loop never waits for a
send, and for a receive only where the value is used. A link that fails once stays failed: its two ends could no longer
agree where they are.
"""

from __future__ import annotations

import datetime
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as _dist

from gt_runtime.protocol.messages import Failure, FailureKind
from gt_runtime.worker.channel import Channel, Copy, Counters, Incoming, Meeting, Outgoing, direct_facts

dist: Any = _dist  # its stubs hide the store


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

    def __init__(self, meeting: Meeting, counters: Counters, finish: Callable[[Copy], None]) -> None:
        """``finish`` is called from this link's thread, or from the one that abandons it, once for every copy."""
        super().__init__(name=f"link-{meeting.peer}", daemon=True)
        self._meeting = meeting
        self._counters = counters
        self._finish = finish
        self._queue: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[Copy] = []  # posted and not finished
        self._lost: str | None = None

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
        self._queue.put(None)
        for copy in copies:
            self._fail(copy, why)

    def run(self) -> None:
        channel: Channel | None = None
        while (copy := self._queue.get()) is not None:
            try:
                if channel is None:
                    channel = self._meeting.open(copy.transfer, lambda: self._lost, self._counters)
                if isinstance(copy, Outgoing):
                    channel.send(copy)
                else:
                    channel.receive(copy)
            except Exception as error:  # whatever torch says of a connection that broke, it is of no use any more
                words = str(error).partition("\n")[0][:200] or type(error).__name__
                self.abandon(f"the connection to worker {self._meeting.peer} broke ({words})")
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
            peer = self._meeting.peer
            text = f"the copy of a value from worker {peer} to {self._meeting.me} didn't come: {why}"
            copy.failure = Failure(FailureKind.LOST, "RuntimeError", text, worker=peer).pack()
        self._finish(copy)


class Peers:
    """All links of this worker. Everything but ``finish`` (see ``Link``) is called from the main loop."""

    def __init__(self, host: str, device: str) -> None:
        """``host``: the address under which other workers reach this one."""
        self._server = StoreServer(host)
        self._host = host
        self._device = torch.device(device)
        self._direct = direct_facts(self._device)
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
            meeting = Meeting(me, copy.peer, store, self._host, self._device, *self._direct)
            link = self._links[copy.peer] = Link(meeting, self.counters, finish)
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
