"""Two real workers that copy values to each other: every kind of value, poison, many at once, loss in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gt_runtime.protocol import messages as m
from tests.system.test_worker import ADD, OPEN, T, X, batch, open_session, upload
from tests.worker_tools import DTYPES, FakeDispatcher, data, definition, free, meta, tensor, until


class Pair:
    """A dispatcher with two workers; ``copy`` numbers transfers in one global order as the real one does."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gt-w-", dir="/tmp"))
        self.dispatcher = FakeDispatcher(self.directory)
        self.transfers = 0

    def start(self, devices: tuple[str, str] = ("cpu", "cpu")) -> None:
        for who, device in zip(("w0", "w1"), devices, strict=True):
            self.dispatcher.spawn("--device", device, who=who)
        self.dispatcher.welcome(2)

    def open(self, name: str) -> str:
        for who in ("w0", "w1"):
            open_session(self.dispatcher, name, who)
        return name

    def copy(self, session: str, number: int, source: str, target: str) -> None:
        self.transfers += 1
        facts = (session, self.transfers, number)
        self.dispatcher.send(source, m.Send(*facts, target, self.dispatcher.epoch))
        self.dispatcher.send(target, m.Recv(*facts, source, self.dispatcher.epoch))

    def fetch(self, session: str, number: int, who: str, request: int) -> torch.Tensor:
        self.dispatcher.send(who, m.Fetch(session, 1, request, number, None))
        result = self.dispatcher.result(request, who)
        assert result.failure is None, result.failure
        return tensor(result.body, result.data)

    def failure(self, session: str, number: int, who: str, request: int) -> m.Failure:
        self.dispatcher.send(who, m.Fetch(session, 1, request, number, None))
        failure = m.Failure.unpack(self.dispatcher.result(request, who).failure)
        assert failure is not None
        return failure

    def close(self) -> None:
        self.dispatcher.close()
        shutil.rmtree(self.directory)


@pytest.fixture(scope="module")
def shared() -> Iterator[Pair]:
    """A pair for the tests that leave it alive."""
    pair = Pair()
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.fixture
def fresh() -> Iterator[Pair]:
    """A pair to kill."""
    pair = Pair()
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.fixture
def session(shared: Pair, request: pytest.FixtureRequest) -> Iterator[str]:
    yield shared.open(request.node.name)
    for who in ("w0", "w1"):
        shared.dispatcher.send(who, m.Close(request.node.name, "over"))


def figures(pair: Pair, who: str, session: str) -> list[int]:
    """Values, bytes and instructions of a session by the newest beat; made-up ones before there is any."""
    beat = pair.dispatcher.beats.get(who)
    found: list[int] = beat.facts["sessions"].get(session, [-1, -1, -1]) if beat else [-1, -1, -1]
    return found


def values() -> list[torch.Tensor]:
    """One value of every dtype, and one of every layout."""
    found = [torch.tensor([0, 1, 2, 100], dtype=dtype) for dtype in DTYPES]
    found += [torch.randn(3, 4).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(0, 3)]
    return [*found, torch.tensor(2.5), torch.randn(3, 1).expand(3, 4), torch.randn(3000, 3000)]  # the last in pieces


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_kind_of_value_both_ways(shared: Pair, session: str) -> None:
    sent = values()
    for number, value in enumerate(sent, 1):
        source, target = ("w0", "w1") if number % 2 else ("w1", "w0")
        if value.nbytes > 1 << 20:
            value = sent[number - 1] = torch.full((3000, 3000), 1.5)
            ones = definition(1, "full", [["l", 3000, 3000], 1.5, 6, 0, ["d"]])
            shared.dispatcher.send(source, batch(session, number, number, 1, definitions=[ones]))
        else:
            shared.dispatcher.send(source, upload(session, number, number, value))
        shared.copy(session, number, source, target)
    for number, value in enumerate(sent, 1):
        target = "w1" if number % 2 else "w0"
        shared.dispatcher.send(target, m.Fetch(session, 1, number, number, None))
        result = shared.dispatcher.result(number, target)
        assert result.failure is None, result.failure
        dense = value if value.is_contiguous() or value.stride()[-1] != 0 else value.contiguous()
        assert result.body == meta(dense)
        assert bytes(result.data) == data(value)


