"""What GT refuses by name (``gt.NotSupported`` with what, why and instead), so that nothing half works in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.conformance.registry import add, make

GROUP = "refused"


def _sparse(d: str) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]], device=d), torch.ones(2, device=d), (2, 2))


def _csr(d: str) -> torch.Tensor:
    rows, columns = torch.tensor([0, 1, 2], device=d), torch.tensor([1, 0], device=d)
    return torch.sparse_csr_tensor(rows, columns, torch.ones(2, device=d), (2, 2))


def _sparse_embedding(d: str) -> torch.Tensor:
    layer = nn.Embedding(4, 2, sparse=True).to(d)
    layer(torch.tensor([1], device=d)).sum().backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.to_dense()


def _sparse_adam(d: str) -> torch.Tensor:
    layer = nn.Embedding(4, 2, sparse=True).to(d)
    optimiser = torch.optim.SparseAdam(layer.parameters())
    layer(torch.tensor([1], device=d)).sum().backward()
    optimiser.step()
    return layer.weight


def _share(d: str) -> torch.Tensor:
    return nn.Linear(2, 2).to(d).share_memory().weight


def _queue(d: str) -> Any:
    from multiprocessing.reduction import ForkingPickler

    return ForkingPickler.dumps(make(d, 3)) is not None


def _compiled(d: str) -> Any:
    return torch.compile(lambda x: x * 2, backend="eager")(make(d, 3))


def _compiled_module(d: str) -> Any:
    return torch.compile(nn.Linear(3, 2).to(d), backend="eager")(make(d, 1, 3)).shape


CALLS: dict[str, Callable[[str], Any]] = {
    "sparse_coo_tensor": _sparse,
    "sparse_csr_tensor": _csr,
    "sparse_compressed_tensor": lambda d: torch.sparse_compressed_tensor(
        torch.tensor([0, 1], device=d),
        torch.tensor([0], device=d),
        torch.ones(1, device=d),
        (1, 1),
        layout=torch.sparse_csr,
    ),
    "to_sparse": lambda d: make(d, 3).to_sparse(),
    "to_sparse_csr": lambda d: make(d, 3, 3).to_sparse_csr(),
    "to_sparse_bsr": lambda d: make(d, 4, 4).to_sparse_bsr((2, 2)),
    "sparse_layout_factory": lambda d: torch.zeros(2, 2, layout=torch.sparse_coo, device=d),
    "sparse_tensor_moved": lambda d: _sparse("cpu").to(d),
    "sparse_embedding": _sparse_embedding,
    "sparse_adam": _sparse_adam,
    "sparse_mm": lambda d: torch.sparse.mm(_sparse(d), make(d, 2, 2)),
    "quantize_per_tensor": lambda d: torch.quantize_per_tensor(make(d, 3), 0.1, 0, torch.qint8).dequantize(),
    "quantize_per_channel": lambda d: torch.quantize_per_channel(
        make(d, 2, 2), torch.ones(2, device=d), torch.zeros(2, dtype=torch.int64, device=d), 0, torch.qint8
    ).dequantize(),
    "quantized_factory": lambda d: (
        torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.qint8, device=d).shape
    ),
    "quantized_tensor_moved": lambda d: (
        torch.quantize_per_tensor(make("cpu", 3), 0.1, 0, torch.qint8).to(d).dequantize()
    ),
    "nested_tensor": lambda d: torch.nested.nested_tensor([make(d, 2), make(d, 3)]).unbind(),
    "nested_tensor_jagged": lambda d: torch.nested.nested_tensor(
        [make(d, 2), make(d, 3)], layout=torch.jagged
    ).unbind(),
    "as_nested_tensor": lambda d: torch.nested.as_nested_tensor([make(d, 2), make(d, 3)]).unbind(),
    "to_dlpack": lambda d: torch.utils.dlpack.to_dlpack(make(d, 3)) is not None,
    "dlpack_method": lambda d: make(d, 3).__dlpack__() is not None,
    "dlpack_device": lambda d: make(d, 3).__dlpack_device__() is not None,
    "from_dlpack": lambda d: torch.from_dlpack(make(d, 3)),
    "share_memory_": lambda d: make(d, 3).share_memory_(),
    "module_share_memory": _share,
    "sent_to_another_process": _queue,
    "compile_function": _compiled,
    "compile_module": _compiled_module,
}
for _name, _call in CALLS.items():
    add(GROUP, _name, _call, refused=True)
