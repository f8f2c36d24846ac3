"""Which devices this host has for workers, one worker a device. Asks NVML and the kernel, never torch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from gt_runtime.launch.errors import LaunchError

DEFAULT_CPU_WORKERS = 2  # of `gt up` on a host without GPUs: enough to see work shared
EMBEDDED_CPU_WORKERS = 1  # of a program's private cluster: it starts fastest, and has all cores


class DeviceKind(StrEnum):
    """What the workers of a cluster shall run on."""

    AUTO = "auto"  # GPUs if there are any, else CPU
    CUDA = "cuda"
    CPU = "cpu"


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """A place for one worker: ``device`` as in ``gt worker --device``, and what its environment needs to show it."""

    device: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def choose(kind: DeviceKind, workers: int | None, default_cpu: int = DEFAULT_CPU_WORKERS) -> tuple[Slot, ...]:
    """One slot a worker. ``workers`` None: as many as there are GPUs, or ``default_cpu`` on CPU.

    Raises:
        LaunchError: fewer GPUs than workers, or none though ``kind`` is CUDA.
    """
    found = () if kind is DeviceKind.CPU else gpus()
    if kind is DeviceKind.CUDA and not found:
        do = "see `gt doctor`, or use --device cpu"
        raise LaunchError("workers on CUDA devices", "NVML and CUDA_VISIBLE_DEVICES show none", do)
    if not found:
        return (Slot("cpu"),) * (default_cpu if workers is None else workers)
    if workers is not None and workers > len(found):
        do = f"use --workers {len(found)}, or --device cpu"
        raise LaunchError(f"{workers} workers, one a GPU", f"there are {len(found)} GPUs for them", do)
    return found if workers is None else found[:workers]


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def threads_each(workers: int) -> int:
    """Threads of each of ``workers`` CPU workers that share this host's cores."""
    return max(1, cores() // max(1, workers))


def gpus() -> tuple[Slot, ...]:
    """The GPUs that a CUDA program started here would see, MIG slices apart; empty without a driver."""
    with nvml() as library:
        if library is None:
            return ()
        whole: dict[int, str] = {}  # uuids by NVML's number, which is the place on the PCI bus
        slices: list[str] = []
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            mig = _slices(library, handle)
            if mig is None:
                whole[index] = _text(library.nvmlDeviceGetUUID(handle))
            slices += mig or []
    return _visible(whole, slices, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(whole: Mapping[int, str], slices: list[str], chosen: str | None) -> tuple[Slot, ...]:
    """Slots for GPUs and MIG slices (uuids) under a ``CUDA_VISIBLE_DEVICES`` of ``chosen`` (None: not set).

    As CUDA reads it: a list that ends at its first entry that names nothing. A whole GPU is called by its place in that
    list, or on the bus where there is no list, as ``gt worker --device`` takes it; a slice by its uuid.
    """
    if chosen is None:
        found = [Slot(f"cuda:{i}") for i in whole]
        return (*found, *(_slice(uuid) for uuid in slices))
    found = []
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.startswith("MIG-"):
            match = [uuid for uuid in slices if uuid.startswith(entry)]
            if len(match) != 1:
                break
            found.append(_slice(match[0]))
        elif entry.startswith("GPU-"):
            if sum(uuid.startswith(entry) for uuid in whole.values()) != 1:
                break
            found.append(Slot(f"cuda:{len(found)}"))
        elif entry.isdigit() and int(entry) in whole:
            found.append(Slot(f"cuda:{len(found)}"))
        else:
            break
    return tuple(found)


def _slice(uuid: str) -> Slot:
    return Slot(uuid, {"CUDA_VISIBLE_DEVICES": uuid})


def _slices(library: Any, handle: Any) -> list[str] | None:
    """Uuids of a GPU's MIG slices; None where it isn't split."""
    try:
        current, _ = library.nvmlDeviceGetMigMode(handle)
        if current != library.NVML_DEVICE_MIG_ENABLE:
            return None
        most = library.nvmlDeviceGetMaxMigDeviceCount(handle)
    except library.NVMLError:
        return None  # a GPU that can't be split
    found = []
    for index in range(most):
        try:
            found.append(_text(library.nvmlDeviceGetUUID(library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))))
        except library.NVMLError:
            continue  # a slice that isn't made
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """The NVML module, initialised; None where there is no library or no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no module, library or driver, or of another version: no GPUs for us; `gt doctor` says why
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
