"""The worker's Python parts without a process: options, devices, clients' memory, chunks, samples, heartbeats."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from gt_runtime.protocol import codec
from gt_runtime.protocol.messages import Beat, Chunk, Failure
from gt_runtime.worker import sampler
from gt_runtime.worker.bulk import Staging
from gt_runtime.worker.memory import ClientMemory, MemoryRefused
from gt_runtime.worker.options import DeviceError, WorkerOptions, device_environment, inner_device, parse
from gt_runtime.worker.pulse import Pulse
from gt_runtime.worker.server import own_address
from tests.worker_tools import until

# -- options and devices ----------------------------------------------------------------------------------------------


def test_options_from_a_command_line() -> None:
    arguments = [
        "--connect",
        "ipc:///x",
        "--device",
        "cpu",
        "--id",
        "w3",
        "--threads",
        "2",
        "--parent",
        "17",
        "--memory",
        "99",
    ]
    assert parse(arguments) == WorkerOptions("ipc:///x", "cpu", "w3", 2, 17, 99)


@pytest.mark.parametrize(
    "arguments", ["", "--connect x --device tpu", "--connect x --threads -1", "--connect x --parent me"]
)
def test_options_that_make_no_sense(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments.split())
    assert "gt worker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "shown", "expected"),
    [
        ("cpu", "0,1", ""),
        ("cuda:1", None, "1"),
        ("cuda:1", "4, 5", "5"),
        ("cuda:0", "GPU-abc", "GPU-abc"),
        ("MIG-1-2", "0", "MIG-1-2"),
        ("GPU-1", None, "GPU-1"),
    ],
)
def test_a_worker_sees_its_device_alone(device: str, shown: str | None, expected: str) -> None:
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert device_environment(device, environment)["CUDA_VISIBLE_DEVICES"] == expected
    assert inner_device(device) == ("cpu" if device == "cpu" else "cuda:0")


@pytest.mark.parametrize(
    ("device", "shown"), [("tpu", None), ("cuda", None), ("cuda:x", None), ("cuda:2", "0,1"), ("", None)]
)
def test_devices_that_cannot_be_meant(device: str, shown: str | None) -> None:
    with pytest.raises(DeviceError, match="a worker on"):
        device_environment(device, {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})


def test_options_know_no_torch() -> None:
    """The device is chosen through the environment, which torch reads when it is imported."""
    code = "import sys, gt_runtime.worker.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([os.sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [("ipc:///x", "127.0.0.1"), ("tcp://127.0.0.1:5", "127.0.0.1"), ("tcp://no such host:1", "127.0.0.1")],
)
def test_where_others_reach_this_worker(endpoint: str, address: str) -> None:
    assert own_address(endpoint) == address


# -- clients' memory --------------------------------------------------------------------------------------------------


class Memfd:
    def __init__(self, size: int, seals: int = fcntl.F_SEAL_SHRINK) -> None:
        self.fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def __enter__(self) -> Memfd:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


@pytest.fixture
def memory() -> Iterator[ClientMemory]:
    mine = ClientMemory(os.getpid(), os.getuid(), True)
    yield mine
    mine.close()


def test_memory_is_shared(memory: ClientMemory) -> None:
    with Memfd(8192) as file, mmap.mmap(file.fd, 8192) as ours:
        ours[100:105] = b"hello"
        with memory.view(file.fd, 100, 5) as view:
            assert bytes(view) == b"hello"
        with memory.view(file.fd, 200, 2, write=True) as view:
            view[:] = b"ok"
        assert ours[200:202] == b"ok"


def test_a_mapping_is_kept_and_follows_the_file(memory: ClientMemory) -> None:
    with Memfd(4096) as file:
        memory.view(file.fd, 0, 1).release()
        kept = memory._mappings[file.fd].memory
        memory.view(file.fd, 0, 1).release()
        assert memory._mappings[file.fd].memory is kept
        os.ftruncate(file.fd, 8192)
        with memory.view(file.fd, 8000, 100) as view:
            assert view.nbytes == 100
        number = file.fd
    with Memfd(4096) as other:
        os.pwrite(other.fd, b"new", 0)
        assert other.fd == number, "the lowest free number is given again"
        with memory.view(number, 0, 3) as view:
            assert bytes(view) == b"new"


def refused(memory: ClientMemory, fd: int, offset: int = 0, nbytes: int = 1, *, write: bool = False) -> str:
    with pytest.raises(MemoryRefused) as raised:
        memory.view(fd, offset, nbytes, write=write)
    failure = raised.value.failure("w1")
    assert (failure.kind, failure.worker, failure.message) == ("refused", "w1", str(raised.value))
    return failure.message


def test_memory_that_could_kill_us_is_refused(memory: ClientMemory, tmp_path: Path) -> None:
    with Memfd(4096, 0) as file:
        assert "isn't sealed against shrinking" in refused(memory, file.fd)
    with open(tmp_path / "file", "w+b") as plain:
        plain.truncate(4096)
        assert "no memfd" in refused(memory, plain.fileno())
    with Memfd(0) as file:
        assert "is empty" in refused(memory, file.fd)


@pytest.mark.parametrize(("offset", "nbytes"), [(4096, 1), (0, 4097), (-1, 2), (0, -1), (1 << 62, 1 << 62)])
def test_ranges_outside_the_memory(memory: ClientMemory, offset: int, nbytes: int) -> None:
    with Memfd(4096) as file:
        assert "which has 4096" in refused(memory, file.fd, offset, nbytes)


def test_memory_that_is_not_the_clients(memory: ClientMemory) -> None:
    assert "can't be looked at" in refused(memory, 987)
    with Memfd(4096, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE) as file:
        memory.view(file.fd, 0, 1).release()
        assert "sealed against writing" in refused(memory, file.fd, write=True)
        assert "isn't the client's any more" in refused(ClientMemory(os.getpid(), os.getuid() + 1, True), file.fd)
        assert "isn't on this worker's host" in refused(ClientMemory(os.getpid(), os.getuid(), False), file.fd)
        assert "isn't on this worker's host" in refused(ClientMemory(0, None, True), file.fd)


# -- staged uploads ---------------------------------------------------------------------------------------------------


def piece(transfer: int, offset: int, total: int, contents: bytes, session: str = "s") -> Chunk:
    return Chunk(session, transfer, offset, total, offset + len(contents) == total, contents)


def test_chunks_are_put_together_in_any_order() -> None:
    staging = Staging(0)
    second = staging.add(piece(1, 3, 5, b"de"))
    assert second is not None and (second.last, bytes(second.data)) == (False, b"")
    first = staging.add(piece(1, 0, 5, b"abc"))
    assert first is not None and first.last
    assert staging.take("s", 1, 5)[:] == b"abcde"
    again = staging.take("s", 1, 5)
    assert isinstance(again, Failure) and "nothing was staged" in again.message


def test_transfers_that_are_not_what_they_should_be() -> None:
    staging = Staging(0)
    staging.add(piece(1, 0, 5, b"abc"))
    cut = staging.take("s", 1, 5)
    assert isinstance(cut, Failure) and "3 of 5 bytes" in cut.message
    staging.add(piece(2, 0, 3, b"abc"))
    assert isinstance(staging.take("s", 2, 4), Failure)
    staging.add(piece(3, 2, 3, b"abc"))  # beyond its own end: written nowhere
    assert staging.take("s", 3, 3)[:] == bytes(3)


def test_staging_has_a_limit_and_ends_with_its_session() -> None:
    staging = Staging(10)
    staging.add(piece(1, 0, 8, b"12345678"))
    answer = staging.add(piece(2, 0, 4, b"abcd"))
    assert answer is not None and answer.last, "acknowledged, so that nobody waits"
    over = staging.take("s", 2, 4)
    assert isinstance(over, Failure) and (over.kind, over.type) == ("memory", "OutOfMemoryError")
    staging.drop("s")
    assert staging.add(piece(3, 0, 1, b"x")) is None
    assert staging.add(piece(1, 0, 10, b"0123456789", "t")) is not None
    assert staging.take("t", 1, 10)[:] == b"0123456789"
    huge = Staging(0)
    huge.add(piece(1, 0, 1 << 62, b"x"))
    assert isinstance(huge.take("s", 1, 1 << 62), Failure)


# -- samples ----------------------------------------------------------------------------------------------------------


def test_a_cpu_sample() -> None:
    sample = sampler.make_sampler("cpu", 2).sample()
    assert sample.source == "psutil" and 0 <= (sample.utilisation or 0) <= 1
    assert 0 < sample.memory_used < sample.memory_total


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, shares: bool = True) -> None:
        self.shares = shares
        self.asked: list[Any] = []

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self.asked.append(index)
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return type("Info", (), {"total": 1000, "used": 400})

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if not self.shares:
            raise self.NVMLError
        return type("Rates", (), {"gpu": 25})


def test_a_gpu_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    nvml = FakeNvml()
    assert sampler.make_sampler("cuda:3", 1, nvml).sample() == sampler.Sample(0.25, "nvml", 400, 1000)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    slice_ = FakeNvml(shares=False)
    assert sampler.make_sampler("MIG-7", 1, slice_).sample() == sampler.Sample(None, "nvml", 400, 1000)
    assert (nvml.asked, slice_.asked) == ([3], ["MIG-7"])


def test_without_nvml_the_process_is_sampled() -> None:
    assert sampler.make_sampler("cuda:0", 1, nvml=object()).sample().source == "psutil"


# -- heartbeats -------------------------------------------------------------------------------------------------------


class Beating:
    """A heartbeat thread against a socket of the test's."""

    def __init__(self, tmp_path: Path, **more: Any) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        endpoint = f"ipc://{tmp_path / 'pulse'}"
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(endpoint)
        self.ended: list[str] = []
        self.over = threading.Event()
        watched = more.pop("watched", {})
        self.pulse = Pulse(self.context, endpoint, "w0", 3, lambda: {"queue": 1}, watched=watched, end=self.end, **more)
        self.pulse.start()

    def end(self, reason: str) -> None:
        self.ended.append(reason)
        self.over.set()

    def close(self) -> None:
        self.pulse.stop()
        self.pulse.join(10)
        assert not self.pulse.is_alive()
        self.socket.close()
        self.context.term()


def test_beats_come_and_are_answered(tmp_path: Path) -> None:
    beating = Beating(tmp_path, silence=1.0)
    for _ in range(6):  # longer than the silence that would end it
        assert beating.socket.poll(20000)
        identity, *frames = beating.socket.recv_multipart()
        assert codec.decode(frames) == Beat("w0", 3, {"queue": 1})
        beating.socket.send_multipart([identity, *codec.encode(Beat("", 3, {}))])
    assert not beating.ended
    beating.close()


def test_silence_ends_the_process(tmp_path: Path) -> None:
    beating = Beating(tmp_path, silence=0.3)
    assert beating.over.wait(30) and "no beat from the dispatcher" in beating.ended[0]
    beating.close()


def test_the_end_of_the_parent_ends_the_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        beating = Beating(tmp_path, watched={"the parent": child.pid, "nobody": 0})
        assert beating.socket.poll(20000), "it beats"
        assert not beating.ended
        child.kill()
        assert beating.over.wait(30) and beating.ended == ["the parent has ended"]
        beating.close()


def test_a_parent_that_has_ended_before(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    beating = Beating(tmp_path, watched={"the parent": child.pid})
    until(lambda: beating.ended, "the end is noticed")
    beating.close()
