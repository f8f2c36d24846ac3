"""``gt worker``, and ``gt dispatcher --run-dir``: become one process of a cluster, as its launcher starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NoReturn

from gt_runtime.commands.common import Unreachable, ask, say
from gt_runtime.control.client import ControlError
from gt_runtime.launch import children
from gt_runtime.launch.connection import Connection

_ASK_SECONDS = 3.0


def back_endpoint(where: Connection) -> str:
    """Where workers of the cluster connect.

    ``--connect`` gives a front endpoint, as everywhere, and the cluster says the rest. A back endpoint is fine too:
    nobody answers requests there, and then it is taken as it is.
    """
    if where.endpoints.get("back"):
        return where.endpoints["back"]
    try:
        return str(ask(where, "status", _ASK_SECONDS)["endpoints"]["back"])
    except (Unreachable, ControlError, KeyError, TypeError):
        say(f"{where.front} answers no requests: taken as the endpoint for workers")
        return where.front


def dispatcher(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a bare dispatcher, with its own options (``docs/protocol.md``, "Processes")."""
    argv = [*children.python("gt_runtime.dispatcher"), *arguments]
    os.execve(argv[0], argv, children.environment())


def worker(back: str, options: Mapping[str, str | int | None], threads: int | None) -> NoReturn:
    """Replace this process by a worker that connects to ``back``. ``options`` by name, None = its default."""
    argv = [*children.watched_python("gt_runtime.worker"), "--connect", back]
    for option, value in {**options, "--threads": threads}.items():
        if value is not None:
            argv += [option, str(value)]
    os.execve(argv[0], argv, children.environment(threads or 0))
