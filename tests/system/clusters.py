"""What system tests of whole clusters share: running ``gt``, and seeing what runs. Not a test itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0  # workers import torch, on a machine that does other things too
GONE_SECONDS = 5.0  # how long anything of a dead cluster may be left


def environment(**more: str) -> dict[str, str]:
    """A child's: it finds the packages of this source tree, and this test session's runtime directory."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gt_runtime", *arguments]


def gt(*arguments: str, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``gt`` to its end, in an environment with ``more``, and check its exit status."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=START_SECONDS, env=environment(**more), cwd="/"
    )
    assert done.returncode == status, f"gt {arguments} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def gt_json(*arguments: str) -> Any:
    return json.loads(gt(*arguments, "--json").stdout)


def processes(name: str) -> dict[int, str]:
    """Dispatcher and workers of a cluster that run, by pid: whoever has its run directory in the command line."""
    mark = f"/run/{name}"
    found = {}
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if process.info["status"] != psutil.STATUS_ZOMBIE and (f"{mark}/" in line or f"{mark} " in line):
            found[process.info["pid"]] = line
    return found


def until(condition: Callable[[], object], seconds: float, what: Callable[[], object] = lambda: "") -> None:
    """Wait until ``condition()`` holds; at the deadline the test fails with ``what()``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what()}"
        time.sleep(0.02)
