"""The dispatcher's IO on real sockets: as a thread here, as a process where signals, parents and start-up matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from gt_runtime.control.client import ControlClient, ControlError
from gt_runtime.dispatcher import endpoints as ends
from gt_runtime.dispatcher.options import DispatcherOptions
from gt_runtime.dispatcher.server import Server
from gt_runtime.protocol import codec, handshake
from gt_runtime.protocol import messages as m
from gt_runtime.telemetry.records import EVENT, FRAME, Frame

DEADLINE = 10.0


def until(done: Callable[[], Any], what: str) -> Any:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE
    while not (found := done()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)
    return found


class Peer:
    """One DEALER connection."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.LINGER = 0
        self.socket.RCVTIMEO = int(DEADLINE * 1000)
        self.socket.connect(endpoint)
        self.arrived: deque[Any] = deque()

    def send(self, message: Any) -> None:
        self.socket.send_multipart(codec.encode(message))

    def receive(self, kind: type[Any] | None = None) -> Any:
        """The next message, or the next of a kind."""
        while True:
            if not self.arrived:
                self.arrived.extend(codec.decode_all(self.socket.recv_multipart()))
            message = self.arrived.popleft()
            if kind is None or isinstance(message, kind):
                return message


class Cluster:
    """A dispatcher in a thread."""

    def __init__(self, run_dir: Path, **more: Any) -> None:
        self.options = DispatcherOptions("test", run_dir, **more)
        self.server = Server(self.options)
        self.ipc, self.tcp = self.server._ends.ipc, self.server._ends.tcp
        self.status: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.context: zmq.Context[Any] = zmq.Context()
        self.peers: list[Peer] = []
        self.keys: dict[str, str] = {}  # by worker or session
        self.thread.start()

    def _run(self) -> None:
        self.status = self.server.run()

    def connect(self, endpoint: str) -> Peer:
        self.peers.append(Peer(self.context, endpoint))
        return self.peers[-1]

    def join(self) -> Peer:
        worker = self.connect(self.ipc["back"])
        worker.send(
            m.Hello(handshake.facts("worker", "2", "x", device="cpu", speed=1.0, memory_total=1 << 30, store=""))
        )
        self.welcomed(worker)
        return worker

    def welcomed(self, peer: Peer) -> str:
        facts = peer.receive(m.Welcome).facts
        self.keys[facts["id"]] = facts["key"]
        return str(facts["id"])

    def beat(self, who: str, **facts: Any) -> m.Beat:
        """As ``who`` itself would send it."""
        return m.Beat(who, 1, {**facts, "key": self.keys[who]})

    def client(self) -> tuple[Peer, str]:
        client = self.connect(self.ipc["front"])
        client.send(m.Hello(handshake.facts("client", "2", "x", tenant="t")))
        return client, self.welcomed(client)

    def ask(self, method: str, **arguments: Any) -> Any:
        with ControlClient(self.ipc["front"], DEADLINE) as control:
            return control.request(method, **arguments)

    def close(self) -> None:
        if self.thread.is_alive():
            self.ask("stop", reason="test over")
        self.thread.join(DEADLINE)
        for peer in self.peers:
            peer.socket.close(0)
        self.context.term()
        assert not self.thread.is_alive() and self.status == 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "run")
    yield made
    made.close()


def test_a_batch_there_and_its_done_back(cluster: Cluster) -> None:
    worker = cluster.join()
    client, name = cluster.client()
    words = bytes(range(256)) * 64
    client.send(m.Batch("", 1, 1, 2, 3, 0, [], [[1, "layer1"]], words))
    assert worker.receive(m.Open).session == name
    assert worker.receive(m.Batch) == m.Batch(name, 1, 1, 2, 3, 0, [], [[1, "layer1"]], words)
    worker.send(m.Done(name, 1, 3, 0))
    assert client.receive(m.Credit) == m.Credit(3, 0)
    client.send(m.Fetch("", 1, 5, 1, None))
    assert worker.receive(m.Fetch).session == name
    worker.send(m.Result(name, 5, None, [6, [1], [1], 0], b"abcd"))
    assert client.receive(m.Result) == m.Result("", 5, None, [6, [1], [1], 0], b"abcd")


def test_the_kernel_says_who_it_is(cluster: Cluster) -> None:
    """Uid and pid come from the socket, whatever a Hello claims."""
    cluster.join()
    liar = cluster.connect(cluster.ipc["front"])
    liar.send(m.Hello(handshake.facts("client", "2", "x") | {"pid": 1}))
    liar.receive(m.Welcome)
    (session,) = cluster.ask("sessions")
    assert (session["pid"], session["uid"]) == (os.getpid(), os.getuid())


