"""GT: ordinary PyTorch programs on a shared pool of workers.

``import gt`` registers the device ``mux`` with torch in this process and starts nothing. The first use of a mux
tensor joins a cluster: ``GT_ADDRESS``, ``GT_CLUSTER``, the running ``gt up``, or a private one that ends with the
program.
"""

import gc as _gc
import os as _os

# Functionalization's own shape check costs 15 us an in-place operation; capture does it (gt/_native/functional.cpp).
_os.environ.setdefault("TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE", "1")

# What is imported stays: a collection now would only walk torch's heap (80 ms), for whoever allocates next.
_collecting = _gc.isenabled()
_gc.disable()
try:
    from gt import device as _device  # the variable above must be set first

    _device.register()

    from gt import config, debug, signal
    from gt.errors import ClusterError, GTError, NotSupported, WorkerLost
    from gt.factories import arange, empty, eye, from_numpy, full, linspace, ones, rand, randint, randn, tensor, zeros
    from gt.session import connect, gpu_workers, shutdown, synchronize
    from gt_runtime import __version__
finally:
    if _collecting:
        _gc.enable()

device = _device.device

__all__ = [
    "ClusterError",
    "GTError",
    "NotSupported",
    "WorkerLost",
    "__version__",
    "arange",
    "config",
    "connect",
    "debug",
    "device",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "gpu_workers",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "shutdown",
    "signal",
    "synchronize",
    "tensor",
    "zeros",
]
