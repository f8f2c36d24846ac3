"""Values as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.commands import text


@pytest.mark.parametrize(
    ("said", "bytes_"),
    [("0", 0), ("4096", 4096), ("512M", 512 << 20), ("1.5GiB", 3 << 29), ("2 kb", 2048), ("7B", 7), ("1t", 1 << 40)],
)
def test_sizes(said: str, bytes_: int) -> None:
    assert text.parse_size(said) == bytes_


@pytest.mark.parametrize("said", ["", "G", "-1", "1X", "1.2.3", "1 Gib/s", "nan"])
def test_what_is_no_size(said: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        text.parse_size(said)


@given(st.integers(0, 1 << 60))
def test_a_size_read_back_is_about_the_same(value: int) -> None:
    assert text.parse_size(text.size(value)) == pytest.approx(value, rel=0.06, abs=1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.31, "0.3 s"), (42, "42 s"), (300, "5 min"), (11520, "3 h 12 min"), (187200, "2 d 4 h")],
)
def test_durations(value: float | None, shown: str) -> None:
    assert text.seconds(value) == shown


def test_unknown_is_a_dash_and_control_characters_are_not_obeyed() -> None:
    assert [f(None) for f in (text.size, text.count, text.share, text.word)] == ["-"] * 4
    assert text.word("") == text.word([]) == "-"
    assert text.word("a\x1b[2Jb\n") == "a?[2Jb?"
    assert text.memory({}) == "-"
    assert text.memory({"memory_used": 1 << 20}) == "1.0 MiB / -"


def test_tables_are_aligned() -> None:
    shown = text.table(("ID", "N"), [("w0", "7"), ("long", "1,000")], frozenset({"N"}))
    assert shown.splitlines() == ["ID        N", "w0        7", "long  1,000"]
