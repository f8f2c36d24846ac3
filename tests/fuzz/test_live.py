"""A short siege of a real cluster; `make fuzz` makes it long."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fuzz.live import Siege
from tests.system.clusters import gt

MESSAGES = int(os.environ.get("GT_FUZZ_LIVE", "2000"))


@pytest.fixture
def cluster() -> Iterator[str]:
    gt("up", "--name", "siege", "--workers", "2", "--device", "cpu", "--detach")
    yield "siege"
    gt("down", "--name", "siege")


@pytest.mark.slow
def test_a_siege(cluster: str) -> None:
    siege = Siege(cluster, seed=1)
    try:
        siege.attack(MESSAGES)
        siege.end()
    finally:
        siege.close()
