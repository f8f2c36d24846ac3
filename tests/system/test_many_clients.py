"""Ten programs fetch from one cluster at once, half of them over tcp: nobody ever sees another's value, nor an older
one of its own.

``make test`` does a few hundred fetches; ``GT_FETCHES=5000`` a hundred thousand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.system import programs
from tests.system.clusters import gt, gt_json

CLIENTS = 10
FETCHES = int(os.environ.get("GT_FETCHES", "20"))
SECONDS = 60.0 + FETCHES

# Values say whose they are and which. Sizes lie around each change of way: within the message (up to 64 KiB), through
# shared memory (over tcp: in chunks), over a chunk's 4 MiB. Views, strides and dtypes change.
PROGRAM = """
import json, random, sys, torch, gt
me, fetches = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(me)
sizes = [0, 1, 7, 16_384, 16_385, 40_000] * 6 + [300_000, 1_100_000]
wrong, kept = [], {}
for i in range(fetches):
    n, mark = rng.choice(sizes), me * 100_000 + i
    plain = torch.full((n,), float(mark), dtype=torch.float64)
    if rng.random() < 0.5:
        plain += torch.arange(n)
    x = plain.to("mux") if rng.random() < 0.5 else plain.sub(mark).to("mux") + mark
    if n and rng.random() < 0.4:
        x, plain = x[::2], plain[::2]
    if rng.random() < 0.2:
        x, plain = x.to(torch.int64), plain.to(torch.int64)
    if n and rng.random() < 0.2:
        x += 1
        plain = plain + 1
    if not torch.equal(x.cpu(), plain):
        wrong.append(i)
    kept[i % 5] = (x, plain)
    old = rng.choice(list(kept))
    if not torch.equal(kept[old][0].cpu(), kept[old][1]):
        wrong.append((i, old))
print(json.dumps({"wrong": wrong, "fetches": 2 * fetches}))
"""


@pytest.fixture
def cluster() -> Iterator[str]:
    gt("up", "--name", "many", "--workers", "2", "--device", "cpu", "--listen", "tcp://127.0.0.1", "--detach")
    yield "many"
    gt("down", "--name", "many")


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
def test_ten_clients_see_only_their_own(cluster: str) -> None:
    tcp = gt_json("status", "--name", cluster)["tcp"]["front"]
    ways = ({"GT_CLUSTER": cluster}, {"GT_ADDRESS": tcp})
    running = [programs.start(PROGRAM, str(k), str(FETCHES), **ways[k % 2]) for k in range(CLIENTS)]
    answers = [programs.finish(program, SECONDS) for program in running]
    for k, (status, out, err) in enumerate(answers):
        assert status == 0, f"client {k}: {err[-2000:]}"
        assert json.loads(out) == {"wrong": [], "fetches": 2 * FETCHES}, f"client {k}"
