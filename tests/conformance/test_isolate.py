"""A crash, a hang or a sick process costs one item, says what happened, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.isolate import Child, run_all


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(["ok"], item_seconds=20.0, module="tests.conformance.faulty")
    yield made
    made.stop()


def test_one_process_serves_many_items(child: Child) -> None:
    assert child.ask("a")["pid"] == child.ask("b")["pid"]


def test_a_crash_costs_one_item_and_tells_its_last_words(child: Child) -> None:
    before = child.ask("a")["pid"]
    crashed = child.ask("abort")
    assert crashed["outcome"] == "crashed"
    assert "status -6" in crashed["details"][0]
    assert "about to abort" in crashed["details"][0]
    assert child.ask("b")["pid"] != before


def test_a_hang_costs_one_item(child: Child) -> None:
    before = child.ask("a")["pid"]
    child.item_seconds = 0.3
    hung = child.ask("hang")
    assert hung["outcome"] == "crashed" and "no answer in" in hung["details"][0]
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    child.item_seconds = 20.0
    assert child.ask("b")["outcome"] == "right"


def test_a_sick_process_is_replaced(child: Child) -> None:
    sick = child.ask("sick")["pid"]
    assert child.ask("a")["pid"] != sick


def test_a_child_that_never_starts_is_a_crash_with_its_words() -> None:
    answer = Child(["never"], module="tests.conformance.faulty").ask("a")
    assert answer["outcome"] == "crashed"
    assert "status 3" in answer["details"][0] and "can't start like this" in answer["details"][0]


def test_all_items_are_asked_once_whatever_happens() -> None:
    seen: list[dict[str, Any]] = []
    items = ["a", "abort", "b", "c", "abort2", "d"]
    run_all(items, lambda: Child(["ok"], module="tests.conformance.faulty"), 2, seen.append)
    assert sorted(answer["key"] for answer in seen) == sorted(items)
    assert {answer["key"] for answer in seen if answer["outcome"] == "crashed"} == {"abort"}
