"""The names of torch (and the standard library) that are replaced while gt is imported: this table, and no other place.

Each replacement does what the name did wherever no mux tensor is concerned. docs/device.md shows the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Patch:
    """``name`` as a person would write it, why it must be replaced, and the function that does it."""

    name: str
    why: str
    install: Callable[[], None]


def is_mux(tensor: Any) -> bool:
    """Whether ``tensor`` is a tensor on mux."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "mux"


def _multithreading() -> None:
    # Backward on the caller's thread: a device thread of its own would drop Python objects while the interpreter ends.
    torch.autograd.set_multithreading_enabled(False)


PATCHES: list[Patch] = [
    Patch("torch.autograd.set_multithreading_enabled", "backward runs on the caller's thread (main thread only)", _multithreading),
]


def install() -> None:
    """Applies the table; once a process."""
    for patch in PATCHES:
        patch.install()
