"""An attack on the dispatcher's core through its intake, without processes: attackers beside a canary, a client whose
every answer is checked.
"""

from __future__ import annotations

import random
from typing import Any

from gt_runtime.dispatcher.intake import Intake
from gt_runtime.dispatcher.records import Address, Peer, Side
from gt_runtime.protocol import codec
from gt_runtime.protocol import messages as m
from tests.fuzz.frames import Known, Writer
from tests.unit.dispatcher_world import LOCAL, UID, Client, FakeWorker, World, facts
from tests.unit.test_dispatcher_streams import check_answers, check_ended

STRANGER = Peer(uid=UID + 1, pid=99)  # another user on this host


class Broken(AssertionError):
    """The fuzzer has found something."""


class Hardened(FakeWorker):
    """A worker that, like the real one, runs whatever a hostile session sends into the session's own failures."""

    world: Arena

    def take(self, message: Any) -> bool:
        session = getattr(message, "session", None)
        if session is None or session not in self.world.hostile:
            return super().take(message)
        if isinstance(message, m.Batch):
            self.send(m.Done(session, message.seq, message.instructions, 0))
            if message.verdict:
                self.send(m.Result(session, message.verdict, m.Failure("protocol", "RuntimeError", "no").pack(), None))
        elif isinstance(message, m.Upload):
            self.send(m.Done(session, message.seq, 0, len(message.data)))
            if message.request:
                self.send(m.Result(session, message.request, None, None))
        elif isinstance(message, m.Fetch | m.Sync):
            self.send(
                m.Result(
                    session, message.request, None, None if isinstance(message, m.Fetch) else [[self.name, 0, None]]
                )
            )
        return True


class Arena(World):
    """A world with attackers in it."""

    def __init__(self, turn_bytes: int | None, workers: int) -> None:
        self.hostile: set[str] = set()
        super().__init__(turn_bytes, workers)
        self.intake = Intake(self.core)
        self.heard: dict[Address, list[Any]] = {}

    def join(self, **more: Any) -> FakeWorker:
        worker = super().join(**more)
        hardened = self.workers[worker.name] = Hardened(self, worker.name, worker.address)
        hardened.inbox = worker.inbox
        return hardened

    def deliver(self) -> None:
        super().deliver()
        for address, message in self.replies:
            self.heard.setdefault(address, []).append(message)
            if isinstance(message, m.Welcome) and address.side == Side.FRONT:
                self.hostile.add(message.facts["id"])
        self.replies.clear()


