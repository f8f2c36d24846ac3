"""What a dispatcher is started with: the dataclass and its command line, shared by ``gt dispatcher`` and ``python
-m``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DispatcherOptions:
    """Start of a dispatcher.

    Attributes:
        name: of the cluster.
        run_dir: an existing or new folder (mode 0700) for the ipc sockets.
        listen: ``tcp://HOST[:PORT]`` to listen on too, None for ipc alone. PORT is the front's; the others are chosen
            by the system.
        session_memory: bytes that one session may hold on one worker, 0 = no cap.
        turn_bytes: bytes of new values that a session places before the next worker takes a turn; 0 = every new value
            takes a turn; None = half of the worker's free memory.
        embedded: belongs to one program and ends with it.
        parent: ends when this process does, None = nobody's child.
        workers: how many workers make the cluster's state "ready"; at least 1.
        log_dir: where the launcher puts the logs; only handed on in ``status``.
    """

    name: str
    run_dir: Path
    listen: str | None = None
    session_memory: int = 0
    turn_bytes: int | None = None
    embedded: bool = False
    parent: int | None = None
    workers: int = 1
    log_dir: Path | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``gt dispatcher``."""
    parser.add_argument("--name", required=True, help="name of the cluster")
    parser.add_argument("--run-dir", required=True, type=Path, metavar="DIR", help="folder for the ipc sockets")
    parser.add_argument("--listen", metavar="tcp://HOST[:PORT]", help="listen on tcp too (loopback if HOST is empty)")
    parser.add_argument(
        "--session-memory", type=_natural, default=0, metavar="BYTES", help="cap of a session on a worker, 0 = none"
    )
    parser.add_argument(
        "--turn-bytes", type=_natural, metavar="N", help="new bytes before the next worker's turn, 0 = every value"
    )
    parser.add_argument("--embedded", action="store_true", help="belongs to one program")
    parser.add_argument("--parent", type=_natural, metavar="PID", help="end when this process ends")
    parser.add_argument("--workers", type=_natural, default=1, metavar="N", help="workers that make the cluster ready")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="where the logs are, for status")


def from_arguments(arguments: argparse.Namespace) -> DispatcherOptions:
    """What ``add_arguments`` parsed."""
    return DispatcherOptions(
        name=arguments.name,
        run_dir=arguments.run_dir,
        listen=arguments.listen,
        session_memory=arguments.session_memory,
        turn_bytes=arguments.turn_bytes,
        embedded=arguments.embedded,
        parent=arguments.parent,
        workers=max(1, arguments.workers),
        log_dir=arguments.log_dir,
    )


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value
