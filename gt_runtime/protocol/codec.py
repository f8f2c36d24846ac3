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
MAX_FRAMES = 3 * limits.MAX_TOGETHER  # that arrive together


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


_SHAPES: dict[bytes, _Shape] = {kind: _shape(cls) for kind, cls in MESSAGES.items()}


def encode(*messages: Any) -> Frames:
    """The frames of one or several messages, one after the other: kind, body and, where a message has one, its payload
    (``bytes`` or anything with a buffer). What leaves together costs its receiver one wake-up."""
    frames: Frames = []
    for message in messages:
        shape = _SHAPES[message.KIND]
        frames += (message.KIND, msgpack.packb([getattr(message, n) for n in shape.names], use_bin_type=True))
        if shape.payload is not None:
            frames.append(getattr(message, shape.payload))
    return frames


def decode_all(frames: Sequence[Any]) -> list[Any]:
    """The messages in ``frames`` (bytes or zmq frames), at most ``limits.MAX_TOGETHER``. A payload is handed on as it
    came, without a copy.

    Raises:
        ProtocolError: unknown kind, wrong number of frames, a body that is no MessagePack list of the right fields, or
            over a limit of ``protocol.limits``. Nothing of such frames is used.
    """
    if not 2 <= len(frames) <= MAX_FRAMES:
        raise ProtocolError(f"2 to {MAX_FRAMES} frames arrive together, these are {len(frames)}")
    messages: list[Any] = []
    at = 0
    while at < len(frames):
        if len(messages) == limits.MAX_TOGETHER:
            raise ProtocolError(f"more than {limits.MAX_TOGETHER} messages together")
        message, at = _message(frames, at)
        messages.append(message)
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


def _message(frames: Sequence[Any], at: int) -> tuple[Any, int]:
    """The message that begins with frame ``at``, and where the next one begins."""
    frame = frames[at]
    kind = frame if type(frame) is bytes else bytes(memoryview(frame)[:2])
    shape = _SHAPES.get(kind)
    if shape is None:
        raise ProtocolError(f"unknown kind of message {kind!r}")
    name = shape.cls.__name__
    if at + 1 >= len(frames):
        raise ProtocolError(f"{name} lacks its body")
    body = memoryview(frames[at + 1])
    if body.nbytes > limits.MAX_BODY_BYTES:
        raise ProtocolError(f"body of {body.nbytes} bytes, at most {limits.MAX_BODY_BYTES} are read")
    fields = unpack(body)
    if type(fields) is not list or len(fields) != len(shape.names):
        raise ProtocolError(f"{name}: expected a list of {len(shape.names)} fields")
    for field, check, value in zip(shape.names, shape.checks, fields, strict=True):
        if not check(value):
            raise ProtocolError(f"{name}.{field}: unexpected {type(value).__name__}")
    if shape.payload is None:
        return shape.cls(*fields), at + 2
    if at + 2 >= len(frames):
        raise ProtocolError(f"{name} lacks its payload")
    payload = frames[at + 2]
    if memoryview(payload).nbytes > limits.MAX_FRAME_BYTES:
        raise ProtocolError(f"{name}: payload over {limits.MAX_FRAME_BYTES} bytes")
    return shape.cls(*fields, payload), at + 3


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
