"""Hostile messages from a seed: protocol messages of every kind that are nearly right, then spoilt in one of many ways.

Nearly right matters most: what is nonsense at once is refused at the door, and tests only the door.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from typing import Any

import msgpack

from gt_runtime.control.requests import METHODS
from gt_runtime.protocol import codec, limits
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.words import Order, order

EDGES = (
    -(1 << 63), -(1 << 31), -1, 0, 1, 2, 7, 255, 256, (1 << 16) - 1, 1 << 20, (1 << 31) - 1, 1 << 32, 1 << 53,
    (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
OPERATORS: tuple[tuple[str, str, list[Any]], ...] = (
    ("add", "Tensor", [["t"], ["t"], ["i"]]),
    ("neg", "", [["t"]]),
    ("mm", "", [["t"], ["t"]]),
    ("cat", "", [["l", ["t"], ["t"]], 0]),
    ("index", "Tensor", [["t"], ["l", ["t"]]]),
    ("normal_functional", "", [["t"], ["f"], ["f"], ["g"]]),
    ("sum", "", [["t"]]),
    ("as_strided_copy", "", [["t"], ["l", 4], ["l", 1], 0]),
    ("zeros", "", [["l", 4], 6, None, ["d"], None]),
    ("from_file", "", ["/etc/passwd"]),
    ("add_", "Tensor", [["t"], ["t"]]),
    ("nothing", "", []),
    ("split_copy", "Tensor", [["t"], 2]),
    ("topk", "", [["t"], 1]),
    ("embedding", "", [["t"], ["t"]]),
    ("repeat", "", [["t"], ["l", 1 << 40]]),
    ("set_data", "", [["t"], ["t"]]),
)


@dataclass(slots=True)
class Known:
    """What an attacker may know, from the protocol and by listening: names, and how far its own stream has come."""

    sessions: list[str] = field(default_factory=lambda: ["", "s1", "s2", "s9"])
    workers: list[str] = field(default_factory=lambda: ["w0", "w1", "w7"])
    hello: dict[str, Any] = field(default_factory=dict)  # facts of a good Hello
    seq: int = 0
    next_id: int = 1
    templates: int = 0
    request: int = 0
    may_rule: bool = False  # of the cluster's own user: its requests to kill and stop are obeyed, so none is written


class Writer:
    """Writes messages of one attacker."""

    def __init__(self, rng: random.Random, known: Known) -> None:
        self.rng, self.known = rng, known

    def frames(self) -> list[bytes]:
        """The frames of one ZeroMQ message."""
        rng = self.rng
        if rng.random() < 0.05:
            return [rng.randbytes(rng.choice((0, 1, 3, 40, 300))) for _ in range(rng.choice((1, 1, 2, 3, 20)))]
        entries: list[Any] = []
        payloads: list[bytes] = []
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3, limits.MAX_TOGETHER, limits.MAX_TOGETHER + 1))):
            entry, payload = self.entry()
            entries.append(entry)
            if payload:
                payloads.append(payload)
        if rng.random() < 0.35:
            self.spoil(entries)
        try:
            frames = [msgpack.packb(entries, use_bin_type=True), *payloads]
        except (ValueError, OverflowError):  # what MessagePack itself can't say
            frames = [rng.randbytes(9)]
        return self.cut(frames) if rng.random() < 0.15 else frames

    # -- messages ------------------------------------------------------------------------------------------------------

    def entry(self) -> tuple[list[Any], bytes]:
        """``[kind, field...]`` with the payload's size last, where the kind has one; and the payload."""
        rng = self.rng
        kind = (
            rng.choice("BBBBBBBBUUUFFYHcc" + "".join(m.MESSAGES))
            if rng.random() < 0.97
            else rng.choice(("", "BB", "é", "\0"))
        )
        cls = m.MESSAGES.get(kind)
        if cls is None:
            return [kind], b""
        written = getattr(self, f"_{cls.__name__.lower()}", None)
        if written is not None and rng.random() < 0.85:
            return written()  # type: ignore[no-any-return]
        shape = codec._SHAPES[kind]
        fields: list[Any] = [self.of_type(check.__name__) for check in shape.checks]
        payload = self.payload() if shape.payload else b""
        return [kind, *fields, *([len(payload)] if shape.payload else [])], payload

    def of_type(self, check: str) -> Any:
        """Something that the codec lets pass as a field."""
        rng = self.rng
        if check == "_is_int":
            return rng.choice(EDGES) if rng.random() < 0.3 else rng.randrange(9)
        if check == "_is_str":
            return rng.choice((*self.known.sessions, *self.known.workers, "x" * 4096, "\0"))
        if check == "_is_bool":
            return rng.random() < 0.5
        if check == "_is_dict":
            return {rng.choice(("role", "id", "sessions", "x")): self.anything(2) for _ in range(rng.randrange(3))}
        return [self.anything(2) for _ in range(rng.randrange(4))]

    def anything(self, depth: int = 4) -> Any:
        """Any MessagePack value."""
        rng = self.rng
        if depth and rng.random() < 0.35:
            items = [self.anything(depth - 1) for _ in range(rng.randrange(4))]
            return items if rng.random() < 0.7 else {str(i): v for i, v in enumerate(items)}
        words = ("", "s1", "t", "x" * 5000, ["t"], ["l"], [[[[[]]]]], b"\xff" * 9, msgpack.ExtType(4, b"x"))
        numbers = (None, True, rng.choice(EDGES), rng.random() * 1e300, float("nan"), float("inf"))
        return rng.choice((*words, *numbers))

    def deep(self) -> Any:
        value: Any = []
        for _ in range(self.rng.choice((limits.MAX_DEPTH - 1, limits.MAX_DEPTH + 2, 200, 1000))):
            value = [value]
        return value

    def payload(self) -> bytes:
        rng = self.rng
        return rng.randbytes(rng.choice((0, 1, 7, 8, 16, 64, 4096)))

    def number(self, right: int) -> int:
        """``right``, mostly."""
        return right if self.rng.random() < 0.95 else self.rng.choice((right - 1, right + 1, *EDGES))

    def _hello(self) -> tuple[list[Any], bytes]:
        facts = dict(self.known.hello)
        if self.rng.random() < 0.6:
            facts[self.rng.choice((*facts, "id", "speed", "store", "memory_total"))] = self.anything()
        return ["H", facts], b""

    def _batch(self) -> tuple[list[Any], bytes]:
        known, rng = self.known, self.rng
        definitions = [self.definition() for _ in range(rng.choice((0, 1, 1, 2)))]
        words, instructions, outputs = self.words()
        base = self.number(known.next_id)
        verdict = self.number(known.request + 1) if rng.random() < 0.3 else 0
        signals: list[Any] = [[self.number(1), "here"]] if rng.random() < 0.3 else []
        if rng.random() < 0.03:
            signals.append(self.anything())
        seq = self.number(known.seq + 1)
        known.seq, known.next_id, known.request = known.seq + 1, known.next_id + outputs, known.request + 1
        body = [
            "B",
            self.session(),
            seq,
            base,
            self.number(outputs),
            self.number(instructions),
            verdict,
            definitions,
            signals,
            len(words),
        ]
        return body, words

    def session(self) -> str:
        return "" if self.rng.random() < 0.98 else self.rng.choice(self.known.sessions)

    def definition(self) -> Any:
        rng, known = self.rng, self.known
        if rng.random() < 0.03:
            return self.anything()
        name, overload, arguments = rng.choice(OPERATORS)
        tensors = sum(self.tensors(a) for a in arguments)
        number = self.number(known.templates)
        known.templates += 1
        outputs = None if rng.random() < 0.3 else [self.meta() for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        found: list[Any] = [
            number,
            f"aten::{name}",
            overload,
            list(arguments),
            [self.meta() for _ in range(tensors)],
            outputs,
            self.number(0),
        ]
        if rng.random() < 0.2:
            found[rng.randrange(len(found))] = self.deep() if rng.random() < 0.1 else self.anything()
        if rng.random() < 0.05:
            del found[rng.randrange(len(found))]
        return found

    def tensors(self, argument: Any) -> int:
        if type(argument) is not list or not argument:
            return 0
        return 1 if argument == ["t"] else sum(self.tensors(a) for a in argument[1:])

    def meta(self) -> Any:
        rng = self.rng
        if rng.random() < 0.85:
            return [rng.choice((6, 4, 11, 9)), [2, 2], [2, 1], 0]
        if rng.random() < 0.7:
            dims = rng.choice((0, 1, 3, 65))
            return [
                rng.choice(EDGES),
                [rng.choice(EDGES) for _ in range(dims)],
                [rng.choice(EDGES) for _ in range(dims)],
                rng.choice(EDGES),
            ]
        return self.anything()

    def words(self) -> tuple[bytes, int, int]:
        """Words of a batch; how many instructions and outputs it claims."""
        rng, known = self.rng, self.known
        words: list[int] = [order(Order.FLAGS, 1), 6, order(Order.SIGNAL, 1), 0]
        instructions = 0
        for _ in range(rng.randrange(4)):
            kind = rng.random()
            if kind < 0.6:
                ids = [self.number(rng.randrange(1, known.next_id + 1)) for _ in range(rng.choice((1, 2, 2, 3)))]
                words += [self.number(rng.randrange(max(1, known.templates))), *ids]
                instructions += 1
            elif kind < 0.8:
                dead = [self.number(rng.randrange(1, known.next_id + 1)) for _ in range(rng.randrange(3))]
                words += [order(Order.FREE, self.number(len(dead)) & 0xFFFFFFFF), *dead]
            elif kind < 0.9:
                words += [order(rng.choice(tuple(Order)), rng.choice((0, 1, 2, 1 << 40))), rng.choice(EDGES[:-2])]
            else:
                words += [rng.choice(EDGES[:-2])]
        data = array("q", [w if -(1 << 63) <= w < 1 << 63 else 0 for w in words]).tobytes()
        return (data[: -rng.randrange(1, 8)] if rng.random() < 0.08 else data), instructions, instructions

    def _upload(self) -> tuple[list[Any], bytes]:
        known, rng = self.known, self.rng
        data, meta = bytes(16), [6, [2, 2], [2, 1], 0]
        source: Any = None
        if rng.random() < 0.3:
            data = b""
            source = rng.choice(
                (
                    ["m", self.number(3), self.number(0), self.number(16)],
                    ["s", self.number(1), self.number(16)],
                    self.anything(),
                )
            )
        elif rng.random() < 0.2:
            data, meta = self.payload(), self.meta()
        seq, number = self.number(known.seq + 1), self.number(known.next_id)
        known.seq, known.next_id = known.seq + 1, known.next_id + 1
        request = self.number(known.request + 1) if rng.random() < 0.3 else 0
        known.request += 1
        return [
            "U",
            self.session(),
            seq,
            request,
            number,
            meta,
            source if source is None or type(source) is list else [source],
            len(data),
        ], data

    def _fetch(self) -> tuple[list[Any], bytes]:
        known, rng = self.known, self.rng
        known.request += 1
        sink = (
            None
            if rng.random() < 0.6
            else rng.choice((["m", 3, 0, 16], ["s", self.number(1), self.number(16)], [self.anything()]))
        )
        return [
            "F",
            self.session(),
            self.number(known.seq),
            self.number(known.request),
            self.number(rng.randrange(known.next_id + 1)),
            sink,
        ], b""

    def _sync(self) -> tuple[list[Any], bytes]:
        self.known.request += 1
        return [
            "Y",
            self.session(),
            self.number(self.known.seq),
            self.number(self.known.request),
            self.rng.random() < 0.5,
        ], b""

    def _chunk(self) -> tuple[list[Any], bytes]:
        data = self.payload()
        return [
            "C",
            self.session(),
            self.number(1),
            self.number(0),
            self.number(len(data)),
            self.rng.random() < 0.5,
            len(data),
        ], data

    def _request(self) -> tuple[list[Any], bytes]:
        rng = self.rng
        methods = [name for name, method in METHODS.items() if not (method.acts and self.known.may_rule)]
        method = rng.choice((*methods, "x", "__init__", ""))
        known = METHODS.get(method)
        keys = (*known.required, *known.optional) if known and rng.random() < 0.8 else ("id", "session", "x")
        arguments = {key: rng.choice(("s1", "s2", "w0", "", self.anything())) for key in keys if rng.random() < 0.8}
        return ["c", self.number(limits.PROTOCOL_VERSION), self.number(1), method, arguments], b""

    def _beat(self) -> tuple[list[Any], bytes]:
        facts = {
            "utilisation": self.anything(),
            "sessions": self.anything(),
            "memory_used": self.anything(),
            "queue": self.anything(),
        }
        return ["b", self.rng.choice((*self.known.sessions, *self.known.workers)), self.number(1), facts], b""

    # -- spoiling ------------------------------------------------------------------------------------------------------

    def spoil(self, entries: list[Any]) -> None:
        """Something in one entry becomes something else."""
        rng = self.rng
        entry = rng.choice(entries)
        at = rng.randrange(len(entry))
        how = rng.random()
        if how < 0.5:
            entry[at] = self.anything()
        elif how < 0.6:
            entry[at] = self.deep()
        elif how < 0.7:
            entry.append(self.anything())
        elif how < 0.8:
            del entry[at]
        elif how < 0.9:
            entries[rng.randrange(len(entries))] = self.anything()
        else:
            entry[-1] = rng.choice((limits.MAX_FRAME_BYTES + 1, 1 << 62, -1, 5))

    def cut(self, frames: list[bytes]) -> list[bytes]:
        """Frames that were damaged on the way."""
        rng = self.rng
        at = rng.randrange(len(frames))
        frame = bytearray(frames[at])
        how = rng.randrange(7)
        if how == 0 and frame:
            for _ in range(rng.choice((1, 1, 3))):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
            frames[at] = bytes(frame)
        elif how == 1:
            frames[at] = bytes(frame[: rng.randrange(len(frame) + 1)])
        elif how == 2:
            frames[at] = bytes(frame) + rng.randbytes(3)
        elif how == 3:
            frames.insert(at, rng.randbytes(8))
        elif how == 4 and len(frames) > 1:
            del frames[at]
        elif how == 5:
            frames[0] = rng.choice(
                (
                    b"\xdd\xff\xff\xff\xff",
                    b"\xc6\xff\xff\xff\xff",
                    b"\xdf\x7f\xff\xff\xff",
                    b"\xc1",
                    b"\x91" * 500,
                    b"\xdc\xff\xff" + b"\xc0" * 99,
                )
            )
        else:
            frames.extend([b"x"] * rng.choice((1, limits.MAX_TOGETHER + 2)))
        return frames
