"""A cluster on this host: dispatcher and workers as child processes, started all or not at all, watched, stopped.

One thread uses a ``LocalCluster``; others end it through its ``Wake``. Has no opinion on what a program does with the
cluster, and never imports torch. ``gt up`` and the embedded cluster are both this class.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

from gt_runtime import __version__
from gt_runtime.launch import children, parent
from gt_runtime.launch.children import Child
from gt_runtime.launch.connection import Connection, Reservation, RuntimeDirectory
from gt_runtime.launch.devices import Slot
from gt_runtime.launch.errors import LaunchError
from gt_runtime.protocol.handshake import host_id

START_SECONDS = 120.0  # to be ready; a cold disk and a loaded machine make importing torch slow
_STATUS_SECONDS = 0.02  # between two looks whether all are ready
_ASK_SECONDS = 2.0  # for the dispatcher to answer; it never works that long on anything
_TOGETHER_SECONDS = 0.5  # within which the ends of worker and dispatcher are one event
_GRACE_SECONDS = 4.0  # for all to end by themselves once they were asked to
_LINE_BYTES = 64 << 10  # the dispatcher's first line is far below


class Ask(Protocol):
    """A control request to the dispatcher at ``front``. Raises an Exception where there is no good answer."""

    def __call__(self, front: str, seconds: float, method: str, **arguments: Any) -> Any: ...


def ask_dispatcher(front: str, seconds: float, method: str, **arguments: Any) -> Any:
    """``Ask`` through the control client."""
    from gt_runtime.control.client import ControlClient

    with ControlClient(front, seconds) as client:
        return client.request(method, **arguments)


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What a cluster is started with. Sizes in bytes; ``session_memory`` 0: no cap; ``turn_bytes`` None: default."""

    name: str
    slots: tuple[Slot, ...]  # one worker each; none at all is fine where workers join from elsewhere
    threads: int = 0  # of each worker, 0 leaves it to the worker
    listen: str | None = None
    session_memory: int = 0
    turn_bytes: int | None = None
    embedded: bool = False
    config: str | None = None  # text of a checked YAML document: kept as revision 1


@dataclasses.dataclass(frozen=True, slots=True)
class Commands:
    """How the processes are started; the options of ``docs/protocol.md``, "Processes", are appended."""

    dispatcher: tuple[str, ...] = dataclasses.field(default_factory=lambda: children.python("gt_runtime.dispatcher"))
    worker: tuple[str, ...] = dataclasses.field(default_factory=lambda: children.watched_python("gt_runtime.worker"))


class Ending(Enum):
    """Why ``watch`` returned."""

    WOKEN = auto()  # somebody used the wake
    STOPPED = auto()  # the dispatcher ended well: it was asked to stop
    DISPATCHER_LOST = auto()  # it ended otherwise
    WORKERS_LOST = auto()  # the last worker of an embedded cluster ended


class Interrupted(LaunchError):
    """The start was called off through the wake."""

    def __init__(self, name: str) -> None:
        super().__init__(f"to start the cluster '{name}'", "it was called off before it was ready")


