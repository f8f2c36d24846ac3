"""A world around the dispatcher's core: fake workers that execute words symbolically, and a client with a random
program.

A value's symbol is a hash of all that it was made from (template, literals, signal, flags, input symbols), so an
instruction that ran with a wrong input, signal or flag, or not at all, shows at the fetch. Workers take their messages
strictly in order, a Send of a value that is still under way blocks (harder than the real ones), so a deadlock shows as
a queue that doesn't empty.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gt_runtime import __version__
from gt_runtime.dispatcher.core import Core
from gt_runtime.dispatcher.options import DispatcherOptions
from gt_runtime.dispatcher.records import Address, Peer, Side
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import PROTOCOL_VERSION
from gt_runtime.protocol.words import Order, TemplateFlag, order

UID = 1000
IDENTITY = {
    "host": "here",
    "host_id": "boot",
    "pid": 1,
    "uid": UID,
    "endpoints": {"front": "ipc:///f"},
    "tcp_endpoints": {"front": "tcp://f:1"},
}
TCP = Peer(ip="127.0.0.1")
LOCAL = Peer(uid=UID, pid=77)


def facts(role: str, **more: Any) -> dict[str, Any]:
    """The facts of a good Hello."""
    base = {
        "protocol": PROTOCOL_VERSION,
        "gt": __version__,
        "torch": "2.13",
        "schema": "x",
        "role": role,
        "pid": 77,
        "host": "here",
        "host_id": "boot",
        "user": "u",
        "program": "p.py",
    }
    return base | more


@dataclass
class FakeTemplate:
    """What a fake worker, and the client, know of a template."""

    inputs: int
    literals: int
    random: bool
    outputs: int

    @property
    def words(self) -> int:
        return self.inputs + self.literals + 2 * self.random


def definition(number: int, template: FakeTemplate, known: bool = True, size: int = 4) -> m.Definition:
    """On the wire; ``known``: with output metas."""
    arguments: list[Any] = [["t"]] * template.inputs
    arguments = [["l", *arguments]] if template.inputs > 1 else arguments  # a list argument, as in cat
    arguments = [*arguments, *[["f"]] * template.literals, None, 3, "text"]
    meta = [6, [size], [1], 0]
    outputs = [meta] * template.outputs if known else None
    flags = int(TemplateFlag.RANDOM) if template.random else 0
    return [number, "aten::fake", "default", arguments, [meta] * template.inputs, outputs, flags]


def from_definition(sent: m.Definition, outputs: int) -> FakeTemplate:
    arguments = sent[3][0][1:] if sent[3] and isinstance(sent[3][0], list) and sent[3][0][0] == "l" else sent[3]
    tensors = sum(a == ["t"] for a in arguments)
    return FakeTemplate(tensors, sum(a == ["f"] for a in sent[3]), bool(sent[6] & 1), outputs)


@dataclass
class Holding:
    """What a fake worker has of one session."""

    values: dict[int, Any] = field(
        default_factory=dict
    )  # id -> symbol | ("poison", kind) | ("pending", transfer, peer)
    templates: dict[int, FakeTemplate] = field(default_factory=dict)
    signals: dict[int, str] = field(default_factory=dict)


class FakeWorker:
    """Takes the core's messages, in order, when stepped."""

    def __init__(self, world: World, name: str, address: Address) -> None:
        self.world, self.name, self.address = world, name, address
        self.inbox: deque[Any] = deque()
        self.sessions: dict[str, Holding] = {}
        self.peers: set[str] = set()
        self.alive = True

    def step(self) -> bool:
        """Take one message; False if there is none or it has to wait for a copy."""
        if not self.inbox or not self.take(self.inbox[0]):
            return False
        self.inbox.popleft()
        return True

    def value(self, holding: Holding, number: int) -> Any:
        """The symbol or poison of a value; None while its copy is under way."""
        assert number in holding.values, f"{self.name} needs value {number}, which it doesn't have"
        found = holding.values[number]
        if isinstance(found, tuple) and found[0] == "pending":
            _, transfer, peer = found
            if transfer in self.world.mail:
                found = self.world.mail.pop(transfer)
            elif self.world.workers.get(peer) is None or not self.world.workers[peer].alive:
                found = ("poison", "lost")
            else:
                return None
            holding.values[number] = found
        return found

    def take(self, message: Any) -> bool:
        if isinstance(message, m.Open):
            assert message.session not in self.sessions
            self.sessions[message.session] = Holding()
        elif isinstance(message, m.Peers):
            self.peers = set(message.members)
        elif isinstance(message, m.Welcome | m.Notice):
            pass
        elif isinstance(message, m.Close):
            del self.sessions[message.session]
        else:
            return self.work(message, self.sessions[message.session])
        return True

    def work(self, message: Any, holding: Holding) -> bool:
        if isinstance(message, m.Batch):
            return self.batch(message, holding)
        if isinstance(message, m.Upload):
            assert message.id not in holding.values
            holding.values[message.id] = bytes(message.data).decode()
            self.send(m.Done(message.session, message.seq, 0, len(message.data)))
            if message.request:
                self.send(m.Result(message.session, message.request, None, None))
        elif isinstance(message, m.Fetch):
            value = self.value(holding, message.id)
            if value is None:
                return False
            self.send(answer(message.session, message.request, value))
        elif isinstance(message, m.Sync):
            self.send(m.Result(message.session, message.request, None, [[self.name, 0, None]]))
        elif isinstance(message, m.Send):
            assert message.peer in self.world.core.state.workers or self.world.losses
            value = self.value(holding, message.id)
            if value is None:
                return False
            self.world.mail[message.transfer] = value
        elif isinstance(message, m.Recv):
            assert message.id not in holding.values, "a value is copied once"
            holding.values[message.id] = ("pending", message.transfer, message.peer)
        elif isinstance(message, m.Poison):
            for number in message.ids:
                assert number not in holding.values, "poison never replaces a value"
                holding.values[number] = ("poison", message.failure[0])
        else:
            raise AssertionError(f"a worker doesn't get a {message}")
        return True

    def batch(self, message: m.Batch, holding: Holding) -> bool:
        """Run a batch; False if it has to wait (it then starts again from the beginning, having done nothing)."""
        words = array("q", bytes(message.words)).tolist()
        fresh = self.fresh(message)
        for sent in message.definitions:
            assert sent[0] not in holding.templates or not fresh, "a worker gets a definition once"
            holding.templates[sent[0]] = from_definition(sent, self.world.outputs[message.session, sent[0]])
        for number, name in message.signals:
            holding.signals[number] = name
        made = self.run(message, holding, words, dry=True)
        if made is None:
            return False
        self.run(message, holding, words, dry=False)
        self.send(m.Done(message.session, message.seq, message.instructions, 0))
        if message.verdict:
            self.verdict(message, made)
        return True

    def fresh(self, message: m.Batch) -> bool:
        """Whether this batch is looked at for the first time."""
        seen = self.world.seen
        key = id(message)
        new = key not in seen
        seen[key] = message
        return new

    def verdict(self, message: m.Batch, made: list[Any]) -> None:
        poison = next((v for v in made if isinstance(v, tuple)), None)
        if poison is not None:
            self.send(
                m.Result(message.session, message.verdict, m.Failure(poison[1], "RuntimeError", "no").pack(), None)
            )
        else:
            self.send(m.Result(message.session, message.verdict, None, [[6, [4], [1], 0]] * len(made)))

    def run(self, message: m.Batch, holding: Holding, words: list[int], dry: bool) -> list[Any] | None:
        at, next_id, signal, flags, ran, outputs = 0, message.base, None, None, 0, 0
        made: list[Any] = []
        local: dict[int, Any] = {}
        while at < len(words):
            word = words[at]
            if word < 0:
                code, count = ~word & 0xFF, ~word >> 8
                rest = words[at + 1 : at + 1 + count]
                if code == Order.FREE and not dry:
                    for number in rest:
                        assert number in holding.values, f"{self.name} frees {number}, which it doesn't have"
                        del holding.values[number]
                elif code == Order.BASE:
                    (next_id,) = rest
                elif code == Order.SIGNAL:
                    (signal,) = rest
                    assert signal == 0 or signal in holding.signals, "a signal is named before it is used"
                elif code == Order.FLAGS:
                    (flags,) = rest
                at += 1 + count
                continue
            number = word & 0xFFFFFFFF
            template = holding.templates[number]
            ins = words[at + 1 : at + 1 + template.inputs]
            values = [local[i] if i in local else self.value(holding, i) for i in ins]
            if any(v is None for v in values):
                assert dry, "a dry run said that all is here"
                return None
            end = at + 1 + template.words
            made = [
                symbol(number, words[at + 1 + template.inputs : end], signal, flags, values, k)
                for k in range(template.outputs)
            ]
            for value in made:
                local[next_id] = value
                if not dry:
                    assert next_id not in holding.values, "an id is made once"
                    holding.values[next_id] = value
                    self.world.runs[message.session, next_id] = self.world.runs.get((message.session, next_id), 0) + 1
                next_id += 1
                outputs += 1
            at, ran = end, ran + 1
        assert at == len(words) and ran == message.instructions and outputs == message.outputs
        return made

    def send(self, message: Any) -> None:
        self.world.core.message(self.address, message)
        self.world.deliver()


