"""Where clusters are: the runtime directory, connection files, and which cluster is meant.

``docs/protocol.md``, "Finding a cluster", is this file in prose. Opens no socket: that a file's process is alive is all
it says about a cluster. Must stay cheap to import: ``gt_top`` and ``import gt`` use it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from gt_runtime.launch import parent
from gt_runtime.launch.errors import AmbiguousCluster, BadAddress, LaunchError, NameTaken, NoCluster, UnsafeDirectory
from gt_runtime.protocol.handshake import host_id

ENV_ADDRESS = "GT_ADDRESS"
ENV_CLUSTER = "GT_CLUSTER"
ENV_DIRECTORY = "GT_RUNTIME_DIR"
ENDPOINTS = ("front", "back", "pulse", "bulk", "telemetry")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"(ipc://.+|tcp://[^/\s]+:\d+)")
_SOCKET_PATH_BYTES = 107  # sun_path of a Unix socket, without its final zero
_FILE_BYTES = 64 << 10  # a connection file is far below; more is not one
_KEPT_LOGS = 20  # log folders of ended embedded clusters that are kept, newest first
_LOG_SECONDS = 24 * 3600.0  # and for how long at most


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster: a connection file's content, or no more than a ``front`` endpoint where only an address
    is known (``name`` and ``log_dir`` are then empty and the numbers 0)."""

    endpoints: Mapping[str, str]
    name: str = ""
    pid: int = 0  # of the launcher: `gt up`, or the program of an embedded cluster
    pid_started: int = 0  # clock ticks since boot: tells it from a later process with its number; 0 = unknown
    uid: int = 0
    host: str = ""
    host_id: str = ""
    started: float = 0.0  # unix time
    version: str = ""
    embedded: bool = False
    log_dir: str = ""
    tcp: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the same for other hosts, if it listens

    @property
    def front(self) -> str:
        """The endpoint for clients and control requests."""
        return self.endpoints["front"]

    @property
    def local(self) -> bool:
        """Whether its processes can be looked at from here: same boot, same pid namespace."""
        return bool(self.host_id) and self.host_id == host_id()

    def alive(self) -> bool:
        """Whether its launcher still runs. Only to be asked where ``local``."""
        return parent.alive(self.pid, self.pid_started or None)

    def to_json(self) -> str:
        return json.dumps(self.to_map(), indent=1, sort_keys=True)

    def to_map(self) -> dict[str, Any]:
        """Its fields as plain values."""
        return {**dataclasses.asdict(self), "endpoints": dict(self.endpoints), "tcp": dict(self.tcp)}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads what ``to_json`` wrote; keys it doesn't know are ignored.

        Raises:
            ValueError: it isn't a connection file.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict) or not isinstance(fields.get("endpoints"), dict):
            raise ValueError("no map with endpoints")
        if not isinstance(fields["endpoints"].get("front"), str):
            raise ValueError("no front endpoint")
        maps = ("endpoints", "tcp")
        types: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(cls) if f.name not in maps}
        known: dict[str, Any] = {m: {str(k): str(v) for k, v in dict(fields.get(m) or {}).items()} for m in maps}
        for name, kind in types.items():
            if name not in fields:
                continue
            value = fields[name]
            if kind == "float" and type(value) is int:
                value = float(value)
            if type(value).__name__ != kind:
                raise ValueError(f"{name} is {value!r}, expected {kind}")
            known[name] = value
        return cls(**known)


