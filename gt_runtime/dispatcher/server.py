"""The dispatcher's IO: one loop over its sockets around the core. Torch-free; it is on the critical path of a program's
start.

What a message does to a handler costs its sender alone: on front and back ``intake`` sees to that, on bulk ``_chunk``.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import signal
import socket as sockets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

from gt_runtime.dispatcher import endpoints as ends
from gt_runtime.dispatcher.core import Core
from gt_runtime.dispatcher.intake import Intake
from gt_runtime.dispatcher.options import DispatcherOptions
from gt_runtime.dispatcher.pulse import Pulse, peer_of
from gt_runtime.dispatcher.records import Address, Side
from gt_runtime.dispatcher.state import Epoch, Forget, Watch
from gt_runtime.protocol import codec, handshake
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import CHUNK_WINDOW, MAX_TOGETHER
from gt_runtime.telemetry.publisher import Publisher
from gt_runtime.telemetry.records import FRAME_SECONDS

log = logging.getLogger("gt.dispatcher")

_DRAIN = 256  # messages of one socket before the others get a look
_TOGETHER = 4  # messages handled before their consequences are sent: a backlog costs less so, and none waits long
_PIPE = "inproc://pulse"
_MAX_WAITING_CHUNKS = 64 * CHUNK_WINDOW  # for a peer that hasn't connected to ``bulk`` yet
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Frames = list[zmq.Frame]


def run(options: DispatcherOptions) -> int:
    """Run a dispatcher until it is told to stop (control request, SIGTERM, SIGINT, end of the parent).

    Prints one line of JSON on stdout once its sockets are bound.

    Returns:
        The process's exit status: 0 after a clean stop, 1 if it could not start.
    """
    try:
        server = Server(options)
    except (ends.EndpointError, OSError) as error:
        print(f"gt dispatcher: {error}", file=sys.stderr)
        return 1
    return server.run()


class Server:
    """The sockets, the heartbeat thread and the core of one cluster."""

    def __init__(self, options: DispatcherOptions) -> None:
        self._options = options
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._ends = ends.bind(self._context, options.run_dir, options.listen)
        bound = self._ends.sockets
        self._front, self._back, self._bulk, self._feed = (bound[n] for n in ("front", "back", "bulk", "telemetry"))
        self._sides = {int(Side.FRONT): self._front, int(Side.BACK): self._back}
        self._pipe = self._context.socket(zmq.PAIR)
        self._pipe.bind(_PIPE)
        far = self._context.socket(zmq.PAIR)
        far.connect(_PIPE)
        self._pulse = Pulse(bound["pulse"], far, options.name, options.parent)
        self._publisher = Publisher(self._feed.send_multipart)
        self._core = Core(options, self._identity(), time.monotonic(), time.time(), self._publisher.snapshot, _new_key)
        self._state = self._core.state
        self._intake = Intake(self._core)
        self._bulk_who: dict[bytes, str] = {}  # connections on ``bulk`` and who they are
        self._bulk_of: dict[str, bytes] = {}
        self._waiting: dict[str, list[m.Chunk]] = {}  # chunks for peers that aren't on ``bulk`` yet

    def _identity(self) -> dict[str, Any]:
        return {
            "host": sockets.gethostname(),
            "host_id": handshake.host_id(),
            "pid": os.getpid(),
            "uid": os.getuid(),
            "endpoints": self._ends.ipc,
            "tcp_endpoints": self._ends.tcp,
        }

    def run(self) -> int:
        """Serve until the core stops."""
        self._pulse.start()
        with _signals() as wake:
            try:
                self._announce()
                self._loop(wake)
            finally:
                self._close()
        return 0

    def _announce(self) -> None:
        line: dict[str, Any] = {"endpoints": self._ends.ipc, "pid": os.getpid()}
        if self._ends.tcp:
            line["tcp"] = self._ends.tcp
        try:
            print(json.dumps(line), flush=True)
        except OSError as error:
            log.warning("nobody reads stdout: %s", error)
        log.info(
            "cluster %s listens on %s",
            self._options.name,
            ", ".join([self._ends.ipc["front"], *self._ends.tcp.values()][:2]),
        )
        self._publisher.frame(self._core.tick(time.monotonic()), time.time())

    def _loop(self, wake: sockets.socket) -> None:
        poller = zmq.Poller()
        handlers: dict[Any, Callable[[], None]] = {
            self._front: lambda: self._drain(self._front, self._stream, Side.FRONT),
            self._back: lambda: self._drain(self._back, self._stream, Side.BACK),
            self._bulk: lambda: self._drain(self._bulk, self._chunk, None),
            self._feed: self._subscriptions,
            self._pipe: self._news,
            wake.fileno(): lambda: self._signal(wake),
        }
        for ready in handlers:
            poller.register(ready, zmq.POLLIN)
        frame_at = time.monotonic() + FRAME_SECONDS
        while self._core.stopping is None:
            now = time.monotonic()
            if now >= frame_at:
                frame_at = max(frame_at + FRAME_SECONDS, now)
                self._publisher.frame(self._core.tick(now), time.time())
                self._flush()
            for ready, _ in poller.poll(max(0, int((frame_at - now) * 1000)) + 1):
                handlers[ready]()

    def _close(self) -> None:
        self._flush()
        self._pipe.send(codec.pack(["stop"]))
        self._pulse.join(2.0)
        for socket in (self._front, self._back, self._bulk, self._feed, self._pipe):
            socket.close()
        if not self._pulse.is_alive():
            self._context.term()  # waits for the last words, as long as they linger
        ends.remove(self._options.run_dir)
        log.info("cluster %s stopped: %s", self._options.name, self._core.stopping)

    # -- messages in --------------------------------------------------------------------------------------------------

    def _drain(
        self, socket: zmq.Socket[bytes], handle: Callable[[bytes, Frames, Side | None], None], side: Side | None
    ) -> None:
        """Handle what waits on a socket, each message on its own."""
        for number in range(1, _DRAIN + 1):
            try:
                identity = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            # By hand, since recv_multipart costs twice as much and this runs for every batch: what follows the identity
            # is here already.
            frame = socket.recv(copy=False)
            frames = [frame]
            while frame.more:
                frame = socket.recv(copy=False)
                if len(frames) <= codec.MAX_FRAMES:  # of more, enough is kept to see that it is malformed
                    frames.append(frame)
            handle(identity, frames, side)
            if number % _TOGETHER == 0:
                self._flush()
        self._flush()

    def _stream(self, identity: bytes, frames: Frames, side: Side | None) -> None:
        assert side is not None, "front and back have sides"
        self._intake.take(Address(side, identity), frames, lambda: peer_of(frames[0]), time.monotonic)

    def _chunk(self, identity: bytes, frames: Frames, side: Side | None) -> None:
        try:
            message = codec.decode(frames)
            if type(message) is m.Beat:
                self._introduce(identity, message, frames[0])
            elif type(message) is m.Chunk and identity in self._bulk_who:
                self._core.chunk(self._bulk_who[identity], message)
            else:
                log.warning("bulk: a %s from someone who didn't say who it is", type(message).__name__)
        except codec.ProtocolError as error:
            log.warning("bulk: malformed message: %s", error)
        except Exception:
            log.exception("bulk: a handler failed")

    def _introduce(self, identity: bytes, beat: m.Beat, frame: zmq.Frame) -> None:
        """The first message on a bulk connection: of the same user as ``who``'s other connection, with its key."""
        who = beat.who
        record = self._state.workers.get(who) or self._state.sessions.get(who)
        peer = peer_of(frame)
        if record is None or (record.peer.uid, record.peer.ip, record.key) != (
            peer.uid,
            peer.ip,
            beat.facts.get("key", ""),
        ):
            log.warning("bulk: %s is not expected from %s", who[:40], peer)
            return
        self._bulk_who[identity], self._bulk_of[who] = who, identity
        self._state.chunks[:0] = [(who, chunk) for chunk in self._waiting.pop(who, [])]

    def _news(self) -> None:
        """What the heartbeat thread says."""
        for _ in range(_DRAIN):
            try:
                what, *rest = codec.unpack(self._pipe.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            try:
                if what == "beats":
                    now = time.monotonic()
                    for who, (facts, age) in rest[0].items():
                        self._core.beat(who, facts, now - age)
                elif what == "gone":
                    log.warning("%s is gone: %s", *rest)
                    self._core.gone(*rest)
                elif what == "silent":
                    self._core.silent(*rest)
                else:
                    self._core.stop(rest[0])
            except Exception:
                log.exception("heartbeats: a handler failed")
            self._flush()

    def _subscriptions(self) -> None:
        try:
            while True:
                self._feed.recv(zmq.NOBLOCK)  # who subscribes doesn't matter: every frame is complete
        except zmq.Again:
            pass

    def _signal(self, wake: sockets.socket) -> None:
        for number in wake.recv(64):
            if number in _SIGNALS:
                self._core.stop(signal.Signals(number).name)

    # -- messages out -------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what the core has emitted. A peer that can't be reached is gone, which may emit more."""
        state = self._state
        while state.out or state.chunks or state.events or state.actions:
            out, state.out = state.out, []
            if len(out) == 1:
                together = {out[0][0]: [out[0][1]]}
            else:
                together = {}
                for address, message in out:
                    together.setdefault(address, []).append(message)
            unreachable = [address for address, messages in together.items() if not self._send(address, messages)]
            self._send_chunks()
            for address in unreachable:
                self._core.unreachable(address)
            self._act()

    def _send(self, address: Address, messages: list[Any]) -> bool:
        socket, identity = self._sides[address[0]], address[1]
        try:
            for first in range(0, len(messages), MAX_TOGETHER):
                send_frames(socket, identity, codec.encode(*messages[first : first + MAX_TOGETHER]))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _send_chunks(self) -> None:
        chunks, self._state.chunks = self._state.chunks, []
        for who, chunk in chunks:
            identity = self._bulk_of.get(who)
            if identity is None:
                waiting = self._waiting.setdefault(who, [])
                if len(waiting) < _MAX_WAITING_CHUNKS:
                    waiting.append(chunk)
                else:
                    log.warning("bulk: %s isn't connected, and over %d chunks wait for it", who, _MAX_WAITING_CHUNKS)
                continue
            try:
                send_frames(self._bulk, identity, codec.encode(chunk))
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise  # else its process, its silence or its other connection will tell

    def _act(self) -> None:
        """Orders for the heartbeat thread, and events for the feed."""
        actions, self._state.actions = self._state.actions, []
        for action in actions:
            if isinstance(action, Watch):
                self._pipe.send(codec.pack(["watch", *dataclasses.astuple(action)]))
            elif isinstance(action, Epoch):
                self._pipe.send(codec.pack(["epoch", action.epoch]))
            elif isinstance(action, Forget):
                self._pipe.send(codec.pack(["forget", action.who]))
                self._waiting.pop(action.who, None)
                identity = self._bulk_of.pop(action.who, None)
                if identity is not None:
                    self._bulk_who.pop(identity, None)
        events, self._state.events = self._state.events, []
        for event in events:
            log.info("%s %s: %s", event.event, event.subject, event.text)
            self._publisher.event(event, time.time())


def send_frames(socket: zmq.Socket[bytes], identity: bytes, frames: Sequence[Any]) -> None:
    """Send to one peer; payloads aren't copied. By hand, since send_multipart costs twice as much.

    Raises:
        zmq.ZMQError: EHOSTUNREACH if the peer is gone; nothing was sent then.
    """
    socket.send(identity, zmq.SNDMORE)  # on a mandatory ROUTER this is the frame that fails
    for frame in frames[:-1]:
        socket.send(frame, zmq.SNDMORE)
    socket.send(frames[-1], copy=False)


def _new_key() -> str:
    return secrets.token_hex(8)


@contextmanager
def _signals() -> Iterator[sockets.socket]:
    """A socket that gets a byte for each SIGTERM and SIGINT; nothing of signals outside the main thread."""
    near, far = sockets.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    main = threading.current_thread() is threading.main_thread()
    handlers = {}
    wakeup = -1
    if main:
        handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        wakeup = signal.set_wakeup_fd(far.fileno())
    try:
        yield near
    finally:
        if main:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        near.close()
        far.close()
