"""Finding the cluster, and asking it: what connects ``feed.LiveFeed`` to connection files and to the control socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gt_runtime.control.client import ControlClient, ControlError
from gt_runtime.launch.connection import Connection, RuntimeDirectory, find
from gt_runtime.launch.errors import LaunchError
from gt_top.feed import Link, Unreachable

STATUS_SECONDS = 2.0


class ClusterLinks:
    """One cluster, by the name of its connection file or by the address of its front socket. Blocking; holds no
    socket.
    """

    def __init__(self, name: str | None = None, address: str | None = None) -> None:
        self._name = name
        self._address = address

    def find(self) -> Link:
        """Where it is now.

        Raises:
            Unreachable: no connection file, its process has ended, or nobody answers at the address.
        """
        try:
            connection = find(self._name, self._address)
        except LaunchError as error:
            raise Unreachable(error.found) from error
        if "telemetry" in connection.endpoints:
            identity = (connection.pid, connection.pid_started, connection.started)
            return Link(connection.name, connection.front, connection.endpoints["telemetry"], identity)
        return self._ask(connection.front)

    def _ask(self, front: str) -> Link:
        status = _request(front, "status", STATUS_SECONDS)
        endpoints = status.get("endpoints")
        telemetry = endpoints.get("telemetry") if isinstance(endpoints, Mapping) else None
        if not isinstance(telemetry, str):
            raise Unreachable("its status names no telemetry endpoint")
        return Link(str(status.get("cluster", "")), front, telemetry, (status.get("host"), status.get("pid")))

    def snapshot(self, link: Link, seconds: float) -> Mapping[str, Any]:
        """The dispatcher's answer to ``snapshot``.

        Raises:
            Unreachable: none came.
        """
        return _request(link.front, "snapshot", seconds)

    def check(self, link: Link, seconds: float) -> None:
        """Return if the dispatcher answers.

        Raises:
            Unreachable: it doesn't.
        """
        _request(link.front, "status", seconds)


def running() -> Sequence[Connection]:
    """Every cluster of this user's on this host, embedded ones included, oldest first.

    Raises:
        LaunchError: the runtime directory is unsafe.
    """
    return RuntimeDirectory.open().running()


def _request(front: str, method: str, seconds: float) -> Mapping[str, Any]:
    try:
        with ControlClient(front, timeout=seconds) as client:
            answer = client.request(method)
    except ControlError as error:
        raise Unreachable(error.found) from error
    if not isinstance(answer, Mapping):
        raise Unreachable(f"its answer to {method} makes no sense")
    return answer
