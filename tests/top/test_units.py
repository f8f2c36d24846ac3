"""Numbers for people: bounded width, never an exception, never a 0 that isn't one."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_top import units

anything = st.one_of(st.none(), st.booleans(), st.text(), st.integers(), st.floats(), st.lists(st.integers()))
amounts = st.one_of(st.integers(min_value=0, max_value=1 << 70), st.floats(min_value=0, max_value=1e21))


@given(anything)
def test_nothing_raises_and_unknown_is_never_zero(value: object) -> None:
    for write in (units.size, units.count, units.percent, units.age):
        text = write(value)
        if units.number(value) is None:
            assert text == units.UNKNOWN
        else:
            assert text != units.UNKNOWN


@given(anything, anything)
def test_a_pair_says_which_part_is_unknown(used: object, total: object) -> None:
    text = units.pair(used, total)
    assert len(text) <= units.PAIR_WIDTH
    if units.number(used) is None and units.number(total) is None:
        assert text == units.UNKNOWN
    else:
        left, _, right = text.partition("/")
        assert (left == units.UNKNOWN) == (units.number(used) is None)
        assert (right == units.UNKNOWN) == (units.number(total) is None)


@given(amounts)
def test_widths_hold(value: float) -> None:
    assert len(units.size(value)) <= units.BYTES_WIDTH
    assert len(units.count(value)) <= units.COUNT_WIDTH
    assert len(units.age(value)) <= units.AGE_WIDTH
    assert len(units.age(value, whole_seconds=True)) <= units.AGE_WIDTH
    assert len(units.percent(value)) <= units.PERCENT_WIDTH


@given(st.integers(min_value=1, max_value=1 << 60))
def test_a_size_reads_back_within_its_digits(value: int) -> None:
    number, unit = units.size(value).split()
    back = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert back == pytest.approx(value, rel=0.06)


@given(st.floats(min_value=0.06, max_value=1e17))
def test_a_count_reads_back_within_its_digits(value: float) -> None:
    text = units.count(value)
    power = "kMGTPE".find(text[-1]) + 1
    assert float(text[:-1] if power else text) * 1000**power == pytest.approx(value, rel=0.06, abs=0.06)


@given(st.floats(min_value=1e-12, max_value=1e6))
def test_what_is_not_zero_is_not_written_as_zero(value: float) -> None:
    assert units.count(value) not in ("0", "0.0")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (units.size(0), "0 B"),
        (units.size(1023), "1023 B"),
        (units.size(1024), "1.0 KiB"),
        (units.size(61.2 * 2**30), "61.2 GiB"),
        (units.size(1023.9 * 2**30), "1.0 TiB"),
        (units.size(-5), "0 B"),
        (units.pair(61.2 * 2**30, 139 * 2**30), "61.2/139 GiB"),
        (units.pair(None, 139 * 2**30), "-/139 GiB"),
        (units.pair(2**30, None), "1.0 GiB/-"),
        (units.count(0), "0"),
        (units.count(140), "140"),
        (units.count(999.6), "1.0k"),
        (units.count(42_100), "42.1k"),
        (units.count(6_100_000), "6.1M"),
        (units.count(0.01), "<0.1"),
        (units.count(True), "-"),
        (units.percent(0.824), "82%"),
        (units.percent(7), "100%"),
        (units.percent(math.nan), "-"),
        (units.age(0.44), "0.4s"),
        (units.age(0.44, whole_seconds=True), "0s"),
        (units.age(12), "12s"),
        (units.age(59.9), "1m00s"),
        (units.age(185), "3m05s"),
        (units.age(8040), "2h14m"),
        (units.age(3 * 86400 + 4 * 3600), "3d04h"),
        (units.age(math.inf), "-"),
    ],
)  # fmt: skip
def test_examples(written: str, text: str) -> None:
    assert written == text


@given(st.text())
def test_plain_text_cannot_steer_a_terminal(text: str) -> None:
    plain = units.plain(text)
    assert not [c for c in plain if unicodedata.category(c)[0] == "C" or c in "\n\r\u2028\u2029"]
    assert len(plain) == min(len(text), 256)


def test_plain_replaces_escape_sequences_and_direction_marks() -> None:
    assert units.plain("a\x1b[2Jb") == "a�[2Jb"
    assert units.plain("x\u202ey") == "x�y"
    assert units.plain("näme") == "näme"
    assert units.plain(7) == ""
