"""Storages of mux tensors. They hold no memory in this process: what reads or copies one goes through the tensor it
stands for.

With these, ``copy.deepcopy``, ``pickle``, ``torch.save`` and ``torch.load`` are torch's own: what shares a storage goes
on sharing it, and a file has plain CPU bytes with the location ``mux:0``, so that it loads with ``map_location="cpu"``
where GT isn't installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch

from gt._native import _capture
from gt.errors import NotSupported
from gt.patches.base import is_mux

Storage = torch.UntypedStorage


def _on_mux(replacement: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A maker: the method that calls ``replacement`` for storages on mux and the original for all others."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def method(self: Storage, *args: Any, **kwargs: Any) -> Any:
            return (replacement if self.device.type == "mux" else original)(self, *args, **kwargs)

        return method

    return make


@torch.no_grad()
def host(storage: Storage) -> Storage:
    """The bytes of a mux storage as a new CPU storage."""
    base: torch.Tensor = _capture.storage_tensor(storage)
    fetched = base.cpu()
    found = fetched.untyped_storage()
    if fetched.stride() == base.stride() and base.storage_offset() == 0 and found.nbytes() == storage.nbytes():
        return found
    # a value with gaps, or one that overlaps itself
    whole = torch.zeros(storage.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage()
    view = torch.empty(0, dtype=base.dtype, device="cpu")
    view.set_(whole, base.storage_offset(), base.shape, base.stride()).copy_(fetched)
    return whole


def from_host(storage: Storage) -> Storage:
    """A mux storage with the bytes of a CPU storage. The first tensor that is made of it decides what it holds."""
    made: Storage = _capture.storage_from(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage))
    return made


def _bytes(storage: Storage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="mux").set_(storage)


@torch.no_grad()
def _clone(storage: Storage) -> Storage:
    base: torch.Tensor = _capture.storage_tensor(storage)
    made = base.clone()
    if made.stride() == base.stride() and made.storage_offset() == base.storage_offset():
        return made.untyped_storage()
    return from_host(host(storage))


def _fill(storage: Storage, value: int) -> Storage:
    with torch.no_grad():
        _bytes(storage).fill_(value)
    return storage


def _set_item(storage: Storage, index: Any, value: Any) -> None:
    with torch.no_grad():
        _bytes(storage)[index] = value


def _iterate(storage: Storage) -> Iterator[int]:
    return iter(host(storage).tolist())


def _set_from_file(storage: Storage, *where: Any) -> Storage:
    """``_set_from_file(file, offset, is_real_file, item_size)``: the old file format fills a storage on its device."""
    read = torch.UntypedStorage(storage.nbytes())
    read._set_from_file(*where)
    _capture.storage_write(storage, torch.empty(0, dtype=torch.uint8, device="cpu").set_(read))
    return storage


def _refuse_sharing(storage: Storage, *_: Any, **__: Any) -> None:
    raise NotSupported(
        "sharing the memory of a mux tensor with another process (share_memory_, multiprocessing queues)",
        "a value on mux has no memory in this process",
        "send a CPU copy (Tensor.cpu()), or let the other process connect to the same cluster",
    )


cpu = _on_mux(host)
data_ptr = _on_mux(lambda storage: storage._cdata if storage.nbytes() else 0)  # an identity; 0 means empty
clone = _on_mux(_clone)
fill = _on_mux(_fill)
get_item = _on_mux(lambda storage, index: host(storage)[index])
set_item = _on_mux(_set_item)
iterate = _on_mux(_iterate)
write_file = _on_mux(lambda storage, *args: host(storage)._write_file(*args))
set_from_file = _on_mux(_set_from_file)
share = _on_mux(_refuse_sharing)


def to(original: Callable[..., Storage]) -> Callable[..., Storage]:
    """For ``UntypedStorage.to``: torch.load moves what it has read with it."""

    @wraps(original)
    def method(self: Storage, *, device: Any, non_blocking: bool = False) -> Storage:
        target = torch.device(device)
        if target.type == self.device.type and "mux" in (target.type, self.device.type):
            return self
        if self.device.type == "mux":
            found = host(self)
            return found if target.type == "cpu" else original(found, device=target, non_blocking=non_blocking)
        if target.type == "mux":
            return from_host(self if self.device.type == "cpu" else original(self, device=torch.device("cpu")))
        return original(self, device=device, non_blocking=non_blocking)

    return method


def copy(original: Callable[..., Storage]) -> Callable[..., Storage]:
    """For ``UntypedStorage.copy_``, in both directions."""

    @wraps(original)
    def method(self: Storage, source: Any, non_blocking: bool = False) -> Storage:
        if self.device.type == "mux":
            with torch.no_grad():
                origin = source if isinstance(source, Storage) else source._untyped_storage
                _bytes(self).copy_(torch.empty(0, dtype=torch.uint8, device=origin.device).set_(origin))
            return self
        return original(self, host(source) if is_mux(source) else source, non_blocking)

    return method
