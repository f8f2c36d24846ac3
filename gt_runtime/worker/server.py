"""A worker's process: sockets, the handshake, the main loop. Messages are handled in the order they come, one at a
time; a bounded number is received ahead, so that the next one is there when the last has run and the length of the
queue is known.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import torch
import zmq

from gt_runtime.protocol import codec, handshake
from gt_runtime.protocol import messages as m
from gt_runtime.worker._native import schema_hash, trim
from gt_runtime.worker.bulk import Bulk, Staging
from gt_runtime.worker.executor import Executor
from gt_runtime.worker.options import WorkerOptions, inner_device
from gt_runtime.worker.peers import Peers
from gt_runtime.worker.pulse import Pulse, open_pidfd
from gt_runtime.worker.sampler import Sampler, cpu_name, host_memory, make_sampler

JOIN_SECONDS = 60.0  # how long a worker waits for the dispatcher's Welcome
# Received and not handled; unless the loop waits for a copy: then what says that it won't come must get through.
AHEAD_MESSAGES = 1024
AHEAD_BYTES = 64 << 20
_DRAIN = 64  # messages taken off the socket before one is handled
_LATE = 4  # words of finished batches that may wait for the next answer, while there is more to do
_TRIM_SECONDS = 1.0  # after the last first call of a template, what those took beyond later ones' need goes back
_PROBE_SIDE = {"cpu": 256, "cuda:0": 4096}  # of the square matrices that measure speed: below 30 ms in all
_PROBE_TIMES = 4


class JoinError(Exception):
    """The worker can't join: what was asked, what was found, what to do."""


class Ended(Exception):
    """The dispatcher has said that this worker is over."""


