"""What the commands share: exit statuses, asking a cluster, printing."""

from __future__ import annotations

import argparse
import json
import sys
import time
from enum import IntEnum
from typing import Any

from gt_runtime.control.client import ControlClient, ControlError
from gt_runtime.launch import connection as places
from gt_runtime.launch.connection import Connection
from gt_runtime.launch.errors import LaunchError

ASK_SECONDS = 5.0


class Exit(IntEnum):
    """Exit statuses of every command, ``gt run`` apart (``docs/cli.md``)."""

    OK = 0
    FAILED = 1  # it was refused, or didn't work
    USAGE = 2  # the command line makes no sense (argparse's own)
    NO_CLUSTER = 3  # no such cluster, several and none named, or no answer


class Unreachable(LaunchError):
    """The cluster is there by name or address, and doesn't answer."""


def find(arguments: argparse.Namespace, *, embedded: bool = True) -> Connection:
    """The cluster that ``--name`` or ``--connect`` or the environment means."""
    return places.find(arguments.name, arguments.connect, embedded=embedded)


def ask(where: Connection, method: str, seconds: float = ASK_SECONDS, **arguments: str) -> Any:
    """The answer to a control request.

    Raises:
        Unreachable: there is none in time.
        ControlError: it is an error.
    """
    began = time.monotonic()
    try:
        with ControlClient(where.front, seconds) as client:
            return client.request(method, **arguments)
    except ControlError as error:
        if time.monotonic() - began < seconds:
            raise
        found = f"no answer at {where.front} within {seconds:g} s"
        do = "see its logs (`gt logs`), or end it (`gt down`)" if where.pid else "check the address"
        raise Unreachable(f"the cluster {where.name or 'there'}", found, do) from error


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=1, sort_keys=True, default=str)
    sys.stdout.write("\n")


def say(text: str) -> None:
    """A line for people, on standard error, at once."""
    print(f"gt: {text}", file=sys.stderr, flush=True)
