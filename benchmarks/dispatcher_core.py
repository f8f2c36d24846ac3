"""What the dispatcher's core costs, alone: no sockets, no codec, workers that answer at once.

    python -m benchmarks.dispatcher_core [--batches N] [--instructions N]

Prints, for batches of 512 instructions, microseconds of CPU time a batch (with its Done) and instructions a second: for
a session whose values are on one worker of 2, 100 or 1,000 (words aren't read), for one whose values are on two without
copies, and for one that copies at every other instruction.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from gt_runtime import __version__
from gt_runtime.dispatcher.core import Core
from gt_runtime.dispatcher.options import DispatcherOptions
from gt_runtime.dispatcher.records import Address, Peer, Side
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import PROTOCOL_VERSION
from gt_runtime.protocol.words import Order, order

META = [6, [16, 16], [16, 1], 0]
CLIENT = Address(Side.FRONT, b"c")
TARGET_RATE = 2_000_000  # instructions a second where nothing is rewritten


def cluster(turn_bytes: int | None, workers: int) -> Core:
    """A core with ``workers`` and one session that has two values and a binary template."""
    options = DispatcherOptions("bench", Path("/nowhere"), turn_bytes=turn_bytes, workers=workers)
    identity = {"host": "h", "host_id": "h", "pid": 1, "uid": 0, "endpoints": {}, "tcp_endpoints": {}}
    core = Core(options, identity, 0.0, 0.0, dict)
    facts = {"protocol": PROTOCOL_VERSION, "gt": __version__, "host_id": "h"}
    for number in range(workers):
        core.state.out = []  # each that joins is told to all
        address = Address(Side.BACK, str(number).encode())
        core.hello(address, m.Hello(facts | {"role": "worker", "speed": 1.0}), Peer(0, 1), 0.0)
    core.hello(CLIENT, m.Hello(facts | {"role": "client"}), Peer(0, 1), 0.0)
    for value in (1, 2):
        core.message(CLIENT, m.Upload("", value, 0, value, META, None, bytes(1024)))
    definition = [0, "aten::add", "Tensor", [["t"], ["t"]], [META, META], [META], 0]
    core.message(CLIENT, m.Batch("", 3, 3, 0, 0, 0, [definition], [], b""))
    return core


def chain(base: int, count: int, other: int) -> bytes:
    """``count`` additions, each to the one before; every second one with value ``other``, every first with itself. All
    but the last are freed as in a real stream."""
    words = [order(Order.FLAGS, 1), 6, order(Order.SIGNAL, 1), 0]
    last = 1
    for k in range(count):
        words += [0, last, other if k % 2 else last]
        if last > 2:
            words += [order(Order.FREE, 1), last]
        last = base + k
    words += [order(Order.FREE, 1), last]
    return array("q", words).tobytes()


def run(turn_bytes: int | None, other: int, batches: int, instructions: int, workers: int = 2) -> tuple[float, float]:
    """Seconds of CPU time for all batches, and messages to workers a batch."""
    core = cluster(turn_bytes, workers)
    messages = []
    for k in range(batches):
        base = 3 + k * instructions
        payload = chain(base, instructions, other)
        messages.append(m.Batch("", 4 + k, base, instructions, instructions, 0, [], [], payload))
    state, sent = core.state, 0
    state.out = []
    spent = 0.0
    for message in messages:
        started = time.thread_time()
        core.message(CLIENT, message)
        spent += time.thread_time() - started
        answers: list[tuple[Address, Any]] = [
            (to, m.Done(x.session, x.seq, x.instructions, 0)) for to, x in state.out if isinstance(x, m.Batch)
        ]
        sent += len(state.out)
        started = time.thread_time()
        for address, done in answers:
            core.message(address, done)
        spent += time.thread_time() - started
        state.out = []
    return spent, sent / batches


def measure(rounds: int) -> Iterator[Figure]:
    """Where nothing is rewritten, with one worker and with a thousand."""
    batches, instructions = 2_000, 512
    few, many = [], []
    for _ in range(rounds):
        few.append(run(None, 2, batches, instructions, workers=1)[0])
        many.append(run(None, 2, batches, instructions, workers=1_000)[0])
    one, thousand = statistics.median(few), statistics.median(many)
    rate, name = batches * instructions / thousand, "dispatcher's core, 1,000 workers; plain: one"
    yield Figure(name, "instr/s", rate, batches * instructions / one, thousand / one, target=TARGET_RATE, at_least=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--instructions", type=int, default=512)
    arguments = parser.parse_args()
    batches, instructions = arguments.batches, arguments.instructions
    kinds: list[tuple[str, int | None, int, int]] = [
        *((f"single, {n} workers (words not read)", None, 2, n) for n in (2, 100, 1_000)),
        ("spread, all on one worker", 0, 1, 2),
        ("spread, the other value copied", 0, 2, 2),
    ]
    for name, turn_bytes, other, workers in kinds:
        spent, messages = run(turn_bytes, other, batches, instructions, workers)
        each = f"{spent / batches * 1e6:10.1f} us/batch {batches * instructions / spent:14,.0f} instructions/s"
        print(f"{name:40} {each} {messages:8.1f} messages/batch")


if __name__ == "__main__":
    main()