@pytest.mark.parametrize("endpoint", ["front", "back", "bulk", "pulse"])
def test_junk_harms_nobody_else(cluster: Cluster, endpoint: str) -> None:
    worker = cluster.join()
    client, name = cluster.client()
    stranger = cluster.connect(cluster.ipc[endpoint])
    for frames in (
        [b""],
        [b"B"],
        [b"\xff", b"x"],
        [codec.pack([["H", {}]])],
        [codec.pack([["C"]]), b"", b""],
        [codec.pack([["H", {}], ["c", "", ""]])],
        [b""] * 99,
        codec.encode(m.Beat("w0", 1, {})),
        codec.encode(m.Chunk("", 1, 0, 1, True, b"x")),
    ):
        stranger.socket.send_multipart(frames)
    client.send(m.Batch("", 1, 1, 0, 1, 0, [], [], b""))
    assert worker.receive(m.Batch).session == name
    assert cluster.ask("status")["sessions"] == 1


def test_a_malformed_message_ends_its_session_alone(cluster: Cluster) -> None:
    worker = cluster.join()
    (bad, _), (good, good_name) = cluster.client(), cluster.client()
    bad.socket.send_multipart([codec.pack([["B", "", 1]])])
    refused = bad.receive(m.Refused)
    assert "expected 9 fields" in refused.found and bad.receive(m.Notice).level == "fatal"
    good.send(m.Batch("", 1, 1, 0, 1, 0, [], [], b""))
    assert worker.receive(m.Batch).session == good_name
    assert [s["id"] for s in cluster.ask("sessions")] == [good_name]