def symbol(number: int, literals: list[int], signal: int | None, flags: int | None, inputs: list[Any], k: int) -> Any:
    """What an instruction makes of its inputs: poison of poison, else a name for all that went in."""
    poison = next((v for v in inputs if isinstance(v, tuple)), None)
    return poison if poison is not None else f"{hash((number, tuple(literals), signal, flags, tuple(inputs), k)):x}"


def answer(session: str, request: int, value: Any) -> m.Result:
    if isinstance(value, tuple):
        return m.Result(session, request, m.Failure(value[1], "RuntimeError", "no").pack(), None)
    return m.Result(session, request, None, [6, [4], [1], 0], value.encode())


class World:
    """The core, its workers and its clients."""

    def __init__(self, turn_bytes: int | None = None, workers: int = 2, session_memory: int = 0) -> None:
        options = DispatcherOptions(
            "test", Path("/nowhere"), turn_bytes=turn_bytes, session_memory=session_memory, workers=workers
        )
        self.core = Core(options, IDENTITY, 0.0, 1e9, lambda: {"frame": None, "events": []})
        self.workers: dict[str, FakeWorker] = {}
        self.clients: dict[Address, Client] = {}
        self.mail: dict[int, Any] = {}  # copies that were sent
        self.runs: dict[tuple[str, int], int] = {}  # (session, output id) -> times it was made
        self.outputs: dict[tuple[str, int], int] = {}  # (session, template) -> outputs
        self.seen: dict[int, Any] = {}  # batches by id; kept alive so that an id isn't used again
        self.replies: list[tuple[Address, Any]] = []  # to addresses that are no clients and no workers
        self.losses = 0
        self.connections = 0
        for _ in range(workers):
            self.join()

    def address(self, side: Side) -> Address:
        self.connections += 1
        return Address(side, b"%d" % self.connections)

    def join(self, **more: Any) -> FakeWorker:
        """Another worker joins."""
        address = self.address(Side.BACK)
        self.core.hello(
            address,
            m.Hello(facts("worker", device="cpu", store="here:1", memory_total=1 << 30, speed=10.0, **more)),
            LOCAL,
            0.0,
        )
        name = next(w.id for w in self.core.state.workers.values() if w.address == address)
        worker = self.workers[name] = FakeWorker(self, name, address)
        self.deliver()
        return worker

    def lose(self, name: str) -> None:
        """A worker dies with what it hasn't read; what it has sent arrives."""
        self.losses += 1
        worker = self.workers[name]
        worker.alive = False
        worker.inbox.clear()
        self.core.gone(name, "killed")
        self.deliver()

    def connect(self, seed: int = 0, peer: Peer = LOCAL, **more: Any) -> Client:
        """A client says Hello."""
        address = self.address(Side.FRONT)
        client = self.clients[address] = Client(self, address, random.Random(seed))
        self.core.hello(address, m.Hello(facts("client", **more)), peer, 0.0)
        self.deliver()
        return client

    def deliver(self) -> None:
        """Hand out what the core emitted."""
        state = self.core.state
        out, state.out = state.out, []
        by_address = {w.address: w for w in self.workers.values() if w.alive}
        for address, message in out:
            if address in by_address:
                by_address[address].inbox.append(message)
            elif address in self.clients:
                self.clients[address].take(message)
            else:
                self.replies.append((address, message))

    def settle(self) -> None:
        """Let the workers run until nothing is left to do."""
        while any(w.step() for w in list(self.workers.values()) if w.alive):
            pass
        stuck = {w.name: w.inbox[0] for w in self.workers.values() if w.alive and w.inbox}
        assert not stuck, f"workers wait for ever: {stuck}"


