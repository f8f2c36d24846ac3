"""Which device each worker gets, for hosts that tests don't have."""

from __future__ import annotations

import pytest

from gt_runtime.launch import devices
from gt_runtime.launch.devices import DeviceKind, Slot
from gt_runtime.launch.errors import LaunchError

CARDS = {0: "GPU-aa11", 2: "GPU-bb22", 3: "GPU-bb33"}  # 1 is split
SLICES = ["MIG-11", "MIG-22"]


def mig(uuid: str) -> Slot:
    return Slot(uuid, {"CUDA_VISIBLE_DEVICES": uuid})


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, [Slot("cuda:0"), Slot("cuda:2"), Slot("cuda:3"), mig("MIG-11"), mig("MIG-22")]),
        ("", []),
        ("-1", []),
        ("2,0", [Slot("cuda:0"), Slot("cuda:1")]),
        ("2,-1,0", [Slot("cuda:0")]),
        ("0, 9, 1", [Slot("cuda:0")]),
        ("GPU-aa", [Slot("cuda:0")]),
        ("GPU-bb", []),  # names two
        ("GPU-bb22,GPU-aa11", [Slot("cuda:0"), Slot("cuda:1")]),
        ("MIG-22", [mig("MIG-22")]),
        ("MIG-99", []),
    ],
)
def test_cuda_visible_devices(chosen: str | None, expected: list[Slot]) -> None:
    assert list(devices._visible(CARDS, SLICES, chosen)) == expected


def test_gpus_first_then_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    two = (Slot("cuda:0"), Slot("cuda:1"))
    monkeypatch.setattr(devices, "gpus", lambda: two)
    assert devices.choose(DeviceKind.AUTO, None) == two
    assert devices.choose(DeviceKind.AUTO, 1) == two[:1]
    assert devices.choose(DeviceKind.CPU, 3) == (Slot("cpu"),) * 3
    with pytest.raises(LaunchError, match="there are 2 GPUs"):
        devices.choose(DeviceKind.AUTO, 3)


def test_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    assert devices.choose(DeviceKind.AUTO, None) == (Slot("cpu"),) * devices.DEFAULT_CPU_WORKERS
    assert devices.choose(DeviceKind.AUTO, None, 1) == (Slot("cpu"),)
    with pytest.raises(LaunchError, match="--device cpu"):
        devices.choose(DeviceKind.CUDA, None)


def test_threads_share_the_cores_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cores", lambda: 8)
    assert [devices.threads_each(n) for n in (0, 1, 2, 3, 16)] == [8, 8, 4, 2, 1]


class FakeNvml:
    """One whole GPU and one that is split into a slice and an unused place."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: object) -> object:
        return {0: "GPU-0", 1: b"GPU-1", "slice": "MIG-1"}[handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:
        if handle == 0:
            raise self.NVMLError("not supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 2

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:
        if index:
            raise self.NVMLError("not found")
        return "slice"


def test_enumeration_with_mig(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "nvml", lambda: nullcontext(FakeNvml()))
    assert devices.gpus() == (Slot("cuda:0"), mig("MIG-1"))
    monkeypatch.setattr(devices, "nvml", lambda: nullcontext(None))
    assert devices.gpus() == ()
