"""The examples train on `mux` as they do on the CPU, and it is workers that do the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 50
CLOSE = 1e-4
SECONDS = 150  # for one program; a deadline, not an expectation

# A program with its own embedded cluster of two workers; runs argv as a script and says what the tape says.
TAPE = """
import json, runpy, sys
import gt
del sys.argv[0]
with gt.debug.tape() as tape:
    runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps([[e.operator, e.worker, e.ran, e.site] for e in tape]))
"""

# The same where GT can't be imported.
ALONE = """
import runpy, sys
sys.modules["gt"] = sys.modules["gt_runtime"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*command: str) -> str:
    """Standard output of a Python command; an error shows what the program said."""
    environment = os.environ | {"GT_WORKERS": "2"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def train(example: str, device: str, folder: Path) -> dict[str, Any]:
    """What the example reports after STEPS steps."""
    report = folder / f"{example}-{device}.json"
    launcher = ("-m", "gt_runtime", "run") if (example, device) == ("digits", "mux") else ()  # it never says import gt
    script = f"examples/{example}.py"
    run(*launcher, script, "--device", device, "--steps", str(STEPS), "--quiet", "--json", str(report))
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("example", ["gpt", "digits"])
def test_losses_on_mux_are_those_of_the_cpu(example: str, tmp_path: Path) -> None:
    cpu, mux = (train(example, device, tmp_path)["losses"] for device in ("cpu", "mux"))
    assert len(cpu) == len(mux) == STEPS
    assert cpu[-1] < cpu[0] - 0.5, "the CPU itself learned nothing: the comparison would mean little"
    assert mux == pytest.approx(cpu, abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("gpt", {"aten::addmm", "aten::embedding_dense_backward", "aten::native_layer_norm_backward", "aten::gelu"}),
        ("digits", {"aten::convolution", "aten::convolution_backward", "aten::addmm", "aten::threshold_backward"}),
    ],
)
def test_the_tape_shows_workers_at_work(example: str, expected: set[str]) -> None:
    script = f"examples/{example}.py"
    out = run("-c", TAPE, script, "--device", "mux", "--steps", "3", "--every", "3", "--quiet")
    entries = json.loads(out.splitlines()[-1])
    idle = [operator for operator, worker, ran, _ in entries if not ran or worker not in ("w0", "w1")]
    assert not idle, f"{len(idle)} of {len(entries)} instructions ran on no worker: {sorted(set(idle))}"
    names = {operator.rsplit(".", 1)[0] for operator, *_ in entries}
    assert names >= expected, f"not on the tape: {sorted(expected - names)}; there are {sorted(names)}"
    assert any("adamw" in n or "_foreach_" in n for n in names), f"no optimiser on the tape: {sorted(names)}"
    assert any(site.split(":")[0].endswith(f"{example}.py") for *_, site in entries), "no instruction names the script"


@pytest.mark.parametrize("example", ["gpt", "digits"])
def test_on_the_cpu_gt_is_not_needed(example: str) -> None:
    assert "loss" in run("-c", ALONE, f"examples/{example}.py", "--steps", "2", "--every", "1")
