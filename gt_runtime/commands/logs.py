"""``gt logs``: what a cluster's processes wrote. Works for a cluster that has ended, too."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import BinaryIO

from gt_runtime.commands.common import Exit, print_json
from gt_runtime.launch.children import tail
from gt_runtime.launch.connection import ENV_CLUSTER, Connection, RuntimeDirectory, find
from gt_runtime.launch.errors import LaunchError, NoCluster
from gt_runtime.launch.local import log_files

_FOLLOW_SECONDS = 0.2  # between two looks at growing files


def folder(name: str | None, address: str | None) -> Path:
    """Where the logs are of the cluster that is meant: one that runs, or one of that name that has ended.

    Raises:
        NoCluster: neither.
        LaunchError: an address was given: its host's files aren't to be had.
    """
    asked = "the logs of a cluster"
    if address:
        raise LaunchError(asked, f"only its address ({address}) is given", "use --name on the cluster's own host")
    try:
        where = find(name, embedded=True)
    except NoCluster:
        name = name or os.environ.get(ENV_CLUSTER)
        if name and log_files(path := RuntimeDirectory.open().log_dir(name)):
            return path
        raise
    return _folder(where, asked)


def _folder(where: Connection, asked: str) -> Path:
    if not where.log_dir or not where.local:
        do = f"use --name on the cluster's own host, with {ENV_CLUSTER} or --name"
        raise LaunchError(asked, f"it was found by address or runs on {where.host or 'another host'}", do)
    return Path(where.log_dir)


def logs(path: Path, who: str | None, lines: int, follow: bool, as_json: bool) -> int:
    """Print the last ``lines`` lines of one log or of all, and, with ``follow``, what is added until Ctrl-C.

    Raises:
        LaunchError: there is no log of ``who``.
    """
    files = log_files(path)
    if who is not None:
        if who not in files:
            do = "there are " + ", ".join(files) if files else f"{path} is empty"
            raise LaunchError(f"the log of '{who}'", "there is none", do)
        files = {who: files[who]}
    if as_json:
        print_json([{"id": w, "path": str(p), "lines": tail(p, lines)} for w, p in files.items()])
        return Exit.OK
    width = 0 if who is not None else max((len(w) for w in files), default=0)
    for name, file in files.items():
        for line in tail(file, lines):
            _write(name, line, width)
    sys.stdout.flush()
    if follow:
        _follow(files, width)
    return Exit.OK


def _follow(files: dict[str, Path], width: int) -> None:
    """Print complete lines as they are added, until interrupted."""
    opened: dict[str, BinaryIO] = {}
    rest: dict[str, bytes] = dict.fromkeys(files, b"")
    try:
        for name, path in files.items():
            opened[name] = open(path, "rb")  # noqa: SIM115  # closed below
            opened[name].seek(0, os.SEEK_END)
        while True:
            for name, file in opened.items():
                *whole, rest[name] = (rest[name] + file.read()).split(b"\n")
                for line in whole:
                    _write(name, line.decode(errors="replace"), width)
            sys.stdout.flush()
            time.sleep(_FOLLOW_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        for file in opened.values():
            file.close()


def _write(name: str, line: str, width: int) -> None:
    shown = "".join(c if c.isprintable() or c == "\t" else "?" for c in line)
    sys.stdout.write(f"{name.ljust(width)} | {shown}\n" if width else f"{shown}\n")
