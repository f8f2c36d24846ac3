"""Where the picture comes from: the telemetry feed of a running cluster, as items for ``cluster.Cluster``.

``LiveFeed`` subscribes, asks for a snapshot, notices silence, looks for the cluster again and subscribes anew when it
has come back. It knows nothing of Textual and nothing of what is shown. Every record is checked here: what makes no
sense is dropped and counted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import zmq
import zmq.asyncio

from gt_runtime.protocol.codec import ProtocolError, unpack
from gt_runtime.telemetry.records import EVENT, FRAME, Event, Frame, SessionRecord, WorkerRecord
from gt_top.cluster import Item, Linked, Missed, Snapshot, Unlinked

QUIET_SECONDS = 2.0  # without a record: look whether the cluster is still there
RETRY_SECONDS = 1.0  # between two looks
SNAPSHOT_SECONDS = 2.0  # how long an answer is waited for
HIGH_WATER = 256  # records kept for us by libzmq: two minutes of frames, or a burst of events
MAX_RECORD_BYTES = 16 << 20  # a larger one is no record: 10,000 workers take about 4 MB


class Feed(Protocol):
    """A source of items. Each batch holds all that was there to read, oldest first."""

    def batches(self) -> AsyncIterator[Sequence[Item]]:
        """Batches of items; live feeds never end."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """How to reach one dispatcher. ``identity`` differs when it is another one, even at the same address."""

    name: str
    front: str
    telemetry: str
    identity: tuple[object, ...]


class Unreachable(Exception):
    """The cluster can't be reached now; the text says why in a few words."""


class Links(Protocol):
    """Where a feed asks for its cluster. Both calls may block for a short time; they run in a thread of the feed's."""

    def find(self) -> Link:
        """The cluster as it can be reached now.

        Raises:
            Unreachable: it can't.
        """
        ...

    def snapshot(self, link: Link, seconds: float) -> Mapping[str, Any]:
        """The dispatcher's answer to ``snapshot``.

        Raises:
            Unreachable: none came in ``seconds``.
        """
        ...

    def check(self, link: Link, seconds: float) -> None:
        """Return if the dispatcher answers.

        Raises:
            Unreachable: it doesn't, within ``seconds``.
        """
        ...


