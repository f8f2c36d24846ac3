"""Who may talk to whom: the facts of a Hello and how they are judged."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gt_runtime import __version__
from gt_runtime.protocol.limits import PROTOCOL_VERSION
from gt_runtime.protocol.messages import Refused


def host_id() -> str:
    """Equal for two processes that can open each other's ``/proc/PID/fd``: one boot, one pid namespace."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname()


def facts(role: str, torch: str, schema: str, **more: Any) -> dict[str, Any]:
    """A Hello's facts. ``role``: "client" or "worker"; ``torch``: its version; ``schema``: hash of the ATen operator
    schemas."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return {
        "protocol": PROTOCOL_VERSION,
        "gt": __version__,
        "torch": torch,
        "schema": schema,
        "role": role,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "host_id": host_id(),
        "user": user,
        "program": program(),
        **more,
    }


def program() -> str:
    """What a person would call this process: the script's name, or the module's."""
    argv0 = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    return os.path.basename(argv0) or argv0


#: The facts that both sides must agree on, as a person would call them.
_JUDGED = {
    "protocol": "protocol version",
    "gt": "GT version",
    "torch": "PyTorch version",
    "schema": "ATen operator schemas",
}


def judge(hello: Mapping[str, Any], expected: Mapping[str, Any]) -> Refused | None:
    """None if ``hello`` may join a cluster of ``expected`` (protocol, gt, torch, schema: a missing key isn't checked),
    else why not."""
    if hello.get("role") not in ("client", "worker"):
        asked = "to join as " + repr(hello.get("role"))[:40]
        return Refused(asked, "only client and worker can join", "check the program that connects")
    for key, name in _JUDGED.items():
        want, found = expected.get(key), hello.get(key)
        if want is not None and want != found:
            return Refused(
                f"to join with {name} {str(found)[:60]}",
                f"this cluster runs {name} {str(want)[:60]}",
                "use the same environment (GT and PyTorch versions) for the program and the cluster",
            )
    return None
