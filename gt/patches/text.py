"""How a mux tensor is printed: like any device's, from a copy of only what is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str

from gt.patches.base import is_mux


def str_intern(original: Callable[..., str]) -> Callable[..., str]:
    """For ``torch._tensor_str._str_intern``, which would show functionalization's wrapper."""

    def _str_intern(inp: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if not is_mux(inp) or inp.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(inp):
            return original(inp, tensor_contents=tensor_contents)
        return _text(inp, tensor_contents)

    return _str_intern


def _text(inp: torch.Tensor, contents: str | None) -> str:
    """The same text as torch's, suffixes in the same order: device, size, dtype, grad_fn, tangent."""
    plain = type(inp) in (torch.Tensor, torch.nn.Parameter)
    prefix = "tensor(" if plain else f"{type(inp).__name__}("
    tensor, tangent = torch.autograd.forward_ad.unpack_dual(inp)
    suffixes = [f"device='{tensor.device}'"]
    default = torch.get_default_dtype()
    if tensor.numel() == 0:
        if tensor.dim() != 1:
            suffixes.append(f"size={tuple(tensor.shape)}")
        if tensor.dtype != default:
            suffixes.append(f"dtype={tensor.dtype}")
        contents = "[]" if contents is None else contents
    else:
        if not _tensor_str.PRINT_OPTS.edgeitems:
            suffixes.append(f"size={tuple(tensor.shape)}")
        complex_default = torch.cdouble if default is torch.double else torch.cfloat
        if tensor.dtype not in (default, complex_default, torch.int64, torch.bool):
            suffixes.append(f"dtype={tensor.dtype}")
        contents = _contents(tensor.detach(), len(prefix)) if contents is None else contents
    suffixes += _gradient(inp)
    if tangent is not None:
        suffixes.append(f"tangent={tangent}")
    text: str = _tensor_str._add_suffixes(prefix + contents, suffixes, len(prefix), force_newline=False)
    return f"Parameter({text})" if isinstance(inp, torch.nn.Parameter) and not plain else text


def _gradient(tensor: torch.Tensor) -> list[str]:
    try:
        node = tensor.grad_fn
    except RuntimeError:  # a view made without grad and written without grad has none that could be asked for
        return ["grad_fn=<Invalid>"]
    if node is None:
        return ["requires_grad=True"] if tensor.requires_grad else []
    name = type(node).__name__
    return [f"grad_fn=<{node.name().rsplit('::', 1)[-1] if name == 'CppFunction' else name}>"]


def _contents(tensor: torch.Tensor, indent: int) -> str:
    if tensor.numel() <= _tensor_str.PRINT_OPTS.threshold:
        return _tensor_str._tensor_str(tensor.cpu(), indent)  # type: ignore[no-any-return]  # torch doesn't annotate it
    shown = _edges(tensor).cpu()
    if shown.dtype.is_floating_point and shown.dtype.itemsize == 1:
        shown = shown.half()  # torch's formatter can't select from float8 either
    parts = (shown.real, shown.imag) if shown.is_complex() else (shown,)
    formatters: list[Any] = [_tensor_str._Formatter(_tensor_str.get_summarized_data(part)) for part in parts]
    text: str = _tensor_str._tensor_str_with_formatter(shown, indent, True, *formatters)
    return text


def _edges(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with every long dimension cut down to its two ends and one more: "..." still stands between them."""
    ends: int = _tensor_str.PRINT_OPTS.edgeitems
    for dim, size in enumerate(tensor.shape):
        if size > 2 * ends + 1:
            tensor = torch.cat((tensor.narrow(dim, 0, ends + 1), tensor.narrow(dim, size - ends, ends)), dim)
    return tensor
