"""``gt up`` and ``gt dispatcher``: a cluster in the foreground or detached, until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gt_runtime.commands.common import Exit, print_json, say
from gt_runtime.launch.connection import Connection, RuntimeDirectory
from gt_runtime.launch.errors import LaunchError
from gt_runtime.launch.local import START_SECONDS, ClusterOptions, Ending, Interrupted, LocalCluster, Wake

DEFAULT_NAME = "local"
_PIPE_BYTES = 64 << 10  # what a detached cluster says of its start; an error with a log's end is far below


def run(options: ClusterOptions, *, detach: bool, as_json: bool, start_seconds: float = START_SECONDS) -> int:
    """Start a cluster and, unless ``detach``, stay until it ends. Returns the exit status.

    Raises:
        LaunchError: it could not be started.
    """
    directory = RuntimeDirectory.open()
    directory.tidy()
    if not detach:
        return _supervise(options, directory, start_seconds, lambda c: _announce(c, options, as_json))
    connection = _detached(options, directory, start_seconds)
    _announce(connection, options, as_json, detached=True)
    return Exit.OK


def _supervise(
    options: ClusterOptions, directory: RuntimeDirectory, seconds: float, on_ready: Callable[[Connection], None]
) -> int:
    """The life of a cluster in this process."""
    wake = Wake()
    cluster = LocalCluster(options, directory, wake=wake, report=say)
    with _signals(wake) as caught:
        try:
            connection = cluster.start(seconds)
        except Interrupted as error:
            say(str(error))
            return Exit.FAILED
        try:
            on_ready(connection)
            ending = cluster.watch()
        finally:
            cluster.stop(f"gt up was ended by {caught[0]}" if caught else "gt up has ended")
        if ending is Ending.DISPATCHER_LOST:
            raise cluster.failure(ending)
        why = caught[0] if caught else "it was asked to stop"
        say(f"cluster '{options.name}' has stopped ({why})")
        return Exit.OK


@contextmanager
def _signals(wake: Wake) -> Iterator[list[str]]:
    """SIGINT, SIGTERM and SIGHUP set ``wake`` instead of ending the process; yields the names of those that came."""
    caught: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(signal.Signals(number).name)
        wake.set()

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup
        before[number] = signal.signal(number, note)
    # Python runs `note` only between bytecodes: the wake-up descriptor ends a wait in C at once.
    old = signal.set_wakeup_fd(wake.writer, warn_on_full_buffer=False)
    try:
        yield caught
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(connection: Connection, options: ClusterOptions, as_json: bool, detached: bool = False) -> None:
    """Say that the cluster is ready, and where."""
    if as_json:
        print_json(connection.to_map())
        sys.stdout.flush()
        return
    devices = ", ".join(slot.device for slot in options.slots) or "none yet: join with `gt worker`"
    end = f"gt down --name {connection.name}" if detached else f"Ctrl-C, or gt down --name {connection.name}"
    lines = [
        f"cluster '{connection.name}' is ready: {len(options.slots)} workers ({devices})",
        f"  listens at  {connection.front}",
        *([f"  and at      {connection.tcp['front']}"] if connection.tcp else []),
        f"  logs        {connection.log_dir}",
        f"  to stop     {end}",
    ]
    print("\n".join(lines), flush=True)


def _detached(options: ClusterOptions, directory: RuntimeDirectory, seconds: float) -> Connection:
    """Start a cluster in a process of its own; returns once it is ready.

    A fork, not a new interpreter: nothing is imported twice, and there is no thread yet that it could lose.

    Raises:
        LaunchError: it could not be started; nothing of it is left.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        status = 1
        try:
            status = _detached_child(options, directory, seconds, writer)
        finally:
            os._exit(status)
    os.close(writer)
    data = b""
    try:
        with os.fdopen(reader, "rb") as pipe:
            data = pipe.read(_PIPE_BYTES)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise Interrupted(options.name) from None
    asked = f"to start the cluster '{options.name}'"
    if not data:
        _, status = os.waitpid(pid, 0)
        found = f"its process ended ({os.waitstatus_to_exitcode(status)}) without a word"
        raise LaunchError(asked, found, f"see {directory.log_dir(options.name)}")
    told = json.loads(data)
    if "error" in told:
        os.waitpid(pid, 0)
        raise LaunchError(*told["error"])
    return Connection.from_json(json.dumps(told["ready"]))


def _detached_child(options: ClusterOptions, directory: RuntimeDirectory, seconds: float, writer: int) -> int:
    """The detached process: leaves the terminal, tells ``writer`` how the start went, then goes on as any cluster."""
    os.setsid()
    os.chdir("/")
    told = False

    def tell(what: dict[str, object]) -> None:
        nonlocal told
        if not told:
            told = True
            os.write(writer, json.dumps(what).encode())
            os.close(writer)

    def ready(connection: Connection) -> None:
        log = os.open(directory.log_dir(options.name) / "up.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        sys.stdout.flush()
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(log)
        os.close(null)
        say(f"cluster '{connection.name}' is ready, process {os.getpid()}")
        tell({"ready": connection.to_map()})

    try:
        return _supervise(options, directory, seconds, ready)
    except LaunchError as error:
        if told:
            say(str(error))
        tell({"error": [error.asked, error.found, error.do]})
        return Exit.FAILED
    except BaseException as error:
        traceback.print_exc()
        tell({"error": [f"to start the cluster '{options.name}'", f"{type(error).__name__}: {error}", "report this"]})
        return Exit.FAILED
    finally:
        sys.stderr.flush()
