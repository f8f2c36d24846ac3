"""Short training scripts pinned to one core all end with status 0, however they end.

``make test`` runs a few; ``GT_SCRIPTS=300`` the full count. They share one cluster: what is tested is how a
program ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.system.clusters import gt, gt_json
from tests.system.programs import finish, start

COUNT = int(os.environ.get("GT_SCRIPTS", "12"))
SIDE_BY_SIDE = 2
NAME = "scripts"

TRAIN = """
import sys
import gt, torch
from torch import nn
torch.manual_seed(int(sys.argv[1]))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)).to("mux")
optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
data, target = torch.randn(32, 8, device="mux"), torch.randn(32, 1, device="mux")
for step in range(5):
    optimiser.zero_grad()
    loss = ((model(data) - target) ** 2).mean()
    loss.backward()
    optimiser.step()
"""

ENDINGS = {
    "plain": "print(loss.item())",
    "work under way": "for _ in range(200): data = data * 1.01",
    "graph alive": "kept = ((model(data) - target) ** 2).mean()",
    "hook alive": "data.requires_grad_(); data.register_hook(lambda g: g); (data * 2).sum().backward()",
    "reference cycle": "class A: pass\na = A(); a.a = a; a.tensor = model(data)",
    "sys.exit": "sys.exit(0)",
    "atexit uses the device": "import atexit; atexit.register(lambda: print(model(data).sum().item()))",
    "tensors in modules": "import builtins; builtins.kept = model(data); sys.modules['kept'] = model",
    "thread has ended": """
import threading
thread = threading.Thread(target=lambda: model(data).sum().item())
thread.start()
thread.join()
""",
    "daemon thread": """
import threading
threading.Thread(target=lambda: [model(data) for _ in range(10**6)], daemon=True).start()
""",
    "daemon thread that fetches": """
import threading
threading.Thread(target=lambda: [model(data).sum().item() for _ in range(10**6)], daemon=True).start()
""",
    "exception was caught": "try:\n    torch.mm(data, data)\nexcept RuntimeError as error:\n    kept = error",
    "generator suspended": "def steps():\n    while True: yield model(data)\ng = steps(); next(g)",
    "shutdown by hand": "print(loss.item()); gt.shutdown()",
    "__del__ touches a tensor": """
class Holder:
    def __init__(self): self.tensor = model(data)
    def __del__(self): self.tensor = None
holder = Holder()
""",
    "checkpointed": """
from torch.utils.checkpoint import checkpoint
checkpoint(model, data, use_reentrant=False).sum().backward()
""",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    gt("up", "--workers", "2", "--device", "cpu", "--name", NAME, "--detach")
    yield NAME
    gt("down", "--name", NAME)


@pytest.mark.timeout(120 + 15 * COUNT)
def test_all_end_with_status_0(cluster: str) -> None:
    endings = list(ENDINGS.items())
    core = min(os.sched_getaffinity(0))

    def run(index: int) -> tuple[int, str, int, str]:
        name, ending = endings[index % len(endings)]
        process = start(TRAIN + ending, str(index), core=core, GT_CLUSTER=cluster)
        status, _, err = finish(process)
        return index, name, status, err[-800:]

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        failed = [each for each in pool.map(run, range(COUNT)) if each[2] != 0]
    assert not failed, f"{len(failed)} of {COUNT} failed; the first: {failed[0]}"


def test_the_cluster_outlives_its_clients(cluster: str) -> None:
    assert gt_json("status", "--name", cluster)["ready"] == 2
