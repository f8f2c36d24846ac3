"""What tests, screenshots and the benchmark use instead of a cluster: records that tell a story, feeds that play them,
and a fake dispatcher with real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import zmq

from gt_runtime.launch.connection import Connection, RuntimeDirectory
from gt_runtime.protocol import codec
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.handshake import host_id
from gt_runtime.telemetry.records import EVENT, FRAME, Event, Frame, SessionRecord, WorkerRecord
from gt_top.cluster import Item, Linked

GIB = 1 << 30
MIB = 1 << 20
START = 1_790_000_000.0  # unix time of the story's beginning
INTERVAL = 0.5


class FakeClock:
    """Stands still until told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


def wave(seed: int, step: int, low: float = 0.0, high: float = 1.0) -> float:
    """A number that wanders between ``low`` and ``high``, the same for the same arguments."""
    slow = ((seed * 7919 + step) % 97) / 97
    quick = ((seed * 104729 + step * 13) % 31) / 31
    return low + (high - low) * abs(0.75 * (2 * abs(slow - 0.5)) + 0.25 * quick)


def gpu_worker(index: int, step: int = 0, **changes: Any) -> WorkerRecord:
    """A GPU worker with all its figures."""
    busy = wave(index, step, 0.2, 0.99)
    record = WorkerRecord(
        id=f"w{index}",
        state="ready",
        host=f"node{index // 4 + 1}",
        pid=4100 + index,
        device=f"cuda:{index % 4}",
        device_name="NVIDIA H200",
        source="nvml",
        utilisation=busy,
        memory_used=int(wave(index + 3, step // 8, 20, 130) * GIB),
        memory_total=139 * GIB,
        queue=int(wave(index + 5, step, 0, 400)),
        instr_rate=wave(index + 1, step, 2000, 9000),
        instr_total=6_100_000 + index * 1000 + step * 3000,
        heartbeat_age=0.1,
        values=1200 + index * 31,
        value_bytes=int(wave(index + 3, step // 8, 12, 100) * GIB),
        bytes_in_rate=wave(index + 9, step, 0, 2.2) * GIB if index % 3 else 0.0,
        bytes_out_rate=wave(index + 8, step, 0, 1.4) * GIB if index % 3 != 1 else 0.0,
    )
    return dataclasses.replace(record, **changes)


def cpu_worker(index: int, step: int = 0, **changes: Any) -> WorkerRecord:
    """A CPU worker, as the demo has."""
    record = gpu_worker(
        index, step, host="laptop", device="cpu", device_name="AMD EPYC 9B14", source="psutil",
        memory_used=int(wave(index, step // 8, 300, 900)) * MIB, memory_total=16 * GIB,
        value_bytes=int(wave(index, step // 8, 20, 120)) * MIB,
        bytes_in_rate=wave(index, step, 0, 5) * MIB, bytes_out_rate=wave(index + 2, step, 0, 5) * MIB,
    )  # fmt: skip
    return dataclasses.replace(record, **changes)


def session(index: int, step: int = 0, **changes: Any) -> SessionRecord:
    """A connected program."""
    programs = ("train_gpt.py", "digits.py", "eval.py", "sweep.py", "notebook")
    record = SessionRecord(
        id=f"s{index + 1}",
        program=programs[index % len(programs)],
        pid=52310 + 117 * index,
        user=("ada", "grace", "ken")[index % 3],
        uid=1000 + index,
        host=f"node{index % 2 + 1}",
        tenant="default",
        state="live",
        since=START - 3600 * (index + 1) - 61,
        instr_rate=wave(index + 2, step, 800, 14000),
        instr_total=42_000_000 + step * 5000,
        values=1800 + index * 400,
        value_bytes=int(wave(index + 6, step // 8, 8, 60) * GIB),
        memory_cap=None,
        credit=60000,
        workers=[f"w{index}", f"w{index + 1}"],
    )
    return dataclasses.replace(record, **changes)


def frame(
    seq: int = 1,
    step: int = 0,
    *,
    workers: Sequence[WorkerRecord] = (),
    sessions: Sequence[SessionRecord] = (),
    **changes: Any,
) -> Frame:
    """A frame of the cluster "lab-a" at ``step`` half seconds into the story."""
    record = Frame(
        seq=seq,
        time=START + step * INTERVAL,
        cluster="lab-a",
        epoch=3,
        uptime=8040.0 + step * INTERVAL,
        instr_rate=sum(w.instr_rate or 0.0 for w in workers),
        instr_total=9_100_000 + step * 20000,
        workers=list(workers),
        sessions=list(sessions),
    )
    return dataclasses.replace(record, **changes)


def events(cpu: bool = False) -> list[Event]:
    """What happened in the story so far."""
    told: tuple[tuple[float, str, str, str, str], ...] = (
        (-8040.0, "started", "", "", "dispatcher ready, 8 workers asked for"),
        (-8039.0, "joined", "w0", "", "cuda:0 on node1"),
        (-8038.5, "joined", "w1", "", "cuda:1 on node1"),
        (-3661.0, "session_opened", "s1", "ada", "train_gpt.py, pid 52310"),
        (-1200.0, "session_opened", "s3", "ken", "eval.py, pid 52544"),
        (-41.0, "draining", "w5", "root", "swap riser"),
        (-6.0, "lost", "w6", "", "no heartbeat for 1.8 s; 1,386 values gone"),
    )
    if cpu:
        told = (
            (-8042.0, "started", "", "", "dispatcher ready, 4 workers asked for"),
            *((-8040.0 + i, "joined", f"w{i}", "", "cpu on laptop") for i in range(4)),
            (-7201.0, "session_opened", "s2", "grace", "digits.py, pid 52427"),
            (-3661.0, "session_opened", "s1", "ada", "train_gpt.py, pid 52310"),
        )
    when = START + 60
    return [Event(e, seq=i + 1, time=when + at, subject=s, who=w, text=t) for i, (at, e, s, w, t) in enumerate(told)]


def story(workers: int = 8, sessions: int = 3, steps: int = 120, cpu: bool = False) -> list[Item]:
    """A minute in a cluster's life: one worker draining, one lost, one that reports no figures."""
    make = cpu_worker if cpu else gpu_worker
    items: list[Item] = [Linked("lab-a", "ipc:///run/gt/lab-a/front.sock"), *events(cpu)]
    for step in range(steps):
        pool = [make(i, step) for i in range(workers)]
        if workers >= 8 and not cpu:
            pool[5] = dataclasses.replace(pool[5], state="draining")
            pool[6] = dataclasses.replace(
                pool[6], state="lost", utilisation=None, heartbeat_age=6.2, queue=None, instr_rate=None,
                memory_used=None, bytes_in_rate=None, bytes_out_rate=None, value_bytes=None, values=None,
            )  # fmt: skip
            pool[7] = dataclasses.replace(
                pool[7], device="MIG-3f2a", device_name="NVIDIA H200 MIG 1g.18gb", utilisation=None, memory_used=None
            )
        shown = [session(i, step) for i in range(sessions)]
        if sessions >= 3:
            shown[2] = dataclasses.replace(shown[2], state="throttled")
        items.append(frame(10 + step, step, workers=pool, sessions=shown, revision=12, revision_note="tp4 for layer1"))
    return items


class ScriptedFeed:
    """Plays items given to it, then waits for more."""

    def __init__(self, items: Sequence[Item] = ()) -> None:
        self._batches: list[Sequence[Item]] = [items] if items else []
        self._more = asyncio.Event()

    def add(self, *items: Item) -> None:
        """Play these next."""
        self._batches.append(items)
        self._more.set()

    async def batches(self) -> AsyncIterator[Sequence[Item]]:
        while True:
            while self._batches:
                yield self._batches.pop(0)
            self._more.clear()
            await self._more.wait()


class FakeCluster:
    """A dispatcher as gt-top sees one: telemetry on an XPUB, control on a ROUTER, in a thread. No clock of its own:
    ``publish`` sends.

    With ``directory`` it has a connection file there, as a running cluster.
    """

    def __init__(
        self, folder: Path, name: str = "lab-a", directory: RuntimeDirectory | None = None, pid: int = 0
    ) -> None:
        self.name = name
        self.endpoints = {k: f"ipc://{folder}/{name}-{k}.sock" for k in ("front", "back", "pulse", "bulk", "telemetry")}
        self.pid = pid or os.getpid()
        self.newest: Frame | None = None
        self.past: list[Event] = []
        self.asked: list[str] = []
        self.subscribed = threading.Event()
        self._directory = directory
        self._outbox: list[list[bytes]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"fake-{name}", daemon=True)
        self._bound = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(10)
        if self._directory is not None:
            self._directory.write(self.connection())
        return self

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            self._directory.remove(self.name)
        self._stop.set()
        self._thread.join(10)

    def connection(self) -> Connection:
        return Connection(
            self.endpoints,
            self.name,
            self.pid,
            0,
            os.getuid(),
            os.uname().nodename,
            host_id(),
            time.time() - 8040,
            "0",
            False,
        )

    def publish(self, record: Frame | Event) -> None:
        """Send a record to whoever is subscribed."""
        if isinstance(record, Frame):
            self.newest = record
        else:
            self.past.append(record)
        self.publish_raw(FRAME if isinstance(record, Frame) else EVENT, codec.pack(record.pack()))

    def publish_raw(self, topic: bytes, body: bytes) -> None:
        """Send anything."""
        with self._lock:
            self._outbox.append([topic, body])

    def _serve(self) -> None:
        with zmq.Context() as context, context.socket(zmq.XPUB) as feed, context.socket(zmq.ROUTER) as front:
            feed.setsockopt(zmq.LINGER, 0)
            front.setsockopt(zmq.LINGER, 0)
            feed.setsockopt(zmq.XPUB_VERBOSE, 1)
            feed.bind(self.endpoints["telemetry"])
            front.bind(self.endpoints["front"])
            self._bound.set()
            poller = zmq.Poller()
            poller.register(feed, zmq.POLLIN)
            poller.register(front, zmq.POLLIN)
            while not self._stop.is_set():
                for socket, _ in poller.poll(10):
                    if socket is feed:
                        feed.recv()
                        self.subscribed.set()
                    else:
                        self._answer(front)
                with self._lock:
                    records, self._outbox = self._outbox, []
                for parts in records:
                    feed.send_multipart(parts)

    def _answer(self, front: Any) -> None:
        identity, *frames = front.recv_multipart()
        request = codec.decode(frames)
        self.asked.append(request.method)
        results: dict[str, Mapping[str, Any]] = {
            "status": {"cluster": self.name, "pid": self.pid, "host": "h", "endpoints": self.endpoints},
            "snapshot": {
                "frame": None if self.newest is None else self.newest.pack(),
                "events": [e.pack() for e in self.past[-200:]],
            },
        }
        front.send_multipart([identity, *codec.encode(m.Reply(request.request, None, results.get(request.method, {})))])


def wait_for(condition: Callable[[], object], seconds: float = 10.0, what: str = "") -> None:
    """Return once ``condition()`` is true; AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.005)


def as_object(text: str) -> Any:
    return json.loads(text)
