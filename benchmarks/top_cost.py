"""What gt-top costs: CPU of the process on a terminal, following a fake cluster.

    python benchmarks/top_cost.py [--save]

Every worker's figures change with every frame, as on a busy pool. Printed is the share of one core, beside it that of
the same process while nothing is published, and how fast this core counts: a busy machine counts slower, and every
share is larger by as much.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gt_runtime.launch.connection import RuntimeDirectory  # noqa: E402
from tests.top.fakes import FakeCluster, frame, gpu_worker, session  # noqa: E402
from tests.top.test_terminal import Terminal  # noqa: E402

INTERVAL = 0.5  # seconds between frames, as the dispatcher's


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def share(terminal: Terminal, seconds: float) -> float:
    """Share of a core that the program on ``terminal`` uses over ``seconds``."""
    process = psutil.Process(terminal.process.pid)
    start, used = time.monotonic(), cpu_seconds(process)
    while time.monotonic() - start < seconds:
        terminal.read(0.2)
    return (cpu_seconds(process) - used) / (time.monotonic() - start)


def counting_speed() -> float:
    """Millions of loop turns of plain Python in a second of CPU time; about 20 on an idle core of 2024."""
    start = time.process_time()
    for _ in range(2_000_000):
        pass
    return round(2.0 / (time.process_time() - start), 1)


def measure(workers: int, size: tuple[int, int], seconds: float) -> dict[str, Any]:
    """One measurement: busy, then silent."""
    folder = Path(tempfile.mkdtemp(prefix="gtb", dir="/tmp"))
    stop, quiet = threading.Event(), threading.Event()
    try:
        directory = RuntimeDirectory.open(folder / "rt")
        with FakeCluster(folder, directory=directory) as cluster:

            def publish() -> None:
                for step in range(1, 1 << 30):
                    if stop.wait(INTERVAL):
                        return
                    if not quiet.is_set():
                        pool = [gpu_worker(i, step) for i in range(workers)]
                        cluster.publish(frame(step, step, workers=pool, sessions=[session(i, step) for i in range(8)]))

            threading.Thread(target=publish, daemon=True).start()
            command = [sys.executable, "-m", "gt_top", "--debug"]
            with Terminal(command, size=size, GT_RUNTIME_DIR=str(folder / "rt")) as terminal:
                terminal.until("train_gpt.py")
                share(terminal, 3.0)  # warm
                written = len(terminal.output)
                busy = share(terminal, seconds)
                written = len(terminal.output) - written
                quiet.set()
                silent = share(terminal, seconds / 2)
                terminal.type(b"q")
                status = terminal.ended()
            stop.set()
        return {
            "workers": workers,
            "columns": size[0],
            "lines": size[1],
            "core": round(busy, 4),
            "core_silent": round(silent, 4),
            "bytes_per_second": round(written / seconds),
            "exit": status,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--save", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    result = {
        "what": "gt-top, share of one core at 2 frames a second",
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 2),
        "million_turns_per_second": counting_speed(),
        "python": platform.python_version(),
        "textual": version("textual"),
        "runs": [measure(options.workers, size, options.seconds) for size in ((120, 40), (200, 60))],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.save:
        folder = ROOT / "benchmarks" / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{datetime.date.today().isoformat()}-top-cost.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
