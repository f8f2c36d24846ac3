"""What is measured: each function runs plain PyTorch and `mux` in turn in this process and returns its figures.

In turn, because a shared machine's speed drifts: two figures of one measure were taken in the same seconds, so their
ratio means something where the figures alone may not. Medians throughout. Knows nothing of tables and files
(`report.py`).
"""

from __future__ import annotations

import copy
import dataclasses
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
from examples.gpt import GPT, Text

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing, on mux and (where it makes sense) in plain PyTorch, beside what is aimed at.

    ``mux`` and ``eager`` are medians in ``unit``, ``spread`` the quartiles of mux's. ``ratio`` is mux's time over
    eager's: the median of the ratios of neighbouring runs. ``target`` bounds ``ratio`` if ``of`` is "ratio", else
    ``mux``: from above, or from below where more is better (``at_least``).
    """

    name: str
    unit: str
    mux: float
    eager: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    target: float | None = None
    of: str = "mux"
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        value = self.ratio if self.of == "ratio" else self.mux
        if self.target is None or value is None:
            return None
        return value >= self.target if self.at_least else value <= self.target


@dataclasses.dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of neighbouring runs."""

    mux: list[float]
    eager: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(m / e for m, e in zip(self.mux, self.eager, strict=True))

    def figure(
        self, name: str, unit: str, scale: Callable[[float], float],
        *, target: float | None = None, of: str = "mux", at_least: bool = False,
    ) -> Figure:  # fmt: skip
        """``scale`` turns seconds into ``unit``."""
        low, high = quartiles([scale(s) for s in self.mux])
        mux, eager = scale(statistics.median(self.mux)), scale(statistics.median(self.eager))
        return Figure(name, unit, mux, eager, self.ratio, (low, high), target, of, at_least)


def quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    cut = statistics.quantiles(values, n=4)
    return cut[0], cut[2]


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def in_turn(mux: Callable[[], object], eager: Callable[[], object], rounds: int, warm: int = 1) -> Timed:
    """Run both ``warm`` times untimed, then one after the other ``rounds`` times; who begins changes each round."""
    for _ in range(warm):
        mux()
        eager()
    timed = Timed([], [])
    for number in range(rounds):
        for on_mux in (True, False) if number % 2 else (False, True):
            (timed.mux if on_mux else timed.eager).append(seconds(mux if on_mux else eager))
    return timed


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
    """One addition and its result: the way there and back."""
    plain = torch.ones(16, 16)
    there = plain.to("mux")
    timed = in_turn(lambda: (there + there).cpu(), lambda: plain + plain, rounds * 40, warm=20)
    yield timed.figure("add + fetch", "ms", lambda s: s * 1e3, target=0.5)


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
    steps = 10
    torch.manual_seed(0)
    text = Text(0)
    batch = text.batch(8, 64)

    def trainer(model: GPT, tokens: Tensor, targets: Tensor) -> Callable[[], float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def run() -> float:
            for _ in range(steps):
                loss: Tensor = model(tokens, targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss.item()

        return run

    model = GPT(len(text.characters))
    there = copy.deepcopy(model).to("mux")
    mux, eager = trainer(there, *(t.to("mux") for t in batch)), trainer(model, *batch)
    if abs(mux() - eager()) > 1e-3:
        raise RuntimeError("the GPT's loss on mux isn't eager's after ten steps: fix that before measuring it")
    timed = in_turn(mux, eager, rounds)
    yield timed.figure("GPT step", "ms", lambda s: s / steps * 1e3, target=1.25, of="ratio")


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
    yield timed.figure("upload of 64 MiB", "MiB/s", lambda s: 64 / s)
    there = plain.to("mux")
    if not torch.equal(there.cpu(), plain):
        raise RuntimeError("64 MiB came back changed: fix that before measuring it")
    timed = in_turn(there.cpu, plain.clone, rounds)
    yield timed.figure("fetch of 64 MiB", "MiB/s", lambda s: 64 / s)


MEASURES: dict[str, Callable[[int], Iterator[Figure]]] = {
    "chain": chain,
    "add_fetch": add_fetch,
    "matmuls": matmuls,
    "recording": recording,
    "gpt": gpt_step,
    "start": start,
    "transfer": transfer,
}
