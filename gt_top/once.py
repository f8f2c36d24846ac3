"""The picture without a screen: one table on standard output, or one JSON object. No Textual widgets are made here."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from gt_top.clock import Clock
from gt_top.cluster import Cluster, ClusterView, Look, SessionView, Sum, Unlinked, WorkerView
from gt_top.feed import Feed
from gt_top.widgets.columns import Column, RowT, layout
from gt_top.widgets.glyphs import Glyphs, bar, fit
from gt_top.widgets.header import header
from gt_top.widgets.spans import Bar, Line, width_of
from gt_top.widgets.tables import session_columns, worker_columns

WAIT_SECONDS = 5.0  # for the first frame
_SUMS = ("utilisation", "memory_used", "memory_total", "queue", "values", "value_bytes", "net_rate")


class NoPicture(Exception):
    """No frame came in time; the text says what was waited for, what was found, what to do."""


async def look(feed: Feed, name: str, clock: Clock, seconds: float | None = None) -> ClusterView:
    """The cluster as its first frame shows it; waits ``seconds`` (default ``WAIT_SECONDS``) for it.

    Raises:
        NoPicture: none came within ``seconds``, or nobody answers there.
    """
    seconds = WAIT_SECONDS if seconds is None else seconds
    model = Cluster(name)

    async def follow() -> ClusterView:
        async for batch in feed.batches():
            now = clock.monotonic()
            for item in batch:
                if isinstance(item, Unlinked):
                    raise NoPicture(f"the cluster {name}: {item.reason}; see whether it runs: gt status")
                model.fold(item, now)
            view = model.view(now)
            if view.age is not None:
                return view
        raise NoPicture(f"the cluster {name}: its feed ended before a frame came")

    try:
        return await asyncio.wait_for(follow(), seconds)
    except TimeoutError:
        found = f"no frame came within {seconds:g} s"
        raise NoPicture(f"the cluster {name}: {found}; see `gt status` and `gt logs`") from None


def table(view: ClusterView, width: int, glyphs: Glyphs) -> str:
    """Header, workers and sessions as text, ``width`` cells wide, without colour."""
    lines = [_text([*line], glyphs).rstrip() for line in header(view, width, glyphs)]
    lines += ["", *_rows(worker_columns(), view.workers, width, glyphs)]
    if view.sessions:
        lines += ["", *_rows(session_columns(), view.sessions, width, glyphs)]
    return "\n".join(lines)


def _rows(columns: Sequence[Column[RowT]], rows: Sequence[RowT], width: int, glyphs: Glyphs) -> list[str]:
    columns = [c for c in columns if c.key != "history"]  # one look has none
    wanted = {
        c.key: max((width_of(c.cell(row, c.most, glyphs)) for row in rows), default=0)
        for c in columns
        if c.text is not None and not c.graph
    }
    placed = layout(columns, width - 2, wanted).placed
    titles = [fit(glyphs, p.column.title, p.width, p.column.right and not p.graph) for p in placed]
    lines = [titles, *([_cell(p.column, row, p.width, glyphs) for p in placed] for row in rows)]
    return ["  " + "  ".join(line).rstrip() for line in lines]


def _cell(column: Column[RowT], row: RowT, width: int, glyphs: Glyphs) -> str:
    return fit(glyphs, _text(column.cell(row, width, glyphs), glyphs), width, column.right)


def _text(cell: Line, glyphs: Glyphs) -> str:
    return "".join("".join(bar(glyphs, s.share, s.cells)) if isinstance(s, Bar) else s[0] for s in cell)


def as_json(view: ClusterView) -> str:
    """One object: figures in base units (shares 0 to 1, bytes, seconds, a second), unknown as null."""
    t = view.totals
    return json.dumps(
        {
            "cluster": view.name,
            "address": view.address,
            "look": Look(view.look).name.lower(),
            "age": view.age,
            "epoch": view.epoch,
            "revision": view.revision,
            "uptime": view.uptime,
            "seq": view.seq,
            "totals": {
                "workers": t.workers,
                "states": dict(t.states),
                "sessions": t.sessions,
                "instr_rate": t.instr_rate,
                "instr_total": t.instr_total,
                **{name: _sum(getattr(t, name)) for name in _SUMS},
            },
            "workers": [{**_row(w), "age": w.age} for w in view.workers],
            "sessions": [{**_row(s), "duration": s.duration} for s in view.sessions],
            "events": [dataclasses.asdict(e) for e in view.events],
        },
        ensure_ascii=False,
        indent=1,
    )


def _row(view: WorkerView | SessionView) -> dict[str, Any]:
    return {**dataclasses.asdict(view.record), "look": view.look.name.lower(), "gone": view.gone}


def _sum(total: Sum) -> dict[str, Any]:
    return {"value": total.value, "known": total.known, "of": total.of}
