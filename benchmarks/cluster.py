"""The cluster that is measured on: one worker with one thread, in a runtime directory of its own, gone at the end.

A private embedded cluster wouldn't do: its worker takes all cores, and a ratio against one thread would flatter.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from examples.demo import GT, START_SECONDS, Program
from gt_runtime.launch import connection, errors

NAME = "bench"


@contextlib.contextmanager
def one_thread_worker() -> Iterator[None]:
    """While inside, this process's first mux tensor joins that cluster.

    Raises:
        RuntimeError: it didn't start.
    """
    with tempfile.TemporaryDirectory(prefix="gt-bench-") as folder:
        os.environ |= {"GT_RUNTIME_DIR": f"{folder}/gt", "GT_CLUSTER": NAME}
        os.environ.pop("GT_ADDRESS", None)
        command = (*GT, "up", "--name", NAME, "--workers", "1", "--threads", "1", "--device", "cpu")
        cluster = Program("cluster", command, Path(folder), dict(os.environ))
        try:
            wait_ready(cluster)
            yield
        finally:
            cluster.stop()


def wait_ready(cluster: Program) -> None:
    deadline = time.monotonic() + START_SECONDS
    while cluster.running() and time.monotonic() < deadline:
        try:
            connection.find(NAME)
        except errors.NoCluster:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the cluster to measure on didn't start:\n{cluster.told()}")
