"""Taking an operator's sample inputs apart and moving them to a device, with everything that a kernel could notice
kept.

One object stays one object, tensors that share a storage go on sharing it, strides, conjugate and negative bits and
``requires_grad`` survive, and ``device="cpu"`` among the arguments becomes the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def flatten(item: Any) -> Iterator[Any]:
    """Every leaf of nested sequences and maps."""
    if isinstance(item, Mapping):
        for each in item.values():
            yield from flatten(each)
    elif isinstance(item, list | tuple) and not isinstance(item, torch.Size):
        for each in item:
            yield from flatten(each)
    else:
        yield item


def map_tensors(change: Callable[[torch.Tensor], Any], item: Any) -> Any:
    """The same nesting with every tensor changed; named tuples and ``torch.return_types`` become tuples."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, Mapping):
        return {key: map_tensors(change, each) for key, each in item.items()}
    if isinstance(item, list) or (isinstance(item, tuple) and not isinstance(item, torch.Size)):
        mapped = [map_tensors(change, each) for each in item]
        return mapped if isinstance(item, list) else tuple(mapped)
    return item


class Mover:
    """Moves one call's arguments to ``device``; a call's arguments must all go through one mover."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._moved: dict[int, torch.Tensor] = {}
        self._storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._alive: list[Any] = []  # ids are only good while their objects live

    def __call__(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return self._tensor(item)
        if isinstance(item, torch.device) and item.type == "cpu":
            return self.device
        if isinstance(item, str) and item == "cpu":
            return str(self.device)
        if isinstance(item, torch.Generator):
            return torch.Generator(device=self.device).manual_seed(item.initial_seed())
        if isinstance(item, Mapping):
            return {key: self(each) for key, each in item.items()}
        if isinstance(item, tuple) and not isinstance(item, torch.Size):
            return item._make(map(self, item)) if hasattr(item, "_make") else tuple(map(self, item))
        if isinstance(item, list):
            return [self(each) for each in item]
        return item

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._moved:
            self._alive.append(tensor)
            moved = self._values(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, tensor.requires_grad)
            self._moved[id(tensor)] = moved.requires_grad_(tensor.requires_grad)
        return self._moved[id(tensor)]

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.detach()
        if plain.layout is not torch.strided:
            return plain.to(self.device, copy=True)
        if plain.is_conj():
            return self._values(plain.conj()).conj()
        if plain.is_neg():
            return self._values(torch._neg_view(plain))._neg_view()
        key = (plain.untyped_storage()._cdata, plain.dtype)
        if key not in self._storages and self._owns_its_storage(plain):
            self._alive.append(plain)
            self._storages[key] = plain.to(self.device, copy=True, memory_format=torch.preserve_format)
            return self._storages[key]
        return self._storage(plain).as_strided(plain.size(), plain.stride(), plain.storage_offset())

    @staticmethod
    def _owns_its_storage(tensor: torch.Tensor) -> bool:
        """Would a plain copy have the same strides? Then it needs no storage of its own built first."""
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        dense = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1)
        expected, fits = 1, True
        for stride, size in dense:
            fits &= stride == expected
            expected *= size
        return whole and fits and math.prod(tensor.shape) > 0

    def _storage(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype)
        if key not in self._storages:
            self._alive.append(storage)
            whole = torch.empty(0, dtype=tensor.dtype).set_(
                storage, 0, (storage.nbytes() // tensor.element_size(),), (1,)
            )
            self._storages[key] = whole.to(self.device, copy=True)
        return self._storages[key]
