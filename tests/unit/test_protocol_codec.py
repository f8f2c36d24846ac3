"""Messages survive the wire, and nothing that isn't one gets through it."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.protocol import codec, limits
from gt_runtime.protocol.messages import MESSAGES, Batch, Beat, Failure, Hello, Reply

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
naturals = st.integers(0, (1 << 63) - 1)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "int": naturals,
    "str": st.text(max_size=30),
    "bool": st.booleans(),
    "list[int]": st.lists(naturals, max_size=5),
    "Meta": st.lists(plain, max_size=3),
    "list[Definition]": st.lists(st.lists(plain, max_size=3), max_size=3),
    "list[list[Any]]": st.lists(st.lists(plain, max_size=3), max_size=3),
    "list[Any]": st.lists(plain, max_size=3),
    "list[Any] | None": st.none() | st.lists(plain, max_size=3),
    "dict[str, Any]": st.dictionaries(st.text(max_size=5), plain, max_size=3),
    "dict[str, Any] | None": st.none() | st.dictionaries(st.text(max_size=5), plain, max_size=3),
    "Any": plain,
}


@st.composite
def messages(draw: st.DrawFn) -> Any:
    cls = draw(st.sampled_from(sorted(MESSAGES.values(), key=lambda c: c.__name__)))
    values = {}
    for field in dataclasses.fields(cls):
        values[field.name] = draw(
            st.binary(max_size=40) if field.name in ("words", "data") else FIELDS[str(field.type)]
        )
    return cls(**values)


@given(messages())
def test_round_trip(message: Any) -> None:
    assert codec.decode(codec.encode(message)) == message


@given(st.lists(messages(), min_size=1, max_size=limits.MAX_TOGETHER))
def test_messages_travel_together_in_their_order(sent: list[Any]) -> None:
    assert codec.decode_all(codec.encode(*sent)) == sent


@given(messages())
def test_buffers_do_as_well_as_bytes(message: Any) -> None:
    assert codec.decode([memoryview(frame) for frame in codec.encode(message)]) == message


def test_kinds_are_one_byte_and_differ() -> None:
    assert len(MESSAGES) == 21 and all(len(kind) == 1 and kind == cls.KIND for kind, cls in MESSAGES.items())


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_junk_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(codec.ProtocolError):
        codec.decode(frames)


@given(st.sampled_from(sorted(MESSAGES)), st.lists(plain, max_size=9), st.binary(max_size=9))
def test_other_fields_are_refused_or_fit(kind: str, fields: list[Any], payload: bytes) -> None:
    for frames in ([head([kind, *fields])], [head([kind, *fields]), payload]):
        try:
            message = codec.decode(frames)
        except codec.ProtocolError:
            continue
        assert codec.decode(codec.encode(message)) == message


def head(*entries: Any) -> bytes:
    packed: bytes = msgpack.packb(list(entries))
    return packed


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([], "1 to 17 frames"),
        ([head(["H", {}]), *[b"x"] * 17], "1 to 17 frames"),
        ([head()], "1 to 16 messages"),
        ([head(*[["H", {}]] * 17)], "1 to 16 messages"),
        ([msgpack.packb({})], "1 to 16 messages"),
        ([head({})], "begins with its kind"),
        ([head([])], "begins with its kind"),
        ([head([b"H", {}])], "begins with its kind"),
        ([head(["?"])], "unknown kind"),
        ([head(["Hx", {}])], "unknown kind"),
        ([b"\xc1"], "not MessagePack"),
        ([head(["H", {}]) + b"x"], "not MessagePack"),
        ([head(["H"])], "Hello: expected 1 fields, found 0"),
        ([head(["H", {}, 1])], "Hello: expected 1 fields, found 2"),
        ([head(["H", {1: 2}])], "not MessagePack"),
        ([head(["H", 3])], "Hello.facts: unexpected int"),
        ([head(["H", {}]), b"x"], "belong to no message"),
        ([head(["B", "", 1, 1, 1, 1, 0, [], []])], "Batch: expected 9 fields"),
        ([head(["B", "", 1, 1, 1, 1, 0, [], [], None])], "Batch.words: expected its size"),
        ([head(["B", "", 1, 1, 1, 1, 0, [], [], 8])], "lacks its payload"),
        ([head(["B", "", 1, 1, 1, 1, 0, [], [], 8]), b"short"], "5 bytes where 8 were announced"),
        ([head(["B", "", -1, 1, 1, 1, 0, [], [], 0])], "Batch.seq"),
        ([head(["B", "", True, 1, 1, 1, 0, [], [], 0])], "Batch.seq"),
        ([head(["B", "", 1 << 63, 1, 1, 1, 0, [], [], 0])], "Batch.seq"),
        ([head(["X", "a" * 5000, "", ""])], "Refused.asked"),
        ([head(["H", {}], ["H", 3])], "Hello.facts: unexpected int"),
        ([head(["r", 1, None, nested(limits.MAX_DEPTH)])], "nested deeper"),
        ([head(["r", 1, None, msgpack.ExtType(3, b"x")])], "extension type 3"),
        ([b"x" * (limits.MAX_HEAD_BYTES + 1)], "at most"),
        ([head(["B", "", 1, 1, 1, 1, 0, [], [], limits.MAX_FRAME_BYTES + 1]), b"x"], "payload over"),
        (codec.encode(Hello({}), Hello({})), "expected one message, found 2"),
    ],
)
def test_refused_by_what_was_found(frames: list[bytes], found: str) -> None:
    with pytest.raises(codec.ProtocolError, match=found):
        codec.decode(frames)


def test_the_deepest_that_passes() -> None:
    assert codec.decode(codec.encode(Reply(1, None, nested(limits.MAX_DEPTH - 2)))).result == nested(
        limits.MAX_DEPTH - 2
    )


def test_a_payload_is_not_copied() -> None:
    words = bytearray(b"12345678")
    message = codec.decode(codec.encode(Batch("", 1, 1, 1, 1, 0, [], [], words)))
    assert message.words is words


def test_failure_keeps_all_it_knows() -> None:
    failure = Failure("operator", "IndexError", "out of range", "aten::x", "float32[2]", "w0", 7, "layer1")
    assert Failure.unpack(failure.pack()) == failure and Failure.unpack(None) is None


def test_facts_are_open() -> None:
    """Either side may be newer: a map takes keys that the other doesn't know."""
    assert codec.decode(codec.encode(Hello({"new": [1, {"a": None}]}))).facts == {"new": [1, {"a": None}]}
    assert codec.decode(codec.encode(Beat("w0", 1, {}))).who == "w0"
