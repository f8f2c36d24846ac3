"""Registers the device ``mux`` with torch, in this process only.

The module object below is what torch calls ``torch.mux``. Names of torch that are replaced stand in ``gt.patches``
and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import types
from typing import Any

import torch

from gt import errors, patches, session
from gt._native import _capture

NAME = "mux"
device = torch.device("cpu")  # replaced by register(): torch knows the name only then


def _module() -> types.ModuleType:
    """``torch.mux``: what torch expects of a device's module, and nothing that would pretend."""
    m = types.ModuleType("torch.mux", "The device mux: torch programs on a pool of workers (GT).")

    def check(device: Any) -> int:
        found = (
            torch.device(NAME, device) if isinstance(device, int) else torch.device(NAME if device is None else device)
        )
        index = found.index
        if index not in (None, 0):
            raise RuntimeError(f"mux has one device, mux:0, not mux:{index}: where work runs is the cluster's matter")
        return 0

    def generator() -> torch.Generator:
        return _capture.default_generator()

    class device_context:
        def __init__(self, device: Any) -> None:
            check(device)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    def set_device(device: Any) -> None:
        check(device)

    def synchronize(device: Any = None) -> None:
        check(device)
        session.synchronize()

    def manual_seed(seed: int) -> None:
        generator().manual_seed(int(seed))

    def get_rng_state(device: Any = NAME) -> torch.Tensor:
        check(device)
        return generator().get_state()

    def set_rng_state(new_state: torch.Tensor, device: Any = NAME) -> None:
        check(device)
        generator().set_state(new_state)

    def stream(stream: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # there is one stream: what is issued later runs later

    def current_stream(device: Any = None) -> torch.Stream:
        check(device)
        return torch.Stream(device=torch.device(NAME, 0))

    def event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        if interprocess:
            raise errors.NotSupported(
                "an event shared between processes",
                "events count this program's instructions",
                "use an event of each process",
            )
        return torch.Event(torch.device(NAME, 0), enable_timing=enable_timing, blocking=blocking)

    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_initialized": True,  # torch.utils.checkpoint asks, before it keeps the random state
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": set_device,
        "device": device_context,
        "get_device_name": lambda device=None: "GT mux",
        "get_device_capability": lambda device=None: (0, 0),
        "synchronize": synchronize,
        "Stream": current_stream,
        "Event": event,
        "stream": stream,
        "current_stream": current_stream,
        "default_stream": current_stream,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "seed": lambda: generator().seed(),
        "seed_all": lambda: generator().seed(),
        "initial_seed": lambda: generator().initial_seed(),
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "_is_in_bad_fork": _capture.forked,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "is_bf16_supported": lambda including_emulation=True: True,
        "empty_cache": lambda: None,
    }
    for name, function in functions.items():
        setattr(m, name, function)
    return m


def register() -> None:
    """Makes torch know ``mux``; once a process.

    Raises:
        ClusterError: another package has taken PyTorch's one slot for an outside device.
    """
    global device
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise errors.ClusterError(
            f"import gt: this process uses PyTorch's slot for an outside device for {taken!r}; "
            "run GT in a process of its own"
        )
    _capture.register_device()
    _capture.set_internal([os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<frozen "])
    torch.utils.backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    session.install()
    patches.install()
    device = torch.device(NAME, 0)