class Wake:
    """A descriptor that can be read once ``set`` was called by another thread, or a signal wrote to ``writer``."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def set(self) -> None:
        """Wake whoever waits, now and from now on."""
        try:
            os.write(self.writer, b"\0")
        except OSError:  # full: set long ago; closed: nobody waits
            pass

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class LocalCluster:
    """``start``, then ``watch`` until it returns, then ``stop``. A ``start`` that raises leaves nothing but logs."""

    def __init__(
        self,
        options: ClusterOptions,
        directory: RuntimeDirectory,
        *,
        wake: Wake | None = None,
        report: Callable[[str], None] = lambda text: None,
        commands: Commands | None = None,
        ask: Ask = ask_dispatcher,
    ) -> None:
        """``report`` is told, in one line each, what happens to workers while the cluster runs."""
        self.options = options
        self.run_dir = directory.run_dir(options.name)
        self.log_dir = directory.log_dir(options.name)
        self._directory = directory
        self._wake = wake
        self._report = report
        self._commands = commands or Commands()
        self._ask = ask
        self._reservation: Reservation | None = None
        self._dispatcher: Child | None = None
        self._workers: list[Child] = []
        self._connection: Connection | None = None

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self, seconds: float = START_SECONDS) -> Connection:
        """All processes started and ready, and the connection file written.

        Raises:
            NameTaken: a cluster of that name runs or starts; nothing was done.
            LaunchError: a child ended early (the text has the end of its log), couldn't be started or wasn't ready in
                time. Everything is stopped.
            Interrupted: the wake was set meanwhile. Everything is stopped.
        """
        self.begin(seconds)
        return self.wait_ready(seconds)

    def begin(self, seconds: float = START_SECONDS) -> Connection:
        """The first half of ``start``: every process started, the dispatcher listening. Clients may connect already."""
        reservation = self._directory.reserve(self.options.name)
        try:
            self._prepare()
            self._spawn()
            endpoints, tcp = self._read_endpoints(time.monotonic() + seconds)
        except BaseException:
            self._abandon(reservation)
            raise
        self._reservation = reservation
        self._connection = Connection(
            endpoints=endpoints,
            tcp=tcp,
            name=self.options.name,
            pid=os.getpid(),
            pid_started=parent.start_time(os.getpid()) or 0,
            uid=os.getuid(),
            host=socket.gethostname(),
            host_id=host_id(),
            started=time.time(),
            version=__version__,
            embedded=self.options.embedded,
            log_dir=str(self.log_dir),
        )
        return self._connection

    def wait_ready(self, seconds: float = START_SECONDS) -> Connection:
        """The second half of ``start``: the workers ready, the connection file written."""
        connection = self.connection
        try:
            self._wait_workers(connection.front, time.monotonic() + seconds)
            self._directory.write(connection)
        except BaseException:
            self._abandon(self._reservation)
            self._reservation = None
            raise
        return connection

    @property
    def connection(self) -> Connection:
        """How to reach the cluster, once it has begun."""
        if self._connection is None:
            asked = f"the connection of cluster '{self.options.name}'"
            raise LaunchError(asked, "it has not begun", "call start first")
        return self._connection

    @property
    def processes(self) -> Sequence[Child]:
        """The dispatcher, then the workers."""
        return [*([self._dispatcher] if self._dispatcher else []), *self._workers]

    def _prepare(self) -> None:
        """Empty folders for sockets and logs; the last run's logs are kept under another name."""
        self._directory.remove(self.options.name)
        self.run_dir.mkdir(mode=0o700, parents=True)
        self.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in self.log_dir.glob("*.log"):
            old.replace(old.with_suffix(".log.1"))
        if self.options.config is not None:
            revisions = self.run_dir / "revisions"
            revisions.mkdir(mode=0o700)
            (revisions / "1.yaml").write_text(self.options.config)

    def _spawn(self) -> None:
        """Start everything at once: the workers' socket has a known place, and connecting may precede binding."""
        options = self.options
        try:
            self._dispatcher = Child(
                "dispatcher",
                [*self._commands.dispatcher, *self._dispatcher_options()],
                children.environment(),
                self.log_dir / "dispatcher.log",
                pipe=True,
            )
            for index, slot in enumerate(options.slots):
                who = f"w{index}"
                arguments = ["--connect", f"ipc://{self.run_dir / 'back.sock'}", "--device", slot.device, "--id", who]
                if options.threads:
                    arguments += ["--threads", str(options.threads)]
                arguments += ["--parent", str(os.getpid())]
                environment = children.environment(options.threads, slot.environment)
                argv = [*self._commands.worker, *arguments]
                self._workers.append(Child(who, argv, environment, self.log_dir / f"{who}.log", pipe=False))
        except OSError as error:
            raise self._failed(f"a process can't be started ({error.strerror})", "see `gt doctor`") from error

    def _dispatcher_options(self) -> list[str]:
        options = self.options
        found = ["--name", options.name, "--run-dir", str(self.run_dir), "--log-dir", str(self.log_dir)]
        if options.listen:
            found += ["--listen", options.listen]
        if options.session_memory:
            found += ["--session-memory", str(options.session_memory)]
        if options.turn_bytes is not None:
            found += ["--turn-bytes", str(options.turn_bytes)]
        if options.embedded:
            found.append("--embedded")
        return [*found, "--parent", str(os.getpid()), "--workers", str(len(options.slots))]

    def _read_endpoints(self, deadline: float) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """What the dispatcher's first line of output says, once its sockets are bound: endpoints, and those on tcp."""
        dispatcher = self._dispatcher
        assert dispatcher is not None
        data = b""
        while b"\n" not in data:
            if dispatcher.output in self._wait_start([dispatcher.output], deadline):
                piece = os.read(dispatcher.output, 4096)
                data += piece
                if not piece or len(data) > _LINE_BYTES:
                    children.wait_all([dispatcher], 1.0)  # it closed its output: it is about to end
                    self._raise_ended()
                    raise self._failed("the dispatcher doesn't say where it listens", dispatcher.tail())
        line = data.partition(b"\n")[0]
        try:
            told = json.loads(line)
            endpoints, tcp = told["endpoints"], told.get("tcp", {})
            return {str(k): str(v) for k, v in endpoints.items()}, {str(k): str(v) for k, v in tcp.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found = f"the dispatcher said {line[:200]!r} instead of where it listens"
            raise self._failed(found, dispatcher.tail()) from error

    def _wait_workers(self, front: str, deadline: float) -> None:
        """Until ``status`` counts as many ready workers as were started."""
        wanted = len(self.options.slots)
        answer: Any = None
        while True:
            try:
                answer = self._ask(front, min(_ASK_SECONDS, max(0.1, deadline - time.monotonic())), "status")
                if int(answer["ready"]) >= wanted:
                    return
                trouble = f"{answer['ready']} of {wanted} workers are ready"
            except Exception as error:  # whatever it is, it counts as not ready, and is told if it stays so
                trouble = f"the dispatcher doesn't answer ({error})"
            self._wait_start([], deadline, _STATUS_SECONDS, trouble)

    def _wait_start(
        self, others: Sequence[int], deadline: float, seconds: float | None = None, trouble: str = "no answer"
    ) -> list[int]:
        """Wait for one of ``others`` until ``deadline``, or for ``seconds``; returns those that can be read.

        Raises:
            LaunchError: a child ended, or the deadline is over and ``trouble`` is why.
            Interrupted: the wake was set.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            logs = "\n".join(child.tail() for child in self.processes)
            raise self._failed(f"{trouble} after the time for it", logs)
        wakes = [self._wake.reader] if self._wake else []
        ready = children.wait_any(self.processes, [*others, *wakes], left if seconds is None else min(left, seconds))
        if self._wake and self._wake.reader in ready:
            raise Interrupted(self.options.name)
        if not ready:
            self._raise_ended()
        return ready

    def _raise_ended(self) -> None:
        """Raise for the first child that has ended."""
        ended = [child for child in self.processes if child.status() is not None]
        if ended:
            child = next((c for c in ended if c is not self._dispatcher), ended[0])
            raise self._failed(f"{self._describe(child)} {child.ending()} while starting", child.tail())

    def _failed(self, found: str, do: str) -> LaunchError:
        return LaunchError(f"to start the cluster '{self.options.name}'", found, do)

    def _describe(self, child: Child) -> str:
        if child is self._dispatcher:
            return "the dispatcher"
        return f"worker {child.who} ({self.options.slots[self._workers.index(child)].device})"

    def _abandon(self, reservation: Reservation | None) -> None:
        """Stop what was started of a cluster that isn't ready."""
        children.end_all(self.processes)
        if reservation is not None:
            self._directory.remove(self.options.name)
            reservation.release()

    # -- run and stop -------------------------------------------------------------------------------------------------

    def watch(self) -> Ending:
        """Report workers that end, until there is a reason to stop. Then call ``stop``, whatever the reason."""
        dispatcher = self._dispatcher
        assert dispatcher is not None
        wakes = [self._wake.reader] if self._wake else []
        while True:
            if any(w.status() is not None and not w.reported for w in self._workers):
                # When a cluster is asked to stop, workers may be gone before the dispatcher is: no loss to report.
                children.wait_any([dispatcher], wakes, _TOGETHER_SECONDS)
            if dispatcher.status() is not None:
                return Ending.STOPPED if dispatcher.status() == 0 else Ending.DISPATCHER_LOST
            self._report_ended()
            if self.options.embedded and self._workers and all(w.reported for w in self._workers):
                return Ending.WORKERS_LOST
            if children.wait_any([c for c in self.processes if not c.reported], wakes, None):
                return Ending.WOKEN

    def _report_ended(self) -> None:
        for worker in self._workers:
            if worker.status() is None or worker.reported:
                continue
            worker.reported = True
            left = sum(w.status() is None for w in self._workers)
            self._report(
                f"{self._describe(worker)} {worker.ending()}; the cluster goes on with {left} of "
                f"{len(self._workers)} workers. {worker.tail()}"
            )

    def stop(self, reason: str) -> None:
        """Stop everything and remove the connection file; the logs stay. Takes at most about 14 s, usually below one.

        The dispatcher is asked first, so that clients are told ``reason``; then processes are told (SIGTERM) and ended
        (SIGKILL). Doing it twice is harmless.
        """
        dispatcher = self._dispatcher
        if dispatcher is not None and dispatcher.status() is None and self._connection is not None:
            try:
                self._ask(self._connection.front, _ASK_SECONDS, "stop", reason=reason)
                children.wait_all(self.processes, _GRACE_SECONDS)
            except Exception:  # it can't be asked any more: the signals below do without
                pass
        children.end_all(self.processes)
        if self._reservation is not None:
            self._directory.remove(self.options.name)
            self._reservation.release()
            self._reservation = None

    def failure(self, ending: Ending) -> LaunchError:
        """What to tell a person about an ``ending`` that was not wanted."""
        asked = f"the cluster '{self.options.name}'"
        child = self._dispatcher if ending is Ending.DISPATCHER_LOST else self._workers[-1]
        assert child is not None
        return LaunchError(asked, f"{self._describe(child)} {child.ending()}, so it has stopped", child.tail())


def log_files(log_dir: Path) -> dict[str, Path]:
    """The logs of a cluster's last run, by who wrote them: ``dispatcher``, ``w0``, ..., ``up``."""
    return {path.stem: path for path in sorted(log_dir.glob("*.log"))}
