"""Who may join, what a bad message costs whom, control requests, chunks, figures."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt_runtime.dispatcher.core import LOST_SHOWN_SECONDS, WAITS_TOLD_SECONDS
from gt_runtime.dispatcher.records import Address, Peer, Side
from gt_runtime.dispatcher.state import Forget, Watch
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import CLIENT_LOST_SECONDS, LOST_SECONDS, PROTOCOL_VERSION
from gt_runtime.protocol.words import Order, order
from tests.unit.dispatcher_world import LOCAL, TCP, UID, Client, FakeTemplate, World, definition, facts

META = [6, [4], [1], 0]


def answers(world: World, address: Address) -> list[Any]:
    world.deliver()
    return [message for to, message in world.replies if to == address]


# -- joining ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "peer", "changed", "found"),
    [
        (Side.FRONT, LOCAL, {"role": "boss"}, "only client and worker"),
        (Side.FRONT, LOCAL, {"protocol": 99}, "protocol version"),
        (Side.FRONT, LOCAL, {"gt": "9"}, "GT version"),
        (Side.FRONT, LOCAL, {"torch": "1.0"}, "PyTorch version"),
        (Side.FRONT, LOCAL, {"schema": "other"}, "operator schemas"),
        (Side.BACK, LOCAL, {"role": "client"}, "back endpoint"),
        (Side.FRONT, LOCAL, {"role": "worker"}, "front endpoint"),
        (Side.BACK, LOCAL, {"role": "worker", "id": "w0"}, "taken: w0"),
        (Side.BACK, LOCAL, {"role": "worker", "id": "../w"}, "ids are w0"),
        (Side.BACK, Peer(uid=UID + 1, pid=5), {"role": "worker"}, f"uid {UID + 1}"),
    ],
)
def test_refused_by_name(side: Side, peer: Peer, changed: dict[str, Any], found: str) -> None:
    world = World(workers=1)
    address = world.address(side)
    world.core.hello(address, m.Hello(facts("client") | changed), peer, 0.0)
    (refused,) = answers(world, address)
    assert isinstance(refused, m.Refused) and found in refused.found
    assert len(world.core.state.workers) == 1 and not world.core.state.sessions


def test_one_hello_a_connection() -> None:
    world = World(workers=1)
    client = world.connect()
    world.core.hello(client.address, m.Hello(facts("client")), LOCAL, 0.0)
    world.deliver()
    assert "said Hello already" in client.refused[0].found and not client.fatal


def test_welcome_and_watch() -> None:
    world = World(workers=2)
    client = world.connect()
    state = world.core.state
    assert client.welcome["id"] == "s1" and client.welcome["workers"] == ["w0", "w1"] and client.welcome["same_host"]
    assert client.welcome["epoch"] == state.epoch == 2
    watched = [a for a in state.actions if isinstance(a, Watch)]
    assert [(w.who, w.pid, w.silence) for w in watched] == [
        ("w0", 77, LOST_SECONDS),
        ("w1", 77, LOST_SECONDS),
        ("s1", 77, None),
    ]
    remote = world.connect(peer=TCP)
    assert not remote.welcome["same_host"] and state.actions[-1] == Watch("s2", None, None, TCP.ip, CLIENT_LOST_SECONDS)


def test_the_first_worker_says_which_torch() -> None:
    """A client that came before it with another one is put out; one with the same stays."""
    world = World(workers=0)
    stays, goes = world.connect(), world.connect(torch="1.0")
    world.join()
    assert "PyTorch version" in goes.fatal[0] and not stays.fatal
    assert list(world.core.state.sessions) == ["s1"]


def test_worker_ids() -> None:
    """Asked for, or the next number; a lost one's comes back only if asked for."""
    world = World(workers=0)
    assert [world.join().name, world.join(id="w7").name, world.join().name] == ["w0", "w7", "w1"]
    world.lose("w1")
    assert world.join().name == "w2"
    assert world.join(id="w1").name == "w1"