class RuntimeDirectory:
    """One user's clusters on one host: ``clusters/NAME.json``, ``run/NAME/``, ``logs/NAME/``, all 0700 or 0600."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clusters = root / "clusters"

    @classmethod
    def open(cls, root: Path | None = None) -> Self:
        """The directory, made if it is missing.

        Raises:
            UnsafeDirectory: it belongs to someone else or others may enter it.
        """
        path = (root or default_root()).absolute()
        asked = f"the runtime directory {path}"
        do = f"remove it, or set {ENV_DIRECTORY} to a directory of yours with mode 0700"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(path)
        except OSError as error:
            raise UnsafeDirectory(asked, f"can't be made ({error.strerror})", do) from error
        if not stat.S_ISDIR(found.st_mode):
            raise UnsafeDirectory(asked, "is no directory", do)
        if found.st_uid != os.getuid():
            raise UnsafeDirectory(asked, f"belongs to uid {found.st_uid}, not to yours ({os.getuid()})", do)
        if found.st_mode & 0o077:
            raise UnsafeDirectory(asked, f"has mode {stat.S_IMODE(found.st_mode):04o}: others may enter it", do)
        directory = cls(path)
        directory.clusters.mkdir(mode=0o700, exist_ok=True)
        return directory

    def run_dir(self, name: str) -> Path:
        """Where the sockets of cluster ``name`` are.

        Raises:
            LaunchError: the name is no name, or its sockets' paths would be too long for the kernel.
        """
        path = self.root / "run" / check_name(name)
        longest = len(os.fsencode(path / "telemetry.sock"))
        if longest > _SOCKET_PATH_BYTES:
            raise LaunchError(
                f"a place for the sockets of cluster '{name}' in {self.root}",
                f"their paths would have {longest} bytes, a socket's can have {_SOCKET_PATH_BYTES}",
                f"set {ENV_DIRECTORY} to a shorter path, or use a shorter name",
            )
        return path

    def log_dir(self, name: str) -> Path:
        """Where the logs of cluster ``name`` are; it outlives the cluster."""
        return self.root / "logs" / check_name(name)

    def file(self, name: str) -> Path:
        """The connection file of cluster ``name``."""
        return self.clusters / f"{check_name(name)}.json"

    def write(self, connection: Connection) -> None:
        """Write the connection file at once or not at all, mode 0600."""
        fd, temporary = tempfile.mkstemp(prefix=".", dir=self.clusters)  # mkstemp makes it 0600
        try:
            with os.fdopen(fd, "w") as file:
                file.write(connection.to_json())
            os.replace(temporary, self.file(connection.name))
        except BaseException:
            os.unlink(temporary)
            raise

    def remove(self, name: str) -> None:
        """Remove the connection file and the sockets of cluster ``name``; its logs stay."""
        self.file(name).unlink(missing_ok=True)
        shutil.rmtree(self.run_dir(name), ignore_errors=True)

    def reserve(self, name: str) -> Reservation:
        """Take ``name`` for a cluster that is about to start, until it is released or this process ends.

        Raises:
            NameTaken: a running or starting cluster has it; says which process.
            LaunchError: the name is no name.
        """
        asked = f"the cluster name '{check_name(name)}'"
        do = f"use it, end it (`gt down --name {name}`), or choose another --name"
        reservation = Reservation.take(self.clusters / f"{name}.lock")
        if isinstance(reservation, int):
            who = f"process {reservation}" if reservation else "another process"
            raise NameTaken(asked, f"{who} has it", do)
        connection = self._read(self.file(name))
        if connection is not None and not (connection.local and not connection.alive()) and not _rebooted(connection):
            reservation.release()
            raise NameTaken(asked, f"process {connection.pid} on {connection.host} has it", do)
        return reservation

    def _read(self, path: Path) -> Connection | None:
        """The connection file at ``path``; None if it is none, or not this user's."""
        try:
            with open(path) as file:
                if os.fstat(file.fileno()).st_uid != os.getuid():
                    return None
                connection = Connection.from_json(file.read(_FILE_BYTES))
        except (OSError, ValueError):
            return None
        return connection if connection.name == path.stem else None

    def running(self) -> list[Connection]:
        """Every cluster whose launcher runs, oldest first. Files of dead ones are removed on the way."""
        found = []
        for path in sorted(self.clusters.glob("*.json")):
            if path.name.startswith("."):
                continue
            connection = self._read(path)
            if connection is None:
                continue
            if not connection.local:
                if _rebooted(connection):
                    self._remove_dead(connection.name)
                else:
                    found.append(connection)
            elif connection.alive():
                found.append(connection)
            else:
                self._remove_dead(connection.name)
        return sorted(found, key=lambda c: c.started)

    def _remove_dead(self, name: str) -> None:
        """Remove what a dead cluster left, unless someone is starting a new one of that name right now."""
        lock = Reservation.take(self.clusters / f"{name}.lock")
        if isinstance(lock, int):
            return
        connection = self._read(self.file(name))
        if connection is None or _rebooted(connection) or (connection.local and not connection.alive()):
            self.remove(name)
        lock.release()

    def tidy(self) -> None:
        """Remove what ended clusters left: connection files and sockets of all, logs of the older embedded ones."""
        names = {c.name for c in self.running()}
        for path in (self.root / "run").glob("*"):
            if path.name not in names and _NAME.fullmatch(path.name):
                self._remove_dead(path.name)
        starting = {p.stem for p in self.clusters.glob("*.lock")}
        logs = [p for p in (self.root / "logs").glob("embedded-*") if p.name not in names | starting]
        dated = sorted(((_modified(p), p) for p in logs), reverse=True)
        oldest = time.time() - _LOG_SECONDS
        for rank, (modified, path) in enumerate(dated):
            if rank >= _KEPT_LOGS or modified < oldest:
                shutil.rmtree(path, ignore_errors=True)


