"""What the dispatcher's core costs, alone: no sockets, no codec, workers that answer at once.

    python benchmarks/dispatcher_core.py [--batches N] [--instructions N]

Prints, for batches of 512 instructions, microseconds of CPU time a batch (with its Done) and instructions a second: for
a session whose values are on one worker (words aren't read), for one whose values are on two without copies, and for
one that copies at every other instruction.
"""

from __future__ import annotations

import argparse
import time
from array import array
from pathlib import Path
from typing import Any

from gt_runtime import __version__
from gt_runtime.dispatcher.core import Core
from gt_runtime.dispatcher.options import DispatcherOptions
from gt_runtime.dispatcher.records import Address, Peer, Side
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import PROTOCOL_VERSION
from gt_runtime.protocol.words import Order, order

META = [6, [16, 16], [16, 1], 0]
CLIENT, WORKERS = Address(Side.FRONT, b"c"), [Address(Side.BACK, b"0"), Address(Side.BACK, b"1")]


def cluster(turn_bytes: int | None) -> Core:
    """A core with two workers and one session that has two values and a binary template."""
    options = DispatcherOptions("bench", Path("/nowhere"), turn_bytes=turn_bytes, workers=2)
    identity = {"host": "h", "host_id": "h", "pid": 1, "uid": 0, "endpoints": {}, "tcp_endpoints": {}}
    core = Core(options, identity, 0.0, 0.0, dict)
    facts = {"protocol": PROTOCOL_VERSION, "gt": __version__, "host_id": "h"}
    for address in WORKERS:
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


def measure(name: str, turn_bytes: int | None, other: int, batches: int, instructions: int) -> None:
    core = cluster(turn_bytes)
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
    rate = batches * instructions / spent
    each = f"{spent / batches * 1e6:10.1f} us/batch {rate:14,.0f} instructions/s"
    print(f"{name:32} {each} {sent / batches:8.1f} messages/batch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--instructions", type=int, default=512)
    arguments = parser.parse_args()
    size = arguments.batches, arguments.instructions
    measure("single (words not read)", None, 2, *size)
    measure("spread, all on one worker", 0, 1, *size)
    measure("spread, the other value copied", 0, 2, *size)


if __name__ == "__main__":
    main()