class LiveFeed:
    """Follows a cluster for ever: through silence, restarts and changes of address."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def batches(self) -> AsyncIterator[Sequence[Item]]:
        """Items as they come. The first batch says whether the cluster could be reached; cancel to stop."""
        context = zmq.asyncio.Context()
        socket: zmq.asyncio.Socket | None = None
        link: Link | None = None
        reader = Reader()
        try:
            while True:
                if socket is None or link is None:
                    try:
                        found = await in_thread(self._links.find)
                    except Unreachable as error:
                        yield [Unlinked(str(error))]
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    fresh = link is None or found.identity != link.identity
                    link, socket, reader = found, _subscribe(context, found.telemetry), Reader()
                    yield [Linked(link.name, link.front, fresh), *await self._snapshot(link)]
                if await socket.poll(int(QUIET_SECONDS * 1000)):
                    items = reader.read(await _drain(socket))
                    if any(isinstance(i, Missed) for i in items):  # frames heal by themselves, events don't
                        items += await self._snapshot(link)
                    if items:
                        yield items
                    continue
                try:
                    found = await in_thread(self._links.find)
                    await in_thread(self._links.check, found, SNAPSHOT_SECONDS)
                except Unreachable as error:
                    yield [Unlinked(str(error))]
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if found.identity != link.identity:
                    socket.close(0)
                    socket = None
                else:  # it answers, but its feed is silent: the picture stays as old as it is
                    yield [Linked(link.name, link.front, fresh=False)]
        finally:
            context.destroy(0)

    async def _snapshot(self, link: Link) -> list[Item]:
        try:
            answer = await in_thread(self._links.snapshot, link, SNAPSHOT_SECONDS)
        except Unreachable:
            return []
        snapshot = read_snapshot(answer)
        return [] if snapshot is None else [snapshot]


class Reader:
    """Raw records of one subscription to items: the newest frame, all events, and what is missing between.

    ``malformed`` counts what made no sense.
    """

    def __init__(self) -> None:
        self._seq = 0
        self.malformed = 0

    def read(self, records: Sequence[Sequence[bytes]]) -> list[Item]:
        """Items of raw records (topic, body) in the order they came; of several frames only the newest is kept."""
        events: list[Item] = []
        newest: Frame | None = None
        missed = 0
        for parts in records:
            record = read_record(parts)
            if record is None:
                self.malformed += 1
                continue
            if 0 < self._seq < record.seq - 1:
                missed += record.seq - self._seq - 1
            self._seq = record.seq
            if isinstance(record, Frame):
                newest = record
            else:
                events.append(record)
        items: list[Item] = [Missed(missed)] if missed else []
        # the frame goes first only if events came after it: their sequence numbers would be larger
        late = [e for e in events if newest is not None and isinstance(e, Event) and e.seq > newest.seq]
        items += [e for e in events if e not in late]
        if newest is not None:
            items.append(newest)
        return items + late


def read_record(parts: Sequence[bytes]) -> Frame | Event | None:
    """One record from its two frames; None if it makes no sense."""
    if len(parts) != 2 or len(parts[1]) > MAX_RECORD_BYTES:
        return None
    try:
        fields = unpack(parts[1])
        if type(fields) is not dict:
            return None
        if parts[0] == FRAME:
            return read_frame(fields)
        return read_event(fields) if parts[0] == EVENT else None
    except ProtocolError:
        return None


def read_frame(fields: Mapping[str, Any]) -> Frame | None:
    """A Frame whose shape holds: numbers that order it, workers and sessions with text ids. None if it doesn't.

    Of two records with one id the first stays: a worker's id is used again while its lost predecessor is still listed.
    """
    try:
        frame = Frame.unpack(fields)
    except (TypeError, AttributeError):
        return None
    if type(frame.seq) is not int or type(frame.time) not in (int, float):
        return None
    if not all(isinstance(i, str) for i in (*(w.id for w in frame.workers), *(s.id for s in frame.sessions))):
        return None
    workers: dict[str, WorkerRecord] = {}
    sessions: dict[str, SessionRecord] = {}
    for w in frame.workers:
        workers.setdefault(w.id, w)
    for s in frame.sessions:
        sessions.setdefault(s.id, s)
    if len(workers) == len(frame.workers) and len(sessions) == len(frame.sessions):
        return frame
    return dataclasses.replace(frame, workers=list(workers.values()), sessions=list(sessions.values()))


def read_event(fields: Mapping[str, Any]) -> Event | None:
    """An Event whose shape holds, else None."""
    try:
        event = Event.unpack(fields)
    except TypeError:
        return None
    return event if isinstance(event.event, str) and type(event.seq) is int else None


def read_snapshot(answer: object) -> Snapshot | None:
    """The answer to ``snapshot``; None if it makes no sense."""
    if not isinstance(answer, Mapping):
        return None
    raw_frame, raw_events = answer.get("frame"), answer.get("events")
    frame = read_frame(raw_frame) if isinstance(raw_frame, Mapping) else None
    listed = raw_events if isinstance(raw_events, list) else []
    events = [read_event(e) for e in listed if isinstance(e, Mapping)]
    return Snapshot(frame, tuple(e for e in events if e is not None))


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` in a daemon thread: quitting never waits for an answer that doesn't come."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=work, name="gt-top-ask", daemon=True).start()
    return await future


def _subscribe(context: zmq.asyncio.Context, endpoint: str) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_RECORD_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 200)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.SUBSCRIBE, FRAME)
    socket.setsockopt(zmq.SUBSCRIBE, EVENT)
    socket.connect(endpoint)
    return socket


async def _drain(socket: zmq.asyncio.Socket) -> list[list[bytes]]:
    """All that is there to read."""
    records: list[list[bytes]] = []
    while len(records) < 2 * HIGH_WATER:
        try:
            records.append(await socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            break
    return records
