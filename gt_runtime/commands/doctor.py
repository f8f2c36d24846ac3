"""``gt doctor``: whether this host has what GT needs, one line a thing, each with what to do about it.

Every check is small, has no lasting effect and imports no torch.
"""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.metadata
import mmap
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import gt_runtime
from gt_runtime.commands import text
from gt_runtime.commands.common import Exit, print_json
from gt_runtime.launch import devices
from gt_runtime.launch.connection import RuntimeDirectory
from gt_runtime.launch.errors import LaunchError

FILES_NEEDED = 4096  # descriptors: one a memfd and connection; many clients and large uploads
MEMORY_NEEDED = 2 << 30  # bytes free: a worker that has imported torch takes about 300 MiB
SPACE_NEEDED = 64 << 20  # bytes for sockets, connection files and logs
_CHILD_SECONDS = 10.0
_PACKAGES = ("torch", "pyzmq", "msgpack", "pyyaml", "psutil", "nvidia-ml-py", "textual", "numpy")
_OPTIONAL = ("nvidia-ml-py", "textual")
_NATIVE = ("gt/_native/_capture", "gt_runtime/worker/_native/_executor")


class State(StrEnum):
    """How a thing is: fine, worth knowing, or in the way of GT."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``do`` is empty where nothing is to be done."""

    id: str
    state: State
    found: str
    do: str = ""


def doctor(as_json: bool) -> int:
    """Look at everything and print it. Returns 1 if something is in the way."""
    findings = list(examine())
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        width = max(len(f.id) for f in findings)
        for f in findings:
            print(f"{f.state.value:<8} {f.id.ljust(width)}  {text.word(f.found)}" + (f"  -> {f.do}" if f.do else ""))
    return Exit.FAILED if any(f.state is State.FAILED for f in findings) else Exit.OK


