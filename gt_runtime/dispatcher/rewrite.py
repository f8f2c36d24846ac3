"""The spread path: a batch of a session whose values are on several workers, read word by word and split.

Each instruction goes where most of its input bytes are; what is missing there is copied first (``Send``, ``Recv``: the
value then has a second copy that is remembered). Runs for one worker are collected and leave as sub-batches.

Order is everything. Messages leave in one global order, and each worker takes its own in that order, so an instruction
may only rely on what was emitted before it:

* what a worker has collected leaves before a ``Send`` of that worker, since it may make the value that is sent;
* a ``Recv`` or ``Poison`` may overtake what its worker has collected: it depends on nothing there, and is waited for at
  first use.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from typing import Any, NoReturn

from gt_runtime.dispatcher.errors import StreamError
from gt_runtime.dispatcher.records import Link, Session, Spread
from gt_runtime.dispatcher.state import State
from gt_runtime.dispatcher.templates import Template, compile_template
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import MAX_WORDS
from gt_runtime.protocol.words import Order, order
from gt_runtime.sharding import plan
from gt_runtime.sharding.layouts import Layout, whole

_TEMPLATE = (1 << 32) - 1  # low half of an instruction's first word
_BASE = order(Order.BASE, 1)
_SIGNAL = order(Order.SIGNAL, 1)
_FLAGS = order(Order.FLAGS, 1)
_FREE_ONE = order(Order.FREE, 1)


def read_words(payload: Any) -> list[int]:
    """The int64 words of a batch's payload (bytes or a zmq frame).

    Raises:
        StreamError: not whole words, or more than ``limits.MAX_WORDS``.
    """
    view = memoryview(payload)
    if view.nbytes % 8 or view.nbytes > MAX_WORDS * 8:
        raise StreamError(
            "to run a batch", f"{view.nbytes} bytes of words: not whole words of 8 bytes, or over {MAX_WORDS} words"
        )
    return view.cast("B").cast("q").tolist() if sys.byteorder == "little" else _swapped(view)


def _swapped(view: memoryview) -> list[int]:
    words = array("q", view.tobytes())
    words.byteswap()
    return words.tolist()


def template_of(session: Session, number: int) -> Template:
    """The compiled template ``number`` of the session.

    Raises:
        StreamError: never defined, or a definition that makes no sense.
    """
    template = session.templates.get(number)
    if template is None:
        definition = session.definitions.get(number)
        if definition is None:
            raise StreamError(f"to run template {number}", "it was never defined")
        template = session.templates[number] = compile_template(definition)
    return template


def last_template(session: Session, payload: Any) -> int | None:
    """The template of a batch's last instruction; None for a batch without any."""
    words = read_words(payload)
    at, last = 0, None
    while at < len(words):
        word = words[at]
        if word < 0:
            at += 1 + (~word >> 8)
        else:
            last = word & _TEMPLATE
            at += 1 + template_of(session, last).words
    return last


class _Run:
    """What one worker has collected and not yet been sent."""

    __slots__ = (
        "base",
        "definitions",
        "flags",
        "instructions",
        "layout",
        "link",
        "next",
        "outputs",
        "signal",
        "signals",
        "words",
    )

    def __init__(self, link: Link) -> None:
        self.link = link
        self.layout = whole(link.worker.id)  # of what it makes
        self.words: list[int] = []
        self.base: int | None = None  # id of its first output
        self.next: int | None = None  # id that its next output would get without a BASE order
        self.outputs = 0
        self.instructions = 0
        self.definitions: list[m.Definition] = []
        self.signals: list[list[Any]] = []
        self.signal: int | None = None  # as last said in ``words``
        self.flags: int | None = None


