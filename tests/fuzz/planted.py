"""Faults planted in the dispatcher, each as somebody might write it. The fuzzer must find every one: that is how we
know that it would find the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from gt_runtime.control import requests
from gt_runtime.dispatcher import core, rewrite, streams, templates
from gt_runtime.protocol import codec
from gt_runtime.protocol import messages as m

Plant = Callable[[pytest.MonkeyPatch], None]


def source_of_any_type(patch: pytest.MonkeyPatch) -> None:
    """An upload's source is looked up in a table before its type is known."""
    sizes = {"m": 4, "s": 3}
    patch.setattr(
        streams, "source_bytes", lambda x: len(x.data) if x.source is None else sizes[x.source[0]] and x.source[-1]
    )


def flags_of_any_type(patch: pytest.MonkeyPatch) -> None:
    """A template's flags go through int()."""
    real = templates.compile_template

    def compiled(definition: Any) -> Any:
        return real([*definition[:-1], int(definition[-1])])

    patch.setattr(rewrite, "compile_template", compiled)


def definitions_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streams, "check_definition", lambda definition: definition[0])


def metas_unchecked(patch: pytest.MonkeyPatch) -> None:
    def bytes_of(meta: Any) -> int:
        count = 4
        for size in meta[1]:
            count *= size
        return count

    patch.setattr(streams, "meta_bytes", bytes_of)


def signals_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(streams, "signals_of", dict)


def words_of_any_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rewrite, "read_words", lambda payload: memoryview(payload).cast("q").tolist())


def one_exception_of_msgpack_forgotten(patch: pytest.MonkeyPatch) -> None:
    def unpack(data: Any) -> Any:
        try:
            return msgpack.unpackb(data, raw=False, strict_map_key=True)
        except ValueError as error:
            raise codec.ProtocolError("not MessagePack") from error

    patch.setattr(codec, "unpack", unpack)


def malformed_in_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core.Core, "malformed", lambda self, address, found: None)


def strangers_in_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core.Core, "_refuse", lambda self, address, asked, found: None)


def one_failure_ends_all(patch: pytest.MonkeyPatch) -> None:
    real = core.Core._fail

    def fail(self: core.Core, session: Any, refused: m.Refused) -> None:
        for other in list(self.state.sessions.values()):
            real(self, other, refused)

    patch.setattr(core.Core, "_fail", fail)


def anybody_may_stop(patch: pytest.MonkeyPatch) -> None:
    real = requests.check
    patch.setattr(requests, "check", lambda method, arguments, may_act: real(method, arguments, True))


def any_user_may_join_as_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core.Core, "_misplaced", lambda self, address, facts, peer: None)


def session_named_by_the_sender(patch: pytest.MonkeyPatch) -> None:
    """Whose stream a message belongs to is read from the message."""
    real = streams.Streams.receive

    def receive(self: streams.Streams, session: Any, message: Any) -> None:
        real(self, self.state.sessions.get(message.session, session), message)

    patch.setattr(streams.Streams, "receive", receive)


def a_claim_is_taken_for_a_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core.describe, "number", lambda value: None if value is None else float(value))


ALL: tuple[Plant, ...] = (
    source_of_any_type,
    flags_of_any_type,
    definitions_unchecked,
    metas_unchecked,
    signals_unchecked,
    words_of_any_length,
    one_exception_of_msgpack_forgotten,
    malformed_in_silence,
    strangers_in_silence,
    one_failure_ends_all,
    anybody_may_stop,
    any_user_may_join_as_worker,
    session_named_by_the_sender,
    a_claim_is_taken_for_a_number,
)