def examine() -> Iterator[Finding]:
    """Every finding; a check that breaks is a finding too."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:  # one broken check must not hide the others
            name = check.__name__.strip("_").replace("_", "-")
            found = f"{type(error).__name__}: {error}"
            yield Finding(name, State.FAILED, found, "see whether the system allows it")


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    good = sys.version_info >= (3, 11) and sys.platform == "linux"
    do = "" if good else "use Python 3.11 or newer on Linux"
    found = f"Python {version} ({platform.python_implementation()}), {platform.system()} {platform.release()}"
    yield Finding("python", State.OK if good else State.FAILED, found, do)
    yield Finding("gt", State.OK, f"GT {gt_runtime.__version__} in {os.path.dirname(gt_runtime.__file__)}")


def _packages() -> Iterator[Finding]:
    for name in _PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            state = State.WARNING if name in _OPTIONAL else State.FAILED
            yield Finding(name, state, "isn't installed", f"pip install {name}")
            continue
        good = name != "torch" or version.startswith("2.13.")
        do = "" if good else "install torch>=2.13,<2.14: GT uses its private interfaces"
        yield Finding(name, State.OK if good else State.FAILED, version, do)


def _native_parts() -> Iterator[Finding]:
    root = Path(gt_runtime.__file__).parents[1]
    missing = [n for n in _NATIVE if not any((root / f"{n}{suffix}").exists() for suffix in EXTENSION_SUFFIXES)]
    compilers = [c for c in (os.environ.get("CXX"), "c++", "g++", "clang++") if c and shutil.which(c)]
    if missing:
        do = "run `make native`, or install a wheel"
        yield Finding("native", State.FAILED, f"not built: {', '.join(missing)}", do)
    else:
        yield Finding("native", State.OK, "both native modules are built")
    if compilers:
        yield Finding("compiler", State.OK, shutil.which(compilers[0]) or compilers[0])
    else:
        state = State.FAILED if missing else State.WARNING
        yield Finding("compiler", state, "no C++ compiler", "install g++ or clang++ to build GT from source")


def _runtime_directory() -> Iterator[Finding]:
    try:
        directory = RuntimeDirectory.open()
        directory.run_dir(f"embedded-{os.getpid()}")
    except LaunchError as error:
        yield Finding("directory", State.FAILED, f"{error.asked} {error.found}", error.do)
        return
    free = shutil.disk_usage(directory.root).free
    state = State.OK if free >= SPACE_NEEDED else State.WARNING
    do = "" if state is State.OK else f"make room: {text.size(SPACE_NEEDED)} are wanted for sockets and logs"
    yield Finding("directory", state, f"{directory.root}, {text.size(free)} free", do)
    clusters = [f"{c.name}{' (embedded)' if c.embedded else ''}" for c in directory.running()]
    yield Finding("clusters", State.OK, ", ".join(clusters) or "none is running")


def _shared_memory() -> Iterator[Finding]:
    fd = os.memfd_create("gt-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        with mmap.mmap(fd, mmap.PAGESIZE) as memory:
            memory[0] = ord("x")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        # As a worker opens a client's: from another process, by pid and number.
        path = f"/proc/{os.getpid()}/fd/{fd}"
        other = subprocess.run(
            (sys.executable, "-I", "-S", "-c", f"import sys; sys.exit(open({path!r}, 'rb').read(1) != b'x')"),
            stderr=subprocess.DEVNULL,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    finally:
        os.close(fd)
    if other.returncode:
        do = "tensors will travel in chunks: allow processes of one user to open each other's /proc/PID/fd"
        yield Finding("memfd", State.WARNING, "another process can't open this one's shared memory", do)
    else:
        yield Finding("memfd", State.OK, "can be made, sealed, and opened from another process")
    import psutil

    free = psutil.virtual_memory().available
    state = State.OK if free >= MEMORY_NEEDED else State.WARNING
    do = "" if state is State.OK else f"end something: {text.size(MEMORY_NEEDED)} are wanted"
    yield Finding("memory", state, f"{text.size(free)} available, {devices.cores()} cores", do)


def _pidfd() -> Iterator[Finding]:
    try:
        os.close(os.pidfd_open(os.getpid()))
        yield Finding("pidfd", State.OK, "works")
    except OSError as error:
        do = "use Linux 5.3 or newer, or a sandbox that allows pidfd_open; ends of processes are polled for meanwhile"
        yield Finding("pidfd", State.WARNING, f"pidfd_open fails ({error.strerror})", do)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    shown = "unlimited" if unlimited else str(soft)
    good = unlimited or soft >= FILES_NEEDED
    below = hard != resource.RLIM_INFINITY and hard < FILES_NEEDED
    do = "" if good else f"ulimit -n {FILES_NEEDED}{' (as root: the hard limit is below)' if below else ''}"
    yield Finding("files", State.OK if good else State.WARNING, f"{shown} open files (RLIMIT_NOFILE)", do)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    good = soft < 0 or soft >= 512
    do = "" if good else "ulimit -u 512 or more: torch starts many threads"
    yield Finding("processes", State.OK if good else State.WARNING, f"{shown} processes and threads (RLIMIT_NPROC)", do)


def _nvml() -> Iterator[Finding]:
    with devices.nvml() as library:
        driver = None if library is None else library.nvmlSystemGetDriverVersion()
    if driver is None:
        cards = sorted(p.name for p in Path("/dev").glob("nvidia[0-9]*"))
        if cards:
            do = "install the NVIDIA driver's libnvidia-ml.so.1 and nvidia-ml-py"
            yield Finding("nvml", State.WARNING, f"can't be used, though there is {', '.join(cards)}", do)
        else:
            yield Finding("nvml", State.OK, "no NVIDIA driver: workers run on CPU")
        return
    found = devices.gpus()
    named = ", ".join(slot.device for slot in found) or "none visible"
    yield Finding("nvml", State.OK, f"driver {driver}, for workers: {named}")
    if found and importlib.metadata.version("torch").endswith("+cpu"):
        yield Finding("cuda", State.WARNING, "PyTorch is a CPU build", "install a CUDA build to use the GPUs")


def _ports() -> Iterator[Finding]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(1)
        with socket.create_connection(tcp.getsockname(), timeout=_CHILD_SECONDS):
            yield Finding("tcp", State.OK, f"a port on loopback can be opened and reached ({tcp.getsockname()[1]})")
    with (
        tempfile.TemporaryDirectory(prefix=".doctor-", dir=RuntimeDirectory.open().root) as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix,
    ):
        unix.bind(os.path.join(folder, "s"))
        yield Finding("ipc", State.OK, "sockets can be made in the runtime directory")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _packages,
    _native_parts,
    _runtime_directory,
    _shared_memory,
    _pidfd,
    _limits,
    _nvml,
    _ports,
)
