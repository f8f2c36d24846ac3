"""``run``: a worker from its options to its exit status. Chooses the device for this process before torch is
imported."""

from __future__ import annotations

import os

from gt_runtime.worker.options import WorkerOptions, device_environment


def run(options: WorkerOptions) -> int:
    """Connect, work until the cluster or the parent ends, return the exit status: 0 after a goodbye, 1 if it could not
    join.

    Must be called from the main thread of a process that hasn't imported torch yet if ``options.device`` isn't "cpu".

    Raises:
        DeviceError: the device can't be meant.
    """
    os.environ.update(device_environment(options.device, os.environ))
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = (
        "0"  # a worker has no use for other back ends, and must never load `mux`
    )
    # A peer that dies is told by the dispatcher; NCCL's own watchdog would end this process with it.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    # Large CPU tensors come in huge pages: what costs most about a new one is the system's work for each page.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    from gt_runtime.worker.server import serve

    return serve(options)