class Rewriter:
    """Splits one batch. ``run`` raises StreamError where the words make no sense; the session then ends, so half-done
    work is no harm.
    """

    def __init__(self, state: State, session: Session, spread: Spread, batch: m.Batch) -> None:
        self.state, self.session, self.spread, self.batch = state, session, spread, batch
        self.runs: dict[str, _Run] = {}
        self.next_id = batch.base
        self.limit = batch.base + batch.outputs
        self.signal: int | None = None
        self.flags: int | None = None

    def run(self) -> tuple[int, str]:
        """Emit the sub-batches.

        Returns:
            Template and worker of the last instruction; (-1, "") for a batch without any.
        """
        words = read_words(self.batch.words)
        where, runs, session = self.spread.where, self.runs, self.session
        templates = session.templates
        at, count, instructions = 0, len(words), 0
        number, last = -1, None
        while at < count:
            word = words[at]
            if word < 0:
                at = self._order(words, at)
                continue
            number = word & _TEMPLATE
            template = templates.get(number) or template_of(session, number)
            end = at + 1 + template.words
            if end > count:
                self._bad(f"template {number} cut off after {count - at} words")
            worker = self._worker(template, words[at + 1 : at + 1 + template.inputs])
            last = runs.get(worker) or self._run_of(worker)
            outputs = self.limit - self.next_id if template.outputs is None else template.outputs
            self._prepare(last, number, outputs)
            last.words += words[at:end]
            last.instructions += 1
            instructions += 1
            for _ in range(outputs):
                where[self.next_id] = last.layout
                self.next_id += 1
            at = end
            if template.outputs is None and ((at < count and words[at] >= 0) or not self.batch.verdict):
                self._bad(f"template {number}, whose outputs aren't known, isn't the last, with a verdict")
        if instructions != self.batch.instructions or self.next_id != self.limit:
            self._bad(f"{instructions} instructions that make {self.next_id - self.batch.base} values")
        if self.batch.verdict and last is None:
            self._bad("a verdict asked of no instruction")
        for run in list(runs.values()):
            self._flush(run, self.batch.verdict if run is last else 0)
        return number, last.link.worker.id if last is not None else ""

    def _bad(self, found: str) -> NoReturn:
        batch = self.batch
        raise StreamError(
            f"to run message {batch.seq}, {batch.instructions} instructions that make {batch.outputs} values",
            found,
        )

    # -- where an instruction runs ------------------------------------------------------------------------------------

    def _worker(self, template: Template, values: list[int]) -> str:
        """The worker for an instruction with these inputs, all of which it has once this returns."""
        if not values:
            return self._new_value(template.output_bytes)
        where = self.spread.where
        first = where.get(values[0]) or self._layout(values[0])
        for value in values[1:]:
            if (where.get(value) or self._layout(value)) is not first:
                break
        else:
            if len(first.workers) == 1:
                return first.workers[0]
        return self._gather(template, values)

    def _layout(self, value: int) -> Layout:
        layout = self.spread.locate(value)
        if layout is None:
            self._bad(f"value {value}, which does not exist")
        return layout

    def _new_value(self, nbytes: int) -> str:
        link = self.state.place(self.session, nbytes)
        assert link is not None, "a spread batch is held until there is a worker"
        return link.worker.id

    def _gather(self, template: Template, values: list[int]) -> str:
        """Choose among several layouts and bring what is missing."""
        layouts = [self._layout(v) for v in values]
        current = self.session.current
        target = plan.place(layouts, template.input_bytes, current.worker.id if current else "")
        if not target:
            target = self._new_value(0)
        for move in plan.moves(values, layouts, target):
            self._copy(move)
        lost = {v: layout for v, layout in zip(values, layouts, strict=True) if not layout.workers}
        if lost:
            self.state.poison(self.session, self.session.links[target], lost.items())
            for value in lost:
                self.spread.where[value] = whole(target)
        return target

    def _copy(self, move: plan.Move) -> None:
        state, session = self.state, self.session
        source = self.runs.get(move.source)
        if source is not None:
            self._flush(source, 0)
        state.transfers += 1
        giver, taker = session.links[move.source].worker, session.links[move.target].worker
        for worker, kind, peer in ((giver, m.Send, taker), (taker, m.Recv, giver)):
            state.out.append((worker.address, kind(session.id, state.transfers, move.value, peer.id, state.epoch)))
        self.spread.where[move.value] = self._layout(move.value).added(move.target)

    # -- what a worker gets -------------------------------------------------------------------------------------------

    def _prepare(self, run: _Run, number: int, outputs: int) -> None:
        """Definition, signal, flags and base that the run's next instruction needs said before it."""
        link, words = run.link, run.words
        if number not in link.templates:
            link.templates.add(number)
            run.definitions.append(self.session.definitions[number])
        if run.flags != self.flags:
            run.flags = self.flags
            words += (_FLAGS, self.flags or 0)
        if run.signal != self.signal:
            run.signal = signal = self.signal
            words += (_SIGNAL, signal or 0)
            if signal and signal not in link.signals and signal in self.session.signals:
                link.signals.add(signal)
                run.signals.append([signal, self.session.signals[signal]])
        if outputs:
            if self.next_id + outputs > self.limit:
                self._bad(f"more than its {self.batch.outputs} outputs")
            if run.base is None:
                run.base = self.next_id
            elif run.next != self.next_id:
                words += (_BASE, self.next_id)
            run.next = self.next_id + outputs
            run.outputs += outputs

    def _order(self, words: list[int], at: int) -> int:
        """Take the order at ``at``; returns where the next word stands."""
        head = ~words[at]
        code, count = head & 0xFF, head >> 8
        end = at + 1 + count
        if end > len(words):
            self._bad(f"an order of {count} words cut off after {len(words) - at - 1}")
        if code == Order.FREE:
            self._free(words[at + 1 : end])
        elif count != 1:
            self._bad(f"order {code} with {count} words")
        elif code == Order.SIGNAL:
            self.signal = words[at + 1]
        elif code == Order.FLAGS:
            self.flags = words[at + 1]
        else:
            self._bad(f"order {code}, which is not one of a client's")
        return end

    def _free(self, values: list[int]) -> None:
        """Route a FREE to all holders."""
        where, runs = self.spread.where, self.runs
        by_worker: dict[str, list[int]] = {}
        for value in values:
            layout = where.pop(value, None) or self._layout(value)
            for worker in layout.workers:
                dead = by_worker.get(worker)
                if dead is None:
                    by_worker[worker] = [value]
                else:
                    dead.append(value)
        for worker, dead in by_worker.items():
            run = runs.get(worker) or self._run_of(worker)
            run.words.append(_FREE_ONE if len(dead) == 1 else order(Order.FREE, len(dead)))
            run.words += dead

    def _run_of(self, worker: str) -> _Run:
        """A new run for ``worker``, which has none under way."""
        run = self.runs[worker] = _Run(self.session.links[worker])
        return run

    def _flush(self, run: _Run, verdict: int) -> None:
        """What the run has collected leaves."""
        session, link = self.session, run.link
        del self.runs[link.worker.id]
        words = array("q", run.words)
        if sys.byteorder != "little":
            words.byteswap()
        link.under_way.append((self.batch.seq, run.instructions, 0, 0))
        link.worker.queue += run.instructions
        session.under_way += 1
        base = self.next_id if run.base is None else run.base
        message = m.Batch(
            session.id,
            self.batch.seq,
            base,
            run.outputs,
            run.instructions,
            verdict,
            run.definitions,
            run.signals,
            words.tobytes(),
        )
        self.state.out.append((link.worker.address, message))


def signals_of(signals: list[list[Any]]) -> Mapping[int, str]:
    """The names in a batch's ``signals``.

    Raises:
        StreamError: not a list of [number, name].
    """
    found: dict[int, str] = {}
    for entry in signals:
        if type(entry) is not list or len(entry) != 2 or type(entry[0]) is not int or type(entry[1]) is not str:
            raise StreamError("to name a signal", str(entry)[:80])
        found[entry[0]] = entry[1]
    return found
