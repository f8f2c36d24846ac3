"""The dispatcher's five sockets: bound on ipc in the run directory and, if told, on tcp."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import zmq

from gt_runtime.protocol.limits import MAX_FRAME_BYTES

NAMES = ("front", "back", "pulse", "bulk", "telemetry")
_MAX_IPC_PATH = 107  # sun_path of Linux, less its terminating zero
_TELEMETRY_RECORDS = 64  # that a slow reader may lag behind; then it misses some and sees it by their numbers


class EndpointError(Exception):
    """An endpoint that can't be bound: what, why, what to do."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The bound sockets and their addresses by name; ``tcp`` is empty without ``--listen``."""

    sockets: dict[str, zmq.Socket[bytes]]
    ipc: dict[str, str]
    tcp: dict[str, str]


def bind(context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, listen: str | None) -> Endpoints:
    """Make and bind the five sockets.

    Args:
        listen: ``tcp://HOST[:PORT]``: HOST is loopback if empty; PORT is the front's, the others' are chosen by the
            system.

    Raises:
        EndpointError: a path that is too long, a malformed ``listen``, an address in use.
    """
    sockets, ipc, tcp = {name: _socket(context, name) for name in NAMES}, {}, {}
    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    umask = os.umask(0o077)
    try:
        for name in NAMES:
            path = run_dir.absolute() / f"{name}.sock"
            if len(os.fsencode(path)) > _MAX_IPC_PATH:
                raise EndpointError(
                    f"socket path {path} is over {_MAX_IPC_PATH} bytes: set GT_RUNTIME_DIR to a shorter one"
                )
            ipc[name] = f"ipc://{path}"
            _bind(sockets[name], ipc[name])
        if listen is not None:
            host, port = parse_listen(listen)
            for name in NAMES:
                tcp[name] = _listen(sockets[name], host, port if name == "front" else 0)
    except BaseException:
        for made in sockets.values():
            made.close(0)
        raise
    finally:
        os.umask(umask)
    return Endpoints(sockets, ipc, tcp)


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port (0 = any) of ``tcp://HOST[:PORT]``.

    Raises:
        EndpointError: anything else.
    """
    try:
        parts = urlsplit(listen)
        port = parts.port or 0
    except ValueError as error:
        raise EndpointError(f"--listen {listen}: {error}") from error
    if parts.scheme != "tcp" or parts.path not in ("", "/") or parts.query:
        raise EndpointError(f"--listen {listen}: expected tcp://HOST[:PORT]")
    return parts.hostname or "127.0.0.1", port


def remove(run_dir: Path) -> None:
    """Take the socket files away, and the folder if that leaves it empty."""
    for name in NAMES:
        (run_dir / f"{name}.sock").unlink(missing_ok=True)
    try:
        run_dir.rmdir()
    except OSError:
        pass  # the launcher keeps something there, or it is gone already


def _socket(context: zmq.Context[zmq.Socket[bytes]], name: str) -> zmq.Socket[bytes]:
    made = context.socket(zmq.XPUB if name == "telemetry" else zmq.ROUTER)
    made.setsockopt(zmq.LINGER, 500)  # milliseconds: the last words ("the cluster stops") get this long
    made.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    if name == "telemetry":
        made.setsockopt(zmq.SNDHWM, _TELEMETRY_RECORDS)
    else:
        made.setsockopt(zmq.ROUTER_MANDATORY, 1)
        made.setsockopt(zmq.SNDHWM, 0)  # credit bounds what is under way, and a ROUTER drops at its mark
        made.setsockopt(zmq.RCVHWM, 0)
    return made


def _bind(bound: zmq.Socket[bytes], address: str) -> None:
    try:
        bound.bind(address)
    except zmq.ZMQError as error:
        raise EndpointError(f"can't listen on {address}: {error}") from error


def _listen(bound: zmq.Socket[bytes], host: str, port: int) -> str:
    six = ":" in host
    bound.setsockopt(zmq.IPV6, int(six))
    shown = f"[{host}]" if six else host
    _bind(bound, f"tcp://{shown}:{port or '*'}")
    address: str = bound.getsockopt_string(zmq.LAST_ENDPOINT)
    if host in ("0.0.0.0", "::", "*"):  # listening everywhere: peers need a name that leads here
        address = f"tcp://{socket.gethostname()}:{address.rsplit(':', 1)[1]}"
    return address
