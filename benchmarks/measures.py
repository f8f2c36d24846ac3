"""What is measured: each function runs plain PyTorch and `mux` in turn in this process and returns its figures.

Two figures of one measure were taken in the same seconds (`figures.in_turn`). Knows nothing of tables and files
(`report.py`).
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import gt
from benchmarks import clients, dispatcher_core, echo, executor_loop, memory, models
from benchmarks.figures import Figure, Timed, in_turn, quartiles
from examples.gpt import GPT, Text

MIB = 1 << 20


def chain(rounds: int) -> Iterator[Figure]:
    """8,000 dependent additions of 16x16, then a fetch: what the stream of tiny operations carries."""
    count = 8_000
    plain = torch.ones(16, 16)
    there = plain.to("mux")

    def run(x: Tensor) -> float:
        y = x
        for _ in range(count):
            y = y + x
        return y.sum().item()

    timed = in_turn(lambda: run(there), lambda: run(plain), rounds)
    yield timed.figure(
        "chain of 8,000 16x16 adds, fetch", "instr/s", lambda s: count / s, target=300_000, at_least=True
    )


def add_fetch(rounds: int) -> Iterator[Figure]:
    """One addition and its result, there and back; beside it the least that three processes do with ZeroMQ."""
    there = torch.ones(4, 4).to("mux")
    with echo.three_processes() as bare:
        timed = in_turn(lambda: (there + there).cpu(), bare, rounds * 40, warm=20)
    yield timed.figure("add + fetch; plain: a bare ZeroMQ echo", "ms", lambda s: s * 1e3, target=0.5)


def matmuls(rounds: int) -> Iterator[Figure]:
    """100 dependent products of 512x512, then a fetch."""
    plain = torch.randn(512, 512) / 23
    there = plain.to("mux")

    def run(x: Tensor) -> float:
        y = x
        for _ in range(100):
            y = y @ x
        return y.sum().item()

    timed = in_turn(lambda: run(there), lambda: run(plain), rounds)
    yield timed.figure("100 matmuls 512x512, fetch", "ms", lambda s: s * 1e3, target=1.05, of="ratio")


def recording(rounds: int) -> Iterator[Figure]:
    """What the user's thread spends on one operation: recording it, against running it.

    In bursts that fit the stream's credit, with a synchronize between them outside the clock: what is measured is the
    client, not how fast the worker drains what it sent.
    """
    count = 1_000
    operations: dict[str, tuple[Callable[[Tensor], object], float | None]] = {
        "add": (lambda x: x + x, 1.3),
        "mm": (lambda x: x @ x, None),
        "in-place mul": (lambda x: x.mul_(1.0), None),
        "view": (lambda x: x.view(256), None),
    }
    plain = torch.ones(16, 16)
    there = plain.to("mux")

    def burst(operation: Callable[[Tensor], object], x: Tensor) -> float:
        gt.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            operation(x)
        return time.perf_counter() - begin

    for name, (operation, target) in operations.items():
        burst(operation, there)
        timed = Timed([], [])
        for _ in range(rounds * 4):
            timed.mux.append(burst(operation, there))
            timed.eager.append(burst(operation, plain))
        yield timed.figure(f"recording {name}", "us", lambda s: s / count * 1e6, target=target, of="ratio")


def gpt_step(rounds: int) -> Iterator[Figure]:
    """A training step of examples/gpt.py: 2 blocks, d=128, batch 8 x 64, AdamW; ten steps, then the loss is fetched."""
    torch.manual_seed(0)
    text = Text(0)
    tokens, targets = text.batch(8, 64)
    model = GPT(len(text.characters))
    yield from training("GPT step", model, lambda m, d: m(tokens.to(d), targets.to(d)), rounds, target=1.25)


def second_model(rounds: int) -> Iterator[Figure]:
    """A training step of a model whose kind and sizes are drawn by a seed: none of them was tuned for."""
    drawn = models.draw(models.SEED)
    yield from training(f"step of a {drawn.name}", drawn.model, drawn.loss, rounds, target=1.25)


def training(
    name: str, model: torch.nn.Module, loss: Callable[[torch.nn.Module, str], Tensor], rounds: int, target: float
) -> Iterator[Figure]:  # fmt: skip
    """AdamW steps of ``model``. The first ten, whose templates the worker has never seen, apart from those after."""
    steps = 10

    def trainer(model: torch.nn.Module, device: str) -> Callable[[], float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def run() -> float:
            for _ in range(steps):
                found = loss(model, device)
                optimizer.zero_grad()
                found.backward()
                optimizer.step()
            return found.item()

        return run

    mux, eager = trainer(copy.deepcopy(model).to("mux"), "mux"), trainer(model, "cpu")
    begin = time.perf_counter()
    ours, cold = mux(), time.perf_counter() - begin
    begin = time.perf_counter()
    theirs, plain = eager(), time.perf_counter() - begin
    if abs(ours - theirs) > 1e-3 * max(1.0, abs(theirs)):
        raise RuntimeError(f"{name}: the loss on mux is {ours}, eager's {theirs}, after {steps} steps: mend that first")
    timed = in_turn(mux, eager, rounds)
    yield timed.figure(name, "ms", lambda s: s / steps * 1e3, target=target, of="ratio")
    yield Figure(f"{name}, first {steps}, cold", "ms", cold / steps * 1e3, plain / steps * 1e3, cold / plain)


def start(rounds: int) -> Iterator[Figure]:
    """A fresh program with an embedded cluster of its own: from process start to its first result, and its end."""
    program = "import time, gt, torch; x = torch.ones(2, device='mux'); (x + x).sum().item(); print(time.time())"
    named = ("GT_ADDRESS", "GT_CLUSTER", "GT_WORKERS", "OMP_NUM_THREADS")
    environment = {k: v for k, v in os.environ.items() if k not in named}
    first, whole = [], []
    with tempfile.TemporaryDirectory(prefix="gt-bench-") as folder:
        environment["GT_RUNTIME_DIR"] = f"{folder}/gt"  # where no other cluster runs that it would join
        for _ in range(max(3, rounds // 2)):
            begin, clock = time.time(), time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", program],
                env=environment, capture_output=True, text=True, check=True, timeout=120,
            )  # fmt: skip
            whole.append(time.perf_counter() - clock)
            first.append(float(done.stdout.split()[-1]) - begin)
    yield Figure("embedded start to first result", "s", statistics.median(first), spread=quartiles(first), target=5.0)
    yield Figure("the same program until it has ended", "s", statistics.median(whole), spread=quartiles(whole))


def transfer(rounds: int) -> Iterator[Figure]:
    """64 MiB there and back; plain PyTorch copies them once in memory."""
    plain = torch.randn(16 * MIB)

    def upload() -> None:
        plain.to("mux")
        gt.synchronize()

    timed = in_turn(upload, plain.clone, rounds)
    yield timed.figure("upload of 64 MiB", "MiB/s", lambda s: 64 / s, target=2048, at_least=True)
    there = plain.to("mux")
    if not torch.equal(there.cpu(), plain):
        raise RuntimeError("64 MiB came back changed: fix that before measuring it")
    timed = in_turn(there.cpu, plain.clone, rounds)
    yield timed.figure("fetch of 64 MiB", "MiB/s", lambda s: 64 / s, target=2048, at_least=True)


MEASURES: dict[str, Callable[[int], Iterator[Figure]]] = {
    "chain": chain,
    "add_fetch": add_fetch,
    "matmuls": matmuls,
    "recording": recording,
    "gpt": gpt_step,
    "second_model": second_model,
    "clients": clients.measure,
    "memory": memory.measure,
    "loop": executor_loop.measure,
    "core": dispatcher_core.measure,
    "start": start,
    "transfer": transfer,
}
