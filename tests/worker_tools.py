"""What tests of the worker share: words written by hand, and a dispatcher that does what the test says."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import zmq

from gt_runtime.protocol import codec
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.words import NumericFlag, Order, TemplateFlag, order

DEADLINE_SECONDS = 60.0
DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex32: 8, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip
FLAGS = int(NumericFlag.TF32_CUDNN) | 6


def words(*numbers: int) -> bytes:
    """Instruction words as they travel."""
    return struct.pack(f"<{len(numbers)}q", *numbers)


def float_word(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def free(*ids: int) -> list[int]:
    return [order(Order.FREE, len(ids)), *ids]


def flags(value: int) -> list[int]:
    return [order(Order.FLAGS, 1), value]


def signal(number: int) -> list[int]:
    return [order(Order.SIGNAL, 1), number]


def base(value: int) -> list[int]:
    return [order(Order.BASE, 1), value]


def meta(tensor: torch.Tensor) -> list[Any]:
    """A tensor's meta as a client would send it."""
    return [DTYPES[tensor.dtype], list(tensor.shape), list(tensor.stride()), 0]


def data(tensor: torch.Tensor) -> bytes:
    """Contiguous bytes, row major."""
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensor(meta: list[Any], contents: Any) -> torch.Tensor:
    """What was fetched."""
    dtype = next(t for t, number in DTYPES.items() if number == meta[0])
    raw = bytearray(memoryview(contents))
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(meta[1])


def definition(
    number: int,
    operator: str,
    arguments: Sequence[Any],
    inputs: Sequence[torch.Tensor] = (),
    outputs: Sequence[Any] | None = None,
    overload: str = "",
    flags: int = 0,
) -> list[Any]:
    """A template's definition; ``inputs`` are tensors that look like what will come."""
    name = operator if "::" in operator else f"aten::{operator}"
    return [
        number,
        name,
        overload,
        list(arguments),
        [meta(t) for t in inputs],
        None if outputs is None else list(outputs),
        flags,
    ]


RANDOM = int(TemplateFlag.RANDOM)
DYNAMIC = int(TemplateFlag.DYNAMIC)


class FakeDispatcher:
    """The dispatcher's sockets. Beats are answered by a thread unless ``silent``; everything else is the test's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.context: zmq.Context[Any] = zmq.Context()
        self.endpoints = {name: f"ipc://{directory / name}" for name in ("back", "pulse", "bulk")}
        self.back = self._bind("back")
        self.bulk = self._bind("bulk")
        self.identities: dict[str, bytes] = {}
        self.bulk_identities: dict[str, bytes] = {}
        self.held: dict[str, deque[Any]] = {}
        self.beats: dict[str, m.Beat] = {}
        self.members: dict[str, Any] = {}
        self.epoch = 1
        self.silent = threading.Event()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._pulse, daemon=True)
        self._thread.start()

    def _bind(self, name: str) -> zmq.Socket[Any]:
        socket = self.context.socket(zmq.ROUTER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set_hwm(0)
        socket.bind(self.endpoints[name])
        return socket

    def _pulse(self) -> None:
        socket = self._bind("pulse")
        while not self._ending.is_set():
            if socket.poll(50):
                identity, *frames = socket.recv_multipart()
                beat = codec.decode(frames)
                self.beats[beat.who] = beat
                if not self.silent.is_set():
                    try:
                        socket.send_multipart([identity, *codec.encode(m.Beat("", self.epoch, {}))])
                    except zmq.ZMQError:  # it has just ended
                        pass
        socket.close()

    # -- workers ------------------------------------------------------------------------------------------------------

    def spawn(self, *arguments: str, who: str = "w0") -> subprocess.Popen[bytes]:
        """Start a worker process, not yet welcomed."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
        command = [
            sys.executable,
            "-m",
            "gt_runtime.worker",
            "--connect",
            self.endpoints["back"],
            "--id",
            who,
            "--threads",
            "1",
        ]
        with open(self.directory / f"{who}.log", "wb") as log:
            process = subprocess.Popen([*command, *arguments], stdout=log, stderr=log, env=environment)
        self.processes[who] = process
        return process

    def welcome(self, count: int = 1) -> list[dict[str, Any]]:
        """Answer ``count`` Hellos; their facts."""
        facts = []
        for _ in range(count):
            identity, (message,) = self._receive(self.back)
            assert type(message) is m.Hello, message
            who = message.facts["id"]
            self.identities[who] = identity
            self.held[who] = deque()
            self.members[who] = {"store": message.facts["store"]}
            answer = {
                "id": who,
                "key": f"key of {who}",
                "epoch": self.epoch,
                "cluster": "test",
                "endpoints": self.endpoints,
                "workers": list(self.members),
            }
            self.send(who, m.Welcome(answer))
            facts.append(message.facts)
        for who in self.members:
            self.send(who, m.Peers(self.epoch, self.members))
        return facts

    def lose(self, who: str) -> None:
        """Declare a worker lost."""
        self.epoch += 1
        del self.members[who]
        for other in self.members:
            self.send(other, m.Peers(self.epoch, self.members))

    def log(self, who: str = "w0") -> str:
        return (self.directory / f"{who}.log").read_text()

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, who: str, *messages: Any) -> None:
        for message in messages:
            self.back.send_multipart([self.identities[who], *codec.encode(message)])

    def receive(self, who: str = "w0", kind: type[Any] = m.Result) -> Any:
        """The next message of ``kind`` from ``who``; others are dropped (Done) or kept for later (other workers')."""
        while True:
            if self.held[who]:
                message = self.held[who].popleft()
            else:
                identity, messages = self._receive(self.back)
                sender = next(name for name, known in self.identities.items() if known == identity)
                self.held[sender].extend(messages)
                continue
            if type(message) is kind:
                return message

    def result(self, request: int, who: str = "w0") -> m.Result:
        """The answer to ``request``, which must be the next one."""
        found: m.Result = self.receive(who)
        assert found.request == request, (found, request)
        return found

    def chunk(self) -> tuple[str, m.Chunk]:
        """The next chunk on the bulk socket; first messages of peers are noted on the way."""
        while True:
            identity, (message,) = self._receive(self.bulk)
            if type(message) is m.Beat:
                self.bulk_identities[message.who] = identity
            else:
                return next(n for n, known in self.bulk_identities.items() if known == identity), message

    def send_chunk(self, who: str, chunk: m.Chunk) -> None:
        while who not in self.bulk_identities:
            identity, (message,) = self._receive(self.bulk)
            self.bulk_identities[message.who] = identity
        self.bulk.send_multipart([self.bulk_identities[who], *codec.encode(chunk)])

    def _receive(self, socket: zmq.Socket[Any]) -> tuple[bytes, list[Any]]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not socket.poll(100):
            for who, process in self.processes.items():
                if process.poll() is not None and who in self.members:
                    raise AssertionError(f"worker {who} ended with {process.returncode}:\n{self.log(who)}")
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing came within {DEADLINE_SECONDS:g} s")
        identity, *frames = socket.recv_multipart()
        return identity, codec.decode_all(frames)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(10)
        self._ending.set()
        self._thread.join(5)
        self.back.close()
        self.bulk.close()
        self.context.term()


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """Wait for ``condition`` to be true; its value."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s: {what}"
        pause.wait(0.01)
    return value
