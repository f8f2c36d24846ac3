"""A few thousand hostile messages to the dispatcher's core; what `make fuzz` does for long."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gt_runtime.dispatcher import templates
from gt_runtime.protocol import codec
from tests.fuzz import planted
from tests.fuzz.world import Attack

MESSAGES = 40  # of one attack
BUDGET = 300  # attacks within which a planted fault must be found
ENCODING = {"encode", "pack", "_shape"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 40), turn=st.sampled_from((None, 0, 100)), workers=st.integers(1, 3))
def test_hostile_messages_cost_nobody_else_anything(seed: int, turn: int | None, workers: int) -> None:
    Attack(seed, turn, workers).run(MESSAGES)


@pytest.mark.parametrize("plant", planted.ALL, ids=lambda f: f.__name__)
def test_a_planted_fault_is_found(plant: planted.Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(BUDGET):
        try:
            Attack(seed, (None, 0)[seed % 2], 2).run(MESSAGES)
        except Exception:
            return
    pytest.fail(f"{plant.__name__} lived through {BUDGET} attacks")


def lines_of(code: CodeType) -> set[int]:
    """The lines of a function that can run, those of functions in it included."""
    found = {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= lines_of(constant)
    return found


def decoder() -> dict[str, set[int]]:
    """Lines of what reads bytes from a socket, by file."""
    found: dict[str, set[int]] = {}
    for module in (codec, templates):
        path = str(module.__file__)
        functions = [
            f
            for name, f in vars(module).items()
            if getattr(f, "__module__", "") == module.__name__ and name not in ENCODING
        ]
        functions += [f for c in functions if isinstance(c, type) for f in vars(c).values()]
        codes = [f.__code__ for f in functions if hasattr(f, "__code__") and f.__code__.co_filename == path]
        found[path] = set().union(*(lines_of(code) for code in codes))
    return found


def test_attacks_reach_nearly_all_of_the_decoder() -> None:
    wanted, seen = decoder(), dict[str, set[int]]()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in wanted:
            return None
        if event == "line":
            seen.setdefault(path, set()).add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for seed in range(40):
            Attack(seed, (None, 0)[seed % 2], 2).run(MESSAGES)
    finally:
        sys.settrace(before)
    missed = {path: sorted(lines - seen.get(path, set())) for path, lines in wanted.items()}
    total = sum(map(len, wanted.values()))
    assert sum(map(len, missed.values())) <= 0.05 * total, f"not reached: {missed}"