class Attack:
    """Frames of several attackers, one after the other."""

    def __init__(self, seed: int, turn_bytes: int | None = None, workers: int = 2) -> None:
        self.rng = random.Random(seed)
        self.arena = Arena(turn_bytes, workers)
        self.canary: Client = self.arena.connect(seed)
        self.attackers: dict[str, tuple[Address, Peer, Writer]] = {}
        for name, side, peer, hello in (
            ("client", Side.FRONT, LOCAL, facts("client")),
            ("client of another user", Side.FRONT, STRANGER, facts("client")),
            ("stranger", Side.FRONT, STRANGER, facts("client")),
            ("false worker", Side.BACK, STRANGER, facts("worker")),
        ):
            writer = Writer(self.rng, Known(hello=hello, may_rule=peer is LOCAL))
            self.attackers[name] = (self.arena.address(side), peer, writer)
        for name in ("client", "client of another user"):
            self.hello(name)
        self.sent = 0

    def hello(self, name: str) -> None:
        address, peer, writer = self.attackers[name]
        self.arena.core.hello(address, m.Hello(writer.known.hello), peer, 0.0)
        self.arena.deliver()

    def again(self, name: str) -> None:
        """An attacker whose session was ended connects anew."""
        address, peer, writer = self.attackers[name]
        fresh = Writer(self.rng, Known(hello=writer.known.hello, may_rule=peer is LOCAL))
        self.attackers[name] = (self.arena.address(address.side), peer, fresh)
        if name.startswith("client"):
            self.hello(name)

    def send(self) -> None:
        """One message of one attacker, and what must hold after it."""
        name = self.rng.choice(list(self.attackers))
        address, peer, writer = self.attackers[name]
        frames = writer.frames()
        before = len(self.arena.heard.get(address, ()))
        arena, core = self.arena, self.arena.core
        was_there = address in core._peers
        broken: list[BaseException] = []
        real, core.broken = core.broken, lambda a, error: broken.append(error)  # type: ignore[method-assign]
        try:
            arena.intake.take(address, frames, lambda: peer, lambda: 1.0)
        finally:
            core.broken = real  # type: ignore[method-assign]
        if broken:
            raise Broken(f"a handler raised on a message of {name}: {broken[0]!r}") from broken[0]
        arena.deliver()
        self.sent += 1
        heard = arena.heard.get(address, [])[before:]
        if not was_there and address not in core._gone and address not in core._peers and not heard:
            raise Broken(f"{name}, who has no session, wasn't answered")
        if malformed(frames) and (was_there or address not in core._gone) and not heard:
            raise Broken(f"{name} wasn't told that its message is malformed")
        if was_there and address not in core._peers:
            self.told_why(name, heard)
            self.again(name)
        elif self.rng.random() < 0.02:
            self.again(name)

    def told_why(self, name: str, heard: list[Any]) -> None:
        closed = self.arena.core.state.events and self.arena.core.state.events[-1].event == "session_closed"
        if not closed and not any(isinstance(x, m.Refused | m.Notice) for x in heard):
            raise Broken(f"the session of {name} ended without a word")

    def aside(self) -> None:
        """What comes by the other sockets: a chunk of an attacker's session, a beat's claims."""
        core, writer = self.arena.core, self.attackers["client"][2]
        if self.rng.random() < 0.7:
            entries = [writer._chunk() for _ in range(self.rng.choice((1, 1, 1, 2)))]
            frames = [codec.pack([entry for entry, _ in entries]), *(data for _, data in entries if data)]
            try:
                chunk = codec.decode(frames)
            except codec.ProtocolError:
                return
            core.chunk(self.rng.choice([*self.arena.hostile, "nobody"]), chunk)
        else:
            facts = writer._beat()[0][-1]
            core.beat(self.rng.choice(("w0", "w9")), facts, core._now)
        self.arena.deliver()
        core.state.chunks.clear()
        for name in ("client", "client of another user"):
            if self.attackers[name][0] not in core._peers:
                self.again(name)

    def live_on(self) -> None:
        """The canary's program, its workers, and time go on."""
        if self.rng.random() < 0.4:
            self.canary.random_message()
        for _ in range(self.rng.randrange(4)):
            busy = [w for w in self.arena.workers.values() if w.inbox]
            if busy:
                self.rng.choice(busy).step()
        if self.rng.random() < 0.05:
            self.arena.core.tick(self.arena.core._now + 0.5)
            self.arena.deliver()

    def run(self, messages: int) -> None:
        """The whole attack; raises Broken, or whatever it broke."""
        for _ in range(messages):
            self.send()
            if self.rng.random() < 0.05:
                self.aside()
            self.live_on()
        self.arena.settle()
        if self.canary.id not in self.arena.core.state.sessions:
            raise Broken("the canary's session is gone")
        for number in list(self.canary.values):
            self.canary.fetch(number)
        self.arena.settle()
        check_answers(self.arena, self.canary)
        self.canary.free_all()
        self.arena.settle()
        check_ended(self.arena, self.canary)
        if len(self.arena.core.state.workers) != len(self.arena.workers):
            raise Broken("a worker is gone")


def malformed(frames: list[bytes]) -> bool:
    """Whether the codec refuses these frames; anything else that it raises is a finding."""
    try:
        codec.decode_all(frames)
    except codec.ProtocolError:
        return True
    return False
