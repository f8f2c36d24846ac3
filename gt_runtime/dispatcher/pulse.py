"""Heartbeats, in a thread of their own: beats are answered and losses seen however busy the dispatcher's loop is.

``Vigil`` decides (no sockets, no clock), ``Pulse`` does the IO. Over an inproc pair the loop says whom to watch and
hears who is gone.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import zmq

from gt_runtime.dispatcher.records import Peer
from gt_runtime.dispatcher.state import Watch
from gt_runtime.protocol import codec, limits
from gt_runtime.protocol import messages as m

log = logging.getLogger(__name__)

GRACE_SECONDS = 10.0  # until a newcomer's first beat: its heartbeat thread starts only after the Welcome
PARENT_SECONDS = 2.0  # after the parent's end the loop has this long to stop cleanly


@dataclass(frozen=True, slots=True)
class Gone:
    """``who`` has been silent for too long, or its process has ended."""

    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Silence:
    """``who`` is late but may live (its process is there), or is back."""

    who: str
    silent: bool


@dataclass(slots=True)
class _Entry:
    watch: Watch
    seen: float
    limit: float  # seconds of silence from ``seen``
    silent: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    fresh: bool = False  # facts not yet passed on


class Vigil:
    """Who is expected to beat, and who is overdue."""

    def __init__(self, now: float) -> None:
        self._entries: dict[str, _Entry] = {}
        self._checked = now

    def watch(self, watch: Watch, now: float) -> None:
        """Expect beats of ``watch.who`` from now on."""
        self._entries[watch.who] = _Entry(watch, now, GRACE_SECONDS)

    def forget(self, who: str) -> None:
        """No longer."""
        self._entries.pop(who, None)

    def beat(self, who: str, peer: Peer, facts: dict[str, Any], now: float) -> bool:
        """A Beat came; False if nobody of that name and key is expected from that peer."""
        entry = self._entries.get(who)
        if entry is None or (entry.watch.uid, entry.watch.ip) != (peer.uid, peer.ip):
            return False
        if facts.pop("key", "") != entry.watch.key:
            return False
        entry.seen, entry.facts, entry.fresh = now, facts, True
        entry.limit = entry.watch.silence if entry.watch.silence is not None else limits.CLIENT_LOST_SECONDS
        return True

    def check(self, now: float) -> list[Gone | Silence]:
        """Who is overdue. Called at least every ``BEAT_SECONDS``; where it was called late, this process itself was
        held up and could not hear anyone, so that time isn't counted against them."""
        late = max(0.0, now - self._checked - 2 * limits.BEAT_SECONDS)
        self._checked = now
        found: list[Gone | Silence] = []
        for who, entry in list(self._entries.items()):
            entry.seen += late
            overdue = now - entry.seen > entry.limit
            if overdue and entry.watch.silence is not None:
                found.append(Gone(who, f"silent for {now - entry.seen:.1f} s"))
                self.forget(who)
            elif overdue != entry.silent:
                entry.silent = overdue
                found.append(Silence(who, overdue))
        return found

    def fresh(self, now: float) -> dict[str, list[Any]]:
        """Facts that came since the last call: ``who -> [facts, age in seconds]``."""
        found = {}
        for who, entry in self._entries.items():
            if entry.fresh:
                entry.fresh = False
                found[who] = [entry.facts, now - entry.seen]
        return found

    def pid(self, who: str) -> int | None:
        """The process that is watched for ``who``."""
        entry = self._entries.get(who)
        return entry.watch.pid if entry is not None else None


