"""Short folders (a socket's path has little room), and a world that is the same everywhere: UTC, no colour settings of
the user's.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gt_runtime.launch.connection import RuntimeDirectory


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No GT_*, no NO_COLOR; TZ=UTC."""
    for name in ("GT_ADDRESS", "GT_CLUSTER", "GT_RUNTIME_DIR", "GT_TOP_THEME", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path."""
    path = Path(tempfile.mkdtemp(prefix="gtt", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RuntimeDirectory:
    """A runtime directory of the test's own, found through the environment."""
    monkeypatch.setenv("GT_RUNTIME_DIR", str(folder / "rt"))
    return RuntimeDirectory.open(folder / "rt")
