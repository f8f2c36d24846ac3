"""What this program sent and what became of it, for people and tests."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from gt import session
from gt._native import _capture


@dataclass(frozen=True, slots=True)
class Entry:
    """One instruction on the tape."""

    operator: str  # "aten::mm.default"
    shapes: str  # of its inputs: "Float[4, 3] x Float[3, 2]"
    signal: str  # "" outside any context
    site: str  # "file.py:12", "" if unknown
    worker: str  # who ran it; "" if no worker says so
    ran: bool  # it ran without failing
    output: int  # id of its first output


class Tape:
    """The instructions issued inside ``with gt.debug.tape() as tape:``, and what the workers say of each. Complete
    after the block.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __enter__(self) -> Tape:
        session.current()
        _capture.tape_start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _capture.tape_stop()
        recorded = _capture.tape_take()
        ran: dict[int, tuple[str, bool]] = {}
        for worker, _executed, log in session.current().synchronize(want_log=True, raising=False):
            for _template, output, good in struct.iter_unpack("<qqq", log or b""):
                ran[output] = (worker, bool(good))
        names = {number: name for name, number in _capture.signals().items()}
        for operator, _template, output, _outputs, site, signal, shapes in recorded:
            worker, good = ran.get(output, ("", False))
            file, line = _capture.site(site)
            self._entries.append(
                Entry(operator, shapes, names.get(signal, ""), f"{file}:{line}" if file else "", worker, good, output)
            )

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Entry:
        return self._entries[index]


def tape() -> Tape:
    """Records what is issued inside the block: ``with gt.debug.tape() as tape: ...``, then iterate over its entries."""
    return Tape()


def print_tape(tape: Tape) -> None:
    """One line an instruction: operator, input shapes, signal, worker, source line."""
    for e in tape:
        state = e.worker if e.ran else (f"{e.worker} FAILED" if e.worker else "not run")
        print(f"{e.output:>8}  {e.operator:<44} {e.shapes:<48} {e.signal or '-':<16} {state:<10} {e.site}")


def stats() -> dict[str, int]:
    """Counts of this process: instructions, templates, batches, ids, ..."""
    return dict(_capture.stats())
