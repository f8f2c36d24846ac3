"""Four programs at once on one worker: what they get through together, against what one gets through alone.

python -m benchmarks.clients SECONDS   # one of them: joins GT_CLUSTER, waits for a line, says its rate
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.figures import Figure

PROGRAMS, SECONDS = 4, 3.0
_COUNT = 1_000


def measure(rounds: int) -> Iterator[Figure]:
    """Chains of small additions, each fetched at its end."""
    alone, together = [], []
    for _ in range(max(1, rounds // 3)):
        alone.append(sum(at_once(1)))
        together.append(sum(at_once(PROGRAMS)))
    one, all_ = sorted(alone)[len(alone) // 2], sorted(together)[len(together) // 2]
    name = f"{PROGRAMS} clients together; plain: one alone"
    yield Figure(name, "instr/s", all_, one, one / all_, target=1.0, of="ratio")


def at_once(count: int) -> list[float]:
    """Rates of ``count`` programs that ran in the same seconds."""
    command = [sys.executable, "-m", "benchmarks.clients", str(SECONDS)]
    programs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for program in programs:
            assert program.stdout is not None and program.stdout.readline() == "ready\n", "it joined and is warm"
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        return [float(program.communicate(timeout=60)[0]) for program in programs]
    finally:
        for program in programs:
            program.kill()


def main() -> None:
    import torch

    import gt  # noqa: F401  # registers mux

    torch.set_num_threads(1)
    x = torch.ones(16, 16).to("mux")

    def chain() -> None:
        y = x
        for _ in range(_COUNT):
            y = y + x
        y.sum().item()

    chain()
    print("ready", flush=True)
    sys.stdin.readline()
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < float(sys.argv[1]):
        chain()
        done += _COUNT
    print(done / (time.perf_counter() - begin))


if __name__ == "__main__":
    main()
