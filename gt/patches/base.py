"""What a patch is, and what patches share. Knows no patch."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Patch:
    """One replaced name.

    Attributes:
        name: the dotted name, as it stands in docs/device.md.
        why: why it must be replaced.
        make: takes what stands there and returns what shall stand there; it does what the original does wherever no mux
            tensor is concerned.
    """

    name: str
    why: str
    make: Callable[[Any], Any]

    def install(self) -> None:
        """Replaces the name. Raises AttributeError where this torch has no such name."""
        owner, attribute = locate(self.name)
        # of a class the attribute itself, not what it gives: a property stays one
        found = inspect.getattr_static(owner, attribute) if isinstance(owner, type) else getattr(owner, attribute)
        setattr(owner, attribute, self.make(found))


def locate(name: str) -> tuple[Any, str]:
    """The module or class that holds a dotted name, and the attribute's own name.

    Raises:
        ImportError: no part of the name is a module.
    """
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:-1]:
            owner = getattr(owner, part)
        return owner, parts[-1]
    raise ImportError(f"{name} names nothing that can be imported")


def is_mux(item: Any) -> bool:
    """Whether ``item`` is a tensor or a storage on mux."""
    return isinstance(item, torch.Tensor | torch.UntypedStorage) and item.device.type == "mux"