class Client:
    """A client that issues a program and knows what must come of it."""

    def __init__(self, world: World, address: Address, rng: random.Random) -> None:
        self.world, self.address, self.rng = world, address, rng
        self.id = ""
        self.seq = 0
        self.next_id = 1
        self.request = 0
        self.values: dict[int, str] = {}  # live ids and their symbols
        self.results: dict[int, list[m.Result]] = {}
        self.expected: dict[int, str | None] = {}  # fetches: symbol
        self.credit = [0, 0]  # given back
        self.charged = [0, 0]
        self.fatal: list[str] = []
        self.told: list[str] = []  # what doesn't end the program
        self.refused: list[m.Refused] = []
        self.welcome: dict[str, Any] = {}
        self.templates: dict[int, FakeTemplate] = {}
        self.signals: dict[int, str] = {}
        self.unlearned: dict[int, int] = {}  # template -> request of a verdict that may teach it
        self.fresh_definitions: list[m.Definition] = []
        self.fresh_signals: list[list[Any]] = []

    def take(self, message: Any) -> None:
        if isinstance(message, m.Welcome):
            self.id, self.welcome = message.facts["id"], message.facts
        elif isinstance(message, m.Result):
            assert message.session == ""
            self.results.setdefault(message.request, []).append(message)
        elif isinstance(message, m.Credit):
            self.credit[0] += message.instructions
            self.credit[1] += message.nbytes
        elif isinstance(message, m.Notice):
            (self.fatal if message.level == "fatal" else self.told).append(message.text)
        elif isinstance(message, m.Refused):
            self.refused.append(message)
        else:
            raise AssertionError(f"a client doesn't get a {message}")

    def send(self, message: Any) -> None:
        self.world.core.message(self.address, message)
        self.world.deliver()

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def next_request(self) -> int:
        self.request += 1
        return self.request

    # -- single messages --

    def define(self, template: FakeTemplate, known: bool = True, size: int = 4) -> int:
        number = len(self.templates)
        self.templates[number] = template
        self.world.outputs[self.id, number] = template.outputs
        self.fresh_definitions.append(definition(number, template, known, size))
        return number

    def upload(self, ask: bool = False, size: int = 4) -> int:
        number, text = self.next_id, f"up{self.next_id}"
        self.next_id += 1
        self.values[number] = text
        self.charged[0] += 1
        self.charged[1] += len(text)
        request = self.next_request() if ask else 0
        self.send(m.Upload("", self.next_seq(), request, number, [6, [size], [1], 0], None, text.encode()))
        return number

    def fetch(self, number: int) -> int:
        request = self.next_request()
        self.expected[request] = self.values.get(number)
        self.send(m.Fetch("", self.seq, request, number, None))
        return request

    def sync(self) -> int:
        request = self.next_request()
        self.send(m.Sync("", self.seq, request, False))
        return request

    def batch(self, words: list[int], base: int, outputs: int, instructions: int, verdict: bool = False) -> int:
        request = self.next_request() if verdict else 0
        self.charged[0] += instructions
        definitions, self.fresh_definitions = self.fresh_definitions, []
        signals, self.fresh_signals = self.fresh_signals, []
        self.send(
            m.Batch(
                "",
                self.next_seq(),
                base,
                outputs,
                instructions,
                request,
                definitions,
                signals,
                array("q", words).tobytes(),
            )
        )
        return request

    def call(self, *calls: tuple[int, list[int]], free: list[int] | None = None, verdict: bool = False) -> list[int]:
        """One batch: (template, inputs) each, then frees; returns the outputs' ids."""
        words, base = [order(Order.FLAGS, 1), 6, order(Order.SIGNAL, 1), 0], self.next_id
        for number, ins in calls:
            words += self.instruction(number, ins, 0, 6)
        for dead in free or []:
            words += [order(Order.FREE, 1), dead]
            del self.values[dead]
        self.batch(words, base, self.next_id - base, len(calls), verdict)
        return list(range(base, self.next_id))

    def instruction(self, number: int, ins: list[int], signal: int, flags: int) -> list[int]:
        template = self.templates[number]
        rest = [self.rng.randrange(-(1 << 62), 1 << 62) for _ in range(template.words - template.inputs)]
        values = [self.values[i] for i in ins]
        for k in range(template.outputs):
            self.values[self.next_id] = symbol(number, rest, signal, flags, values, k)
            self.next_id += 1
        return [number | self.rng.randrange(1 << 30) << 32, *ins, *rest]

    # -- a random program --

    def random_message(self) -> None:
        """Issue one message of a random, valid program."""
        kind = self.rng.random()
        if kind < 0.2:
            self.upload(ask=self.rng.random() < 0.3, size=self.rng.choice([0, 1, 64]))
        elif kind < 0.3 and self.values:
            self.fetch(self.rng.choice(list(self.values)))
        elif kind < 0.35:
            self.sync()
        elif kind < 0.4:
            self.free_all()
        else:
            self.random_batch()

    def random_batch(self) -> None:
        rng, base, count = self.rng, self.next_id, 0
        flags = rng.choice([6, 7])
        signal = self.random_signal()
        words = [order(Order.FLAGS, 1), flags, order(Order.SIGNAL, 1), signal]
        verdict = False
        for _ in range(rng.randrange(8)):
            if rng.random() < 0.15:
                flags = rng.choice([6, 7, 8])
                words += [order(Order.FLAGS, 1), flags]
            if rng.random() < 0.15:
                signal = self.random_signal()
                words += [order(Order.SIGNAL, 1), signal]
            if rng.random() < 0.3 and self.values:
                dead = rng.sample(list(self.values), min(len(self.values), rng.randrange(1, 4)))
                words += [order(Order.FREE, len(dead)), *dead]
                for number in dead:
                    del self.values[number]
            number, verdict = self.random_template()
            ins = [rng.choice(list(self.values)) for _ in range(self.templates[number].inputs)]
            words += self.instruction(number, ins, signal, flags)
            count += 1
            if verdict:
                break
        request = self.batch(words, base, self.next_id - base, count, verdict or (count > 0 and rng.random() < 0.1))
        if verdict:
            self.unlearned[number] = request

    def random_signal(self) -> int:
        if not self.signals or self.rng.random() < 0.3:
            number = len(self.signals) + 1
            self.signals[number] = f"signal{number}"
            self.fresh_signals.append([number, self.signals[number]])
            return number
        return self.rng.choice([0, *self.signals])

    def random_template(self) -> tuple[int, bool]:
        """A template, and whether it must be the last of its batch, with a verdict."""
        usable = [n for n, t in self.templates.items() if t.inputs == 0 or self.values]
        if usable and self.rng.random() < 0.7:
            number = self.rng.choice(usable)
            if number not in self.unlearned:
                return number, False
            if any(r.failure is None for r in self.results.get(self.unlearned[number], [])):
                del self.unlearned[number]
                return number, False
            return number, True
        rng = self.rng
        template = FakeTemplate(
            rng.randrange(4) if self.values else 0, rng.randrange(3), rng.random() < 0.2, rng.choice([0, 1, 1, 1, 2])
        )
        known = rng.random() < 0.8
        number = self.define(template, known, rng.choice([0, 1, 1000]))
        if not known:
            self.unlearned[number] = 0
        return number, not known

    def free_all(self) -> None:
        """Free what lives, in one batch."""
        if self.values:
            dead = list(self.values)
            self.values.clear()
            self.batch([order(Order.FREE, len(dead)), *dead], self.next_id, 0, 0)
