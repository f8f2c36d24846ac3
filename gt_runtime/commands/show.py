"""``gt status``, ``gt workers``, ``gt sessions``: what the dispatcher says, for people or as JSON."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from gt_runtime.commands import text
from gt_runtime.commands.common import Exit, ask, print_json
from gt_runtime.launch.connection import Connection


def status(where: Connection, as_json: bool) -> int:
    """One cluster as a whole."""
    found: Mapping[str, Any] = ask(where, "status")
    if as_json:
        print_json(found)
        return Exit.OK
    embedded = ", embedded in a program" if found.get("embedded") else ""
    rows = [
        ("cluster", f"{text.word(found.get('cluster'))} ({text.word(found.get('state'))}{embedded})"),
        ("workers", f"{text.count(found.get('ready'))} of {text.count(found.get('workers'))} ready"),
        ("sessions", text.count(found.get("sessions"))),
        ("instructions", f"{text.count(found.get('instr_rate'))}/s, {text.count(found.get('instr_total'))} in all"),
        ("up for", text.seconds(found.get("uptime"))),
        ("epoch", text.count(found.get("epoch"))),
        ("versions", f"GT {text.word(found.get('version'))}, PyTorch {text.word(found.get('torch'))}"),
        ("dispatcher", f"process {text.word(found.get('pid'))} on {text.word(found.get('host'))}"),
        ("logs", text.word(found.get("log_dir"))),
        *((name, text.word(address)) for name, address in dict(found.get("endpoints") or {}).items()),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in rows))
    return Exit.OK


def workers(where: Connection, as_json: bool) -> int:
    """A line a worker."""
    found: list[Mapping[str, Any]] = _sorted(ask(where, "workers"))
    if as_json:
        print_json([_worker(row) for row in found])
        return Exit.OK
    header = ("WORKER", "STATE", "DEVICE", "HOST", "PID", "UTIL", "MEMORY", "QUEUE", "INSTR/S", "VALUES", "BEAT")
    right = frozenset({"PID", "UTIL", "MEMORY", "QUEUE", "INSTR/S", "VALUES", "BEAT"})
    rows = (
        (
            text.word(row.get("id")),
            text.word(row.get("state")),
            text.word(row.get("device")),
            text.word(row.get("host")),
            text.word(row.get("pid")),
            text.share(row.get("utilisation")),
            text.memory(row),
            text.count(row.get("queue")),
            text.count(row.get("instr_rate")),
            text.size(row.get("value_bytes")),
            text.seconds(row.get("heartbeat_age")),
        )
        for row in found
    )
    print(text.table(header, rows, right))
    return Exit.OK


def _sorted(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """By id, numbers as numbers: w2 before w10."""
    return sorted(rows, key=lambda row: [(len(part), part) for part in re.findall(r"\d+|\D+", str(row.get("id")))])


def _worker(row: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's record with its memory as one map too: ``{"used", "total"}`` in bytes."""
    return {**row, "memory": {"used": row.get("memory_used"), "total": row.get("memory_total")}}


def sessions(where: Connection, as_json: bool) -> int:
    """A line a session."""
    found: list[Mapping[str, Any]] = _sorted(ask(where, "sessions"))
    if as_json:
        print_json(found)
        return Exit.OK
    if not found:
        print("no sessions")
        return Exit.OK
    header = ("SESSION", "PROGRAM", "USER", "HOST", "PID", "STATE", "FOR", "INSTR/S", "INSTR", "VALUES", "WORKERS")
    right = frozenset({"PID", "FOR", "INSTR/S", "INSTR", "VALUES"})
    now = time.time()
    rows = (
        (
            text.word(row.get("id")),
            text.word(row.get("program")),
            text.word(row.get("user")),
            text.word(row.get("host")),
            text.word(row.get("pid")),
            text.word(row.get("state")),
            text.seconds(None if row.get("since") is None else now - row["since"]),
            text.count(row.get("instr_rate")),
            text.count(row.get("instr_total")),
            text.size(row.get("value_bytes")),
            text.word(row.get("workers")),
        )
        for row in found
    )
    print(text.table(header, rows, right))
    return Exit.OK


def kill_session(where: Connection, session: str, reason: str, as_json: bool) -> int:
    """End one session: its program's next call raises, its values are freed."""
    found = ask(where, "kill_session", session=session, reason=reason)
    if as_json:
        print_json(found)
    else:
        print(f"session {text.word(found.get('session'))} has been killed")
    return Exit.OK
