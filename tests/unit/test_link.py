"""The client's socket: what arrives is handled in order, however much of it and whatever the handlers do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from gt.errors import ClusterError
from gt.link import Link
from gt_runtime.protocol import codec
from gt_runtime.protocol.messages import Chunk, Notice

MANY = 3000  # more than Python nests


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Link, Any]]:
    """A link and the ROUTER at its other end."""
    context: zmq.Context[Any] = zmq.Context()
    far = context.socket(zmq.ROUTER)
    far.set_hwm(0)
    far.bind(f"ipc://{tmp_path}/far.sock")
    link = Link(context, f"ipc://{tmp_path}/far.sock")
    yield link, far
    link.close()
    far.close(0)
    context.term()


def test_a_handler_may_send(pair: tuple[Link, Any]) -> None:
    """Each chunk of a large fetch is acknowledged by its handler while the next ones wait to be read."""
    link, far = pair
    seen: list[int] = []

    def acknowledge(chunk: Chunk) -> None:
        seen.append(chunk.offset)
        link.send(Chunk("", 1, chunk.offset, MANY, False))

    link.on(Chunk, acknowledge)
    link.send(Notice("info", "here"))
    identity, *_ = far.recv_multipart()
    for number in range(MANY):
        far.send_multipart([identity, *codec.encode(Chunk("", 1, number, MANY, False, b"x"))])
    link.wait(lambda: len(seen) == MANY, 30.0, "chunks")
    assert seen == list(range(MANY))
    assert [codec.decode(far.recv_multipart()[1:]).offset for _ in range(MANY)] == seen


def test_messages_that_come_together_are_handled_in_order(pair: tuple[Link, Any]) -> None:
    link, far = pair
    seen: list[str] = []
    link.on(Notice, lambda notice: seen.append(notice.text))
    link.send(Notice("info", "here"), Notice("info", "and here"))
    identity, *frames = far.recv_multipart()
    assert [n.text for n in codec.decode_all(frames)] == ["here", "and here"]
    far.send_multipart([identity, *codec.encode(*[Notice("info", str(n)) for n in range(9)])])
    link.wait(lambda: len(seen) == 9, 30.0, "notices")
    assert seen == [str(n) for n in range(9)]


def test_a_failure_reaches_who_waits_later(pair: tuple[Link, Any]) -> None:
    link, _ = pair
    link.fail(ClusterError("gone"))
    with pytest.raises(ClusterError, match="gone"):
        link.wait(lambda: None)
