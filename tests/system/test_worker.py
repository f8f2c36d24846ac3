"""A whole worker process against a dispatcher that the test plays: messages, memory, chunks, beats, endings."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import CHUNK_BYTES, CHUNK_WINDOW
from gt_runtime.worker._native import schema_hash
from tests.unit.test_worker_parts import Memfd
from tests.worker_tools import FakeDispatcher, data, definition, free, meta, tensor, until, words

T = ["t"]
X = torch.arange(12, dtype=torch.float32).reshape(3, 4)
ADD = definition(1, "add", [T, T], [X, X], [meta(X)], overload="Tensor")
OPEN = {"pid": os.getpid(), "uid": os.getuid(), "same_host": True, "memory": 0, "label": "test"}


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeDispatcher]:
    """One worker for the tests that leave it alive; each opens a session of its own."""
    directory = Path(tempfile.mkdtemp(prefix="gt-w-", dir="/tmp"))
    dispatcher = FakeDispatcher(directory)
    try:
        dispatcher.spawn()
        dispatcher.hello = dispatcher.welcome()[0]  # type: ignore[attr-defined]
        yield dispatcher
    finally:
        dispatcher.close()
        shutil.rmtree(directory)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[FakeDispatcher]:
    """A dispatcher without workers."""
    directory = Path(tempfile.mkdtemp(prefix="gt-w-", dir="/tmp"))
    dispatcher = FakeDispatcher(directory)
    try:
        yield dispatcher
    finally:
        dispatcher.close()
        shutil.rmtree(directory)


@pytest.fixture
def session(shared: FakeDispatcher, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name
    shared.send("w0", m.Open(name, OPEN))
    yield name
    shared.send("w0", m.Close(name, "over"))


def upload(session: str, seq: int, number: int, value: torch.Tensor, request: int = 0) -> m.Upload:
    return m.Upload(session, seq, request, number, meta(value), None, data(value))


def batch(
    session: str, seq: int, first: int, *numbers: int, verdict: int = 0, definitions: Any = (), outputs: int = 1
) -> m.Batch:
    return m.Batch(session, seq, first, outputs, outputs, verdict, list(definitions), [], words(*numbers))


def test_what_a_worker_says_of_itself(shared: FakeDispatcher) -> None:
    facts = shared.hello  # type: ignore[attr-defined]
    assert facts["role"] == "worker" and facts["device"] == "cpu" and facts["id"] == "w0"
    assert facts["pid"] == shared.processes["w0"].pid
    assert facts["torch"] == torch.__version__ and facts["schema"] == schema_hash()
    assert facts["speed"] > 0 and facts["memory_total"] > 0 and facts["device_name"]
    assert facts["store"].startswith("127.0.0.1:")


def test_upload_run_fetch_sync(shared: FakeDispatcher, session: str) -> None:
    shared.send(
        "w0",
        upload(session, 1, 1, X, request=5),
        batch(session, 2, 2, 1, 1, 1, verdict=6, definitions=[ADD]),
        m.Fetch(session, 3, 7, 2, None),
        m.Sync(session, 4, 8, True),
    )
    assert shared.result(5) == m.Result(session, 5, None, None, b"")
    assert shared.result(6).body == [meta(X)]
    fetched = shared.result(7)
    assert fetched.body == meta(X) and torch.equal(tensor(fetched.body, fetched.data), X + X)
    assert shared.result(8).body == [["w0", 1, b""]]


def test_done_says_what_has_run(shared: FakeDispatcher, session: str) -> None:
    shared.send("w0", upload(session, 1, 1, X), batch(session, 2, 2, 1, 1, 1, 1, 1, 1, definitions=[ADD], outputs=2))
    assert shared.receive("w0", m.Done) == m.Done(session, 1, 0, X.nbytes)
    assert shared.receive("w0", m.Done) == m.Done(session, 2, 2, 0)


def test_a_failure_at_verdict_fetch_and_sync(shared: FakeDispatcher, session: str) -> None:
    wrong = definition(2, "mm", [T, T], [X, X])
    shared.send(
        "w0",
        upload(session, 1, 1, X),
        batch(session, 2, 2, 2, 1, 1, verdict=1, definitions=[wrong]),
        m.Fetch(session, 3, 2, 2, None),
        m.Sync(session, 4, 3, False),
        batch(session, 5, 3, 2, 1, 1),
        m.Sync(session, 6, 4, False),
        m.Sync(session, 7, 5, False),
    )
    failure = m.Failure.unpack(shared.result(1).failure)
    assert failure is not None and failure.operator == "aten::mm.default" and failure.worker == "w0"
    assert "mat1 and mat2 shapes cannot be multiplied" in failure.message
    assert m.Failure.unpack(shared.result(2).failure) == failure
    assert shared.result(3).failure is None, "told already"
    assert m.Failure.unpack(shared.result(4).failure) == failure, "the same words, of the second one"
    assert shared.result(5).failure is None


def test_poison_from_the_dispatcher(shared: FakeDispatcher, session: str) -> None:
    lost = m.Failure("lost", "RuntimeError", "worker w7 was lost", worker="w7")
    shared.send(
        "w0",
        m.Poison(session, [1], lost.pack()),
        batch(session, 1, 2, 1, 1, 1, definitions=[ADD]),
        m.Fetch(session, 2, 1, 2, None),
    )
    assert m.Failure.unpack(shared.result(1).failure) == lost


def test_shared_memory_both_ways(shared: FakeDispatcher, session: str) -> None:
    value = torch.randn(300, 1000).t()
    size = value.nbytes
    with Memfd(4 * size) as file, mmap.mmap(file.fd, 4 * size) as ours:
        ours[64 : 64 + size] = data(value)
        shared.send(
            "w0",
            m.Upload(session, 1, 1, 1, meta(value), ["m", file.fd, 64, size]),
            m.Fetch(session, 2, 2, 1, ["m", file.fd, 2 * size, size]),
            m.Fetch(session, 3, 3, 1, ["m", file.fd, 3 * size, size + size // 2]),
            m.Fetch(session, 4, 4, 1, ["m", file.fd, 0, size - 1]),
            m.Upload(session, 5, 5, 2, meta(value), ["m", 987, 0, size]),
            m.Fetch(session, 6, 6, 2, None),
        )
        assert shared.result(1).failure is None
        fetched = shared.result(2)
        assert fetched.body == meta(value) and bytes(fetched.data) == b""
        assert torch.equal(tensor(fetched.body, ours[2 * size : 3 * size]), value)
        assert "which has" in shared.result(3).failure[2]
        assert "can't be fetched into" in shared.result(4).failure[2]
        refused = shared.result(5).failure
        assert refused[0] == "refused" and "descriptor 987" in refused[2]
        assert shared.result(6).failure == refused


def test_chunks_both_ways(shared: FakeDispatcher, session: str) -> None:
    value = torch.randint(0, 255, (10 * CHUNK_BYTES + 17,), dtype=torch.uint8)
    contents = memoryview(data(value))
    for offset in range(0, value.nbytes, CHUNK_BYTES):
        piece = contents[offset : offset + CHUNK_BYTES]
        last = offset + piece.nbytes == value.nbytes
        shared.send_chunk("w0", m.Chunk(session, 1, offset, value.nbytes, last, piece))
        who, answer = shared.chunk()
        assert (who, answer.last, answer.offset, bytes(answer.data)) == ("w0", last, offset, b"")
    shared.send(
        "w0",
        m.Upload(session, 1, 1, 1, meta(value), ["s", 1, value.nbytes]),
        m.Fetch(session, 2, 2, 1, ["s", 2, value.nbytes]),
    )
    assert shared.result(1).failure is None
    assert shared.result(2).body == meta(value)
    received, under_way = bytearray(value.nbytes), []
    while True:
        _, chunk = shared.chunk()
        received[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
        under_way.append(chunk)
        assert len(under_way) <= CHUNK_WINDOW
        if chunk.last or len(under_way) == CHUNK_WINDOW:  # the window is used up before anything is acknowledged
            for waiting in under_way:
                shared.send_chunk("w0", m.Chunk(session, 2, waiting.offset, waiting.nbytes, waiting.last))
            under_way.clear()
        if chunk.last:
            break
    assert received == contents


def test_a_transfer_that_never_came(shared: FakeDispatcher, session: str) -> None:
    shared.send(
        "w0", m.Upload(session, 1, 1, 1, meta(X), ["s", 9, X.nbytes]), m.Upload(session, 2, 2, 2, meta(X), ["z"])
    )
    assert "nothing was staged as transfer 9" in shared.result(1).failure[2]
    assert "which is no source" in shared.result(2).failure[2]


def test_sessions_are_apart(shared: FakeDispatcher, session: str) -> None:
    shared.send(
        "w0",
        m.Open("neighbour", OPEN),
        upload("neighbour", 1, 1, X),
        m.Fetch(session, 1, 1, 1, None),
        m.Close("neighbour", "over"),
    )
    assert "has no value 1" in shared.result(1).failure[2]
    shared.send(
        "w0",
        m.Fetch("neighbour", 2, 2, 1, None),
        m.Sync("neighbour", 3, 3, False),
        batch("neighbour", 4, 9, verdict=4, outputs=0),
    )
    assert [("no session neighbour" in shared.result(n).failure[2]) for n in (2, 3, 4)] == [True] * 3


def test_garbage_costs_its_session_an_error(shared: FakeDispatcher, session: str) -> None:
    shared.send(
        "w0", batch(session, 1, 1, 999, verdict=1), batch(session, 2, 2, -1, verdict=2), m.Fetch(session, 3, 3, 1, None)
    )
    assert "unknown template 999" in shared.result(1).failure[2]
    assert shared.result(2).failure is not None
    assert "unknown template 999" in shared.result(3).failure[2]
    shared.back.send_multipart([shared.identities["w0"], b"?", b"\xc1"])
    shared.back.send_multipart([shared.identities["w0"], b"B"])
    shared.send("w0", m.Poison(session, [1], ["not", "a", "failure"]))
    test_upload_run_fetch_sync(shared, open_session(shared, "after garbage"))
    assert "dropped a message" in shared.log()


def open_session(dispatcher: FakeDispatcher, name: str, who: str = "w0", **facts: Any) -> str:
    dispatcher.send(who, m.Open(name, OPEN | facts))
    return name


def test_a_sessions_memory_cap(shared: FakeDispatcher) -> None:
    session = open_session(shared, "capped", memory=100)
    shared.send(
        "w0",
        upload(session, 1, 1, X, request=1),
        upload(session, 2, 2, X, request=2),
        batch(session, 3, 3, 1, 1, 1, verdict=3, definitions=[ADD]),
    )
    assert shared.result(1).failure is None
    assert shared.result(2).failure is None
    failure = shared.result(3).failure
    assert failure[:2] == ["memory", "OutOfMemoryError"] and "it holds 96 B of its 100 B cap" in failure[2]
    shared.send(
        "w0", batch(session, 4, 4, *free(2), outputs=0), batch(session, 5, 5, 1, 1, 1, verdict=4), m.Close(session, "")
    )
    assert shared.result(4).failure is None


def test_beats_tell_the_figures(shared: FakeDispatcher, session: str) -> None:
    shared.send(
        "w0", upload(session, 1, 1, X), batch(session, 2, 2, 1, 1, 1, definitions=[ADD]), m.Sync(session, 3, 1, False)
    )
    shared.result(1)
    facts = until(
        lambda: (b := shared.beats.get("w0")) and b.facts["sessions"].get(session) and b.facts,
        "a beat with the session in it",
    )
    assert facts["sessions"][session] == [2, 2 * X.nbytes, 1]
    assert facts["source"] == "psutil" and 0 <= facts["utilisation"] <= 1
    assert 0 < facts["memory_used"] < facts["memory_total"]
    assert facts["queue"] == 0 and facts["instructions"] >= 1 and facts["value_bytes"] >= 2 * X.nbytes
    assert facts["bytes_in"] == facts["bytes_out"] == 0


def test_beats_go_on_while_an_operator_runs_and_the_queue_shows(shared: FakeDispatcher, session: str) -> None:
    big = torch.ones(1200, 1200)
    mm = definition(3, "mm", [T, T], [big, big], [meta(big)])
    shared.send(
        "w0",
        m.Batch(session, 1, 1, 1, 1, 0, [mm, definition(4, "ones", [["l", 1200, 1200], 6, 0, ["d"]])], [], words(4)),
    )
    count = 40
    for i in range(count):
        shared.send("w0", batch(session, 2 + i, 2 + i, 3, 1, 1))
    shared.send("w0", m.Sync(session, 2 + count, 1, False))
    busy = until(lambda: (b := shared.beats.get("w0")) and b.facts["queue"] > 0 and b, "a beat with a queue")
    later = until(lambda: (b := shared.beats["w0"]) is not busy and b.facts["queue"] > 0 and b, "a second one")
    assert later.facts["utilisation"] > 0
    assert shared.result(1).body[0][1] == count + 1
    until(lambda: shared.beats["w0"].facts["queue"] == 0, "an empty queue")


# -- endings ----------------------------------------------------------------------------------------------------------


def test_a_fatal_notice_ends_it_well(alone: FakeDispatcher) -> None:
    process = alone.spawn()
    alone.welcome()
    alone.send("w0", m.Notice("info", "not yet"), m.Notice("fatal", "the cluster stops"))
    assert process.wait(30) == 0
    assert "the cluster stops" in alone.log()


def test_a_refusal_ends_it_with_the_reason(alone: FakeDispatcher) -> None:
    process = alone.spawn()
    identity, (hello,) = alone._receive(alone.back)
    assert type(hello) is m.Hello
    alone.identities["w0"] = identity
    alone.send("w0", m.Refused("to join with PyTorch version 9", "this cluster runs 2.13", "use the same environment"))
    assert process.wait(30) == 1
    assert "this cluster runs 2.13; use the same environment" in alone.log()


def test_silence_ends_it(alone: FakeDispatcher) -> None:
    process = alone.spawn()
    alone.welcome()
    until(lambda: "w0" in alone.beats, "a beat")
    alone.silent.set()
    assert process.wait(30) == 1
    assert "no beat from the dispatcher for 5 s" in alone.log()


def test_the_end_of_the_parent_ends_it_in_the_middle_of_an_operator(alone: FakeDispatcher) -> None:
    parent = subprocess.Popen(["sleep", "1000"])
    process = alone.spawn("--parent", str(parent.pid))
    alone.welcome()
    session = open_session(alone, "s1")
    side = 6000
    definitions = [
        definition(1, "ones", [["l", side, side], 6, 0, ["d"]]),
        definition(2, "mm", [T, T], [torch.empty(side, side, device="meta", dtype=torch.float32)] * 2),
    ]
    alone.send("w0", m.Batch(session, 1, 1, 1, 1, 1, definitions, [], words(1)))
    alone.result(1)
    alone.send("w0", *(m.Batch(session, 2 + i, 2 + i, 1, 1, 0, [], [], words(2, 1, 1)) for i in range(50)))
    until(lambda: alone.beats.get("w0") and alone.beats["w0"].facts["queue"] > 0, "it computes")
    parent.kill()
    parent.wait()
    assert process.wait(30) == 1
    assert "the parent has ended" in alone.log()


def test_the_end_of_the_dispatchers_process_ends_it(tmp_path: Path) -> None:
    """The kernel tells the pid of an ipc socket's other end: no silence has to be waited for."""
    directory = tempfile.mkdtemp(prefix="gt-w-", dir="/tmp")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.worker_tools import FakeDispatcher, until; from pathlib import Path\n"
        "d = FakeDispatcher(Path(sys.argv[2])); p = d.spawn(); d.welcome()\n"
        "until(lambda: 'w0' in d.beats, 'a beat'); print(p.pid, flush=True)\n"
        "d._ending.wait()"
    )
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen([sys.executable, "-c", code, root, directory], stdout=subprocess.PIPE) as dispatcher:
        assert dispatcher.stdout is not None
        pid = int(dispatcher.stdout.readline())
        dispatcher.send_signal(signal.SIGKILL)
        dispatcher.wait()
    log = Path(directory) / "w0.log"
    until(lambda: "the dispatcher has ended" in log.read_text(), "the worker says why it ends, before silence does")
    until(
        lambda: not os.path.exists(f"/proc/{pid}") or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2],
        "it is gone",
    )
    shutil.rmtree(directory)


def test_no_dispatcher_but_a_dead_parent(alone: FakeDispatcher) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    process = alone.spawn("--parent", str(child.pid))
    assert process.wait(60) == 1
    assert f"its parent {child.pid} has ended" in alone.log()


def test_a_worker_never_knows_the_device_mux(alone: FakeDispatcher) -> None:
    process = alone.spawn()
    alone.welcome()
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "_executor" in maps and "_capture" not in maps
