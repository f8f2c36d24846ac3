"""What every test gets: a runtime directory of its own, so that no test sees or disturbs anybody's clusters."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

# Before any test module is imported: a program that looks for a cluster must not find the user's, here or in a child.
# Directly under /tmp: the path of a unix socket holds 107 bytes.
_RUNTIME_DIR = tempfile.mkdtemp(prefix="gt-test-", dir="/tmp")
os.environ["GT_RUNTIME_DIR"] = _RUNTIME_DIR
for _name in ("GT_ADDRESS", "GT_CLUSTER", "GT_WORKERS", "GT_CONFIG"):
    os.environ.pop(_name, None)
# Tests run beside workers and a dispatcher on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def runtime_dir() -> Iterator[str]:
    """The session's runtime directory (mode 0700); removed at the end."""
    yield _RUNTIME_DIR
    shutil.rmtree(_RUNTIME_DIR, ignore_errors=True)


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(condition, seconds=10, what="...")`` returns once ``condition()`` is true, fails at the deadline."""

    def wait(condition: Callable[[], object], seconds: float = 10.0, what: str = "") -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds:g} s: {what or getattr(condition, '__name__', 'condition')}")
            time.sleep(0.01)

    return wait
