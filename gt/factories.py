"""Thin conveniences: ``gt.randn(2, 3)`` is ``torch.randn(2, 3, device="mux")``, and so on."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "arange",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "tensor",
    "zeros",
]


def _on_mux(name: str) -> Any:
    function = getattr(torch, name)

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.setdefault("device", "mux")
        return function(*args, **kwargs)  # type: ignore[no-any-return]  # torch's factories give tensors

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"``torch.{name}`` on the device mux."
    return make


arange = _on_mux("arange")
empty = _on_mux("empty")
eye = _on_mux("eye")
full = _on_mux("full")
linspace = _on_mux("linspace")
ones = _on_mux("ones")
rand = _on_mux("rand")
randint = _on_mux("randint")
randn = _on_mux("randn")
tensor = _on_mux("tensor")
zeros = _on_mux("zeros")


def from_numpy(array: Any) -> torch.Tensor:
    """A copy of a NumPy array on mux (it doesn't share the array's memory)."""
    return torch.from_numpy(array).to("mux")
