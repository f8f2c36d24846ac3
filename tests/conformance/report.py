"""Results on disk and as a page: JSON lines while a run goes on, ``docs/conformance.md`` when it is done."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]

OUTCOMES = ("right", "wrong", "refused", "skipped", "crashed")
CAUSE_CHARACTERS = 110


def load(path: Path) -> dict[str, Answer]:
    """Answers of an earlier, perhaps interrupted run; a torn last line is dropped."""
    found: dict[str, Answer] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                answer = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[answer["key"]] = answer
    return found


def tally(answers: Iterable[Answer]) -> Counter[str]:
    """How many ended in which way."""
    return Counter(answer["outcome"] for answer in answers)


def share_right(answers: Iterable[Answer]) -> float:
    """Right ones among those that the CPU itself can run: skipped ones say nothing."""
    counts = tally(answers)
    judged = sum(counts.values()) - counts["skipped"]
    return counts["right"] / judged if judged else 0.0


def cause(answer: Answer) -> str:
    """The first detail without its numbers and names of samples, so that entries with one cause fall together."""
    detail = answer["details"][0] if answer.get("details") else "no detail"
    detail = re.sub(r"^sample \d+ \(.*?\): ", "", detail)
    detail = re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[+-]?\d+)?", "#", detail)
    return detail[:CAUSE_CHARACTERS]


def causes(answers: Iterable[Answer]) -> list[tuple[str, list[str]]]:
    """``(cause, entries)`` of what isn't right, the most frequent cause first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for answer in answers:
        if answer["outcome"] in ("wrong", "crashed", "refused"):
            groups[f"{answer['outcome']}: {cause(answer)}"].append(answer["key"])
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def summary(name: str, answers: list[Answer]) -> str:
    """One line for a terminal."""
    counts = tally(answers)
    parts = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f"{name}: {len(answers)} entries: {parts}; {share_right(answers):.1%} of those that the CPU runs"


def page(sections: dict[str, list[Answer]], device: str) -> str:
    """``docs/conformance.md``. ``sections``: title -> answers."""
    import torch

    lines = [
        "# Conformance",
        "",
        "PyTorch is the specification: the same code runs on the CPU and on `mux`, and this page says where the"
        " results differ.",
        f"Made by `make conformance` with torch {torch.__version__}, "
        f"Python {platform.python_version()}, device `{device}`, two workers; don't edit it.",
        "",
        "| | entries | right | wrong | refused | skipped | crashed | right of those that the CPU runs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, answers in sections.items():
        counts = tally(answers)
        cells = " | ".join(str(counts[outcome]) for outcome in OUTCOMES)
        lines.append(f"| {title} | {len(answers)} | {cells} | {share_right(answers):.1%} |")
    lines += [
        "",
        "*Right*: values, dtype, shape and everything else that a program can see agree, and the tape shows"
        " that workers ran it.",
        "*Refused*: `gt.NotSupported` says what, why and what to do instead. *Skipped*: the CPU itself has no result.",
        "*Crashed*: the process died or gave no answer in time.",
    ]
    for title, answers in sections.items():
        lines += ["", f"## {title}", "", *_notes(answers), *_exceptions(answers)]
    return "\n".join(lines) + "\n"


def _notes(answers: list[Answer]) -> list[str]:
    """What the table can't say: samples, layouts, names."""
    samples = sum(answer.get("samples", 0) for answer in answers)
    if not samples:
        return []
    strides = sorted(answer["key"] for answer in answers if answer.get("strides"))
    free = sum(answer.get("free", 0) for answer in answers)
    random = sum(answer.get("random", 0) for answer in answers)
    renamed = sum(bool(answer.get("renamed")) for answer in answers)
    lines = [
        f"{samples} samples; {random} of them random (held to metas and to one seed giving one result), {free} need no",
        f"instruction on the CPU either; {renamed} entries run under other operators' names than on the CPU.",
        "",
    ]
    if strides:
        lines += [f"Right, but laid out in another way than on the CPU: {', '.join(strides)}.", ""]
    return lines


def _exceptions(answers: list[Answer]) -> list[str]:
    groups = causes(answers)
    if not groups:
        return ["No exceptions."]
    lines = ["| what happened | entries |", "| --- | --- |"]
    for text, keys in groups:
        lines.append(f"| {_cell(text)} | {len(keys)}: {_cell(', '.join(sorted(keys)))} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
