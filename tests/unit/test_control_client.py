"""The control client against a fake dispatcher that answers what the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from gt_runtime.control.client import ControlClient, ControlError
from gt_runtime.protocol import codec
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import PROTOCOL_VERSION


@contextmanager
def answering(path: Path, answer: Callable[[m.Request], list[list[bytes]]]) -> Iterator[str]:
    """A ROUTER that answers each request with the frames of ``answer``."""
    context: zmq.Context[Any] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.LINGER = 0
    address = f"ipc://{path}/front.sock"
    router.bind(address)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            if router.poll(20):
                identity, *frames = router.recv_multipart()
                for reply in answer(codec.decode(frames)):
                    router.send_multipart([identity, *reply])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        over.set()
        thread.join()
        router.close(0)
        context.term()


def test_request_and_reply(tmp_path: Path) -> None:
    asked: list[m.Request] = []

    def answer(request: m.Request) -> list[list[bytes]]:
        asked.append(request)
        return [codec.encode(m.Reply(request.request, None, {"ready": 2}))]

    with answering(tmp_path, answer) as address, ControlClient(address, 5.0) as control:
        assert control.request("kill_session", session="s1") == {"ready": 2}
        assert control.request("status") == {"ready": 2}
    assert [(r.version, r.method, r.arguments) for r in asked] == [
        (PROTOCOL_VERSION, "kill_session", {"session": "s1"}),
        (PROTOCOL_VERSION, "status", {}),
    ]


def test_the_dispatchers_error(tmp_path: Path) -> None:
    error = {"what": "session 's9'", "found": "no such thing", "do": "known: s1"}

    def answer(request: m.Request) -> list[list[bytes]]:
        return [codec.encode(m.Reply(request.request, error, None))]

    with (
        answering(tmp_path, answer) as address,
        ControlClient(address, 5.0) as control,
        pytest.raises(ControlError) as raised,
    ):
        control.request("kill_session", session="s9")
    assert (raised.value.what, raised.value.found, raised.value.do) == tuple(error.values())
    assert str(raised.value) == "session 's9': no such thing; known: s1"


def test_a_late_reply_is_not_taken_for_the_next(tmp_path: Path) -> None:
    """The first request times out; its answer comes together with the second's."""
    held: list[list[bytes]] = []

    def answer(request: m.Request) -> list[list[bytes]]:
        held.append(codec.encode(m.Reply(request.request, None, request.method)))
        return held if len(held) == 2 else []

    with answering(tmp_path, answer) as address, ControlClient(address, 0.2) as control:
        with pytest.raises(ControlError, match=r"no answer within 0\.2 s"):
            control.request("first")
        control.timeout = 5.0
        assert control.request("second") == "second"


def test_nobody_there(tmp_path: Path) -> None:
    started = time.monotonic()
    with ControlClient(f"ipc://{tmp_path}/none.sock", 0.1) as control, pytest.raises(ControlError, match="gt status"):
        control.request("status")
    assert time.monotonic() - started >= 0.1


def test_refused_and_junk(tmp_path: Path) -> None:
    replies = [codec.encode(m.Refused("to speak", "another version", "update")), [b"junk", b"junk"]]
    with answering(tmp_path, lambda _: [replies.pop(0)]) as address, ControlClient(address, 5.0) as control:
        with pytest.raises(ControlError, match="to speak: another version; update"):
            control.request("status")
        with pytest.raises(ControlError, match="isn't GT's"):
            control.request("status")


@pytest.mark.parametrize("address", ["front.sock", "ipc:", "tcp://nowhere", "xyz://a"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ControlError, match="connect to"):
        ControlClient(address)
