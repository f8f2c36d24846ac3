"""A private cluster for one program, started when it finds none: quiet, fast, and gone with it however it ends.

The program's process is the launcher: its children watch it through their ``--parent``. Never imports torch.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from gt_runtime.launch import devices
from gt_runtime.launch.connection import Connection, RuntimeDirectory
from gt_runtime.launch.devices import DeviceKind
from gt_runtime.launch.errors import LaunchError
from gt_runtime.launch.local import START_SECONDS, ClusterOptions, Commands, Ending, LocalCluster, Wake

ENV_WORKERS = "GT_WORKERS"
ENV_CONFIG = "GT_CONFIG"


class Embedded:
    """A running private cluster. ``stop`` is called at exit too."""

    def __init__(self, cluster: LocalCluster, wake: Wake) -> None:
        self.connection: Connection = cluster.connection
        self._cluster = cluster
        self._wake = wake
        self._owner = os.getpid()
        self._ready = threading.Event()  # set once it is clear whether the start went well
        self._error: LaunchError | None = None
        self._reason = ""
        self._stopping = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name="gt-embedded", daemon=True)
        self._thread.start()

    @property
    def error(self) -> LaunchError | None:
        """Why the cluster ended by itself, with the end of the log that says most; None if it didn't."""
        return self._error

    def check(self) -> None:
        """Raises ``error`` if there is one: for a client that waits for the cluster's first answer."""
        if self._error is not None:
            raise self._error

    def wait_ready(self, seconds: float = START_SECONDS) -> Connection:
        """Wait until all workers are ready.

        Raises:
            LaunchError: one could not be started, or it took longer than ``seconds``. Everything is stopped.
        """
        if not self._ready.wait(seconds):
            self.stop("it took too long to start")
            raise LaunchError("a private cluster", f"it isn't ready after {seconds:.0f} s", "see `gt doctor`")
        if self._error is not None:
            raise self._error
        return self.connection

    def stop(self, reason: str = "the program ended") -> None:
        """Stop the cluster; harmless when it is over, and in a forked child, whose cluster it isn't."""
        if os.getpid() != self._owner:
            return
        with self._stopping:
            self._reason = self._reason or reason
            self._wake.set()
            self._thread.join()
        atexit.unregister(self.stop)

    def _supervise(self) -> None:
        """The life of the cluster after its begin, on a thread of its own."""
        cluster = self._cluster
        try:
            cluster.wait_ready()
            self._ready.set()
            ending = cluster.watch()
            cluster.stop(self._reason or "the program's cluster ended")
            if ending is not Ending.WOKEN and not self._reason:
                self._error = self._why(ending)
        except LaunchError as error:  # nothing runs any more
            if not self._reason:
                self._error = error
        finally:
            self._ready.set()

    def _why(self, ending: Ending) -> LaunchError:
        if ending is Ending.STOPPED:
            return LaunchError("the program's private cluster", "somebody stopped it", "start the program again")
        return self._cluster.failure(ending)


def start_embedded(
    workers: int | None = None,
    device: str = "auto",
    config: str | Path | None = None,
    *,
    wait: bool = True,
    directory: Path | None = None,
    commands: Commands | None = None,
) -> Embedded:
    """A private cluster named ``embedded-PID``, with its connection file marked as such.

    Args:
        workers: how many; None: ``$GT_WORKERS``, else one a GPU, or one on CPU with all cores.
        device: "auto", "cuda" or "cpu".
        config: a YAML file; None: ``$GT_CONFIG``, else none. It is checked; nothing acts on it yet.
        wait: whether to return only once all workers are ready. Else it returns when clients may connect (their streams
            wait for the workers) and ``wait_ready`` does the rest; ``error`` says what went wrong.
        directory: the runtime directory, if not the usual one.
        commands: what to start instead of dispatcher and workers.

    Raises:
        LaunchError: something of it could not be started. Nothing is left running.
        SchemaError: the YAML file isn't good.
    """
    slots = devices.choose(device_kind(device), worker_count(workers), devices.EMBEDDED_CPU_WORKERS)
    text = config_text(config)
    home = RuntimeDirectory.open(directory)
    home.tidy()
    options = ClusterOptions(
        name=f"embedded-{os.getpid()}",
        slots=slots,
        threads=devices.threads_each(len(slots)),
        embedded=True,
        config=text,
    )
    wake = Wake()
    cluster = LocalCluster(options, home, wake=wake, commands=commands)
    cluster.begin()
    embedded = Embedded(cluster, wake)
    atexit.register(embedded.stop)
    if wait:
        embedded.wait_ready()
    return embedded


def device_kind(device: str) -> DeviceKind:
    """``device`` as an enum.

    Raises:
        LaunchError: it is none of them.
    """
    try:
        return DeviceKind(device)
    except ValueError as error:
        known = ", ".join(DeviceKind)
        raise LaunchError(f"workers on {device!r}", "there is no such kind of device", f"use one of {known}") from error


def worker_count(workers: int | None, environment: Mapping[str, str] | None = None) -> int | None:
    """``workers``, else what ``$GT_WORKERS`` says, else None.

    Raises:
        LaunchError: it isn't a number of at least 1.
    """
    if workers is None:
        text = (os.environ if environment is None else environment).get(ENV_WORKERS, "").strip()
        if not text:
            return None
        if not text.isdigit():
            do = "set it to a number of workers, or not at all"
            raise LaunchError(f"{ENV_WORKERS}={text}", "it is no number", do)
        workers = int(text)
    if workers < 1:
        raise LaunchError(f"{workers} workers", "a program needs at least one", "ask for 1 or more")
    return workers


def config_text(config: str | Path | None) -> str | None:
    """The text of the YAML file ``config``, else of ``$GT_CONFIG``, else None; checked.

    Raises:
        SchemaError: it isn't good.
    """
    path = config or os.environ.get(ENV_CONFIG)
    if not path:
        return None
    from gt_runtime.sharding import schema  # takes 20 ms that programs without a file need not spend

    return schema.load(path).text
