"""Which columns and panels fit where: pure functions of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_top.cluster import Cluster
from gt_top.screens.workers import arrange
from gt_top.styles.roles import Role
from gt_top.widgets.columns import GAP, Column, layout
from gt_top.widgets.glyphs import ASCII, BLOCKS, Glyphs, bar, fit, spark
from gt_top.widgets.header import header
from gt_top.widgets.spans import pack, width_of
from gt_top.widgets.tables import device_label, session_columns, worker_columns
from tests.top.fakes import story

TABLES: list[Sequence[Column[Any]]] = [worker_columns(), session_columns()]
wanted = st.dictionaries(st.sampled_from(["worker", "host", "device", "state", "program"]), st.integers(0, 40))


@given(st.sampled_from([0, 1]), st.integers(0, 400), wanted)
def test_columns_fit(table: int, width: int, wanted: dict[str, int]) -> None:
    columns = TABLES[table]
    found = layout(columns, width, wanted)
    used = sum(p.width for p in found.placed) + GAP * (len(found.placed) - 1)
    always = [c for c in columns if c.rank == 0]
    assert used <= max(width, sum(c.width for c in always) + GAP * len(always))
    assert found.hidden == len(columns) - len(found.placed)
    assert [p.column for p in found.placed] == [c for c in columns if any(p.column is c for p in found.placed)]
    for p in found.placed:
        assert p.column.width <= p.width <= max(p.column.most, p.column.width)


@given(st.sampled_from([0, 1]), st.integers(0, 300), st.integers(0, 100), wanted)
def test_a_wider_terminal_never_shows_less(table: int, width: int, more: int, wanted: dict[str, int]) -> None:
    columns = TABLES[table]
    small = {p.column.key for p in layout(columns, width, wanted).placed}
    large = {p.column.key for p in layout(columns, width + more, wanted).placed}
    assert small <= large


def test_every_column_is_shown_where_there_is_room_and_explains_itself() -> None:
    for columns in TABLES:
        assert layout(columns, 400).hidden == 0
        assert len({c.key for c in columns}) == len(columns)
        assert all(c.help and len(c.title) <= c.width for c in columns)


@given(st.integers(0, 200), st.integers(0, 600), st.integers(0, 50))
def test_panels_fit_and_workers_come_first(height: int, workers: int, sessions: int) -> None:
    h = arrange(height, workers, sessions)
    parts = (h.header, h.workers, h.sessions, h.events, h.footer)
    assert all(p >= 0 for p in parts)
    assert sum(parts) == height
    if height >= 5:
        assert h.workers >= 2 and h.footer == 1
    if h.sessions or h.events:
        assert h.workers >= 3


@given(st.floats(0, 1) | st.none(), st.integers(0, 50), st.sampled_from([BLOCKS, ASCII]))
def test_bars_have_their_width_and_never_lie_about_nothing_and_all(
    share: float | None, cells: int, glyphs: Glyphs
) -> None:
    full, empty = bar(glyphs, share, cells)
    assert len(full + empty) == cells
    if cells and share is not None:
        assert bool(full) == (share > 0)
        assert (full == glyphs.full * cells) == (share == 1)
    if share is None:
        assert not (full + empty).strip()


@given(st.lists(st.none() | st.floats(0, 2), max_size=30), st.floats(0, 2), st.sampled_from([BLOCKS, ASCII]))
def test_sparklines_keep_unknown_apart_from_zero(figures: list[float | None], top: float, glyphs: Glyphs) -> None:
    drawn = spark(glyphs, figures, top)
    assert [c == " " for c in drawn] == [f is None for f in figures]
    assert all(d == glyphs.levels[0] for d, f in zip(drawn, figures, strict=True) if f == 0)


@given(st.text(alphabet="ab山田é ", max_size=20), st.integers(0, 20), st.booleans())
def test_text_is_fitted_to_the_cell(text: str, cells: int, right: bool) -> None:
    assert width_of([(fit(BLOCKS, text, cells, right), Role.TEXT)]) == cells


@given(st.lists(st.tuples(st.integers(0, 5), st.text(alphabet="abc 山", max_size=9)), max_size=8), st.integers(0, 60))
def test_packing_keeps_what_matters_most(parts: list[tuple[int, str]], width: int) -> None:
    line = pack([(rank, [(text, Role.TEXT)]) for rank, text in parts], width)
    most = min((p for p in parts if p[1]), key=lambda p: p[0], default=None)
    if most is not None:
        assert most[1] in [s[0] for s in line if isinstance(s, tuple)]
    if len([s for s in line if isinstance(s, tuple) and s[0].strip()]) > 1:
        assert width_of(line) <= width


@pytest.mark.parametrize("width", [0, 1, 20, 40, 80, 120, 200, 300])
def test_the_header_fits(width: int) -> None:
    model = Cluster("lab-a")
    for item in story():
        model.fold(item, 1.0)
    lines = header(model.view(1.0), width, BLOCKS)
    assert len(lines) == 2
    for line in lines:
        if width >= 60:
            assert width_of(line) <= width


@pytest.mark.parametrize(
    ("device", "name", "label"),
    [
        ("cuda:3", "NVIDIA H200", "H200 #3"),
        ("cuda:3", None, "cuda #3"),
        ("cpu", "AMD EPYC 9B14", "cpu"),
        ("MIG-3f2a", "NVIDIA H200 MIG 1g.18gb", "MIG-3f2a"),
        (None, "x", None),
    ],
)
def test_devices_have_short_names(device: str | None, name: str | None, label: str | None) -> None:
    assert device_label(device, name) == label
