"""A sample of PyTorch's operator database on ``mux``, drawn by hash; ``make conformance`` runs all of it.

``known.json`` names the entries that aren't right yet, each with its cause. ``GT_CONFORMANCE_DEVICE=cpu`` compares the
CPU with itself, ``GT_CONFORMANCE_PERCENT`` changes the size of the sample.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

from tests.conformance.isolate import Child, run_all
from tests.conformance.run import drawn, operator_keys

DEVICE = os.environ.get("GT_CONFORMANCE_DEVICE", "mux")
PERCENT = float(os.environ.get("GT_CONFORMANCE_PERCENT", "8"))  # about 55 of 677 entries
SAMPLES = 4  # of each entry
KNOWN: dict[str, str] = json.loads(Path(__file__).with_name("known.json").read_text())["operators"]


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, dict[str, object]]]:
    keys = [key for key in operator_keys("float32") if drawn(key, PERCENT)]
    options = json.dumps({"dtype": "float32", "samples": SAMPLES})
    found: dict[str, dict[str, object]] = {}
    run_all(keys, lambda: Child(["opinfo", DEVICE, options]), 1, lambda answer: found.update({answer["key"]: answer}))
    assert set(found) == set(keys)
    yield found


@pytest.mark.timeout(600)
def test_the_sample_is_right(answers: dict[str, dict[str, object]]) -> None:
    known = {} if DEVICE == "cpu" else KNOWN
    unexpected = {
        key: answer["details"]
        for key, answer in answers.items()
        if answer["outcome"] not in ("right", "skipped") and key not in known
    }
    assert not unexpected, json.dumps(unexpected, indent=1)


def test_the_sample_is_large_enough_to_say_something(answers: dict[str, dict[str, object]]) -> None:
    judged = [answer for answer in answers.values() if answer["outcome"] != "skipped"]
    assert len(judged) >= PERCENT / 100 * 677 / 2
    assert sum(int(str(answer.get("samples", 0))) for answer in judged) > 2 * len(judged)


def test_known_entries_exist() -> None:
    assert set(KNOWN) <= set(operator_keys("float32"))
