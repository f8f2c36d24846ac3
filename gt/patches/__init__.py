"""The names of torch that are replaced while gt is imported: this table, and no other place.

Each replacement does what the name did wherever no mux tensor is concerned. docs/device.md shows the same table; a test
compares them.
"""

from __future__ import annotations

from gt._native import _capture
from gt.patches import modules, numbers, refused, storage, text
from gt.patches.base import Patch, is_mux, locate

__all__ = ["PATCHES", "Patch", "install", "is_mux", "locate"]

_STORAGE = "torch.storage.UntypedStorage"

PATCHES: list[Patch] = [
    Patch(
        "torch._tensor_str._str_intern", "prints a mux tensor as a tensor, fetching only what is shown", text.str_intern
    ),
    Patch(
        "torch.nn.modules.module.Module._apply",
        "a module moved to or from mux keeps its parameter objects",
        modules.apply,
    ),
    Patch(
        "torch.utils.swap_tensors",
        "the exchange that such a move makes keeps class, attributes and weak references",
        modules.swap,
    ),
    Patch(
        "torch.autograd.graph._engine_run_backward",
        "backward runs on the caller's thread once mux is in use",
        modules.engine,
    ),
    Patch("torch.autograd._engine_run_backward", "the same function under its second name", modules.engine),
    Patch("torch.set_float32_matmul_precision", "the flag travels with the stream", numbers.refreshing),
    Patch("torch.set_flush_denormal", "the flag travels with the stream", numbers.flush_denormal),
    Patch("torch._C._set_cublas_allow_tf32", "the flag travels with the stream", numbers.refreshing),
    Patch("torch._C._set_cudnn_allow_tf32", "the flag travels with the stream", numbers.refreshing),
    Patch("torch._C._set_fp32_precision_setter", "the flag travels with the stream", numbers.refreshing),
    Patch(
        "torch.backends.cudnn.CudnnModule.allow_tf32", "the flag travels with the stream", numbers.refreshing_property
    ),
    Patch(
        f"{_STORAGE}.data_ptr",
        "torch.save and torch.load tell storages apart by it: a number that only identifies, not an address",
        storage.data_ptr,
    ),
    Patch(f"{_STORAGE}.cpu", "torch.save reads a storage with it", storage.cpu),
    Patch(f"{_STORAGE}.to", "torch.load moves a storage with it", storage.to),
    Patch(f"{_STORAGE}.clone", "copy.deepcopy copies a storage with it", storage.clone),
    Patch(f"{_STORAGE}.copy_", "mux storages have no memory here", storage.copy),
    Patch(f"{_STORAGE}.fill_", "mux storages have no memory here", storage.fill),
    Patch(f"{_STORAGE}.__getitem__", "mux storages have no memory here", storage.get_item),
    Patch(f"{_STORAGE}.__setitem__", "mux storages have no memory here", storage.set_item),
    Patch(f"{_STORAGE}.__iter__", "mux storages have no memory here", storage.iterate),
    Patch(f"{_STORAGE}._write_file", "pickle and the old file format write a storage with it", storage.write_file),
    Patch(f"{_STORAGE}._set_from_file", "pickle and the old file format read a storage with it", storage.set_from_file),
    Patch(f"{_STORAGE}.share_memory_", "refused: a mux tensor has no memory to share", storage.share),
    Patch(f"{_STORAGE}._share_fd_cpu_", "refused: multiprocessing sends a tensor with it", storage.share),
    Patch(f"{_STORAGE}._share_filename_cpu_", "refused: multiprocessing sends a tensor with it", storage.share),
    Patch("torch.Tensor.__dlpack__", "refused: a mux tensor has no memory to hand out", refused.dlpack),
    Patch("torch.Tensor.__dlpack_device__", "refused: a mux tensor has no memory to hand out", refused.dlpack),
    Patch("torch.utils.dlpack.to_dlpack", "refused: a mux tensor has no memory to hand out", refused.dlpack),
    Patch("torch.to_dlpack", "refused: a mux tensor has no memory to hand out", refused.dlpack),
    Patch("torch.nested.nested_tensor", "refused: values on mux are dense", refused.jagged),
    Patch("torch.nested.as_nested_tensor", "refused: values on mux are dense", refused.jagged),
    Patch(
        "torch._functorch.eager_transforms._wrap_functional_tensor",
        "refused: functionalize over mux tensors",
        refused.functionalize,
    ),
    Patch(
        "torch._functorch.eager_transforms.linearize",
        "refused: it would take mux tensors for constants",
        refused.linearize,
    ),
    Patch("torch.func.linearize", "the same function under its second name", refused.linearize),
    Patch(
        "torch.fx.experimental.proxy_tensor._MakefxTracer.trace",
        "refused: it would take mux tensors for constants",
        refused.trace,
    ),
    Patch("torch.compile", "refused when a compiled function meets a mux tensor", refused.compile),
]


def install() -> None:
    """Applies the table; once a process."""
    for patch in PATCHES:
        patch.install()
    _capture.refresh_flags(False)  # what the environment has set