# -- bad messages -----------------------------------------------------------------------------------------------------


def words(*items: int) -> bytes:
    return array("q", items).tobytes()


def batch(
    payload: bytes, outputs: int = 1, instructions: int = 1, verdict: int = 0, more: list[Any] | None = None
) -> m.Batch:
    return m.Batch("", 2, 2, outputs, instructions, verdict, more or [], [], payload)


BAD: dict[str, Any] = {
    "seq ahead": m.Batch("", 9, 2, 0, 0, 0, [], [], b""),
    "seq of a fetch ahead": m.Fetch("", 9, 1, 1, None),
    "id used already": m.Batch("", 2, 1, 1, 1, 0, [], [], words(0, 1)),
    "upload over an id": m.Upload("", 2, 0, 1, META, None, b""),
    "upload of no meta": m.Upload("", 2, 0, 5, [], None, b""),
    "upload with a bad dtype": m.Upload("", 2, 0, 5, ["f", [1]], None, b""),
    "upload with negative sizes": m.Upload("", 2, 0, 5, [6, [-1]], None, b""),
    "upload from nowhere": m.Upload("", 2, 0, 5, META, ["x"], b""),
    "upload from a short source": m.Upload("", 2, 0, 5, META, ["m", 3], b""),
    "upload never staged": m.Upload("", 2, 0, 5, META, ["s", 4, 8], b""),
    "request 0": m.Fetch("", 1, 0, 1, None),
    "bad sink": m.Fetch("", 1, 4, 1, ["s", "x", 1]),
    "template again": batch(words(0, 1), more=[definition(0, FakeTemplate(1, 0, False, 1))]),
    "no definition": batch(words(0, 1), more=[[1, 2, 3]]),
    "template number too large": batch(words(0, 1), more=[definition(1 << 32, FakeTemplate(1, 0, False, 1))]),
    "a worker's message": m.Done("", 2, 0, 0),
    "a welcome": m.Welcome({}),
    # what follows is only found by reading words
    "half a word": batch(b"abc"),
    "unknown template": batch(words(5, 1)),
    "unknown value": batch(words(0, 99)),
    "value 0": batch(words(0, 0)),
    "value of its own": batch(words(0, 2)),
    "negative value": batch(words(0, -1)),
    "cut off": batch(words(0)),
    "order cut off": batch(words(order(Order.FREE, 5), 1)),
    "free of nothing": batch(words(order(Order.FREE, 1), 77), 0, 0),
    "unknown order": batch(words(order(9, 1), 1), 0, 0),  # type: ignore[arg-type]
    "base of a client": batch(words(order(Order.BASE, 1), 9), 0, 0),
    "signal of two words": batch(words(order(Order.SIGNAL, 2), 1, 1), 0, 0),
    "more instructions": batch(words(0, 1, 0, 1), 2, 1),
    "fewer instructions": batch(words(0, 1), 1, 2),
    "more outputs": batch(words(0, 1, 0, 1), 1, 2),
    "fewer outputs": batch(words(0, 1), 2, 1),
    "verdict of nothing": batch(b"", 0, 0, verdict=4),
    "unknown outputs without a verdict": batch(
        words(1, 1), 1, 1, more=[definition(1, FakeTemplate(1, 0, False, 1), known=False)]
    ),
    "unknown outputs not last": batch(
        words(1, 1, 0, 1), 2, 2, verdict=4, more=[definition(1, FakeTemplate(1, 0, False, 1), known=False)]
    ),
    "metas that don't fit": batch(words(1, 1), more=[[1, "a", "", [["t"]], [], [META], 0]]),
    "unknown tag": batch(words(1, 1), more=[[1, "a", "", [["t"], ["q"]], [META], [META], 0]]),
    "flags of text": batch(words(1, 1), more=[[1, "a", "", [["t"]], [META], [META], "x"]]),
}