def test_a_copied_value_is_used_like_any_other(shared: Pair, session: str) -> None:
    shared.dispatcher.send("w0", upload(session, 1, 1, X))
    shared.copy(session, 1, "w0", "w1")
    shared.dispatcher.send(
        "w1", batch(session, 2, 2, 1, 1, 1, definitions=[ADD]), batch(session, 3, 3, *free(1), outputs=0)
    )
    assert torch.equal(shared.fetch(session, 2, "w1", 1), X + X)
    assert torch.equal(shared.fetch(session, 1, "w0", 2), X)
    until(lambda: figures(shared, "w1", session) == [1, X.nbytes, 1], "the copy was freed, the sum is there")
    assert shared.dispatcher.beats["w1"].facts["bytes_in"] >= X.nbytes


def test_poison_is_copied(shared: Pair, session: str) -> None:
    wrong = definition(2, "mm", [T, T], [X, X])
    shared.dispatcher.send("w0", upload(session, 1, 1, X), batch(session, 2, 2, 2, 1, 1, definitions=[wrong]))
    shared.copy(session, 2, "w0", "w1")
    shared.copy(session, 77, "w0", "w1")
    shared.dispatcher.send("w1", batch(session, 3, 3, 1, 2, 2, definitions=[ADD]))
    failure = shared.failure(session, 3, "w1", 1)
    assert failure.operator == "aten::mm.default" and failure.worker == "w0"
    assert failure == shared.failure(session, 2, "w0", 2)
    assert "no value 77" in shared.failure(session, 77, "w1", 3).message


def test_a_session_that_ended_on_one_side(shared: Pair, session: str) -> None:
    shared.dispatcher.send("w0", upload(session, 1, 1, X), m.Close(session, "over"))
    shared.copy(session, 1, "w0", "w1")
    assert "no session" in shared.failure(session, 1, "w1", 1).message
    shared.copy(session, 5, "w1", "w0")  # nobody takes it in; the next copy comes through all the same
    other = shared.open("ended and another")
    shared.dispatcher.send("w1", upload(other, 1, 1, X))
    shared.copy(other, 1, "w1", "w0")
    assert torch.equal(shared.fetch(other, 1, "w0", 1), X)


def test_values_sent_are_kept_until_they_have_left(shared: Pair, session: str) -> None:
    """The sender frees its value right after the order to send it."""
    for i in range(20):
        number = 1 + i
        shared.dispatcher.send("w0", upload(session, 1, number, X + i))
        shared.copy(session, number, "w0", "w1")
        shared.dispatcher.send("w0", batch(session, 2, 100, *free(number), outputs=0))
    for i in range(20):
        assert torch.equal(shared.fetch(session, 1 + i, "w1", 1 + i), X + i)
    until(lambda: figures(shared, "w0", session)[:2] == [0, 0], "nothing is held any more")


def test_copies_of_two_sessions_that_cross(shared: Pair) -> None:
    """Each worker has sends and receives under way in both directions, and one waits in the middle of a batch."""
    one, two = shared.open("one"), shared.open("two")
    shared.dispatcher.send("w0", upload(one, 1, 1, X))
    shared.dispatcher.send("w1", upload(two, 1, 1, X + 1), upload(one, 1, 2, X + 2))
    for number in range(3, 60, 4):
        shared.copy(one, 1, "w0", "w1")
        shared.dispatcher.send("w1", batch(one, 2, number, 1, 1, 2, definitions=[ADD]))
        shared.copy(two, 1, "w1", "w0")
        shared.dispatcher.send("w0", batch(two, 2, number, 1, 1, 1, definitions=[ADD]))
        shared.copy(one, number, "w1", "w0")
        shared.dispatcher.send("w0", batch(one, 3, number + 1, 1, number, 1, definitions=[ADD]))
    assert torch.equal(shared.fetch(one, 60, "w0", 1), 3 * X + 2)
    assert torch.equal(shared.fetch(two, 59, "w0", 2), 2 * X + 2)


def test_the_cap_of_the_receiver(shared: Pair) -> None:
    session = "capped"
    open_session(shared.dispatcher, session, "w0")
    open_session(shared.dispatcher, session, "w1", memory=10)
    shared.dispatcher.send("w0", upload(session, 1, 1, X))
    shared.copy(session, 1, "w0", "w1")
    failure = shared.failure(session, 1, "w1", 1)
    assert failure.type == "OutOfMemoryError" and "a copy of float32[3, 4]" in failure.message