def serve(options: WorkerOptions) -> int:
    """Join, work until told to end, return the exit status: 0 after a goodbye, 1 if joining failed. Call from the main
    thread."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing here is worth saving: an interrupt ends the process at once
    context: zmq.Context[Any] = zmq.Context()
    try:
        server = Server(options, context)
        server.join()
    except JoinError as error:
        print(f"worker: {error}", file=sys.stderr, flush=True)
        return 1
    try:
        server.work()
    except Ended as notice:
        print(f"worker {server.id} ends: {notice}", file=sys.stderr, flush=True)
    server.close()
    return 0


class Server:
    """``join``, then ``work``, then ``close``."""

    def __init__(self, options: WorkerOptions, context: zmq.Context[Any]) -> None:
        self.options = options
        self.id = options.id
        self._context = context
        self._device = inner_device(options.device)
        torch.set_grad_enabled(False)
        torch.set_num_threads(_threads(options.threads, 1))
        self._back: zmq.Socket[Any] = context.socket(zmq.DEALER)
        self._back.set_hwm(0)
        self._back.set(zmq.LINGER, 1000)
        self._back.connect(options.connect)
        self._peers = Peers(own_address(options.connect), self._device)
        self._inbox: deque[tuple[Any, int]] = deque()  # message, bytes
        self._inbox_bytes = 0
        self._outbox: list[Any] = []  # answers that leave together
        self._key = ""  # from the Welcome: what our other connections say
        self._queued = 0  # instructions in the inbox and in the batch that runs
        self._learned = 0.0  # when a template last ran for the first time; 0 once the heap was trimmed after it
        self._poller = zmq.Poller()
        self._poller.register(self._back, zmq.POLLIN)
        self._executor: Executor
        self._sampler: Sampler
        self._pulse: Pulse
        self._bulk: Bulk

    # -- joining ------------------------------------------------------------------------------------------------------

    def join(self, seconds: float = JOIN_SECONDS) -> None:
        """Shake hands and start the threads.

        Raises:
            JoinError: refused, or no answer within ``seconds``, or the parent ended meanwhile.
        """
        facts = self._hello()
        self._back.send_multipart(codec.encode(m.Hello(facts)))
        (message, *more), peer = self._first_answer(seconds)
        if isinstance(message, m.Refused):
            raise JoinError(f"asked {message.asked}; {message.found}; {message.do}")
        if not isinstance(message, m.Welcome):
            raise JoinError(
                f"the dispatcher at {self.options.connect} answered with {type(message).__name__} instead of Welcome"
            )
        welcome = message.facts
        self.id = str(welcome["id"])
        self._key = str(welcome["key"])
        epoch = int(welcome.get("epoch", 0))
        self._sampler = make_sampler(self.options.device, torch.get_num_threads())
        limit = self.options.memory or int(facts["memory_total"])
        staging = Staging(limit)
        endpoints = welcome["endpoints"]
        self._bulk = Bulk(self._context, endpoints["bulk"], self.id, self._key, epoch, staging)
        self._executor = Executor(
            self.id,
            self._device,
            limit if self._device == "cpu" or self.options.memory else 0,
            copies=self._peers,
            chunks=self._bulk,
            staging=staging,
            send=self._send,
            wait=self._wait,
        )
        self._executor.epoch = epoch
        self._poller.register(self._executor.wake, zmq.POLLIN)
        watched = {"the parent": self.options.parent, "the dispatcher": peer}
        self._pulse = Pulse(self._context, endpoints["pulse"], self.id, epoch, self._facts, watched=watched)
        self._bulk.start()
        self._pulse.start()
        self._take(more, 0)

    def _hello(self) -> dict[str, Any]:
        name, memory = self._describe()
        more: dict[str, Any] = {"id": self.options.id} if self.options.id else {}
        return handshake.facts(
            "worker",
            torch.__version__,
            schema_hash(),
            device=self.options.device,
            device_name=name,
            memory_total=memory,
            speed=measure_speed(self._device),
            store=self._peers.store,
            **more,
        )

    def _describe(self) -> tuple[str, int]:
        """Name and bytes of memory of the device."""
        if self._device == "cpu":
            return cpu_name(), host_memory()
        try:
            properties = torch.cuda.get_device_properties(self._device)
        except (RuntimeError, AssertionError) as error:
            raise JoinError(
                f"device {self.options.device} can't be used: {str(error).splitlines()[0]}; see `gt doctor`"
            ) from error
        return str(properties.name), int(properties.total_memory)

    def _first_answer(self, seconds: float) -> tuple[list[Any], int]:
        """The first message and what came with it, and the dispatcher's pid where the kernel tells it (0: unknown)."""
        parent = open_pidfd(self.options.parent)
        if self.options.parent and parent is None:
            raise JoinError(f"its parent {self.options.parent} has ended")
        poller = zmq.Poller()
        poller.register(self._back, zmq.POLLIN)
        if parent is not None:
            poller.register(parent, zmq.POLLIN)
        ready = dict(poller.poll(int(seconds * 1000)))
        if parent is not None:
            os.close(parent)
        if self._back not in ready:
            if ready:
                raise JoinError(f"its parent {self.options.parent} ended before the dispatcher answered")
            raise JoinError(
                f"no dispatcher answered at {self.options.connect} within {seconds:g} s; is it running (`gt status`)?"
            )
        frames = self._back.recv_multipart(copy=False)
        try:
            return codec.decode_all(frames), dispatcher_pid(frames[0])
        except codec.ProtocolError as error:
            raise JoinError(f"what answers at {self.options.connect} is no dispatcher: {error}") from error

    # -- the main loop ------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Handle messages until the end.

        Raises:
            Ended: the dispatcher says that this worker is over.
        """
        while True:
            if self._learned and not self._inbox and time.monotonic() - self._learned >= _TRIM_SECONDS:
                # a first call can't reuse its dying inputs, as what dies is said after it: the heap keeps those
                self._learned = 0.0
                trim()
            self._receive(0 if self._inbox else None)
            self._executor.settle()
            if self._inbox:
                message, nbytes = self._inbox.popleft()
                self._handle(message)
                self._inbox_bytes -= nbytes
                if not self._inbox or len(self._outbox) >= _LATE:
                    self._flush()
                if type(message) is m.Batch:
                    self._queued -= message.instructions
                    if message.verdict:
                        self._learned = time.monotonic()
                elif type(message) is m.Peers:
                    self._pulse.epoch = message.epoch
                    self._share_cores(message.members)

    def _handle(self, message: Any) -> None:
        """Run a message. One that we can't cope with costs its session an error, and nobody else anything."""
        try:
            self._executor.handle(message)
        except Ended:
            raise
        except Exception as error:
            print(
                f"worker {self.id}: {type(message).__name__} failed:\n{traceback.format_exc()}",
                file=sys.stderr,
                flush=True,
            )
            self._executor.refuse(message, f"worker {self.id} can't handle this {type(message).__name__}: {error}")

    def _share_cores(self, members: dict[str, Any]) -> None:
        """Use this host's cores together with the workers that are on it, unless told how many to use."""
        host = self._peers.store.rpartition(":")[0]
        near = sum(str(facts.get("store", "")).rpartition(":")[0] == host for facts in members.values())
        threads = _threads(self.options.threads, max(1, near))
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self._sampler.threads = threads

    def _wait(self) -> None:
        """Something the executor needs is under way: listen on, without a bound, for news of it."""
        self._flush()
        self._receive(None, bounded=False)

    def _receive(self, timeout: int | None, *, bounded: bool = True) -> None:
        """Take messages off the socket; with ``timeout`` None wait until there is one, or a copy has finished."""
        if timeout is None:
            ready = dict(self._poller.poll())
            if self._executor.wake in ready:
                os.eventfd_read(self._executor.wake)
        for _ in range(_DRAIN):
            if bounded and (len(self._inbox) >= AHEAD_MESSAGES or self._inbox_bytes >= AHEAD_BYTES):
                return
            try:
                frames = self._back.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._accept(frames)

    def _accept(self, frames: list[Any]) -> None:
        try:
            messages = codec.decode_all(frames)
        except codec.ProtocolError as error:  # from the dispatcher: not ours to answer, but a person should know
            print(f"worker {self.id}: dropped a message: {error}", file=sys.stderr, flush=True)
            return
        self._take(messages, sum(len(frame) for frame in frames) // len(messages))

    def _take(self, messages: list[Any], nbytes: int) -> None:
        """``nbytes``: of each, about."""
        for message in messages:
            if type(message) is m.Notice and message.level == "fatal":
                raise Ended(message.text)
            if type(message) is m.Refused:
                print(f"worker {self.id}: {message.asked}: {message.found}; {message.do}", file=sys.stderr, flush=True)
                continue
            if type(message) is m.Peers:
                self._peers.lose(message.members)
            elif type(message) is m.Batch:
                self._queued += message.instructions
            self._inbox.append((message, nbytes))
            self._inbox_bytes += nbytes

    def _send(self, message: Any) -> None:
        """An answer; somebody may wait for a Result, so that takes along what was finished before it."""
        self._outbox.append(message)
        if type(message) is not m.Done:
            self._flush()

    def _flush(self) -> None:
        if self._outbox:
            self._back.send_multipart(codec.encode(*self._outbox))
            self._outbox.clear()

    def _facts(self) -> dict[str, Any]:
        """A beat's facts; called by the heartbeat thread."""
        sample = self._sampler.sample()
        counters = self._peers.counters
        return {
            "key": self._key,
            "utilisation": sample.utilisation,
            "source": sample.source,
            "memory_used": sample.memory_used,
            "memory_total": sample.memory_total,
            "queue": self._queued,
            "bytes_in": counters.bytes_in,
            "bytes_out": counters.bytes_out,
            **self._executor.stats(),
        }

    def close(self) -> None:
        """Let go of everything; the process may end."""
        self._pulse.stop()
        self._bulk.stop()
        self._peers.close()
        self._pulse.join(2.0)
        self._bulk.join(2.0)
        self._back.close()
        self._context.term()


def own_address(endpoint: str) -> str:
    """The address under which other workers of the cluster behind ``endpoint`` reach this host: loopback for an ipc
    socket, else that of the interface on the way to the dispatcher."""
    if not endpoint.startswith("tcp://"):
        return "127.0.0.1"
    parts = urlsplit(endpoint)
    family = socket.AF_INET6 if parts.hostname and ":" in parts.hostname else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname, parts.port or 9))  # sends nothing: only asks for the route
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def dispatcher_pid(frame: Any) -> int:
    """The pid of an ipc socket's other end, from libzmq's ``Peer-Address`` ("host:uid:gid:pid"); 0 where it isn't
    told."""
    try:
        parts = str(frame.get("Peer-Address")).split(":")
    except zmq.ZMQError:
        return 0
    return int(parts[-1]) if len(parts) == 4 and parts[-1].isdigit() else 0


def measure_speed(device: str) -> float:
    """float32 GFLOP/s of a square matrix product, the best of a few."""
    side = _PROBE_SIDE[device]
    left = torch.ones(side, side, device=device)
    best = float("inf")
    for _ in range(_PROBE_TIMES):
        started = time.perf_counter()
        torch.mm(left, left)
        if device != "cpu":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2 * side**3 / best / 1e9


def _threads(asked: int, workers: int) -> int:
    return asked or max(1, len(os.sched_getaffinity(0)) // workers)
