"""The model: what a view says after given items, at given times. No Textual, no sockets."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.telemetry.records import Event, SessionRecord, WorkerRecord
from gt_top.clean import natural
from gt_top.cluster import (
    GONE_SECONDS,
    LAGGING_AFTER,
    STALE_AFTER,
    UNREACHABLE_AFTER,
    Cluster,
    ClusterView,
    Linked,
    Look,
    Missed,
    Snapshot,
    Unlinked,
)
from gt_top.history import History, Ring
from tests.top.fakes import GIB, cpu_worker, frame, gpu_worker, session, story


def folded(*items: Any, at: float = 100.0) -> Cluster:
    model = Cluster("lab-a")
    for item in items:
        model.fold(item, at)
    return model


def view_of(*items: Any, after: float = 0.0) -> ClusterView:
    return folded(*items).view(100.0 + after)


def test_nothing_has_come_yet() -> None:
    view = view_of()
    assert (view.look, view.age, view.workers, view.totals.workers) == (Look.CONNECTING, None, (), 0)


@pytest.mark.parametrize(
    ("after", "look"),
    [
        (0.0, Look.LIVE),
        (LAGGING_AFTER, Look.LIVE),
        (LAGGING_AFTER + 0.1, Look.LAGGING),
        (STALE_AFTER + 0.1, Look.STALE),
        (UNREACHABLE_AFTER, Look.UNREACHABLE),
    ],
)
def test_the_picture_ages(after: float, look: Look) -> None:
    view = view_of(frame(workers=[gpu_worker(0, heartbeat_age=0.0)]), after=after)
    assert view.look is look
    assert view.age == pytest.approx(after)
    assert view.workers[0].look is look
    assert view.workers[0].record.utilisation is not None  # the last values stay


def test_an_unlinked_cluster_is_unreachable_at_once_and_its_rows_stay() -> None:
    view = view_of(frame(workers=[gpu_worker(0)]), Unlinked("its process has ended"), after=0.5)
    assert view.look is Look.UNREACHABLE
    assert view.reason == "its process has ended"
    assert [w.id for w in view.workers] == ["w0"]
    assert view.workers[0].look is Look.UNREACHABLE


def test_it_comes_back_with_the_next_frame() -> None:
    model = folded(frame(9, workers=[gpu_worker(0)]), Unlinked("gone"))
    model.fold(Linked("lab-a", "ipc://x"), 110.0)
    model.fold(frame(1, workers=[gpu_worker(1)]), 110.0)
    view = model.view(110.0)
    assert (view.look, view.reason, view.dispatchers) == (Look.LIVE, "", 2)
    assert [w.id for w in view.workers] == ["w1"]  # nothing of the dispatcher before


def test_a_smaller_sequence_number_is_a_new_dispatcher() -> None:
    old = [frame(50 + i, i, workers=[gpu_worker(0, i)]) for i in range(4)]
    view = view_of(*old, Event("lost", 60, 1.0, "w0"), frame(3, workers=[gpu_worker(0)]))
    assert view.dispatchers == 2
    assert view.seq == 3
    assert len(view.workers[0].utilisation.samples) == 1  # its history begins anew
    assert [e.event for e in view.events] == ["lost"]  # what happened stays


def test_another_dispatcher_with_a_larger_sequence_number_is_told_by_its_link() -> None:
    model = folded(frame(5, workers=[gpu_worker(0)]), Linked("lab-a", "tcp://h:2", fresh=True), frame(90))
    assert model.view(100.0).dispatchers == 2


def test_a_snapshot_older_than_the_feed_brings_only_events() -> None:
    events = (Event("joined", 2, 5.0, "w0"), Event("joined", 3, 6.0, "w1"))
    view = view_of(frame(10, workers=[gpu_worker(0)]), events[1], Snapshot(frame(8), events))
    assert view.seq == 10
    assert [w.id for w in view.workers] == ["w0"]
    assert [e.subject for e in view.events] == ["w0", "w1"]


def test_a_snapshot_shows_before_the_first_frame() -> None:
    view = view_of(Linked("lab-a", "ipc://x"), Snapshot(frame(8, workers=[gpu_worker(0)]), ()))
    assert (view.look, view.seq, len(view.workers)) == (Look.LIVE, 8, 1)


def test_a_worker_that_leaves_the_feed_stays_for_a_while_and_is_not_counted() -> None:
    model = folded(frame(1, workers=[gpu_worker(0), gpu_worker(1)]))
    model.fold(frame(2, 1, workers=[gpu_worker(0)]), 101.0)
    view = model.view(104.0)
    assert [(w.id, w.gone, w.look) for w in view.workers][1] == ("w1", True, Look.UNREACHABLE)
    assert view.workers[1].age == 3.0
    assert view.totals.workers == 1
    model.fold(frame(3, 2, workers=[gpu_worker(0)]), 101.0 + GONE_SECONDS + 1)
    assert [w.id for w in model.view(140.0).workers] == ["w0"]


def test_a_worker_that_comes_back_is_itself_again() -> None:
    view = view_of(frame(1, workers=[gpu_worker(0)]), frame(2, 1), frame(3, 2, workers=[gpu_worker(0, 2)]))
    assert not view.workers[0].gone
    assert len(view.workers[0].utilisation.samples) == 2


def test_an_id_used_by_another_process_has_no_history() -> None:
    view = view_of(frame(1, workers=[gpu_worker(0, pid=1)]), frame(2, 1, workers=[gpu_worker(0, pid=2)]))
    assert len(view.workers[0].utilisation.samples) == 1


@pytest.mark.parametrize(
    ("state", "beat", "look"),
    [
        ("ready", 0.1, Look.LIVE),
        ("ready", None, Look.LIVE),
        ("ready", 2.0, Look.LAGGING),
        ("stale", 0.1, Look.STALE),
        ("lost", 0.1, Look.UNREACHABLE),
        ("draining", 7.0, Look.STALE),
    ],
)
def test_a_worker_has_its_own_look(state: str, beat: float | None, look: Look) -> None:
    view = view_of(frame(workers=[gpu_worker(0, state=state, heartbeat_age=beat)]))
    assert view.workers[0].look is look
    assert view.look is Look.LIVE


def test_totals_say_how_many_are_known() -> None:
    workers = [
        gpu_worker(0, utilisation=0.5, memory_used=10 * GIB, queue=3),
        gpu_worker(1, utilisation=None, memory_used=None, queue=0),
        gpu_worker(2, utilisation=0.9, memory_used=30 * GIB, queue=None),
        gpu_worker(3, state="lost", utilisation=0.1, queue=99),
    ]
    t = view_of(frame(workers=workers, sessions=[session(0)])).totals
    assert (t.workers, t.sessions) == (4, 1)
    assert t.states == (("ready", 3), ("lost", 1))
    assert t.utilisation.value == pytest.approx(0.7)
    assert (t.utilisation.known, t.utilisation.of) == (2, 3)
    assert (t.memory_used.value, t.memory_used.known) == (40 * GIB, 2)
    assert (t.queue.value, t.queue.known, t.queue.of) == (3, 2, 3)


def test_nothing_known_is_unknown_and_not_zero() -> None:
    t = view_of(frame(workers=[WorkerRecord("w0", state="ready")])).totals
    assert (t.utilisation.value, t.memory_used.value, t.queue.value) == (None, None, None)
    assert (t.queue.known, t.queue.of) == (0, 1)


def test_the_memory_of_a_host_is_counted_once_for_its_cpu_workers() -> None:
    t = view_of(frame(workers=[cpu_worker(i) for i in range(4)])).totals
    assert t.memory_total.value == 16 * GIB
    t = view_of(frame(workers=[gpu_worker(i) for i in range(4)])).totals
    assert t.memory_total.value == 4 * 139 * GIB


def test_order_is_host_then_number_whatever_the_feed_says() -> None:
    workers = [gpu_worker(i, host=h) for i, h in ((10, "node2"), (2, "node2"), (1, "node10"), (0, "node2"))]
    assert [w.id for w in view_of(frame(workers=workers)).workers] == ["w0", "w2", "w10", "w1"]


def test_lost_frames_leave_a_gap_in_the_history() -> None:
    view = view_of(frame(1, 0, workers=[gpu_worker(0)]), frame(2, 3, workers=[gpu_worker(0)]), Missed(2))
    assert [s is None for s in view.workers[0].utilisation.samples] == [False, True, True, False]
    assert view.missed == 2


def test_ages_do_not_trust_the_dispatchers_clock() -> None:
    view = view_of(frame(workers=[gpu_worker(0)], time=9e12, uptime=math.nan))
    assert (view.age, view.uptime) == (0.0, None)


def test_values_of_the_wrong_kind_are_unknown() -> None:
    odd = WorkerRecord(
        "w\x1b[2J", state=7, host=["x"], utilisation="high", memory_used=math.nan, queue=True, instr_rate=-math.inf,  # type: ignore[arg-type]
    )  # fmt: skip
    odd_session = SessionRecord("s1", program=3, workers="w0", since="yesterday")  # type: ignore[arg-type]
    view = view_of(frame(workers=[odd], sessions=[odd_session], revision="x", instr_rate=None))
    record = view.workers[0].record
    assert record.id == "w�[2J"
    assert (record.utilisation, record.memory_used, record.queue, record.instr_rate) == (None, None, None, None)
    assert (view.sessions[0].record.program, view.sessions[0].record.workers) == (None, [])
    assert view.revision == 0


def test_shares_are_clamped() -> None:
    view = view_of(frame(workers=[gpu_worker(0, utilisation=1.7), gpu_worker(1, utilisation=-0.2)]))
    assert [w.record.utilisation for w in view.workers] == [1.0, 0.0]


kinds = st.sampled_from(["frame", "event", "link", "cut"])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), kinds), max_size=30))
def test_any_order_of_items_gives_a_view(steps: list[tuple[int, int, str]]) -> None:
    model = Cluster()
    for now, (seq, n, kind) in enumerate(steps):
        if kind == "frame":
            model.fold(frame(seq, n, workers=[gpu_worker(i) for i in range(n)]), float(now))
        elif kind == "event":
            model.fold(Event("joined", seq), float(now))
        else:
            model.fold(Linked("a", "b", fresh=n > 2) if kind == "link" else Unlinked("x"), float(now))
        view = model.view(float(now))
        assert sum(c for _, c in view.totals.states) == view.totals.workers
        assert view.totals.workers == sum(not w.gone for w in view.workers)
        assert len({w.id for w in view.workers}) == len(view.workers)


def test_a_view_does_not_change_afterwards() -> None:
    model = folded(*story(steps=5))
    before = model.view(100.0)
    copy = dataclasses.replace(before)
    model.fold(frame(99, 9, workers=[gpu_worker(0)]), 101.0)
    assert before == copy
    assert model.view(101.0) != before


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=300), st.integers(1, 130))
def test_buckets_keep_their_borders(samples: list[float | None], cells: int) -> None:
    ring = Ring(120)
    complete: dict[int, float | None] = {}
    length = max(1, -(-120 // cells))
    for i, sample in enumerate(samples):
        ring.append(sample)
        buckets = ring.history().buckets(cells)
        assert len(buckets) == cells
        if (i + 1) % length == 0:  # the newest bucket is complete: it must never change again
            complete[i // length] = buckets[-1]
        last = i // length
        for number, value in complete.items():
            cell = cells - 1 - (last - number)
            if cell >= 0 and number * length >= i + 1 - 120:
                assert buckets[cell] == value


def test_unknown_stays_apart_from_zero_in_buckets() -> None:
    assert History((None, 0.0), 2, 2).buckets(2) == [None, 0.0]
    assert History((), 0, 4).buckets(3) == [None, None, None]
    assert History((1.0,), 1, 4).buckets(0) == []


def test_natural_order() -> None:
    assert sorted(["w10", "w2", "w1", "MIG-a", "w"], key=natural) == ["MIG-a", "w", "w1", "w2", "w10"]