class Pulse(threading.Thread):
    """The heartbeat thread.

    Args:
        router: the bound ``pulse`` socket; belongs to this thread from ``start`` on.
        pipe: this thread's end of the inproc pair.
        cluster: name, said in every beat.
        parent: process whose end is the dispatcher's, or None.
    """

    def __init__(self, router: zmq.Socket[bytes], pipe: zmq.Socket[bytes], cluster: str, parent: int | None) -> None:
        super().__init__(name="pulse", daemon=True)
        self._router, self._pipe, self._cluster, self._parent = router, pipe, cluster, parent
        self._epoch = 0
        self._vigil = Vigil(time.monotonic())
        self._poller = zmq.Poller()
        self._processes: dict[int, str] = {}  # pidfd -> who ("" = the parent)
        self._polled: dict[str, int] = {}  # who -> pid, where there is no pidfd
        self._orphaned: float | None = None
        self._running = True

    def run(self) -> None:
        """Until the loop says stop."""
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._pipe, zmq.POLLIN)
        if self._parent is not None:
            self._look_at("", self._parent)
        try:
            while self._running:
                try:
                    self._step()
                except Exception:
                    log.exception("heartbeats: an error is passed over")
        finally:
            self._router.close(0)
            self._pipe.close(0)
            for fd in self._processes:
                os.close(fd)

    def _step(self) -> None:
        for ready, _ in self._poller.poll(int(limits.BEAT_SECONDS * 1000)):
            if ready is self._pipe:
                self._told()
            elif ready is self._router:
                self._beats()
            else:
                self._ended(ready)
        now = time.monotonic()
        for finding in self._vigil.check(now):
            if isinstance(finding, Gone):
                self._gone(finding.who, finding.reason)
            else:
                self._tell(["silent", finding.who, finding.silent])
        for who, pid in list(self._polled.items()):
            if not _alive(pid):
                self._gone(who, f"its process {pid} has ended")
        facts = self._vigil.fresh(now)
        if facts:
            self._tell(["beats", facts])
        if self._orphaned is not None and now - self._orphaned > PARENT_SECONDS:
            log.error("the parent process has ended and the dispatcher's loop did not stop in time: leaving")
            os._exit(1)

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def _told(self) -> None:
        order, *rest = codec.unpack(self._pipe.recv())
        if order == "watch":
            watch = Watch(*rest)
            self._vigil.watch(watch, time.monotonic())
            if watch.pid is not None:
                self._look_at(watch.who, watch.pid)
        elif order == "forget":
            self._forget(rest[0])
        elif order == "epoch":
            self._epoch = rest[0]
        else:
            self._running = False

    def _tell(self, news: list[Any]) -> None:
        self._pipe.send(codec.pack(news))

    def _gone(self, who: str, reason: str) -> None:
        self._forget(who)
        if who:
            self._tell(["gone", who, reason])
        else:
            self._orphaned = time.monotonic()
            self._tell(["orphaned", reason])

    # -- processes on this host ---------------------------------------------------------------------------------------

    def _look_at(self, who: str, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone(who, f"its process {pid} has ended" if who else f"the parent process {pid} has ended")
        except OSError as error:
            log.warning("no pidfd for process %d (%s): looking at it every %g s", pid, error, limits.BEAT_SECONDS)
            self._polled[who] = pid
        else:
            self._processes[fd] = who
            self._poller.register(fd, zmq.POLLIN)

    def _ended(self, fd: int) -> None:
        who = self._processes[fd]
        pid = self._vigil.pid(who) if who else self._parent
        self._gone(who, f"its process {pid} has ended" if who else f"the parent process {pid} has ended")

    def _forget(self, who: str) -> None:
        self._vigil.forget(who)
        self._polled.pop(who, None)
        for fd in [fd for fd, name in self._processes.items() if name == who]:
            self._poller.unregister(fd)
            del self._processes[fd]
            os.close(fd)

    # -- beats --------------------------------------------------------------------------------------------------------

    def _beats(self) -> None:
        for _ in range(1024):  # then the others get their turn
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                beat = codec.decode(frames)
            except codec.ProtocolError as error:
                log.warning("heartbeats: a malformed message: %s", error)
                continue
            if isinstance(beat, m.Beat) and self._vigil.beat(beat.who, peer_of(identity), beat.facts, time.monotonic()):
                self._answer(identity.bytes)

    def _answer(self, identity: bytes) -> None:
        try:
            self._router.send_multipart([identity, *codec.encode(m.Beat(self._cluster, self._epoch, {}))])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # gone: its process or its silence will tell
                raise


def peer_of(frame: zmq.Frame) -> Peer:
    """Who sent a message: on ipc by the kernel (libzmq's ``host:uid:gid:pid``), on tcp an address."""
    try:
        address = frame.get("Peer-Address")
    except zmq.ZMQError:
        return Peer()
    parts = str(address).split(":")
    if len(parts) == 4 and parts[0] == "localhost" and all(part.isdigit() for part in parts[1:]):
        return Peer(uid=int(parts[1]), pid=int(parts[3]) or None)
    return Peer(ip=str(address))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