def two_clients(turn: int | None = 0) -> tuple[World, Client, Client]:
    """A bad client with value 1 and template 0, and a good one."""
    world = World(turn, 2)
    bad, good = world.connect(1), world.connect(2)
    for client in (bad, good):
        client.upload()
        client.define(FakeTemplate(1, 0, False, 1))
    bad.world.core.state.sessions[bad.id].definitions[0] = bad.fresh_definitions.pop()
    world.settle()
    return world, bad, good


def check_only_sender_pays(world: World, bad: Client, good: Client) -> None:
    assert len(bad.refused) == 1 and len(bad.fatal) == 1 and bad.id not in world.core.state.sessions
    assert bad.refused[0].asked and bad.refused[0].found and bad.refused[0].do
    outs = good.call((0, [1]))
    request = good.fetch(outs[0])
    world.settle()
    assert bytes(good.results[request][0].data).decode() == good.expected[request] and not good.refused
    assert all(bad.id not in w.sessions for w in world.workers.values())
    assert Forget(bad.id) in world.core.state.actions


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_costs_its_sender_alone(name: str) -> None:
    world, bad, good = two_clients()
    bad.send(BAD[name])
    check_only_sender_pays(world, bad, good)
    before = len(bad.refused)
    bad.send(BAD[name])  # whatever it still had on its way is dropped without a word
    assert len(bad.refused) == before


@settings(max_examples=300, deadline=None)
@given(
    payload=st.lists(
        st.one_of(
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.integers(0, 4),
            st.sampled_from([order(code, n) for code in Order for n in (0, 1, 2)]),
        ),
        max_size=12,
    ),
    outputs=st.integers(0, 3),
    instructions=st.integers(0, 3),
    verdict=st.integers(0, 1),
)
def test_random_words_cost_their_sender_alone(
    payload: list[int], outputs: int, instructions: int, verdict: int
) -> None:
    world, bad, good = two_clients()
    bad.send(batch(words(*payload), outputs, instructions, verdict))
    if bad.id in world.core.state.sessions:  # they made sense
        bad.send(m.Sync("", 77, 99, False))
    check_only_sender_pays(world, bad, good)


def test_malformed_and_broken() -> None:
    world, bad, good = two_clients()
    world.core.malformed(bad.address, "unknown kind")
    world.deliver()
    check_only_sender_pays(world, bad, good)
    world, bad, good = two_clients()
    world.core.broken(bad.address, KeyError("x"))
    world.deliver()
    check_only_sender_pays(world, bad, good)


def test_strangers_are_refused() -> None:
    world = World(workers=1)
    for side in Side:
        address = world.address(side)
        world.core.message(address, m.Sync("", 1, 1, False))
        world.core.malformed(address, "junk")
        assert [type(a) for a in answers(world, address)] == [m.Refused, m.Refused]


def test_a_worker_that_talks_nonsense_stays() -> None:
    world = World(workers=1)
    client = world.connect()
    client.upload()
    worker = world.workers["w0"]
    for message in (
        m.Done("s9", 1, 1, 1),
        m.Done(client.id, 99, 1 << 40, 1 << 40),
        m.Result(client.id, 77, None, None),
        m.Result("s9", 1, None, None),
        m.Sync("", 1, 1, False),
    ):
        world.core.message(worker.address, message)
    world.deliver()
    assert client.credit == client.charged, "credit is what was taken, whatever a worker claims"
    assert isinstance(worker.inbox[-1], m.Refused) and "w0" in world.core.state.workers


