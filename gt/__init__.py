"""GT: ordinary PyTorch programs on a shared pool of workers.

``import gt`` registers the device ``mux`` with torch in this process and starts nothing. The first use of a mux
tensor joins a cluster: ``GT_ADDRESS``, ``GT_CLUSTER``, the running ``gt up``, or a private one that ends with the
program.
"""

import os as _os

# Functionalization's own shape check costs 15 us an in-place operation; capture does it (gt/_native/functional.cpp).
_os.environ.setdefault("TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE", "1")

from gt import device as _device  # the variable above must be set first

_device.register()

from gt import config, debug, signal  # noqa: E402
from gt.errors import ClusterError, GTError, NotSupported, WorkerLost  # noqa: E402
from gt.factories import arange, empty, eye, from_numpy, full, linspace, ones, rand, randint, randn, tensor, zeros  # noqa: E402
from gt.session import connect, gpu_workers, shutdown, synchronize  # noqa: E402
from gt_runtime import __version__  # noqa: E402

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
