"""Moving modules to and from mux so that a parameter stays the object it was: tied weights stay tied, optimisers keep
what they hold.

Between CPU and CUDA torch writes ``param.data``; a CPU tensor can't become a mux one in that way, and torch would put
new parameters in the module, one for each name. Here the two objects exchange what they refer to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gt.patches.base import is_mux

_local = (
    threading.local()
)  # .converting: does the conversion under way in this thread cross to or from mux? None: none is
_swapping = threading.Lock()
_depth = 0  # conversions under way that need torch's process-wide switch


def apply(original: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """For ``nn.Module._apply``, which all of ``to``, ``cpu``, ``float``, ``to_empty`` use."""

    def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        if getattr(_local, "converting", None) is not None:  # a child of the module that is being converted
            return original(self, fn, recurse)
        _local.converting = crosses = _crosses(self, fn)
        try:
            if not crosses:
                return original(self, fn, recurse)
            _switch(+1)
            try:
                return original(self, fn, recurse)
            finally:
                _switch(-1)
        finally:
            _local.converting = None

    return _apply


def _crosses(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether ``fn`` moves a parameter of ``module`` from or to mux: tried on a tensor without elements."""
    kinds = {p.device.type: p for p in module.parameters()}
    for kind, parameter in kinds.items():
        try:
            with torch.no_grad():
                found = fn(torch.empty(0, dtype=parameter.dtype, device=parameter.device)).device.type
        except Exception:  # the conversion itself will raise it, at the user's line
            return False
        if found != kind and "mux" in (found, kind):
            return True
    return False


def _switch(step: int) -> None:
    global _depth
    with _swapping:
        _depth += step
        torch.__future__.set_swap_module_params_on_conversion(_depth > 0)


def swap(original: Callable[..., None]) -> Callable[..., None]:
    """For ``torch.utils.swap_tensors``: inside a conversion the object keeps its class, attributes, weak references."""

    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        if getattr(_local, "converting", None) and is_mux(t1) != is_mux(t2):
            torch._C._swap_tensor_impl(t1, t2)
        else:
            original(t1, t2)

    return swap_tensors


def engine(original: Callable[..., Any]) -> Callable[..., Any]:
    """For ``_engine_run_backward``: backward runs on the caller's thread once mux is in use.

    A thread of the autograd engine's own would drop Python objects while the interpreter ends, and hold the
    interpreter's lock against the thread that waits for it.
    """

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        from gt import session

        if session._session is None:
            return original(*args, **kwargs)
        with torch.autograd.set_multithreading_enabled(False):
            return original(*args, **kwargs)

    return _engine_run_backward
