"""Random programs of random clients on random workers with random losses: what must hold of the dispatcher whatever
happens.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gt_runtime.dispatcher.records import Side
from gt_runtime.protocol import messages as m
from tests.unit.dispatcher_world import LOCAL, TCP, Client, FakeTemplate, World, facts


def play(world: World, clients: list[Client], rng: random.Random, messages: int, losses: int, joins: int) -> None:
    """Issue messages, run workers, lose and add workers, in an order drawn from ``rng``."""
    events = ["message"] * messages + ["lose"] * losses + ["join"] * joins
    rng.shuffle(events)
    for event in events:
        if event == "message":
            rng.choice(clients).random_message()
        elif event == "join":
            world.join()
        else:
            alive = [w.name for w in world.workers.values() if w.alive]
            if alive:
                world.lose(rng.choice(alive))
        for _ in range(rng.randrange(6)):
            busy = [w for w in world.workers.values() if w.alive and w.inbox]
            if busy:
                rng.choice(busy).step()
        if rng.random() < 0.25:
            world.core.tick(world.core._now + 0.5)
            world.deliver()


def check_answers(world: World, client: Client) -> None:
    """Every request has its one answer, every value its symbol or a failure that a loss explains."""
    assert not client.fatal and not client.refused
    assert len(client.told) <= world.losses, "who waits for a worker is told once a wait"
    assert set(client.results) == set(range(1, client.request + 1)), "each request is answered"
    for request, results in client.results.items():
        assert len(results) == 1, "and only once"
        failure = results[0].failure
        if failure is not None:
            assert failure[0] == m.FailureKind.LOST and world.losses, failure
        elif request in client.expected:
            assert bytes(results[0].data).decode() == client.expected[request]


def check_ended(world: World, client: Client) -> None:
    """Nothing is left of what the client had, and all its credit is back."""
    session = world.core.state.sessions[client.id]
    assert client.credit == client.charged and not session.under_way and not session.requests
    assert all(not link.under_way for link in session.links.values())
    if session.spread is not None:
        assert not session.spread.where
    for worker in world.workers.values():
        if worker.alive and client.id in worker.sessions:
            assert not worker.sessions[client.id].values, f"{worker.name} still holds values"


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 4),
    turn=st.sampled_from([0, 0, 100, 5000, None]),
    sessions=st.integers(1, 2),
    messages=st.integers(1, 60),
    losses=st.integers(0, 3),
    joins=st.integers(0, 2),
)
def test_random_programs(
    seed: int, workers: int, turn: int | None, sessions: int, messages: int, losses: int, joins: int
) -> None:
    rng = random.Random(seed)
    world = World(turn, workers)
    clients = [world.connect(seed + i) for i in range(sessions)]
    play(world, clients, rng, messages, losses, joins)
    if not any(w.alive for w in world.workers.values()):
        world.join()  # a session without a worker waits for one
    world.settle()
    for client in clients:
        for number in client.values:
            client.fetch(number)
    world.settle()
    for client in clients:
        check_answers(world, client)
        if not world.losses:
            assert all(world.runs[key] == 1 for key in world.runs)
        assert all(count == 1 for count in world.runs.values()), "an instruction runs once"
        client.free_all()
    world.settle()
    for client in clients:
        check_ended(world, client)
        client.send(m.Close("", "done"))
    world.settle()
    assert all(not w.sessions for w in world.workers.values() if w.alive) and not world.core.state.sessions
    assert all(w.queue == 0 and w.tenants == 0 for w in world.core.state.workers.values())


@pytest.mark.parametrize("turn", [0, None])
def test_no_loss_no_failure(turn: int | None) -> None:
    """The random test lets a loss explain failures; without one there are none, and with turns of 0 several workers
    take part.
    """
    world = World(turn, 3)
    client = world.connect(5)
    for _ in range(300):
        client.random_message()
    world.settle()
    requests = [client.fetch(number) for number in client.values]
    world.settle()
    assert all(r.failure is None for results in client.results.values() for r in results)
    assert all(bytes(client.results[r][0].data).decode() == client.expected[r] for r in requests)
    assert len(world.core.state.sessions[client.id].links) == (3 if turn == 0 else 1)


def test_a_single_session_is_forwarded_unread() -> None:
    """The same payload object, whatever is in it."""
    world = World(None, 2)
    client = world.connect()
    words = b"not words at all"
    world.core.message(client.address, m.Batch("", 1, 1, 2, 3, 0, [], [], words))
    ((_, sent),) = [(a, x) for a, x in world.core.state.out if isinstance(x, m.Batch)]
    assert sent.words is words and (sent.session, sent.base, sent.outputs, sent.instructions) == (client.id, 1, 2, 3)


def test_a_new_session_takes_the_next_worker() -> None:
    world = World(None, 2)
    for seed in range(4):
        world.connect(seed).upload()
    homes = [next(iter(s.links)) for s in world.core.state.sessions.values()]
    assert sorted(homes) == ["w0", "w0", "w1", "w1"]


def test_a_copy_is_remembered() -> None:
    """The second use of a value on another worker copies nothing."""
    world = World(0, 2)
    client = world.connect()
    small, big = client.upload(), client.upload(size=4)
    pair = client.define(FakeTemplate(2, 0, False, 1))
    client.call((pair, [small, big]))
    copies = world.core.state.transfers
    client.call((pair, [small, big]), (pair, [big, small]))
    assert copies == 1 and world.core.state.transfers == copies
    world.settle()


def test_most_bytes_win() -> None:
    world = World(0, 2)
    client = world.connect()
    first, second = client.upload(), client.upload()
    heavy = client.define(FakeTemplate(1, 0, False, 1), size=1000)
    (large,) = client.call((heavy, [second]))
    number = client.define(FakeTemplate(2, 0, False, 1))
    client.fresh_definitions[-1][4] = [[6, [1], [1], 0], [6, [1000], [1], 0]]
    (out,) = client.call((number, [first, large]))
    spread = world.core.state.sessions[client.id].spread
    assert spread is not None
    assert spread.locate(out) == spread.locate(second)
    world.settle()


def test_stream_waits_for_a_worker_and_then_runs() -> None:
    world = World(None, 0)
    client = world.connect()
    number = client.upload()
    request = client.fetch(number)
    assert not client.results
    assert world.core.tick(1.0).sessions[0].state == "throttled"
    world.join()
    world.settle()
    assert bytes(client.results[request][0].data) == b"up1"


def test_loss_is_answered_and_the_session_goes_on() -> None:
    world = World(None, 2)
    client = world.connect()
    lost = client.upload()
    home = next(iter(world.core.state.sessions[client.id].links))
    one = client.define(FakeTemplate(1, 0, False, 1))
    waiting, sync = client.fetch(lost), client.sync()
    world.lose(home)
    assert client.results[waiting][0].failure[0] == m.FailureKind.LOST  # type: ignore[index]
    assert client.results[sync][0].failure[0] == m.FailureKind.LOST  # type: ignore[index]
    assert client.credit == client.charged
    fresh = client.upload()
    poisoned, good = client.call((one, [lost]), (one, [fresh]))
    bad, fine = client.fetch(poisoned), client.fetch(good)
    world.settle()
    assert client.results[bad][0].failure[0] == m.FailureKind.LOST  # type: ignore[index]
    assert bytes(client.results[fine][0].data).decode() == client.expected[fine]


def test_single_again_after_the_values_are_gone() -> None:
    """A spread session whose values end up on its current worker is read no more; that worker then knows every
    definition.
    """
    world = World(1000, 2)
    client = world.connect()
    first = client.upload(size=1000)  # 4,000 bytes: this turn is over
    one = client.define(FakeTemplate(1, 0, False, 1))
    (used,) = client.call((one, [first]))
    client.upload(size=1)
    session = world.core.state.sessions[client.id]
    assert session.spread is not None and len(session.links) == 2
    for _ in range(3):  # turns come round to the first worker
        client.upload(size=1000)
    client.call(free=[n for n in client.values if n not in (first, used)])
    current = session.current
    assert current is not None
    world.core.tick(1.0)
    world.deliver()
    if current.worker.id == next(iter(session.links)):
        assert session.spread is None and session.single is current
    outs = client.call((one, [used]))
    request = client.fetch(outs[0])
    world.settle()
    assert bytes(client.results[request][0].data).decode() == client.expected[request]


def test_a_verdict_teaches_how_many_outputs_there_are() -> None:
    """Single or spread: after the first verdict the template needs neither a verdict nor the last place."""
    for turn in (None, 0):
        world = World(turn, 2)
        client = world.connect()
        pair = client.define(FakeTemplate(1, 0, False, 2), known=False)
        first = client.upload()
        client.call((pair, [first]), verdict=True)
        session = world.core.state.sessions[client.id]
        assert session.unlearned == {pair}
        world.settle()
        assert session.unlearned == set()
        outs = client.call((pair, [first]), (pair, [first]))
        session.enter_spread()
        outs += client.call((pair, [outs[3]]), (pair, [outs[0]]))
        requests = [client.fetch(out) for out in outs]
        world.settle()
        assert [bytes(client.results[r][0].data).decode() for r in requests] == [client.expected[r] for r in requests]


def test_a_message_sent_twice_is_taken_once_and_paid_back() -> None:
    world = World(None, 1)
    client = world.connect()
    client.upload()
    client.seq, client.next_id = 0, 1
    client.upload()
    world.settle()
    assert client.credit == client.charged == [2, 6] and not client.fatal


def test_credit_comes_in_quarters_or_when_idle() -> None:
    world = World(None, 1)
    client = world.connect()
    for k in range(40):
        world.core.message(client.address, m.Batch("", k + 1, 1 + k, 1, 512, 0, [], [], b""))
    worker = world.workers["w0"]
    for k in range(31):
        world.core.message(worker.address, m.Done(client.id, k + 1, 512, 0))
    world.deliver()
    assert client.credit == [0, 0]
    world.core.message(worker.address, m.Done(client.id, 32, 512, 0))
    world.deliver()
    assert client.credit == [16384, 0]
    world.core.message(worker.address, m.Done(client.id, 40, 0, 0))  # one for several: all before it has run too
    world.deliver()
    assert client.credit == [40 * 512, 0]


def test_a_client_on_tcp_and_workers_elsewhere() -> None:
    """A session that may pass memfds stays with workers of this host."""
    world = World(None, 1)
    address = world.address(Side.BACK)
    world.core.hello(address, m.Hello(facts("worker", speed=1e9, memory_total=1 << 40)), TCP, 0.0)
    assert world.connect(peer=LOCAL).welcome["same_host"] is False
    assert world.connect(peer=TCP).welcome["endpoints"] == {"front": "tcp://f:1"}
