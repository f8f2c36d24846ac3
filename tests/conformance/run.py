"""The runner: ``python -m tests.conformance [features|opinfo|all]``. Progress on stderr, a report in JSON, and the
page in docs.

Every entry runs in a child process with a cluster of its own; a crash or a hang costs that entry. ``--resume``
continues an interrupted run, ``--only`` takes entries by regular expression, ``--percent`` a sample drawn by hash.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conformance import report
from tests.conformance.isolate import ITEM_SECONDS, Answer, Child, run_all

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "conformance.md"
BUILD = ROOT / "build" / "conformance"
DEFAULT_JOBS = 2


def drawn(key: str, percent: float) -> bool:
    """Is ``key`` in the sample? By hash: the same entries on every machine, and a new entry doesn't change the
    others.
    """
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:4], "big") < percent / 100 * 2**32


def feature_keys() -> list[str]:
    """All rows of the feature table."""
    from tests.conformance import features

    return list(features.ROWS)


def operator_keys(dtype: str) -> list[str]:
    """All entries of the operator database that take ``dtype``."""
    from tests.conformance import opinfo

    return list(opinfo.entries(dtype))


class Progress:
    """One line that is rewritten on a terminal, a line every now and then elsewhere."""

    EVERY = 20.0  # seconds between lines where nothing can be rewritten

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._answers: list[Answer] = []
        self._began = self._said = time.monotonic()

    def __call__(self, answer: Answer) -> None:
        self._answers.append(answer)
        now = time.monotonic()
        live = sys.stderr.isatty()
        if not live and now - self._said < self.EVERY and len(self._answers) < self._total:
            return
        self._said = now
        counts = report.tally(self._answers)
        text = " ".join(f"{counts[outcome]} {outcome}" for outcome in report.OUTCOMES if counts[outcome])
        line = f"{self._name} {len(self._answers)}/{self._total}  {text}  {now - self._began:.0f} s  {answer['key']}"
        print(f"\r\x1b[K{line[:150]}" if live else line, end="" if live else "\n", file=sys.stderr, flush=True)
        if live and len(self._answers) == self._total:
            print(file=sys.stderr)


def run_section(
    name: str, keys: list[str], make_child: Callable[[], Child], jobs: int, log: Path, resume: bool
) -> list[Answer]:
    """Run ``keys``, appending each answer to ``log`` at once; the answers in the order of ``keys``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    answers = report.load(log) if resume else {}
    left = [key for key in keys if key not in answers]
    progress = Progress(name, len(left))
    with open(log, "a" if resume else "w") as file:

        def seen(answer: Answer) -> None:
            answers[answer["key"]] = answer
            file.write(json.dumps(answer) + "\n")
            file.flush()
            progress(answer)

        run_all(left, make_child, min(jobs, max(1, len(left))), seen)
    return [answers[key] for key in keys]


def main(arguments: list[str] | None = None) -> int:
    """0 when the share of right entries is at least ``--require`` percent in every section that ran, else 1."""
    options = _parse(arguments)
    sections: dict[str, list[Answer]] = {}
    if options.what in ("features", "all"):
        keys = _chosen(feature_keys(), options)
        made = lambda: Child(["features", options.device, "{}"], item_seconds=options.seconds)  # noqa: E731
        log = options.out / f"features-{options.device}.jsonl"
        sections["Features"] = run_section("features", keys, made, options.jobs, log, options.resume)
    if options.what in ("opinfo", "all"):
        keys = _chosen(operator_keys(options.dtype), options)
        chosen = json.dumps({"dtype": options.dtype, "samples": options.samples, "backward": options.backward})
        made = lambda: Child(["opinfo", options.device, chosen], item_seconds=options.seconds)  # noqa: E731
        suffix = "-backward" if options.backward else ""
        log = options.out / f"opinfo-{options.device}-{options.dtype}{suffix}.jsonl"
        title = f"Operators, {options.dtype}{', with backward' if options.backward else ''}"
        sections[title] = run_section("opinfo", keys, made, options.jobs, log, options.resume)
    return _finish(sections, options)


def _chosen(keys: list[str], options: argparse.Namespace) -> list[str]:
    pattern = re.compile(options.only)
    return [key for key in keys if pattern.search(key) and drawn(key, options.percent)]


def _finish(sections: dict[str, list[Answer]], options: argparse.Namespace) -> int:
    (options.out / f"report-{options.device}.json").write_text(json.dumps(sections, indent=1))
    enough = True
    for name, answers in sections.items():
        print(report.summary(name, answers))
        for text, keys in report.causes(answers)[: options.causes]:
            print(f"  {len(keys):4d}  {text}\n        {', '.join(keys[:6])}{', ...' if len(keys) > 6 else ''}")
        enough &= report.share_right(answers) * 100 >= options.require
    whole = options.what == "all" and options.only == "" and options.percent >= 100 and options.device != "cpu"
    if whole or options.write_page:
        PAGE.write_text(report.page(sections, options.device))
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 0 if enough else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("features", "opinfo", "all"), default="all")
    parser.add_argument("--device", default="mux", help="cpu compares the CPU with itself: it proves the harness")
    parser.add_argument(
        "--dtype", default="float32", help="of the operator samples: bfloat16, int64, bool, complex64, ..."
    )
    parser.add_argument("--backward", action="store_true", help="compare gradients too")
    parser.add_argument("--samples", type=int, default=12, help="of each entry at most; 0 takes all")
    parser.add_argument(
        "--jobs", type=int, default=DEFAULT_JOBS, help="child processes, each with a cluster of its own"
    )
    parser.add_argument("--seconds", type=float, default=ITEM_SECONDS, help="after which an entry counts as hanging")
    parser.add_argument("--only", default="", metavar="REGEX", help="entries whose name matches")
    parser.add_argument("--percent", type=float, default=100.0, help="a sample of that size, drawn by hash")
    parser.add_argument(
        "--resume", action="store_true", help="keep the answers of the last run, ask only what is missing"
    )
    parser.add_argument("--require", type=float, default=95.0, help="percent that must be right for exit status 0")
    parser.add_argument("--causes", type=int, default=25, help="how many causes to print")
    parser.add_argument("--out", type=Path, default=BUILD, help="where the JSON goes")
    parser.add_argument("--write-page", action="store_true", help="write docs/conformance.md from a partial run too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