def test_an_error_of_ours_costs_one_session(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.join()
    (bad, _), (good, name) = cluster.client(), cluster.client()
    streams = cluster.server._core.streams

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(streams, "_sync", broken)
    bad.send(m.Sync("", 0, 1, False))
    assert "ZeroDivisionError" in bad.receive(m.Refused).found
    good.send(m.Fetch("", 0, 1, 99, None))
    assert good.receive(m.Result).failure[0] == m.FailureKind.PROTOCOL
    assert [s["id"] for s in cluster.ask("sessions")] == [name]


def test_a_process_that_ends_is_seen_at_once(cluster: Cluster) -> None:
    """A client killed with -9: its session is gone, and the worker told, long before any silence counts."""
    worker = cluster.join()
    code = (
        "import sys, zmq; from gt_runtime.protocol import codec, handshake, messages as m\n"
        "s = zmq.Context().socket(zmq.DEALER); s.connect(sys.argv[1])\n"
        "s.send_multipart(codec.encode(m.Hello(handshake.facts('client', '2', 'x'))))\n"
        "s.recv_multipart(); s.send_multipart(codec.encode(m.Batch('', 1, 1, 0, 1, 0, [], [], b'')))\n"
        "print('sent', flush=True); s.recv_multipart()"
    )
    client = subprocess.Popen([sys.executable, "-c", code, cluster.ipc["front"]], stdout=subprocess.PIPE)
    assert client.stdout is not None and client.stdout.readline() == b"sent\n"
    name = worker.receive(m.Batch).session
    client.kill()
    client.wait()
    assert worker.receive(m.Close).session == name
    assert cluster.ask("sessions") == []
    client.stdout.close()


def test_beats_are_answered_and_counted(cluster: Cluster) -> None:
    cluster.join()
    pulse = cluster.connect(cluster.ipc["pulse"])
    for false in ({}, {"key": ""}, {"key": "0" * 16}, {"key": 7}):
        pulse.send(m.Beat("w0", 1, {"utilisation": 0.75, **false}))
    pulse.send(cluster.beat("w0", queue=5, utilisation=0.25))
    assert pulse.receive(m.Beat) == m.Beat("test", 1, {})
    until(lambda: cluster.ask("workers")[0]["utilisation"] == 0.25, "the beat's facts show")


def test_a_silent_worker_is_lost(cluster: Cluster) -> None:
    """Its process lives (it is this one), but after its first beats it says no more."""
    worker, other = cluster.join(), cluster.join()
    pulse = cluster.connect(cluster.ipc["pulse"])
    keep = threading.Event()

    def beat() -> None:
        mine = Peer(cluster.context, cluster.ipc["pulse"])
        while not keep.wait(0.2):
            mine.send(cluster.beat("w1"))
        mine.socket.close(0)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        pulse.send(cluster.beat("w0"))
        started = time.monotonic()
        assert "out of the cluster: silent" in worker.receive(m.Notice).text
        assert time.monotonic() - started > 1.5
        while list(other.receive(m.Peers).members) != ["w1"]:
            pass
        assert {w["id"]: w["state"] for w in cluster.ask("workers")} == {"w0": "lost", "w1": "ready"}
    finally:
        keep.set()
        beating.join()


def test_the_feed(cluster: Cluster) -> None:
    feed = cluster.context.socket(zmq.SUB)
    feed.subscribe(b"")
    feed.RCVTIMEO = int(DEADLINE * 1000)
    feed.connect(cluster.ipc["telemetry"])
    assert feed.recv_multipart()[0] == FRAME  # it is connected
    cluster.join()
    records = []
    while not records or records[-1][1].get("event") != "joined":
        topic, body = feed.recv_multipart()
        records.append((topic, codec.unpack(body)))
    topic, body = feed.recv_multipart()
    while topic != FRAME:
        topic, body = feed.recv_multipart()
    frame = Frame.unpack(codec.unpack(body))
    assert [w.id for w in frame.workers] == ["w0"] and frame.cluster == "test"
    assert frame.seq == records[-1][1]["seq"] + 1 and records[-1][0] == EVENT
    snapshot = cluster.ask("snapshot")
    assert snapshot["frame"]["cluster"] == "test" and snapshot["events"][-1]["event"] == "joined"
    feed.close(0)


def test_chunks_are_relayed(cluster: Cluster) -> None:
    """Also to a worker that connects to bulk only after the first came."""
    worker = cluster.join()
    _, name = cluster.client()
    stranger = cluster.connect(cluster.ipc["bulk"])
    stranger.send(m.Chunk("", 1, 0, 4, True, b"evil"))
    near = cluster.connect(cluster.ipc["bulk"])
    stranger.send(m.Beat(name, 1, {"key": "guessed"}))  # of the same user, and not that program
    stranger.send(m.Chunk("", 1, 0, 4, True, b"evil"))
    near.send(cluster.beat(name))
    near.send(m.Chunk("", 1, 0, 4, True, b"abcd"))
    assert worker.receive(m.Open).session == name
    far = cluster.connect(cluster.ipc["bulk"])
    far.send(cluster.beat("w0"))
    assert far.receive(m.Chunk) == m.Chunk(name, 1, 0, 4, True, b"abcd")
    far.send(m.Chunk(name, 1, 0, 4, True))
    assert near.receive(m.Chunk) == m.Chunk("", 1, 0, 4, True)


def test_tcp_reads_but_does_not_act(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "run", listen="tcp://")
    try:
        assert cluster.tcp["front"].startswith("tcp://127.0.0.1:")
        with ControlClient(cluster.tcp["front"], DEADLINE) as control:
            assert control.request("status")["endpoints"] == cluster.tcp
            with pytest.raises(ControlError, match="reached over tcp"):
                control.request("stop")
    finally:
        cluster.close()


def test_stop_tells_everyone_and_cleans_up(cluster: Cluster) -> None:
    worker = cluster.join()
    client, _ = cluster.client()
    cluster.ask("stop", reason="enough")
    assert client.receive(m.Notice).text == worker.receive(m.Notice).text == "cluster test stops: enough"
    cluster.thread.join(DEADLINE)
    assert not cluster.thread.is_alive() and not cluster.options.run_dir.exists()


def test_addresses_that_do_not_work(tmp_path: Path) -> None:
    for listen in ("udp://x", "tcp://h:99999", "tcp://h/x", "tcp://[::"):
        with pytest.raises(ends.EndpointError, match="--listen"):
            ends.parse_listen(listen)
    assert ends.parse_listen("tcp://:7") == ("127.0.0.1", 7) and ends.parse_listen("tcp://[::1]:7") == ("::1", 7)
    with pytest.raises(ends.EndpointError, match="shorter"):
        Server(DispatcherOptions("x", tmp_path / ("d" * 100)))


# -- as a process -----------------------------------------------------------------------------------------------------


def start(run_dir: Path, *more: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    arguments = ["--name", "p", "--run-dir", str(run_dir), *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "gt_runtime.dispatcher", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def finish(process: subprocess.Popen[bytes]) -> int:
    """Its exit status."""
    try:
        process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    process, line = start(tmp_path / "run")
    assert line["pid"] == process.pid and set(line["endpoints"]) == set(ends.NAMES)
    context: zmq.Context[Any] = zmq.Context()
    worker = Peer(context, line["endpoints"]["back"])
    worker.send(m.Hello(handshake.facts("worker", "2", "x")))
    worker.receive(m.Welcome)
    process.send_signal(number)
    assert worker.receive(m.Notice).text == f"cluster p stops: {number.name}"
    assert finish(process) == 0 and not (tmp_path / "run").exists()
    worker.socket.close(0)
    context.term()


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process, _ = start(tmp_path / "run", "--parent", str(parent.pid))
    parent.kill()
    parent.wait()
    assert finish(process) == 0
    late, _ = start(tmp_path / "run", "--parent", str(parent.pid))
    assert finish(late) == 0, "a parent that was gone already"
    assert parent.stdin is not None
    parent.stdin.close()


def test_it_never_imports_torch() -> None:
    code = (
        "import sys, gt_runtime.dispatcher.server, gt_runtime.control.client\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_place_it_cannot_bind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = subprocess.run(
        [sys.executable, "-m", "gt_runtime.dispatcher", "--name", "p", "--run-dir", str(tmp_path / "file" / "run")],
        capture_output=True,
        timeout=DEADLINE,
    )
    assert process.returncode == 1 and process.stdout == b"" and b"gt dispatcher:" in process.stderr