class Reservation:
    """A cluster's name, held through a lock on a file: the kernel gives it back when the process ends."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def take(cls, path: Path) -> Reservation | int:
        """The reservation, or the pid of who has it (0 if that isn't known)."""
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                text = os.read(fd, 32).strip()
                os.close(fd)
                return int(text) if text.isdigit() else 0
            try:  # its last owner may have removed the file between open and lock
                same = os.path.samestat(os.fstat(fd), os.stat(path))
            except FileNotFoundError:
                same = False
            if same:
                os.ftruncate(fd, 0)
                os.write(fd, str(os.getpid()).encode())
                return cls(path, fd)
            os.close(fd)

    def release(self) -> None:
        """Give the name back; doing it twice is harmless."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def default_root() -> Path:
    """``$GT_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/gt``, else ``/tmp/gt-UID``."""
    if chosen := os.environ.get(ENV_DIRECTORY):
        return Path(chosen)
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg and os.path.isdir(xdg) and os.access(xdg, os.W_OK):
        return Path(xdg) / "gt"
    return Path(f"/tmp/gt-{os.getuid()}")


def check_name(name: str) -> str:
    """``name`` itself.

    Raises:
        LaunchError: it can't be a cluster's (it becomes part of paths).
    """
    if not _NAME.fullmatch(name):
        raise LaunchError(
            f"a cluster named {name!r}",
            "a name has letters, digits and . _ -, begins with a letter or digit, at most 64 in all",
            "choose another",
        )
    return name


def find(
    name: str | None = None, address: str | None = None, *, embedded: bool = False, directory: Path | None = None
) -> Connection:
    """The cluster that is meant: by ``address`` or ``name``, ``$GT_ADDRESS``, ``$GT_CLUSTER``, or the only one.

    Args:
        name: of a running cluster, embedded ones included.
        address: a front endpoint, ``ipc://PATH`` or ``tcp://HOST:PORT``. Nobody is asked whether someone listens there.
        embedded: whether, where no other cluster runs, the only embedded one will do. For those who only look on.
        directory: the runtime directory, if not the usual one.

    Raises:
        NoCluster: none runs, or none of that name.
        AmbiguousCluster: several run and none was named.
        LaunchError: both a name and an address were given, or one of them makes no sense; the directory is unsafe.
    """
    if name and address:
        found = f"both a name ({name}) and an address ({address}) are given"
        raise LaunchError("one cluster", found, "give one of them")
    if not name and not address:
        address = os.environ.get(ENV_ADDRESS)
        name = None if address else os.environ.get(ENV_CLUSTER)
    if address:
        return Connection(endpoints={"front": check_address(address)})
    running = RuntimeDirectory.open(directory).running()
    if name:
        return _named(check_name(name), running)
    candidates = [c for c in running if c.local and not c.embedded]
    if not candidates and embedded:
        candidates = [c for c in running if c.local]
    if not candidates:
        do = "start one with `gt up`, or name one's address with --connect"
        raise NoCluster("a running cluster", "none is running here", do)
    if len(candidates) > 1:
        names = tuple(c.name for c in candidates)
        raise AmbiguousCluster("a running cluster", names, f"choose one with --name or {ENV_CLUSTER}")
    return candidates[0]


def _named(name: str, running: list[Connection]) -> Connection:
    for connection in running:
        if connection.name == name:
            return connection
    names = ", ".join(c.name for c in running)
    found = f"these are running: {names}" if names else "none is running here"
    raise NoCluster(f"the cluster '{name}'", found, f"start it with `gt up --name {name}`")


def check_address(address: str) -> str:
    """``address`` itself.

    Raises:
        BadAddress: it is no endpoint.
    """
    if not _ADDRESS.fullmatch(address):
        raise BadAddress(f"the address {address!r}", "it is none", "an address is ipc://PATH or tcp://HOST:PORT")
    return address


def _rebooted(connection: Connection) -> bool:
    """Whether it was written on this host before its last boot (``host_id`` begins with the boot's id)."""
    boot = host_id()[:36]
    return connection.host == os.uname().nodename and bool(connection.host_id) and connection.host_id[:36] != boot


def _modified(path: Path) -> float:
    try:
        return max([path.stat().st_mtime, *(p.stat().st_mtime for p in path.iterdir())])
    except OSError:
        return 0.0
