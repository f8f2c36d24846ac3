"""What a worker is started with, and how its device is named.

Imports no torch: a CUDA device must be chosen before that is.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """``gt worker``'s arguments (``docs/protocol.md``, "Processes").

    ``device``: "cpu", "cuda:i" (the i-th that this environment shows) or the uuid of a GPU or MIG slice. ``id``: the
    id it would like, "" takes the next free one. ``threads``: of the compute libraries, 0 = this host's cores shared
    out among the cluster's workers on it. ``parent``: the worker ends with this process, 0 = no
    one's. ``memory``: bytes that values may take here, 0 = what the device has.
    """

    connect: str
    device: str = "cpu"
    id: str = ""
    threads: int = 0
    parent: int = 0
    memory: int = 0


class DeviceError(ValueError):
    """A device that can't be meant."""


def inner_device(device: str) -> str:
    """What torch calls the device once the environment shows no other: "cpu" or "cuda:0".

    Raises:
        DeviceError: the name is no device's.
    """
    if device == "cpu":
        return "cpu"
    if device.startswith(("MIG-", "GPU-")) or (device.startswith("cuda:") and device[5:].isdigit()):
        return "cuda:0"
    raise DeviceError(
        f"a worker on device {device[:60]!r}: a device is cpu, cuda:i, or the uuid of a GPU or MIG slice (`gt doctor`)"
    )


def device_environment(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What to change in ``environment`` so that the process sees ``device`` and no other.

    Raises:
        DeviceError: the name is no device's, or the environment doesn't show as many.
    """
    inner_device(device)
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    if not device.startswith("cuda:"):
        return {"CUDA_VISIBLE_DEVICES": device}
    index = int(device[5:])
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return {
            "CUDA_VISIBLE_DEVICES": str(index),
            "CUDA_DEVICE_ORDER": environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        }
    entries = [entry.strip() for entry in shown.split(",") if entry.strip()]
    if index >= len(entries):
        raise DeviceError(
            f"a worker on {device}: CUDA_VISIBLE_DEVICES={shown} shows {len(entries)} devices; name one, or unset it"
        )
    return {"CUDA_VISIBLE_DEVICES": entries[index]}


def parse(arguments: Sequence[str] | None = None) -> WorkerOptions:
    """The options in command line arguments; ends the process with a usage message if they make no sense."""
    parser = argparse.ArgumentParser(
        prog="gt worker", description="One worker of a cluster: runs what the dispatcher sends on one device."
    )
    parser.add_argument(
        "--connect",
        required=True,
        metavar="ENDPOINT",
        help="the dispatcher's back endpoint (ipc://... or tcp://host:port)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda:i, or the uuid of a GPU or MIG slice (default: cpu)")
    parser.add_argument("--id", default="", metavar="wN", help="the id it would like (default: the next free one)")
    parser.add_argument(
        "--threads", type=_count, default=0, help="compute threads (default: the cores, shared with the other workers)"
    )
    parser.add_argument("--parent", type=_count, default=0, metavar="PID", help="end when this process ends")
    parser.add_argument(
        "--memory",
        type=_count,
        default=0,
        metavar="BYTES",
        help="cap for values on this worker (default: the device's memory)",
    )
    found = parser.parse_args(arguments)
    try:
        device_environment(found.device, os.environ)
    except DeviceError as error:
        parser.error(str(error))
    return WorkerOptions(found.connect, found.device, found.id, found.threads, found.parent, found.memory)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number