def test_far_over_its_credit() -> None:
    world = World(workers=1)
    client = world.connect()
    for k in range(20):
        client.send(m.Batch("", k + 1, 1, 0, 10_000, 0, [], [], b""))
    assert "over the credit" in client.refused[0].found


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_loss_is_told_to_all() -> None:
    world = World(workers=2)
    epoch = world.core.state.epoch
    world.settle()
    lost = world.workers["w0"]
    world.core.gone("w0", "killed")
    sent = list(world.core.state.out)
    world.deliver()
    assert world.core.state.epoch == epoch + 1
    peers = next(x for x in world.workers["w1"].inbox if isinstance(x, m.Peers))
    assert peers.epoch == epoch + 1 and list(peers.members) == ["w1"]
    assert (lost.address, "fatal") in [(to, x.level) for to, x in sent if isinstance(x, m.Notice)]
    assert Forget("w0") in world.core.state.actions
    world.core.message(lost.address, m.Done("s1", 1, 1, 1))  # what it still says is dropped
    assert not world.core.state.out
    frame = world.core.tick(1.0)
    assert [(w.id, w.state) for w in frame.workers] == [("w1", "ready"), ("w0", "lost")]
    gone = frame.workers[1]  # what it was doing is no figure of now
    assert gone.host is not None and gone.queue is gone.instr_rate is gone.utilisation is gone.values is None
    assert [w.id for w in world.core.tick(2.0 + LOST_SHOWN_SECONDS).workers] == ["w1"]
    world.core.gone("w0", "again")
    assert world.core.state.epoch == epoch + 1


def test_a_program_that_no_worker_serves_is_told_once() -> None:
    world = World(workers=1)
    client = world.connect()
    world.settle()

    def told(now: float) -> list[str]:
        world.core.tick(now)
        notices = [x.text for to, x in world.core.state.out if to == client.address and isinstance(x, m.Notice)]
        world.deliver()
        return notices

    world.core.gone("w0", "killed")
    client.send(m.Batch("", client.next_seq(), 1, 0, 1, 0, [], [], b""))
    assert told(1.0) == [] and told(2.0) == []
    assert "waits until one joins" in told(1.0 + WAITS_TOLD_SECONDS)[0]
    assert told(60.0) == []
    world.join()
    assert told(61.0) == [] and world.core.state.sessions[client.id].waits_since is None


def test_unreachable_is_gone() -> None:
    world = World(workers=2)
    client = world.connect()
    client.upload()
    world.settle()
    world.core.unreachable(client.address)
    world.core.unreachable(world.workers["w1"].address)
    assert not world.core.state.sessions and list(world.core.state.workers) == ["w0"]


# -- control ----------------------------------------------------------------------------------------------------------


def ask(world: World, method: str, peer: Peer = LOCAL, version: int = PROTOCOL_VERSION, **arguments: Any) -> m.Reply:
    address = world.address(Side.FRONT)
    world.core.request(address, m.Request(version, 5, method, arguments), peer, 2.0)
    (reply,) = [x for x in answers(world, address) if isinstance(x, m.Reply)]
    assert reply.request == 5
    return reply


def test_status_workers_sessions() -> None:
    world = World(workers=2)
    client = world.connect(tenant="t", user="ann", program="train.py")
    client.upload()
    status = ask(world, "status").result
    assert {k: status[k] for k in ("cluster", "state", "workers", "ready", "sessions", "epoch", "uptime", "torch")} == {
        "cluster": "test",
        "state": "ready",
        "workers": 2,
        "ready": 2,
        "sessions": 1,
        "epoch": 2,
        "uptime": 2.0,
        "torch": "2.13",
    }
    assert status["endpoints"] == {"front": "ipc:///f"}
    assert ask(world, "status", TCP).result["endpoints"] == {"front": "tcp://f:1"}
    (session,) = ask(world, "sessions").result
    assert (session["id"], session["program"], session["user"], session["uid"], session["workers"]) == (
        "s1",
        "train.py",
        "ann",
        UID,
        ["w0"],
    )
    assert session["credit"] == client.welcome["credit_instructions"] - 1 and session["values"] is None
    assert [w["id"] for w in ask(world, "workers").result] == ["w0", "w1"]
    assert ask(world, "snapshot").result == {"frame": None, "events": []}


