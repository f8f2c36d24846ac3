"""``python -m benchmarks.executor_loop``: what the worker's inner loop adds to an operator.

A chain of small adds, each result freed by the next instruction, run by the executor from one batch of words; against
``at::add`` called in a C++ loop (compiled on the first run, about a minute) and against plain Python. One thread.
Target: at most 0.5 us an operation beyond the C++ loop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.figures import Figure

TARGET_MICROSECONDS = 0.5
_EAGER = """
#include <torch/extension.h>
#include <ATen/core/LegacyTypeDispatch.h>
void adds(const at::Tensor& x, int64_t n) {
  pybind11::gil_scoped_release release;
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor z = x;
  for (int64_t i = 0; i < n; ++i) z = at::add(z, x);
}
"""


def measure(rounds: int) -> Iterator[Figure]:
    """In a process of its own: the executor brings its allocator along."""
    command = [sys.executable, "-m", "benchmarks.executor_loop", "--json", "--rounds", str(rounds)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout)
    yield Figure("worker's loop beyond the kernel", "us", found["beyond"], target=TARGET_MICROSECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.executor_loop", description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=8000, help="length of the chain (default: 8000)")
    parser.add_argument("--side", type=int, default=16, help="of the square matrices (default: 16)")
    parser.add_argument("--rounds", type=int, default=31, help="how often each is run, in turn (default: 31)")
    parser.add_argument("--json", action="store_true", help="one object: medians in microseconds, and what is beyond")
    parser.add_argument("--no-native", action="store_true", help="leave out the C++ loop: nothing is compiled")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    x = torch.ones(args.side, args.side)
    contestants = {"executor": executor_chain(x, args.operations), "plain Python": python_chain(x, args.operations)}
    if not args.no_native:
        contestants["C++ loop"] = native_chain(x, args.operations)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(args.rounds):
        for name, run in contestants.items():
            started = time.thread_time()  # of this thread: the machine may have other things to do
            run()
            times[name].append((time.thread_time() - started) / args.operations * 1e6)
    medians = {name: statistics.median(found) for name, found in times.items()}
    if "C++ loop" in times:
        pairs = zip(times["executor"], times["C++ loop"], strict=True)
        medians["beyond"] = statistics.median(ours - theirs for ours, theirs in pairs)
    if args.json:
        print(json.dumps(medians))
        return 0
    for name, found in times.items():
        print(f"{name:14s} {medians[name]:6.2f} us an add (best {min(found):.2f})")
    if "beyond" in medians:
        print(f"beyond the C++ loop: {medians['beyond']:.2f} us an operation (target {TARGET_MICROSECONDS})")
    return 0


def executor_chain(x: object, operations: int) -> Callable[[], None]:
    """The chain as instruction words: template, two inputs, one literal, and a FREE of the last result."""
    import torch

    from gt_runtime.protocol.words import Order, order
    from gt_runtime.worker._native import Executor

    assert isinstance(x, torch.Tensor)
    executor = Executor("w0", "cpu", 0)
    executor.open("s", 1 << 40)
    meta = [6, list(x.shape), list(x.stride()), 0]
    executor.put("s", 1, meta, x.numpy().tobytes())
    executor.define("s", [[1, "aten::add", "Tensor", [["t"], ["t"], ["i"]], [meta, meta], [meta], 0]])
    words, last = [], 1
    for number in range(2, operations + 2):
        words += [1, last, 1, 1]
        if last != 1:
            words += [order(Order.FREE, 1), last]
        last = number
    batch = struct.pack(f"<{len(words)}q", *words)

    def run() -> None:
        executor.run("s", batch, 0, 2, False)
        executor.free("s", [last])

    return run


def python_chain(x: object, operations: int) -> Callable[[], None]:
    """The same in plain PyTorch."""
    import torch

    assert isinstance(x, torch.Tensor)
    start = x

    def run() -> None:
        z = start
        for _ in range(operations):
            z = z + start

    return run


def native_chain(x: object, operations: int) -> Callable[[], None]:
    """The same in C++."""
    from torch.utils.cpp_extension import load_inline

    module = load_inline("gt_eager_adds", _EAGER, functions="adds", extra_cflags=["-O2"])
    return lambda: module.adds(x, operations)


if __name__ == "__main__":
    raise SystemExit(main())
