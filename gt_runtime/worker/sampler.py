"""What a worker says of its device in a heartbeat: utilisation and memory. Asks NVML, or psutil about this process;
never torch's allocator, whose lock a running operator may hold.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil


@dataclass(frozen=True, slots=True)
class Sample:
    """``utilisation``: share of the device in use since the last sample, 0 to 1, None = unknown. Memory in bytes."""

    utilisation: float | None
    source: str  # "nvml" or "psutil"
    memory_used: int
    memory_total: int


class Sampler(Protocol):
    """Something that samples a device. ``threads``: compute threads of this process, may be set at any time."""

    threads: int

    def sample(self) -> Sample: ...


class CpuSampler:
    """This process's share of ``threads`` cores, its resident memory, and the memory that this host (or its cgroup)
    has."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._process = psutil.Process()
        self._process.cpu_percent(None)  # the first call only starts the clock
        self._total = host_memory()

    def sample(self) -> Sample:
        share = self._process.cpu_percent(None) / 100 / self.threads
        return Sample(min(1.0, max(0.0, share)), "psutil", self._process.memory_info().rss, self._total)


class NvmlSampler:
    """A GPU or MIG slice as NVML sees it, all processes together. A slice's utilisation isn't told by NVML: None."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.threads = 1  # of no interest here
        self._nvml = nvml
        self._handle = handle
        self._total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)

    def sample(self) -> Sample:
        nvml = self._nvml
        used = 0
        try:
            used = int(nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
            share: float | None = nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        except nvml.NVMLError:
            share = None
        return Sample(share, "nvml", used, self._total)


def make_sampler(device: str, threads: int, nvml: Any = None) -> Sampler:
    """The sampler for ``device`` ("cpu", or anything else for the one CUDA device that this process's environment
    shows).

    ``nvml``: a module like pynvml, for tests; default the real one. Where NVML can't be used, the process is sampled
    instead.
    """
    if device == "cpu":
        return CpuSampler(threads)
    try:
        library = nvml if nvml is not None else importlib.import_module("pynvml")
        library.nvmlInit()
        return NvmlSampler(library, _handle(library, os.environ.get("CUDA_VISIBLE_DEVICES", "0")))
    except Exception:  # no library, no driver, another version, a container without access: NVML raises a dozen types
        return CpuSampler(threads)


def _handle(nvml: Any, entry: str) -> Any:
    """NVML's handle for the one entry of ``CUDA_VISIBLE_DEVICES``: an index or the start of a uuid."""
    if entry.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))
    return nvml.nvmlDeviceGetHandleByUUID(entry)


def host_memory() -> int:
    """Bytes of memory that this process can hope for: the host's, or its cgroup's cap."""
    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return min(total, int(text))
    return total


def cpu_name() -> str:
    """What a person would call this host's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "CPU"