@pytest.mark.parametrize(
    ("method", "arguments", "what", "do"),
    [
        (
            "stats",
            {},
            "method 'stats'",
            "did you mean status? known: kill_session, sessions, snapshot, status, stop, worker_stop, workers",
        ),
        ("kill_session", {}, "kill_session", "name the session"),
        ("kill_session", {"session": "s9"}, "session 's9'", "known: s1"),
        ("kill_session", {"session": 3}, "kill_session with session=3", "give a string"),
        ("worker_stop", {"worker": "x"}, "worker 'x'", "known: w0"),
        ("status", {"verbose": "1"}, "argument of status 'verbose'", "known: none"),
    ],
)
def test_control_errors_name_what_is_known(method: str, arguments: dict[str, Any], what: str, do: str) -> None:
    world = World(workers=1)
    world.connect()
    error = ask(world, method, **arguments).error
    assert error is not None and error["what"] == what and error["do"] == do


@pytest.mark.parametrize("peer", [TCP, Peer(uid=UID + 1, pid=1), Peer()])
def test_only_the_owner_acts(peer: Peer) -> None:
    world = World(workers=1)
    world.connect()
    for method, arguments in (("stop", {}), ("kill_session", {"session": "s1"}), ("worker_stop", {"worker": "w0"})):
        error = ask(world, method, peer, **arguments).error
        assert error is not None and "another user" in error["found"]
    assert ask(world, "status", peer).error is None
    assert world.core.stopping is None and world.core.state.sessions and world.core.state.workers


def test_wrong_version() -> None:
    error = ask(World(workers=1), "status", version=7).error
    assert error is not None and "protocol 7" in error["what"]


def test_kill_session() -> None:
    world = World(workers=1)
    client, other = world.connect(), world.connect()
    client.upload()
    assert ask(world, "kill_session", session="s1", reason="too big").result == {"session": "s1"}
    assert client.fatal == [f"session s1 was killed by uid {UID}: too big"] and not other.fatal
    world.settle()
    assert not world.workers["w0"].sessions and list(world.core.state.sessions) == ["s2"]
    assert [e.event for e in world.core.state.events][-1] == "session_killed"


def test_worker_stop_and_stop() -> None:
    world = World(workers=2)
    client = world.connect()
    assert ask(world, "worker_stop", worker="w1").result == {"worker": "w1"}
    assert list(world.core.state.workers) == ["w0"] and world.core.state.events[-1].event == "worker_stopped"
    assert ask(world, "stop", reason="enough").result == {}
    assert world.core.stopping == "enough" and client.fatal == ["cluster test stops: enough"]
    assert any(isinstance(x, m.Notice) and x.level == "fatal" for x in world.workers["w0"].inbox)
    address = world.address(Side.FRONT)
    world.core.hello(address, m.Hello(facts("client")), LOCAL, 0.0)
    assert "stops" in answers(world, address)[0].found


# -- chunks -----------------------------------------------------------------------------------------------------------


def take_chunks(world: World) -> list[tuple[str, m.Chunk]]:
    chunks, world.core.state.chunks = world.core.state.chunks, []
    world.deliver()
    return chunks


def test_an_upload_follows_its_chunks() -> None:
    """Whatever turns come between, the Upload goes to the worker that has the bytes."""
    world = World(0, 3)
    client = world.connect()
    world.core.chunk(client.id, m.Chunk("", 1, 0, 8, False, b"abcd"))
    ((target, chunk),) = take_chunks(world)
    assert (chunk.session, bytes(chunk.data)) == (client.id, b"abcd")
    client.upload()
    client.upload()
    world.core.chunk(client.id, m.Chunk("", 1, 4, 8, True, b"efgh"))
    assert [to for to, _ in take_chunks(world)] == [target]
    world.core.chunk(target, m.Chunk(client.id, 1, 4, 8, True))
    assert take_chunks(world) == [(client.id, m.Chunk("", 1, 4, 8, True))]
    world.core.chunk(next(n for n in world.workers if n != target), m.Chunk(client.id, 1, 0, 8, True))
    assert take_chunks(world) == [], "another worker has no say in it"
    client.send(m.Upload("", 3, 9, 3, META, ["s", 1, 8], b""))
    upload = next(x for x in world.workers[target].inbox if isinstance(x, m.Upload) and x.id == 3)
    assert upload.session == client.id and upload.source == ["s", 1, 8]
    assert not world.core.state.sessions[client.id].transfers


