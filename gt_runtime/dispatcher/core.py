"""The dispatcher's decisions. Events go in through the methods, outputs come out of ``state``: messages with their
addresses, chunks, events for the feed, orders for the heartbeat thread. No sockets, no clock (times are arguments,
seconds on one steady clock), no threads.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from gt_runtime import __version__
from gt_runtime.control import requests
from gt_runtime.control.requests import ControlError
from gt_runtime.dispatcher import describe
from gt_runtime.dispatcher.errors import StreamError
from gt_runtime.dispatcher.options import DispatcherOptions
from gt_runtime.dispatcher.records import Address, Peer, Session, Side, Worker, names, whole_number
from gt_runtime.dispatcher.relay import Relay
from gt_runtime.dispatcher.state import Epoch, Forget, State, Watch
from gt_runtime.dispatcher.streams import Streams
from gt_runtime.protocol import handshake, limits
from gt_runtime.protocol import messages as m
from gt_runtime.telemetry.records import Frame

LOST_SHOWN_SECONDS = 60.0  # a lost worker stays on the screens this long
WAITS_TOLD_SECONDS = 5.0
_LOST_KEPT = 64
_GONE_KEPT = 4096  # addresses of ended peers whose late messages are dropped in silence
_RATE_INTERVAL = 0.25  # seconds between two readings of the cluster's rate, at least
_WORKER_ID = re.compile(r"w\d{1,6}")
_STREAM = (m.Batch, m.Upload, m.Fetch, m.Sync)


class Core:
    """One cluster.

    Args:
        options: what the dispatcher was started with.
        identity: ``host``, ``host_id``, ``pid``, ``uid`` of this process, ``torch`` of this environment; ``endpoints``
            and ``tcp_endpoints`` (empty without ``listen``).
        now: the steady clock's time.
        unix: unix time at that moment.
        snapshot: what the control method ``snapshot`` answers.
        new_key: makes what only a peer and we know ("" = nothing): its other connections say it, so that nobody of the
            same user takes them over.
    """

    def __init__(
        self,
        options: DispatcherOptions,
        identity: dict[str, Any],
        now: float,
        unix: float,
        snapshot: Callable[[], dict[str, Any]],
        new_key: Callable[[], str] = str,
    ) -> None:
        self.options, self.identity, self.started, self.offset = options, identity, now, unix - now
        self.state = State(options)
        self.streams, self.relay = Streams(self.state), Relay(self.state)
        self.stopping: str | None = None  # why, once it is
        self._now = now  # of the newest tick: good enough for what is shown
        self._snapshot, self._new_key = snapshot, new_key
        self._peers: dict[Address, Worker | Session] = {}
        self._gone: deque[Address] = deque(maxlen=_GONE_KEPT)
        self._lost: deque[Worker] = deque(maxlen=_LOST_KEPT)
        self._expected: dict[str, Any] = {"protocol": limits.PROTOCOL_VERSION, "gt": __version__}
        self._next_session, self._next_worker = 1, 0
        self._complete = False  # all workers it was started with have been here
        self._ended = 0  # instructions of sessions that are over
        self._rate_at, self._rate_total, self._rate = now, 0, 0.0

    # -- joining ------------------------------------------------------------------------------------------------------

    def hello(self, address: Address, hello: m.Hello, peer: Peer, now: float) -> None:
        """A client or a worker introduces itself. ``peer``: what the kernel says of it."""
        facts = hello.facts
        refused = handshake.judge(facts, self._expected) or self._misplaced(address, facts, peer)
        if refused is not None:
            self.state.out.append((address, refused))
        elif address.side == Side.BACK:
            self._join(address, facts, peer, now)
        else:
            self._open(address, facts, peer, now)

    def _misplaced(self, address: Address, facts: dict[str, Any], peer: Peer) -> m.Refused | None:
        role = facts["role"]
        if (role == "worker") != (address.side == Side.BACK):
            side = Side(address.side).name.lower()
            return m.Refused(f"to join as {role}", f"the {side} endpoint", "clients go to front, workers to back")
        if self.stopping is not None:
            return m.Refused(f"to join as {role}", f"the cluster stops: {self.stopping}", "start it again")
        if address in self._peers or address in self._gone:
            return m.Refused(f"to join as {role}", "this connection has said Hello already", "connect again")
        if role == "worker" and peer.uid not in (None, self.identity["uid"]):
            return m.Refused(
                "to join as a worker",
                f"uid {peer.uid}",
                f"workers run as the cluster's user, uid {self.identity['uid']}",
            )
        wanted = facts.get("id")
        if (
            role == "worker"
            and wanted
            and (not isinstance(wanted, str) or not _WORKER_ID.fullmatch(wanted) or wanted in self.state.workers)
        ):
            taken = names(self.state.workers.values())
            return m.Refused(
                f"to join as worker {str(wanted)[:40]}",
                f"ids are w0, w1, ...; taken: {taken}",
                "ask for a free one, or none",
            )
        return None

    def _join(self, address: Address, facts: dict[str, Any], peer: Peer, now: float) -> None:
        state = self.state
        self._expect(facts)
        name = facts.get("id") or self._new_worker_id()
        worker = state.workers[name] = self._peers[address] = Worker(name, address, peer, facts, now)
        worker.key = self._new_key()
        self._lost = deque((w for w in self._lost if w.id != name), maxlen=_LOST_KEPT)
        self._membership()
        state.out.append((address, m.Welcome(self._welcome(worker, self._same_host(facts, peer)))))
        self._tell_peers()
        state.actions.append(Watch(name, peer.uid, self._visible_pid(peer), peer.ip, limits.LOST_SECONDS, worker.key))
        device = describe.text(facts.get("device_name")) or describe.text(facts.get("device")) or "unknown device"
        state.event(
            "joined",
            name,
            f"{device} on {describe.text(facts.get('host')) or 'unknown host'}",
            describe.text(facts.get("user")) or "",
        )
        for session in list(state.sessions.values()):
            self._guard(session, self._release)

    def _new_worker_id(self) -> str:
        """The next number: a lost worker's is not given out again, so that nobody takes one for the other."""
        while f"w{self._next_worker}" in self.state.workers:
            self._next_worker += 1
        self._next_worker += 1
        return f"w{self._next_worker - 1}"

    def _expect(self, facts: dict[str, Any]) -> None:
        """The first worker says which torch the cluster runs; clients that came before it are held to that."""
        missing = [key for key in ("torch", "schema") if key not in self._expected]
        if not missing:
            return
        self._expected.update({key: facts.get(key) for key in missing})
        for session in list(self.state.sessions.values()):
            refused = handshake.judge(session.facts, self._expected)
            if refused is not None:
                self._fail(session, refused)

    def _open(self, address: Address, facts: dict[str, Any], peer: Peer, now: float) -> None:
        state = self.state
        name = f"s{self._next_session}"
        self._next_session += 1
        same_host = self._same_host(facts, peer) and all(w.peer.local for w in state.workers.values())
        session = state.sessions[name] = self._peers[address] = Session(name, address, peer, facts, now, same_host)
        session.key = self._new_key()
        state.out.append((address, m.Welcome(self._welcome(session, same_host))))
        silence = None if self._visible_pid(peer) else limits.CLIENT_LOST_SECONDS
        state.actions.append(Watch(name, peer.uid, self._visible_pid(peer), peer.ip, silence, session.key))
        state.event("session_opened", name, session.who, describe.text(facts.get("user")) or "")

    def _welcome(self, who: Worker | Session, same_host: bool) -> dict[str, Any]:
        return {
            "id": who.id,
            "key": who.key,
            "epoch": self.state.epoch,
            "cluster": self.options.name,
            "endpoints": self._endpoints(who.peer),
            "credit_instructions": limits.CREDIT_INSTRUCTIONS,
            "credit_bytes": limits.CREDIT_BYTES,
            "same_host": same_host,
            "workers": list(self.state.workers),
        }

    def _endpoints(self, peer: Peer) -> dict[str, str]:
        """The endpoints that a peer can reach: those of the transport it came by."""
        found: dict[str, str] = (
            self.identity["endpoints"] if peer.local or not peer.ip else self.identity["tcp_endpoints"]
        )
        return found

    def _same_host(self, facts: dict[str, Any], peer: Peer) -> bool:
        return peer.local and facts.get("host_id") == self.identity["host_id"]

    def _visible_pid(self, peer: Peer) -> int | None:
        return peer.pid if peer.local and peer.pid else None

    def _membership(self) -> None:
        self.state.epoch += 1
        self.state.actions.append(Epoch(self.state.epoch))

    def _tell_peers(self) -> None:
        workers = self.state.workers
        members = {w.id: {"store": describe.text(w.facts.get("store")) or ""} for w in workers.values()}
        for worker in workers.values():
            self.state.out.append((worker.address, m.Peers(self.state.epoch, members)))

    # -- messages -----------------------------------------------------------------------------------------------------

    def message(self, address: Address, message: Any) -> None:
        """Anything but Hello, Request and Chunk from a peer's socket."""
        peer = self._peers.get(address)
        if type(peer) is Session:
            try:
                if type(message) in _STREAM:
                    self.streams.receive(peer, message)
                elif type(message) is m.Close:
                    self._end(peer, "session_closed", message.reason[:200] or "goodbye")
                else:
                    raise StreamError(f"to take a {type(message).__name__}", "it is not one of a client's messages")
            except StreamError as error:
                self._fail(peer, m.Refused(error.asked, error.found, error.do))
        elif type(peer) is Worker:
            if type(message) is m.Done:
                self.streams.done(peer, message)
            elif type(message) is m.Result:
                self.streams.result(peer, message)
            elif type(message) is m.Close:
                self.worker_lost(peer.id, message.reason or "it said goodbye")
            elif type(message) is not m.Notice:
                self._refuse(address, type(message).__name__, "it is not one of a worker's messages")
        elif address not in self._gone:
            self._refuse(address, type(message).__name__, "no Hello came before it")

    def malformed(self, address: Address, found: str) -> None:
        """A message that could not be decoded; a session's stream can't go on after it."""
        peer = self._peers.get(address)
        if type(peer) is Session:
            self._fail(
                peer, m.Refused("to read a message", found, "this is an error of the client library: please report it")
            )
        elif address not in self._gone:
            self._refuse(address, "message", found)

    def broken(self, address: Address, error: BaseException) -> None:
        """A handler failed on a message of this peer: an error of ours. Its session can't be trusted any more; the
        others can.
        """
        peer = self._peers.get(address)
        if type(peer) is Session:
            self._fail(
                peer,
                m.Refused(
                    "to handle a message", f"{type(error).__name__} in the dispatcher", "see its log, please report it"
                ),
            )

    def chunk(self, who: str, chunk: m.Chunk) -> None:
        """A chunk of session or worker ``who``."""
        worker, session = self.state.workers.get(who), self.state.sessions.get(who)
        if worker is not None:
            self.relay.from_worker(worker, chunk)
        elif session is not None:
            self._guard(session, lambda s: self.relay.from_client(s, chunk))

    def _refuse(self, address: Address, asked: str, found: str) -> None:
        self.state.out.append(
            (address, m.Refused(f"to take a {asked}", found, "say Hello first, and use the same GT version"))
        )

    def _release(self, session: Session) -> None:
        self.relay.release(session)
        self.streams.release(session)

    def _guard(self, session: Session, do: Callable[[Session], None]) -> None:
        try:
            do(session)
        except StreamError as error:
            self._fail(session, m.Refused(error.asked, error.found, error.do))

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _fail(self, session: Session, refused: m.Refused) -> None:
        """The session is over for an error of its own."""
        text = f"{refused.asked}: {refused.found}; {refused.do}"
        session.last_error = text
        self.state.out += [
            (session.address, refused),
            (session.address, m.Notice("fatal", f"session {session.id} is over: {text}")),
        ]
        self._end(session, "session_failed", text)

    def _end(self, session: Session, event: str, reason: str, who: str = "") -> None:
        state = self.state
        for link in session.links.values():
            link.worker.queue -= sum(instructions for _, instructions, _, _ in link.under_way)
            state.out.append((link.worker.address, m.Close(session.id, reason)))
        state.settle(session)
        del state.sessions[session.id], self._peers[session.address]
        self._gone.append(session.address)
        self._ended += session.finished
        state.actions.append(Forget(session.id))
        state.event(event, session.id, reason, who or (describe.text(session.facts.get("user")) or ""))

    def gone(self, who: str, reason: str) -> None:
        """The heartbeat thread, or a send that failed, says that ``who`` is no longer there."""
        if who in self.state.sessions:
            self._end(self.state.sessions[who], "session_closed", reason)
        else:
            self.worker_lost(who, reason)

    def unreachable(self, address: Address) -> None:
        """A message to this address could not be delivered."""
        peer = self._peers.get(address)
        if peer is not None:
            self.gone(peer.id, "its connection is gone")

    def worker_lost(self, name: str, reason: str, event: str = "lost") -> None:
        """A worker is gone: the others are told, its sessions go on elsewhere. It is told too, in case it only was
        slow.
        """
        state = self.state
        worker = state.workers.pop(name, None)
        if worker is None:
            return
        del self._peers[worker.address]
        self._gone.append(worker.address)
        worker.lost_at, worker.ready = self._now, False
        self._lost.append(worker)
        state.wheel.forget(name)
        self._membership()
        state.out.append((worker.address, m.Notice("fatal", f"worker {name} is out of the cluster: {reason}")))
        self._tell_peers()
        state.actions.append(Forget(name))
        state.event(event, name, reason)
        for session in list(state.sessions.values()):
            self.streams.lose(session, worker)

    def silent(self, who: str, silent: bool) -> None:
        """A session's beats are late, or back."""
        session = self.state.sessions.get(who)
        if session is not None:
            session.silent = silent

    def stop(self, reason: str) -> None:
        """The cluster ends: everyone is told."""
        if self.stopping is not None:
            return
        self.stopping = reason
        self.state.event("stopping", self.options.name, reason)
        for peer in self._peers:
            self.state.out.append((peer, m.Notice("fatal", f"cluster {self.options.name} stops: {reason}")))

    # -- figures ------------------------------------------------------------------------------------------------------

    def beat(self, who: str, facts: dict[str, Any], at: float) -> None:
        """Facts of a worker's Beat that came at ``at``; they are claims and only ever shown or weighed."""
        worker = self.state.workers.get(who)
        if worker is None:
            return
        worker.beat, worker.beat_at = facts, at
        held = facts.get("sessions")
        for name, counts in held.items() if type(held) is dict else ():
            session = self.state.sessions.get(name)
            link = session.links.get(who) if session is not None else None
            if session is None or link is None or type(counts) is not list or len(counts) < 2:
                continue
            link.values, link.value_bytes = whole_number(counts[0]), whole_number(counts[1])
            # A single session's words aren't read, so what its instructions made of its turn is seen here.
            if (
                session.single is link
                and session.turn_limit
                and (link.value_bytes or 0) - session.turn_start >= session.turn_limit
            ):
                session.turn_left = 0

    def tick(self, now: float) -> Frame:
        """Twice a second: make spread sessions single again where that is possible, and picture the cluster."""
        for session in list(self.state.sessions.values()):
            if session.spread is not None:
                self.streams.collapse(session)
            self._tell_who_waits(session, now)
        self._now = now
        while self._lost and now - (self._lost[0].lost_at or 0.0) > LOST_SHOWN_SECONDS:
            self._lost.popleft()
        describe.read_rates(self.state, now)
        finished = self._finished()
        if now - self._rate_at >= _RATE_INTERVAL:
            self._rate = (finished - self._rate_total) / (now - self._rate_at)
            self._rate_at, self._rate_total = now, finished
        return describe.frame(
            self.state, list(self._lost), self.state.epoch, now, self.started, self.offset, finished, self._rate
        )

    def _tell_who_waits(self, session: Session, now: float) -> None:
        """A program whose work nobody can take is told once, after a while."""
        if not session.held and not session.held_chunks:
            session.waits_since = None
        elif session.waits_since is None:
            session.waits_since = now
        elif session.waits_since <= now - WAITS_TOLD_SECONDS:
            session.waits_since = math.inf
            text = f"no worker of cluster {self.options.name} can take this program's work: it waits until one joins"
            self.state.out.append((session.address, m.Notice("warning", f"{text} (gt workers, gt worker)")))

    def _finished(self) -> int:
        return self._ended + sum(s.finished for s in self.state.sessions.values())

    # -- control ------------------------------------------------------------------------------------------------------

    def request(self, address: Address, request: m.Request, peer: Peer, now: float) -> None:
        """A control request, answered at once. ``peer`` decides who may act: the cluster's own uid, by the kernel's
        word.
        """
        try:
            if request.version != limits.PROTOCOL_VERSION:
                found = f"this cluster speaks {limits.PROTOCOL_VERSION}"
                raise ControlError(f"protocol {request.version}", found, "use the cluster's GT version")
            requests.check(request.method, request.arguments, peer.uid is not None and peer.uid == self.identity["uid"])
            result = self._control(request.method, request.arguments, peer, now)
            reply = m.Reply(request.request, None, result)
        except ControlError as error:
            reply = m.Reply(request.request, error.pack(), None)
        self.state.out.append((address, reply))

    def _control(self, method: str, arguments: dict[str, str], peer: Peer, now: float) -> Any:
        state = self.state
        who = f"uid {peer.uid}"
        reason = arguments.get("reason", "")
        if method == "status":
            return self._status(peer, now)
        if method == "workers":
            return [describe.worker_record(w, now).pack() for w in [*state.workers.values(), *self._lost]]
        if method == "sessions":
            return [
                describe.session_record(s, self.options.session_memory, self.offset).pack()
                for s in state.sessions.values()
            ]
        if method == "snapshot":
            return self._snapshot()
        if method == "kill_session":
            session = state.sessions.get(arguments["session"])
            if session is None:
                raise requests.unknown("session", arguments["session"], state.sessions)
            text = f"session {session.id} was killed by {who}" + (f": {reason}" if reason else "")
            state.out.append((session.address, m.Notice("fatal", text)))
            self._end(session, "session_killed", reason or "no reason given", who)
            return {"session": session.id}
        if method == "worker_stop":
            if arguments["worker"] not in state.workers:
                raise requests.unknown("worker", arguments["worker"], state.workers)
            self.worker_lost(
                arguments["worker"], f"stopped by {who}" + (f": {reason}" if reason else ""), "worker_stopped"
            )
            return {"worker": arguments["worker"]}
        self.stop(reason or f"asked by {who}")
        return {}

    def _status(self, peer: Peer, now: float) -> dict[str, Any]:
        state, ready = self.state, [w for w in self.state.workers.values() if w.ready]
        self._complete = self._complete or len(ready) >= self.options.workers
        fewer = "degraded" if self._complete else "starting"
        phase = "stopping" if self.stopping is not None else "ready" if len(ready) >= self.options.workers else fewer
        return {
            "cluster": self.options.name,
            "pid": self.identity["pid"],
            "uid": self.identity["uid"],
            "host": self.identity["host"],
            "state": phase,
            "epoch": state.epoch,
            "uptime": now - self.started,
            "version": __version__,
            "torch": self._expected.get("torch"),
            "endpoints": self._endpoints(peer),
            "workers": len(state.workers),
            "ready": len(ready),
            "sessions": len(state.sessions),
            "instr_rate": self._rate,
            "instr_total": self._finished(),
            "tcp": self.identity["tcp_endpoints"],
            "embedded": self.options.embedded,
            "log_dir": str(self.options.log_dir) if self.options.log_dir else None,
        }
