"""Both ends of a channel in one process: what is on the wire, the direct way, no memory, a peer that talks nonsense."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as _dist

from gt_runtime.protocol.messages import Failure
from gt_runtime.worker import channel
from gt_runtime.worker.channel import Channel, Counters, Incoming, Meeting, Outgoing, PeerLost
from gt_runtime.worker.peers import StoreServer

dist: Any = _dist
CPU = torch.device("cpu")
META = [6, [2], [1], 0]
SECONDS = 60


def never() -> str | None:
    return None


def both(one: Callable[[], Any], two: Callable[[], Any]) -> list[Any]:
    """Run the two ends side by side; what they return, an exception included."""
    found: list[Any] = [None, None]

    def run(index: int, end: Callable[[], Any]) -> None:
        try:
            found[index] = end()
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(i, end), daemon=True) for i, end in enumerate((one, two))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "an end hangs"
    return found


class RecordedDirect:
    """A direct way over a second group, which counts what goes over it."""

    def __init__(self, store: Any, rank: int) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self.group = dist.ProcessGroupGloo(dist.PrefixStore("direct", store), rank, 2, options)
        self.other = 1 - rank
        self.pieces: list[int] = []

    def send(self, data: torch.Tensor) -> None:
        self.pieces.append(data.numel())
        self.group.send([data], self.other, 0).wait()

    def receive(self, data: torch.Tensor) -> None:
        self.pieces.append(data.numel())
        self.group.recv([data], self.other, 0).wait()


class Pair:
    """``w0`` and ``w1``, met. ``facts``: what each says of its device."""

    def __init__(self, facts: tuple[str, str] = ("", "")) -> None:
        self.server = StoreServer("127.0.0.1")
        self.counters = (Counters(), Counters())
        self.directs: list[RecordedDirect] = []

        def direct(store: Any, rank: int, lost: channel.Lost) -> RecordedDirect:
            self.directs.append(RecordedDirect(store, rank))
            return self.directs[-1]

        def end(me: int) -> Channel:
            names = ("w0", "w1")
            meeting = Meeting(names[me], names[1 - me], self.server.address, "127.0.0.1", CPU, facts[me], direct)
            return meeting.open(1, never, self.counters[me])

        self.ends = both(lambda: end(0), lambda: end(1))
        assert all(isinstance(e, Channel) for e in self.ends), self.ends

    def move(self, outgoing: Outgoing, transfer: int | None = None) -> list[Any]:
        """From w0 to w1: what either end came to, an Incoming for the second."""
        incoming = Incoming("s", 1, "w0", outgoing.transfer if transfer is None else transfer)

        def receive() -> Incoming:
            self.ends[1].receive(incoming)
            return incoming

        return both(lambda: self.ends[0].send(outgoing), receive)


def value(transfer: int, nbytes: int = 8) -> Outgoing:
    data = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    return Outgoing("w1", transfer, META, data, None)


def test_values_and_failures_in_turn() -> None:
    pair = Pair()
    for transfer in range(1, 5):
        sent = value(transfer, 8 * transfer)
        _, came = pair.move(sent)
        assert came.meta == META and torch.equal(came.data, sent.data) and came.failure is None
    failure = Failure("operator", "IndexError", "no", "aten::x").pack()
    _, came = pair.move(Outgoing("w1", 9, None, None, failure))
    assert came.failure == failure and came.data is None
    _, came = pair.move(Outgoing("w1", 10, [6, [0], [1], 0], torch.empty(0, dtype=torch.uint8), None))
    assert came.data.numel() == 0
    assert pair.counters[0].bytes_out == pair.counters[1].bytes_in == 80
    assert not pair.directs


@pytest.mark.parametrize(
    ("facts", "used"),
    [(("GPU-1", "GPU-2"), True), (("GPU-1", "GPU-1"), False), (("GPU-1", ""), False), (("", "GPU-2"), False)],
)
def test_the_direct_way_is_taken_where_both_have_it(
    facts: tuple[str, str], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "PIECE_BYTES", 10)
    pair = Pair(facts)
    sent = value(1, 25)
    _, came = pair.move(sent)
    assert torch.equal(came.data, sent.data)
    assert [direct.pieces for direct in pair.directs] == ([[10, 10, 5]] * 2 if used else [])


@pytest.mark.parametrize("facts", [("", ""), ("GPU-1", "GPU-2")])
def test_without_memory_the_next_copy_still_comes(facts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PIECE_BYTES", 10)
    pair = Pair(facts)
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "_room", lambda self, nbytes: None)
        _, came = pair.move(value(1, 25))
    assert came.data is None and came.failure[:2] == ["memory", "OutOfMemoryError"] and "25 bytes" in came.failure[2]
    sent = value(2, 25)
    _, came = pair.move(sent)
    assert torch.equal(came.data, sent.data)


def test_no_memory_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    assert pair.ends[0]._room(1 << 60) is None
    assert pair.ends[0]._room(5).numel() == 5


def test_a_peer_that_is_somewhere_else_in_the_order() -> None:
    pair = Pair()
    header = torch.tensor([0, 3, 8, 7], dtype=torch.int64)
    tag = 6
    _, came = both(
        lambda: pair.ends[0]._group.send([header], 1, tag).wait(),
        lambda: pair.ends[1].receive(Incoming("s", 1, "w0", tag)),
    )
    assert isinstance(came, PeerLost) and "sent transfer 7 where 6 was due" in str(came)


def test_a_peer_that_is_given_up_before_it_came() -> None:
    server = StoreServer("127.0.0.1")
    asked: list[int] = []

    def lost() -> str | None:
        asked.append(1)
        return "worker w1 was lost" if len(asked) > 3 else None

    with pytest.raises(PeerLost, match="worker w1 was lost"):
        Meeting("w0", "w1", server.address, "127.0.0.1", CPU).open(1, lost, Counters())


def test_only_cuda_devices_have_a_direct_way() -> None:
    assert channel.direct_facts(CPU) == ("", None)