def test_staging_worker_lost() -> None:
    """The sender is let go, its Upload fails, the value is poison, credit comes back."""
    world = World(None, 2)
    client = world.connect()
    world.core.chunk(client.id, m.Chunk("", 1, 0, 8, False, b"abcd"))
    ((target, _),) = take_chunks(world)
    world.core.gone(target, "killed")
    assert take_chunks(world) == [(client.id, m.Chunk("", 1, 0, 8, True))]
    world.core.chunk(client.id, m.Chunk("", 1, 4, 8, True, b"efgh"))
    assert [(to, c.last) for to, c in take_chunks(world)] == [(client.id, True)]
    client.request = 1
    client.send(m.Upload("", 1, 1, 1, META, ["s", 1, 8], b""))
    client.seq, client.values[1], client.next_id = 1, "lost", 2
    assert client.results[1][0].failure[0] == m.FailureKind.LOST  # type: ignore[index]
    assert client.credit == [1, 8]
    request = client.fetch(1)
    assert client.results[request][0].failure[0] == m.FailureKind.LOST  # type: ignore[index]


def test_chunks_wait_for_a_worker() -> None:
    world = World(None, 0)
    client = world.connect()
    world.core.chunk(client.id, m.Chunk("", 1, 0, 4, True, b"abcd"))
    assert take_chunks(world) == []
    world.join()
    assert [to for to, _ in take_chunks(world)] == ["w0"]


def test_fetch_in_chunks_and_its_loss() -> None:
    world = World(None, 1)
    client = world.connect()
    number = client.upload()
    client.send(m.Fetch("", 1, 1, number, ["s", 1, 4]))
    world.core.message(world.workers["w0"].address, m.Result(client.id, 1, None, META))
    world.core.chunk("w0", m.Chunk(client.id, 1, 0, 4, False, b"ab"))
    assert take_chunks(world) == [(client.id, m.Chunk("", 1, 0, 4, False, b"ab"))]
    world.core.chunk(client.id, m.Chunk("", 1, 0, 4, False))
    assert take_chunks(world) == [("w0", m.Chunk(client.id, 1, 0, 4, False))]
    world.core.gone("w0", "killed")
    world.deliver()
    first, second = client.results[1]
    assert first.failure is None and second.failure[0] == m.FailureKind.LOST  # type: ignore[index]
    assert not world.core.state.sessions[client.id].transfers
    world.core.chunk(client.id, m.Chunk("", 1, 2, 4, True))  # a late acknowledgement begins nothing
    assert take_chunks(world) == [] and not world.core.state.sessions[client.id].held_chunks


def test_a_finished_fetch_is_forgotten() -> None:
    world = World(None, 1)
    client = world.connect()
    number = client.upload()
    client.send(m.Fetch("", 1, 1, number, ["s", 1, 4]))
    world.core.chunk(client.id, m.Chunk("", 1, 0, 4, True))
    assert [to for to, _ in take_chunks(world)] == ["w0"] and not world.core.state.sessions[client.id].transfers


@pytest.mark.parametrize(
    "chunk", [m.Chunk("", 1, 6, 8, False, b"abcd"), m.Chunk("", 1, 0, 1 << 30, False, bytes(5 << 20))]
)
def test_bad_chunks(chunk: m.Chunk) -> None:
    world = World(None, 1)
    client = world.connect()
    world.core.chunk(client.id, chunk)
    world.deliver()
    assert client.refused and not take_chunks(world)


