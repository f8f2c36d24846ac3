"""A worker's peak memory over AdamW steps, beyond what its process had before the model; against plain PyTorch.

python -m benchmarks.memory cpu|mux foreach|fused       # one of the two: prints MiB; mux needs GT_CLUSTER
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure

WIDTH, LAYERS = 1024, 24  # 96 MiB of parameters
_SETTLE_SECONDS = 1.5  # a worker gives back what first calls took once it is idle


def measure(rounds: int) -> Iterator[Figure]:
    """Both implementations that PyTorch has for many parameters at once; five steps after the first four."""
    for kind in ("foreach", "fused"):
        ours, plain = (mebibytes(device, kind) for device in ("mux", "cpu"))
        name = f"peak memory over AdamW steps, {kind}"
        yield Figure(name, "MiB", ours, plain, ours / plain, target=1.15, of="ratio")


def mebibytes(device: str, kind: str) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", device, kind]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout)


def main() -> None:
    device, kind = sys.argv[1:]
    import torch

    import gt

    torch.set_num_threads(1)
    for _ in range(2):  # what starting took goes back as well
        torch.ones(2, 2).to(device).add(1).cpu()
        time.sleep(_SETTLE_SECONDS)
    pid = "self" if device == "cpu" else str(worker_pid())
    before = status(pid, "VmRSS")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, device=device) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=kind == "foreach", fused=kind == "fused")
    x = torch.randn(64, WIDTH).to(device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        gt.synchronize()

    for _ in range(3):
        step()
    time.sleep(_SETTLE_SECONDS)
    step()
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from here
    for _ in range(5):
        step()
    print((status(pid, "VmHWM") - before) / 1024)


def worker_pid() -> int:
    """Of the cluster's only worker, which is on this host."""
    from gt_runtime.control.client import ControlClient
    from gt_runtime.launch import connection

    with ControlClient(connection.find().front) as client:
        (worker,) = client.request("workers")
        return int(worker["pid"])


def status(pid: str, field: str) -> int:
    """A figure of /proc/PID/status in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


if __name__ == "__main__":
    main()
