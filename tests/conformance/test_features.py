"""Every feature row on ``mux``, each row a test. ``known.json`` names those that don't hold yet, each with its cause.

``GT_CONFORMANCE_DEVICE=cpu`` compares the CPU with itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.features import ROWS
from tests.conformance.isolate import Child

DEVICE = os.environ.get("GT_CONFORMANCE_DEVICE", "mux")
KNOWN: dict[str, str] = json.loads(Path(__file__).with_name("known.json").read_text())["features"]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child(["features", DEVICE, "{}"])
    yield made
    made.stop()


@pytest.mark.parametrize("key", ROWS)
def test_row(key: str, child: Child) -> None:
    answer = child.ask(key)
    if answer["outcome"] == "skipped":
        pytest.skip(answer["details"][0])
    if key in KNOWN and DEVICE != "cpu":
        assert answer["outcome"] != "right", f"{key} holds now: take it out of known.json"
        pytest.xfail(KNOWN[key])
    assert answer["outcome"] == "right", "\n".join(answer["details"])


def test_known_rows_exist() -> None:
    assert set(KNOWN) <= set(ROWS)
