"""Small programs run as a user runs them: a Python of their own, this source tree on its path. Not a test itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

from tests.system.clusters import environment

PROGRAM_SECONDS = 120.0  # importing torch and starting a cluster on a machine that does other things too
SIGNALS = {2: "SIGINT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def start(text: str, *arguments: str, core: int | None = None, **more: Any) -> subprocess.Popen[str]:
    """The program ``text`` as a process in a session of its own; ``core`` pins it (and what it starts) to one core."""
    pin = None if core is None else (lambda: os.sched_setaffinity(0, {core}))
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        cwd="/",
        preexec_fn=pin,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = PROGRAM_SECONDS) -> tuple[int, str, str]:
    """Exit status, stdout and stderr; a program that hangs is killed and fails the test with what it said."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {seconds:g} s\n{out}\n{err[-3000:]}") from None
    return process.returncode, out, err


def run(text: str, *arguments: str, status: int = 0, core: int | None = None, **more: Any) -> str:
    """Run ``text`` to its end, check its exit status, and give back its stdout."""
    code, out, err = finish(start(text, *arguments, core=core, **more))
    shown = SIGNALS.get(-code, str(code))
    assert code == status, f"ended with {shown}, expected {status}\n{out}\n{err[-3000:]}"
    return out


def facts(text: str, *arguments: str, **more: Any) -> Any:
    """What the program prints last, as JSON."""
    return json.loads(run(text, *arguments, **more).strip().splitlines()[-1])
