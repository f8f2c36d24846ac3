"""An attack on a real cluster: hostile messages and plain garbage on every socket it has, beside a program whose every
result is checked.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from typing import Any

import torch
import zmq

from gt_runtime.launch import connection
from gt_runtime.protocol import codec, handshake
from gt_runtime.protocol import messages as m
from tests.fuzz.frames import Known, Writer
from tests.system.clusters import environment, gt_json

CANARY = """
import sys, torch, gt
made = 0
for line in sys.stdin:
    i = int(line)
    x = torch.arange(64.0).to("mux") + i
    big = torch.full((40_000,), float(i)).to("mux")
    y = (x * 2 - x).sum() + big.mean()
    assert y.item() == 64 * 63 / 2 + 64 * i + i, (i, y.item())
    print(i, flush=True)
"""
SOCKETS = ("front", "back", "bulk", "pulse", "telemetry")


class Siege:
    """Attackers of one cluster, and its canary."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.rng, self.rounds, self.sent = name, random.Random(seed), 0, 0
        self.endpoints = dict(connection.find(name).endpoints)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.workers = self.alive()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        self.writers: dict[str, Writer] = {}
        self.told: dict[str, int] = dict.fromkeys(SOCKETS, 0)
        self.canary = subprocess.Popen(
            [sys.executable, "-c", CANARY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(GT_CLUSTER=name),
        )  # fmt: skip
        self.check()

    def alive(self) -> dict[str, int]:
        return {w["id"]: w["pid"] for w in gt_json("workers", "--name", self.name)}

    def check(self) -> None:
        """The canary's next results are right."""
        self.rounds += 1
        assert self.canary.stdin is not None and self.canary.stdout is not None
        self.canary.stdin.write(f"{self.rounds}\n")
        self.canary.stdin.flush()
        answer = self.canary.stdout.readline()
        assert answer == f"{self.rounds}\n", f"the canary said {answer!r} after {self.sent} hostile messages"

    def attacker(self, where: str) -> tuple[zmq.Socket[bytes], Writer]:
        """A connection to one of the sockets, now and then a new one; on front it has mostly said Hello."""
        known = self.sockets.get(where)
        if known is None or self.rng.random() < 0.02:
            if known is not None:
                known.close(0)
            link = self.context.socket(zmq.SUB if where == "telemetry" else zmq.DEALER)
            link.setsockopt(zmq.SNDHWM, 0)
            link.connect(self.endpoints[where])
            facts = handshake.facts("client", torch.__version__, schema(), host="here")
            self.sockets[where], self.writers[where] = link, Writer(self.rng, Known(hello=facts, may_rule=True))
            if where == "front" and self.rng.random() < 0.9:
                link.send_multipart(codec.encode(m.Hello(facts)))
        return self.sockets[where], self.writers[where]

    def attack(self, messages: int) -> None:
        for _ in range(messages):
            where = self.rng.choice(("front",) * 6 + SOCKETS[1:])
            if self.rng.random() < 0.01:
                self.garbage(where)
                continue
            link, writer = self.attacker(where)
            if where == "telemetry":
                link.setsockopt(zmq.SUBSCRIBE, self.rng.randbytes(3))
            else:
                link.send_multipart(writer.frames())
                self.read(where, link, writer)
            self.sent += 1
            if self.sent % 200 == 0:
                self.check()

    def read(self, where: str, link: zmq.Socket[bytes], writer: Writer) -> None:
        """What it is told; after the end of its session it comes again."""
        while link.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            for message in codec.decode_all(link.recv_multipart()):
                self.told[where] += 1
                if isinstance(message, m.Notice) and message.level == "fatal":
                    self.sockets.pop(where).close(0)
                    return

    def garbage(self, where: str) -> None:
        """Bytes that aren't even ZeroMQ's."""
        path = self.endpoints[where].removeprefix("ipc://")
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(2.0)
            try:
                raw.connect(path)
                raw.sendall(self.rng.randbytes(self.rng.choice((1, 64, 5000))))
            except OSError:
                pass  # it may hang up on us

    def end(self) -> None:
        """The sender was told, everybody lives, the canary's results are right and another program's are."""
        self.check()
        assert self.told["front"] and self.told["back"], f"who sends nonsense is told: {self.told}"
        assert self.alive() == self.workers, "the workers are those that there were"

    def close(self) -> None:
        for link in self.sockets.values():
            link.close(0)
        self.sockets.clear()
        self.context.destroy(linger=0)
        self.canary.kill()
        self.canary.wait()
        for pipe in (self.canary.stdin, self.canary.stdout):
            if pipe is not None:
                pipe.close()


_schema: list[Any] = []


def schema() -> str:
    """The hash that a client of this torch has."""
    if not _schema:
        from gt_runtime.worker._native import schema_hash

        _schema.append(schema_hash())
    return str(_schema[0])