# -- loss -------------------------------------------------------------------------------------------------------------


def prepared(pair: Pair) -> str:
    """A session with a value on each side, after a first copy: the link exists."""
    session = pair.open("s1")
    pair.dispatcher.send("w0", upload(session, 1, 1, X))
    pair.dispatcher.send("w1", upload(session, 1, 2, X))
    pair.copy(session, 1, "w0", "w1")
    assert torch.equal(pair.fetch(session, 1, "w1", 1), X)
    return session


def test_a_killed_peer_fails_what_it_owed_and_nothing_else(fresh: Pair) -> None:
    session = prepared(fresh)
    fresh.dispatcher.processes["w1"].kill()
    fresh.dispatcher.processes["w1"].wait()
    fresh.dispatcher.members.pop("w1")
    fresh.transfers += 1
    facts = (session, fresh.transfers, 2, "w1", 1)
    fresh.dispatcher.send("w0", m.Recv(*facts), batch(session, 2, 3, 1, 2, 2, 1, 1, 1, definitions=[ADD], outputs=2))
    failure = fresh.failure(session, 3, "w0", 1)
    assert failure.kind == "lost" and "worker w1" in failure.message
    assert torch.equal(fresh.fetch(session, 4, "w0", 2), X + X)


def test_a_frozen_peer_is_given_up_when_it_is_no_member_any_more(fresh: Pair) -> None:
    """Its connection lives on: only the dispatcher's word ends the wait, and it stands further back in the stream."""
    session = prepared(fresh)
    os.kill(fresh.dispatcher.processes["w1"].pid, signal.SIGSTOP)
    fresh.transfers += 1
    facts = (session, fresh.transfers, 2, "w1", 1)
    fresh.dispatcher.send("w0", m.Recv(*facts), batch(session, 2, 3, 1, 2, 2, definitions=[ADD], verdict=5))
    fresh.dispatcher.send("w0", m.Send(session, fresh.transfers + 1, 1, "w1", 1))
    fresh.dispatcher.lose("w1")
    failure = m.Failure.unpack(fresh.dispatcher.result(5, "w0").failure)
    assert failure is not None and failure.kind == "lost" and "worker w1 was lost" in failure.message
    assert torch.equal(fresh.fetch(session, 1, "w0", 6), X)
    until(lambda: figures(fresh, "w0", session)[:2] == [3, X.nbytes], "the send holds nothing, two values are poison")


def test_a_peer_that_never_comes_to_meet(fresh: Pair) -> None:
    session = fresh.open("s1")
    fresh.dispatcher.send(
        "w0", m.Recv(session, 1, 9, "w1", 1), batch(session, 1, 10, 1, 9, 9, definitions=[ADD], verdict=1)
    )
    fresh.dispatcher.lose("w1")
    failure = m.Failure.unpack(fresh.dispatcher.result(1, "w0").failure)
    assert failure is not None and failure.kind == "lost"


def test_a_worker_that_takes_a_lost_ones_id_is_another_worker(fresh: Pair) -> None:
    session = prepared(fresh)
    fresh.dispatcher.processes["w1"].kill()
    fresh.dispatcher.processes["w1"].wait()
    fresh.dispatcher.lose("w1")
    fresh.dispatcher.spawn(who="w1")
    fresh.dispatcher.welcome(1)
    fresh.dispatcher.send("w1", m.Open(session, OPEN))
    fresh.copy(session, 1, "w0", "w1")
    assert torch.equal(fresh.fetch(session, 1, "w1", 7), X)


def test_a_send_to_nobody_goes_nowhere(fresh: Pair) -> None:
    session = prepared(fresh)
    fresh.dispatcher.send("w0", m.Send(session, 50, 1, "w9", 1), m.Recv(session, 51, 9, "w9", 1))
    failure = fresh.failure(session, 9, "w0", 3)
    assert failure.kind == "lost" and "w9 was lost, or never was a member" in failure.message


# -- on GPUs ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_kind_of_value_between_gpus() -> None:
    pair = Pair()
    try:
        pair.start(("cuda:0", "cuda:1"))
        test_every_kind_of_value_both_ways(pair, pair.open("gpus"))
        test_poison_is_copied(pair, pair.open("gpus and poison"))
    finally:
        pair.close()
