"""What would half work, or crash, and is refused by name instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from gt.errors import NotSupported
from gt.patches.base import is_mux


def dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    """For every way to hand a tensor's memory to another library."""

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_mux(self):
            raise NotSupported(
                "handing out a mux tensor's memory (DLPack)",
                "a value on mux has no memory in this process",
                "hand out a CPU copy (Tensor.cpu())",
            )
        return original(self, *args, **kwargs)

    return method


def functionalize(original: Callable[..., Any]) -> Callable[..., Any]:
    """For functorch's wrapper of ``torch.func.functionalize``."""

    @wraps(original)
    def wrap(tensor: Any, level: int) -> Any:
        if is_mux(tensor):
            raise NotSupported(
                "torch.func.functionalize over mux tensors",
                "what reaches mux is made functional already, and PyTorch can't do it twice",
                "call the function itself: views and in-place writes cost nothing extra on mux",
            )
        return original(tensor, level)

    return wrap


def linearize(original: Callable[..., Any]) -> Callable[..., Any]:
    """For ``torch.func.linearize``, which traces: what it would record of mux tensors are constants."""

    @wraps(original)
    def torch_linearize(func: Callable[..., Any], *primals: Any) -> Any:
        if any(is_mux(leaf) for leaf in tree_leaves(primals)):
            raise NotSupported(
                "torch.func.linearize over mux tensors",
                "it traces the function, and a trace would take mux tensors for constants",
                "use torch.func.jvp, or torch.func.jacfwd",
            )
        return original(func, *primals)

    return torch_linearize


def trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the tracer behind ``make_fx``. The function itself must stay: dynamo knows it by its source file."""

    @wraps(original)
    def method(self: Any, f: Callable[..., Any], *args: Any) -> Any:
        if any(is_mux(leaf) for leaf in tree_leaves(args)):
            raise NotSupported(
                "make_fx over mux tensors",
                "a trace would take mux tensors for constants",
                "trace with CPU or meta tensors",
            )
        return original(self, f, *args)

    return method


def jagged(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the constructors of ``torch.nested``."""

    @wraps(original)
    def make(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        inside = tensors if isinstance(tensors, list | tuple) else [tensors]
        if any(is_mux(each) for each in inside) or torch.device(kwargs.get("device") or "cpu").type == "mux":
            raise NotSupported(
                "a nested tensor",
                "values on mux are dense tensors",
                "pad the tensors (torch.nn.utils.rnn.pad_sequence) and use a mask",
            )
        return original(tensors, *args, **kwargs)

    return make


def compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """For ``torch.compile``: a compiled function that meets a mux tensor is refused when it is called."""

    @wraps(original)
    def torch_compile(*args: Any, **kwargs: Any) -> Any:
        _watch_frames()
        return original(*args, **kwargs)

    return torch_compile


_watching = False


def _watch_frames() -> None:
    """Looks at each frame that dynamo is about to compile. Dynamo is imported here: the program asks for it anyway."""
    global _watching
    if _watching:
        return
    _watching = True
    from torch._dynamo import convert_frame

    original = convert_frame.CatchErrorsWrapper.__call__

    @wraps(original)
    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        if any(_holds_mux(value) for value in frame.f_locals.values()):
            raise NotSupported(
                f"torch.compile over mux tensors ({frame.f_code.co_qualname})",
                "the compiler would generate code for memory that isn't in this process",
                "call the function without torch.compile: what runs on mux travels as a stream of operators already",
            )
        return original(self, frame, *args, **kwargs)

    convert_frame.CatchErrorsWrapper.__call__ = call  # type: ignore[method-assign]  # on purpose


def _holds_mux(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return any(is_mux(parameter) for parameter in value.parameters())
    if isinstance(value, list | tuple):
        return any(_holds_mux(each) for each in value)
    if isinstance(value, dict):
        return any(_holds_mux(each) for each in value.values())
    return is_mux(value)