# -- figures ----------------------------------------------------------------------------------------------------------

BEAT: dict[str, Any] = {
    "utilisation": 0.5,
    "source": "psutil",
    "memory_used": 100,
    "memory_total": 1000,
    "queue": 3,
    "instructions": 1000,
    "values": 7,
    "value_bytes": 70,
    "bytes_in": 0,
    "bytes_out": 500,
    "sessions": {"s1": [7, 70, 1000]},
}


def test_frames() -> None:
    world = World(workers=1)
    client = world.connect()
    client.upload()
    world.core.beat("w0", BEAT, 1.0)
    world.core.tick(1.1)
    world.core.beat("w0", BEAT | {"instructions": 3000, "bytes_in": 40, "bytes_out": 500}, 2.0)
    frame = world.core.tick(2.1)
    (worker,), (session,) = frame.workers, frame.sessions
    assert (worker.state, worker.utilisation, worker.source, worker.memory_used) == ("ready", 0.5, "psutil", 100)
    assert (worker.instr_rate, worker.instr_total, worker.bytes_in_rate, worker.bytes_out_rate) == (
        2000.0,
        3000,
        40.0,
        0.0,
    )
    assert worker.heartbeat_age == pytest.approx(0.1)
    assert (session.values, session.value_bytes, session.state, session.since) == (7, 70, "live", 1e9)
    assert world.core.tick(9.0).workers[0].state == "stale"
    world.core.silent("s1", True)
    assert world.core.tick(9.5).sessions[0].state == "silent"


@pytest.mark.parametrize(
    "facts",
    [
        {},
        dict.fromkeys(BEAT),
        dict.fromkeys(BEAT, "x"),
        dict.fromkeys(BEAT, -1),
        {key: [float("nan")] for key in BEAT},
        {"sessions": {"s1": 3, "s2": [1], "s9": [1, 2, 3]}},
        {"utilisation": float("nan"), "memory_used": True},
    ],
)
def test_unknown_is_none_never_zero(facts: dict[str, Any]) -> None:
    world = World(workers=1)
    client = world.connect()
    client.upload()
    world.core.beat("w0", facts, 1.0)
    world.core.tick(1.5)
    world.core.beat("w0", facts, 2.0)
    (worker,) = world.core.tick(2.5).workers
    assert (worker.utilisation, worker.memory_used, worker.instr_rate, worker.values) == (None, None, None, None)
    assert worker.memory_total == 1 << 30, "as its Hello said"


def test_a_turn_ends_by_what_the_worker_reports() -> None:
    """A single session's instructions aren't read; that they filled the turn shows in the beats."""
    world = World(1000, 2)
    client = world.connect()
    client.upload()
    session = world.core.state.sessions[client.id]
    assert session.single is not None
    home = session.single.worker.id
    world.core.beat(home, {"sessions": {client.id: [3, 999, 5]}}, 1.0)
    client.upload(size=0)
    assert session.single is not None
    world.core.beat(home, {"sessions": {client.id: [3, 1000, 5]}}, 1.2)
    client.upload(size=0)
    assert session.single is None and len(session.links) == 2


def test_open_says_what_the_worker_needs() -> None:
    world = World(workers=1, session_memory=123)
    world.connect(user="ann", program="p.py").upload()
    opened = next(x for x in world.workers["w0"].inbox if isinstance(x, m.Open))
    assert opened.facts == {"pid": 77, "uid": UID, "same_host": True, "memory": 123, "label": "p.py of ann"}


def test_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credit doesn't bound fetches."""
    monkeypatch.setattr("gt_runtime.dispatcher.streams.MAX_REQUESTS", 3)
    world = World(None, 1)
    client = world.connect()
    number = client.upload()
    for _ in range(3):
        client.fetch(number)
    assert not client.refused
    client.fetch(number)
    assert "3 wait already" in client.refused[0].found
