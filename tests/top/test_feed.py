"""The live feed against a fake dispatcher with real sockets: joining, gaps, nonsense, silence, restarts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.launch.connection import RuntimeDirectory
from gt_runtime.protocol import codec
from gt_runtime.telemetry.records import EVENT, FRAME, Event, Frame
from gt_top import feed as feeds
from gt_top.cluster import Item, Linked, Missed, Snapshot, Unlinked
from gt_top.feed import Link, LiveFeed, Reader, Unreachable, in_thread, read_frame, read_record
from gt_top.links import ClusterLinks
from tests.top.fakes import FakeCluster, frame, gpu_worker, session


def raw(record: Frame | Event) -> list[bytes]:
    return [FRAME if isinstance(record, Frame) else EVENT, codec.pack(record.pack())]


async def until(
    feed: LiveFeed, wanted: Callable[[list[Item]], object], do: Callable[[], None] | None = None
) -> list[Item]:
    """Items of ``feed`` until they are what is ``wanted``. ``do`` is called after each batch and while waiting."""
    seen: list[Item] = []
    batches: AsyncIterator[Any] = feed.batches()

    async def read() -> None:
        async for batch in batches:
            seen.extend(batch)
            if do is not None:
                do()
            if wanted(seen):
                return

    await asyncio.wait_for(read(), 20)
    await batches.aclose()  # type: ignore[attr-defined]
    return seen


def kinds(items: list[Item]) -> list[str]:
    return [type(i).__name__ for i in items]


def test_joining_brings_a_snapshot_and_then_frames(folder: Path, directory: RuntimeDirectory) -> None:
    with FakeCluster(folder, directory=directory) as cluster:
        cluster.newest = frame(7, workers=[gpu_worker(0)])
        cluster.past = [Event("joined", 3, 1.0, "w0")]
        numbers = iter(range(8, 10_000))

        def publish() -> None:
            cluster.publish(frame(next(numbers), workers=[gpu_worker(0)], sessions=[session(0)]))

        items = asyncio.run(
            until(LiveFeed(ClusterLinks("lab-a")), lambda s: any(isinstance(i, Frame) for i in s), publish)
        )
    assert kinds(items)[:3] == ["Linked", "Snapshot", "Frame"]
    assert isinstance(items[0], Linked) and items[0].name == "lab-a"
    snapshot = items[1]
    assert isinstance(snapshot, Snapshot) and snapshot.frame is not None
    assert (snapshot.frame.seq, [e.subject for e in snapshot.events]) == (7, ["w0"])


def test_an_address_is_enough(folder: Path) -> None:
    with FakeCluster(folder) as cluster:
        cluster.newest = frame(7)
        front = cluster.endpoints["front"]
        items = asyncio.run(until(LiveFeed(ClusterLinks(None, front)), lambda s: len(s) >= 2))
        assert cluster.asked == ["status", "snapshot"]
    assert items[0] == Linked("lab-a", front)


def test_no_cluster_is_said_and_waited_for(
    folder: Path, directory: RuntimeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "RETRY_SECONDS", 0.02)
    cluster = FakeCluster(folder, directory=directory)
    started: list[bool] = []

    def start() -> None:
        if not started:
            started.append(True)
            cluster.__enter__()

    try:
        items = asyncio.run(
            until(LiveFeed(ClusterLinks("lab-a")), lambda s: isinstance(s[-1], Snapshot | Linked), start)
        )
    finally:
        cluster.__exit__()
    assert isinstance(items[0], Unlinked) and "none is running here" in items[0].reason
    assert "Linked" in kinds(items)


def test_a_restart_under_the_same_name_is_followed(
    folder: Path, directory: RuntimeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(feeds, "RETRY_SECONDS", 0.02)
    (folder / "2").mkdir()
    first, second = FakeCluster(folder, directory=directory), FakeCluster(folder / "2", directory=directory)
    stage: list[str] = []

    def act() -> None:
        if not stage:
            stage.append("first gone")
            first.__exit__()
        elif stage == ["first gone"]:
            stage.append("second there")
            second.__enter__()
            second.newest = frame(2)

    first.__enter__()
    try:
        items = asyncio.run(until(LiveFeed(ClusterLinks("lab-a")), lambda s: kinds(s).count("Linked") >= 2, act))
    finally:
        second.__exit__()
    assert "Unlinked" in kinds(items)
    again = [i for i in items if isinstance(i, Linked)][-1]
    assert again == Linked("lab-a", second.endpoints["front"], fresh=True)


def test_a_feed_that_is_silent_while_control_answers_stays_linked_but_has_no_newer_frame(
    folder: Path, directory: RuntimeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "QUIET_SECONDS", 0.05)
    with FakeCluster(folder, directory=directory) as cluster:
        cluster.newest = frame(7)
        items = asyncio.run(until(LiveFeed(ClusterLinks("lab-a")), lambda s: kinds(s).count("Linked") >= 2))
    assert kinds(items) == ["Linked", "Snapshot", "Linked"]
    assert items[2] == Linked("lab-a", cluster.endpoints["front"], fresh=False)


def test_a_gap_is_counted_and_events_are_asked_for(folder: Path, directory: RuntimeDirectory) -> None:
    with FakeCluster(folder, directory=directory) as cluster:
        numbers = iter(range(10, 100_000, 5))

        def publish() -> None:
            cluster.publish(frame(next(numbers)))
            cluster.publish(frame(next(numbers)))

        items = asyncio.run(
            until(LiveFeed(ClusterLinks("lab-a")), lambda s: any(isinstance(i, Missed) for i in s), publish)
        )
        assert cluster.asked.count("snapshot") >= 2
    assert "Snapshot" in kinds(items)[kinds(items).index("Missed") :]


def test_of_several_frames_the_newest_is_kept_and_no_event_is_lost() -> None:
    records: list[Frame | Event] = [
        frame(1),
        Event("joined", 2),
        frame(3),
        Event("lost", 4),
        frame(5),
        Event("joined", 6),
    ]
    items = Reader().read([raw(r) for r in records])
    assert [(type(i).__name__, i.seq) for i in items if isinstance(i, Event | Frame)] == [
        ("Event", 2), ("Event", 4), ("Frame", 5), ("Event", 6),
    ]  # fmt: skip


def test_missing_records_are_counted_over_reads() -> None:
    reader = Reader()
    assert reader.read([raw(frame(1))]) == [frame(1)]
    assert reader.read([raw(frame(2)), raw(frame(6))])[0] == Missed(3)
    assert not any(isinstance(i, Missed) for i in reader.read([raw(frame(1))]))  # a new dispatcher is no gap


NONSENSE: list[list[bytes]] = [
    [],
    [b"frame"],
    [b"frame", b""],
    [b"frame", b"\xc1"],
    [b"frame", codec.pack([1, 2])],
    [b"frame", codec.pack({"seq": 1})],
    [b"frame", codec.pack({**frame(1).pack(), "seq": "1"})],
    [b"frame", codec.pack({**frame(1).pack(), "time": None})],
    [b"frame", codec.pack({**frame(1).pack(), "workers": [{"state": "ready"}]})],
    [b"frame", codec.pack({**frame(1).pack(), "workers": [7]})],
    [b"frame", codec.pack({**frame(1).pack(), "workers": 7})],
    [b"frame", codec.pack({**frame(1).pack(), "sessions": [{"id": 7}]})],
    [b"event", codec.pack({"seq": 1})],
    [b"event", codec.pack({"event": "x", "seq": None})],
    [b"other", codec.pack({"event": "x"})],
    [b"frame", codec.pack(frame(1).pack()), b"more"],
]


@pytest.mark.parametrize("parts", NONSENSE)
def test_nonsense_is_dropped_and_counted(parts: list[bytes]) -> None:
    reader = Reader()
    assert reader.read([parts, raw(frame(2))]) == [frame(2)]
    assert reader.malformed == 1


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_any_bytes_are_a_record_or_nothing(parts: list[bytes]) -> None:
    assert read_record(parts) is None or isinstance(read_record(parts), Frame | Event)


def test_records_of_a_newer_version_are_read() -> None:
    fields = frame(4, workers=[gpu_worker(0)]).pack()
    fields["v"], fields["links"] = 9, [1]
    fields["workers"][0]["links"] = {"w1": 3}
    read = read_frame(fields)
    assert read is not None and (read.seq, read.workers[0].id) == (4, "w0")


def test_of_two_workers_with_one_id_the_first_counts() -> None:
    read = read_frame(frame(1, workers=[gpu_worker(0), gpu_worker(1), gpu_worker(0, state="lost")]).pack())
    assert read is not None and [(w.id, w.state) for w in read.workers] == [("w0", "ready"), ("w1", "ready")]


def test_an_answer_that_never_comes_does_not_hold_up_leaving() -> None:
    class Silent:
        def find(self) -> Link:
            return Link("a", "f", "inproc://nobody", ())

        def check(self, link: Link, seconds: float) -> None:
            raise Unreachable("no")

        def snapshot(self, link: Link, seconds: float) -> dict[str, Any]:
            never.wait()
            raise Unreachable("woken")

    import threading

    never = threading.Event()

    async def leave() -> None:
        task = asyncio.ensure_future(in_thread(Silent().snapshot, Silent().find(), 1.0))
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done
        task.cancel()

    asyncio.run(asyncio.wait_for(leave(), 5))
    never.set()


def test_frames_are_frozen_and_hold_what_was_sent() -> None:
    sent = frame(3, workers=[gpu_worker(i) for i in range(3)], sessions=[session(0)])
    assert read_record(raw(sent)) == sent
    with pytest.raises(dataclasses.FrozenInstanceError):
        sent.seq = 4  # type: ignore[misc]
