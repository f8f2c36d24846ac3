"""Who is overdue: the vigil, with a clock of the test's."""

from __future__ import annotations

from gt_runtime.dispatcher.pulse import GRACE_SECONDS, Gone, Silence, Vigil
from gt_runtime.dispatcher.records import Peer
from gt_runtime.dispatcher.state import Watch
from gt_runtime.protocol.limits import BEAT_SECONDS, CLIENT_LOST_SECONDS, LOST_SECONDS

OURS = Peer(uid=1, pid=5)


def walk(vigil: Vigil, start: float, seconds: float) -> list[Gone | Silence]:
    """Check every quarter of a second, as the thread does."""
    found: list[Gone | Silence] = []
    for step in range(1, int(seconds / BEAT_SECONDS) + 1):
        found += vigil.check(start + step * BEAT_SECONDS)
    return found


def watching(silence: float | None, uid: int | None = 1, ip: str = "") -> Vigil:
    vigil = Vigil(0.0)
    vigil.watch(Watch("w0", uid, 5, ip, silence), 0.0)
    return vigil


def test_a_silent_worker_is_gone_once() -> None:
    vigil = watching(LOST_SECONDS)
    assert vigil.beat("w0", OURS, {}, 0.0)
    assert walk(vigil, 0.0, LOST_SECONDS) == []
    (gone,) = walk(vigil, LOST_SECONDS, 3.0)
    assert isinstance(gone, Gone) and gone.who == "w0" and "silent" in gone.reason
    assert not vigil.beat("w0", OURS, {}, 9.0), "it is expected no more"


def test_beats_keep_it() -> None:
    vigil = watching(LOST_SECONDS)
    for step in range(40):
        assert vigil.beat("w0", OURS, {}, step * 0.5) and walk(vigil, step * 0.5, 0.5) == []


def test_a_newcomer_has_time() -> None:
    vigil = watching(LOST_SECONDS)
    assert walk(vigil, 0.0, GRACE_SECONDS) == []
    assert walk(vigil, GRACE_SECONDS, 1.0) != []


def test_a_local_client_falls_silent_and_comes_back() -> None:
    vigil = watching(None)
    vigil.beat("w0", OURS, {}, 0.0)
    assert walk(vigil, 0.0, CLIENT_LOST_SECONDS + 1) == [Silence("w0", True)]
    assert walk(vigil, CLIENT_LOST_SECONDS + 1, 60.0) == []
    vigil.beat("w0", OURS, {}, 70.0)
    assert vigil.check(70.0)[:1] == [Silence("w0", False)]


def test_time_this_process_was_held_up_counts_for_nobody() -> None:
    vigil = watching(LOST_SECONDS)
    vigil.beat("w0", OURS, {}, 0.0)
    assert vigil.check(10.0) == []
    assert walk(vigil, 10.0, 1.0) == []
    assert walk(vigil, 11.0, 2.0) != []


def test_only_its_own_peer_beats_for_it() -> None:
    vigil = watching(LOST_SECONDS)
    assert not vigil.beat("w1", OURS, {}, 0.0)
    assert not vigil.beat("w0", Peer(uid=2, pid=5), {}, 0.0)
    assert not vigil.beat("w0", Peer(ip="10.0.0.1"), {}, 0.0)
    remote = watching(LOST_SECONDS, None, "10.0.0.1")
    assert remote.beat("w0", Peer(ip="10.0.0.1"), {}, 0.0) and not remote.beat("w0", Peer(ip="10.0.0.2"), {}, 0.0)


def test_facts_are_passed_on_once() -> None:
    vigil = watching(LOST_SECONDS)
    vigil.beat("w0", OURS, {"queue": 1}, 1.0)
    vigil.beat("w0", OURS, {"queue": 2}, 2.0)
    assert vigil.fresh(2.5) == {"w0": [{"queue": 2}, 0.5]} and vigil.fresh(2.6) == {}
