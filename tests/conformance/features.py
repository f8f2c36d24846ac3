"""The feature table, and one row's run on two devices.

``ROWS`` maps ``group/name`` to a row; importing this module registers all of them. ``run`` needs GT only when the
device is
``mux``: ``--device cpu`` compares the CPU with itself and so proves the harness.
"""

from __future__ import annotations

import importlib
import random
import warnings

import numpy
import torch

from tests.conformance import compare
from tests.conformance.registry import NOTHING_RAISED, ROWS, Row, is_refusal
from tests.conformance.verdict import Outcome, Verdict, story

MODULES = (
    "factories", "moves", "text", "indexing", "views", "modules", "optimisers", "autograd", "transforms", "randomness",
    "saving", "amp", "devices", "wrong", "data", "refused", "interface",
)  # fmt: skip

for _name in MODULES:
    importlib.import_module(f"tests.conformance.rows.{_name}")

__all__ = ["ROWS", "Outcome", "Verdict", "run"]


def run(row: Row, device: str) -> Verdict:
    """Run ``row`` on the CPU and on ``device`` and compare. A row that must be refused is right when it was, by
    name.
    """
    if row.own:
        return _run_own(row, device)
    expected, expected_error = _attempt(row, "cpu")
    if expected_error is None and any(each.value == NOTHING_RAISED for each in expected if isinstance(each.value, str)):
        return Verdict(row.key, Outcome.CRASHED, ("the row expects an exception, and the CPU raises none",))
    if row.refused and device == "cpu":  # nothing to refuse: the CPU only proves that the program is a legal one
        broken = (story(expected_error),) if expected_error is not None else ()
        return Verdict(row.key, Outcome.CRASHED if broken else Outcome.RIGHT, broken)
    actual, actual_error = _attempt(row, device)
    if row.refused:
        return _judge_refusal(row, actual_error)
    if actual_error is not None and is_refusal(actual_error):
        return Verdict(row.key, Outcome.REFUSED, (str(actual_error),))
    if expected_error is not None:
        return Verdict(row.key, Outcome.CRASHED, (f"the row itself fails on the CPU: {story(expected_error)}",))
    if actual_error is not None:
        return Verdict(row.key, Outcome.WRONG, (f"expected a result, found {story(actual_error)}",))
    found = compare.differences(expected, actual, rtol=row.rtol, atol=row.atol)
    return Verdict(row.key, Outcome.WRONG if found else Outcome.RIGHT, tuple(found))


def _attempt(row: Row, device: str) -> tuple[list[compare.Observation], BaseException | None]:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compare.observe(row.body(device), device), None
        except (Exception, KeyboardInterrupt) as error:
            return [], error


def _run_own(row: Row, device: str) -> Verdict:
    if device == "cpu":
        return Verdict(row.key, Outcome.SKIPPED, ("the CPU has no twin of this row",))
    try:
        facts = row.body(device)
    except Exception as error:
        if row.refused or is_refusal(error):
            return _judge_refusal(row, error) if row.refused else Verdict(row.key, Outcome.REFUSED, (str(error),))
        return Verdict(row.key, Outcome.WRONG, (story(error),))
    if row.refused:
        return _judge_refusal(row, None)
    false = tuple(f"{name}: expected True, found {value!r}" for name, value in facts.items() if value is not True)
    return Verdict(row.key, Outcome.WRONG if false or not facts else Outcome.RIGHT, false)


def _judge_refusal(row: Row, error: BaseException | None) -> Verdict:
    if error is None:
        return Verdict(row.key, Outcome.WRONG, ("must be refused with gt.NotSupported, found a result",))
    if not is_refusal(error):
        return Verdict(row.key, Outcome.WRONG, (f"must be refused with gt.NotSupported, found {story(error)}",))
    missing = [name for name in ("what", "why", "instead") if not getattr(error, name, None)]
    details = (f"gt.NotSupported says nothing in: {', '.join(missing)}",) if missing else ()
    return Verdict(row.key, Outcome.WRONG if missing else Outcome.RIGHT, details)
