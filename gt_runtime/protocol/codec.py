"""Messages to frames and back. Whatever comes off a socket passes through ``decode``, which refuses what is malformed
with a ``ProtocolError`` that says what was found; nothing is ever unpickled or evaluated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from gt_runtime.protocol import limits
from gt_runtime.protocol.messages import MESSAGES

Frames = list[Any]


class ProtocolError(Exception):
    """A message that makes no sense. The text says what was found; its sender gets it back as a Refused."""


_INT_MAX = (1 << 63) - 1


def _is_int(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _INT_MAX


def _is_str(value: Any) -> bool:
    return type(value) is str and len(value) <= 4096


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_list(value: Any) -> bool:
    return type(value) is list


def _is_ids(value: Any) -> bool:
    return type(value) is list and len(value) <= limits.MAX_IDS and all(_is_int(i) for i in value)


def _is_dict(value: Any) -> bool:
    return type(value) is dict and all(type(k) is str for k in value)


def _is_any(value: Any) -> bool:
    return True


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "str": _is_str,
    "bool": _is_bool,
    "list[int]": _is_ids,
    "Meta": _is_list,
    "list[Definition]": _is_list,
    "list[list[Any]]": _is_list,
    "list[Any]": _is_list,
    "list[Any] | None": lambda v: v is None or _is_list(v),
    "dict[str, Any]": _is_dict,
    "dict[str, Any] | None": lambda v: v is None or _is_dict(v),
    "Any": _is_any,
}
_PAYLOADS = ("words", "data")
MAX_FRAMES = 1 + limits.MAX_TOGETHER  # a head and its payloads


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    cls: type[Any]
    names: tuple[str, ...]  # of the body
    checks: tuple[Callable[[Any], bool], ...]
    payload: str | None


def _shape(cls: type[Any]) -> _Shape:
    fields = [f for f in dataclasses.fields(cls) if f.name not in _PAYLOADS]
    payload = [f.name for f in dataclasses.fields(cls) if f.name in _PAYLOADS]
    return _Shape(
        cls, tuple(f.name for f in fields), tuple(_CHECKS[str(f.type)] for f in fields), payload[0] if payload else None
    )


_SHAPES: dict[str, _Shape] = {kind: _shape(cls) for kind, cls in MESSAGES.items()}


def encode(*messages: Any) -> Frames:
    """The frames of one or several messages (at most ``limits.MAX_TOGETHER``): a head, which is a MessagePack list with
    ``[kind, field...]`` for each, then the payloads (``bytes`` or anything with a buffer) in the same order. What
    leaves together costs its receiver one wake-up."""
    head: list[list[Any]] = []
    frames: Frames = [b""]
    for message in messages:
        shape = _SHAPES[message.KIND]
        entry = [message.KIND, *[getattr(message, n) for n in shape.names]]
        if shape.payload is not None:
            payload = getattr(message, shape.payload)
            nbytes = len(payload) if type(payload) is bytes else memoryview(payload).nbytes
            entry.append(nbytes)
            if nbytes:
                frames.append(payload)
        head.append(entry)
    frames[0] = msgpack.packb(head, use_bin_type=True)
    return frames


def decode_all(frames: Sequence[Any]) -> list[Any]:
    """The messages in ``frames`` (bytes or zmq frames). A payload is handed on as it came, without a copy.

    Raises:
        ProtocolError: a head that is no MessagePack list of known kinds with the right fields, payloads that aren't as
            the head says, or anything over a limit of ``protocol.limits``. Nothing of such frames is used.
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise ProtocolError(f"a message has 1 to {MAX_FRAMES} frames, this one has {len(frames)}")
    head = memoryview(frames[0])
    if head.nbytes > limits.MAX_HEAD_BYTES:
        raise ProtocolError(f"head of {head.nbytes} bytes, at most {limits.MAX_HEAD_BYTES} are read")
    entries = unpack(head)
    if type(entries) is not list or not 1 <= len(entries) <= limits.MAX_TOGETHER:
        raise ProtocolError(f"expected a list of 1 to {limits.MAX_TOGETHER} messages")
    messages: list[Any] = []
    at = 1
    for entry in entries:
        shape = _shape_of(entry)
        fields = entry[1:]
        for field, check, value in zip(shape.names, shape.checks, fields, strict=False):
            if not check(value):
                raise ProtocolError(f"{shape.cls.__name__}.{field}: unexpected {type(value).__name__}")
        if shape.payload is not None:
            fields[-1], at = _payload(shape, fields[-1], frames, at)
        messages.append(shape.cls(*fields))
    if at != len(frames):
        raise ProtocolError(f"{len(frames) - at} payloads that belong to no message")
    return messages


def decode(frames: Sequence[Any]) -> Any:
    """The message in ``frames``, where one is expected alone.

    Raises:
        ProtocolError: as ``decode_all``; or there are several.
    """
    messages = decode_all(frames)
    if len(messages) != 1:
        raise ProtocolError(f"expected one message, found {len(messages)} together")
    return messages[0]


def _shape_of(entry: Any) -> _Shape:
    if type(entry) is not list or not entry or type(entry[0]) is not str:
        raise ProtocolError("a message is a list that begins with its kind")
    shape = _SHAPES.get(entry[0])
    if shape is None:
        raise ProtocolError(f"unknown kind of message {entry[0][:20]!r}")
    expected = len(shape.names) + (shape.payload is not None)
    if len(entry) - 1 != expected:
        raise ProtocolError(f"{shape.cls.__name__}: expected {expected} fields, found {len(entry) - 1}")
    return shape


def _payload(shape: _Shape, nbytes: Any, frames: Sequence[Any], at: int) -> tuple[Any, int]:
    """The payload that is to be frame ``at``, and the number of the frame after it."""
    name = shape.cls.__name__
    if not _is_int(nbytes):
        raise ProtocolError(f"{name}.{shape.payload}: expected its size in bytes")
    if nbytes == 0:
        return b"", at
    if nbytes > limits.MAX_FRAME_BYTES:
        raise ProtocolError(f"{name}: payload over {limits.MAX_FRAME_BYTES} bytes")
    if at >= len(frames):
        raise ProtocolError(f"{name} lacks its payload")
    if (found := memoryview(frames[at]).nbytes) != nbytes:
        raise ProtocolError(f"{name}: payload of {found} bytes where {nbytes} were announced")
    return frames[at], at + 1


def unpack(data: Any) -> Any:
    """MessagePack with caps on nesting and size; no extension types.

    Raises:
        ProtocolError: anything that isn't one plain MessagePack value.
    """
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True, ext_hook=_no_extension)
    except ProtocolError:
        raise
    except Exception as error:  # msgpack raises half a dozen types; for the reader they are one
        raise ProtocolError(f"not MessagePack: {type(error).__name__}") from error
    if _too_deep(value, limits.MAX_DEPTH):
        raise ProtocolError(f"nested deeper than {limits.MAX_DEPTH}")
    return value


def pack(value: Any) -> bytes:
    """One plain value as MessagePack."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def _no_extension(code: int, data: bytes) -> Any:
    raise ProtocolError(f"extension type {code} is not part of the protocol")


def _too_deep(value: Any, left: int) -> bool:
    """Whether lists and maps in ``value`` nest deeper than ``left``. A plain loop: it runs for every message."""
    if type(value) is dict:
        value = value.values()
    elif type(value) is not list:
        return False
    if left == 0:
        return True
    for item in value:  # noqa: SIM110  # any() with a generator costs three times as much
        if (type(item) is list or type(item) is dict) and item and _too_deep(item, left - 1):
            return True
    return False
