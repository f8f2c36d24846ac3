"""Figures as a table for people and as a dated file to compare with: machine, load and versions beside every number."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure

RESULTS = Path(__file__).resolve().parent / "results"
VERSIONS = ("torch", "numpy", "pyzmq", "msgpack")


def machine() -> dict[str, Any]:
    """What ran it: processor, cores this process may use, memory in bytes, kernel."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def processor() -> str:
    """Its model as the kernel names it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """The repository's commit, with + where files were changed since; empty outside a repository."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=RESULTS.parent, capture_output=True, text=True, check=True, timeout=10,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""


def table(figures: list[Figure]) -> str:
    """One line a figure: mux, plain PyTorch, ratio of times, target, and whether it is met."""
    rows = [("", "mux", "plain", "", "time ratio", "target", "")]
    for figure in figures:
        sign = ">=" if figure.at_least else "<="
        target = "" if figure.target is None else f"{'ratio ' if figure.of == 'ratio' else ''}{sign} {figure.target:,g}"
        verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
        ratio = "" if figure.ratio is None else f"{figure.ratio:,.2f}"
        rows.append((figure.name, number(figure.mux), number(figure.eager), figure.unit, ratio, target, verdict))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    aligned = [
        (row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2)), row[3].ljust(widths[3]),
         row[4].rjust(widths[4]), *(row[i].ljust(widths[i]) for i in (5, 6)))
        for row in rows
    ]  # fmt: skip
    return "\n".join("  ".join(row).rstrip() for row in aligned)


def number(value: float | None) -> str:
    """Three significant digits, thousands grouped; "-" for unknown."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def save(figures: list[Figure], load_before: tuple[float, float, float], settings: dict[str, Any]) -> Path:
    """Write ``results/DATE-COMMIT.json``; returns its path."""
    now = time.gmtime()
    hash_ = commit()
    document = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
        "commit": hash_,
        "machine": machine(),
        "load": {"before": load_before, "after": os.getloadavg()},
        "versions": {name: metadata.version(name) for name in VERSIONS},
        "settings": settings,
        "figures": [{**dataclasses.asdict(f), "met": f.met} for f in figures],
    }
    RESULTS.mkdir(exist_ok=True)
    name = time.strftime("%Y-%m-%d-%H%M%S", now) + (f"-{hash_.removesuffix('+')}" if hash_ else "")
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
