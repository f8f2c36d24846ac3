"""The codes of the words are the same in Python and in C++, and orders are read as they are written."""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.protocol import words
from gt_runtime.protocol.words import NumericFlag, Order, TemplateFlag, order

HEADER = Path(words.__file__).with_suffix(".hpp").read_text()


@pytest.mark.parametrize("codes", [Order, NumericFlag, TemplateFlag])
def test_equal_in_both_languages(codes: type[IntEnum] | type[IntFlag]) -> None:
    body = re.search(rf"enum {codes.__name__} : int64_t \{{(.*?)\}};", HEADER, re.DOTALL)
    assert body is not None
    found = {}
    for name, value in re.findall(r"(\w+) = ([\d\s<]+)", body.group(1)):
        left, _, shift = value.partition("<<")
        found[name] = int(left) << int(shift or 0)
    assert found == {code.name: int(code) for code in codes}


def test_the_formulas_are_the_same() -> None:
    assert "return ~(static_cast<int64_t>(code) | count << 8);" in HEADER
    assert "return tmpl | site << 32;" in HEADER


@given(st.sampled_from(Order), st.integers(0, 1 << 40))
def test_orders_read_back(code: Order, count: int) -> None:
    word = order(code, count)
    assert word < 0 and (~word & 0xFF, ~word >> 8) == (code, count)
