"""The picture without a screen: one table on standard output, or one JSON object. No Textual widgets are made here."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

from gt_top.clock import Clock
from gt_top.cluster import Cluster, ClusterView, Look, Sum, Unlinked
from gt_top.feed import Feed
from gt_top.widgets.columns import Column, RowT, layout
from gt_top.widgets.glyphs import Glyphs, bar, fit
from gt_top.widgets.header import header
from gt_top.widgets.spans import Bar, Line, width_of
from gt_top.widgets.tables import session_columns, worker_columns

WAIT_SECONDS = 5.0  # for the first frame


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
                    raise NoPicture(f"the cluster {name or 'at that address'}: {item.reason}; see whether it runs: gt status")
                model.fold(item, now)
            view = model.view(now)
            if view.age is not None:
                return view
        raise NoPicture(f"the cluster {name}: its feed ended before a frame came")

    try:
        return await asyncio.wait_for(follow(), seconds)
    except TimeoutError:
        raise NoPicture(f"the cluster {name}: no frame came within {seconds:g} s; see `gt status` and `gt logs`") from None


def table(view: ClusterView, width: int, glyphs: Glyphs) -> str:
    """Header, workers and sessions as text, ``width`` cells wide, without colour."""
    lines = [_text([*line], glyphs).rstrip() for line in header(view, width, glyphs)]
    lines += ["", *_rows(worker_columns(), view.workers, width, glyphs)]
    if view.sessions:
        lines += ["", *_rows(session_columns(), view.sessions, width, glyphs)]
    return "\n".join(lines)


def _rows(columns: Any, rows: Any, width: int, glyphs: Glyphs) -> list[str]:
    wanted = {c.key: max((width_of(c.cell(r, c.most, glyphs)) for r in rows), default=0) for c in columns if c.text and not c.graph}
    placed = layout(columns, width - 2, wanted).placed
    lines = [" " + "  ".join(fit(glyphs, p.column.title, p.width, p.column.right) for p in placed).rstrip()]
    for row in rows:
        lines.append(" " + "  ".join(_cell(p.column, row, p.width, glyphs) for p in placed).rstrip())
    return lines


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
                **{n: _sum(getattr(t, n)) for n in ("utilisation", "memory_used", "memory_total", "queue", "values", "value_bytes", "net_rate")},
            },
            "workers": [{**dataclasses.asdict(w.record), "look": w.look.name.lower(), "age": w.age} for w in view.workers],
            "sessions": [{**dataclasses.asdict(s.record), "look": s.look.name.lower(), "duration": s.duration} for s in view.sessions],
            "events": [dataclasses.asdict(e) for e in view.events],
        },
        ensure_ascii=False,
        indent=1,
    )


def _sum(total: Sum) -> dict[str, Any]:
    return {"value": total.value, "known": total.known, "of": total.of}
