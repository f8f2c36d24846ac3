"""Indexing in all its forms: masks and index tensors on either device, gather and scatter, shapes that depend on
data.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.conformance.registry import add, make, raised, row

GROUP = "indexing"


def _mask(d: str) -> torch.Tensor:
    return torch.tensor([True, False, True, False], device=d)


def _where(d: str) -> torch.Tensor:
    return torch.tensor([2, 0, 3], device=d)


def _setting(d: str, index: Any, value: Any) -> torch.Tensor:
    target = make(d, 4, 4)
    target[index] = value
    return target


READ: dict[str, Any] = {
    "integer": lambda d: make(d, 4, 3)[1],
    "negative": lambda d: make(d, 4, 3)[-1],
    "slice": lambda d: make(d, 8)[2:6],
    "slice_step": lambda d: make(d, 8)[1::3],
    "slice_empty": lambda d: make(d, 8)[5:2],
    "ellipsis": lambda d: make(d, 2, 3, 4)[..., 1],
    "none": lambda d: make(d, 3)[:, None],
    "tuple": lambda d: make(d, 4, 5)[1:3, 2],
    "bool_scalar": lambda d: make(d, 3)[True],
    "list": lambda d: make(d, 4, 3)[[0, 2]],
    "list_of_bools": lambda d: make(d, 4)[[True, False, True, False]],
    "mask": lambda d: make(d, 4, 3)[_mask(d)],
    "mask_from_cpu": lambda d: make(d, 4, 3)[_mask("cpu")],
    "mask_full_shape": lambda d: make(d, 4, 3)[make(d, 4, 3) > 0],
    "mask_of_nothing": lambda d: make(d, 4)[torch.zeros(4, dtype=torch.bool, device=d)],
    "mask_uint8": lambda d: make(d, 4)[_mask(d).to(torch.uint8)],
    "index_tensor": lambda d: make(d, 4, 3)[_where(d)],
    "index_tensor_from_cpu": lambda d: make(d, 4, 3)[_where("cpu")],
    "index_tensor_scalar": lambda d: make(d, 4, 3)[torch.tensor(1, device=d)],
    "index_tensor_2d": lambda d: make(d, 4, 3)[torch.tensor([[0, 1], [2, 3]], device=d)],
    "index_two_tensors": lambda d: make(d, 4, 4)[_where(d), torch.tensor([0, 1, 2], device=d)],
    "index_tensor_and_slice": lambda d: make(d, 4, 4, 2)[:, _where(d), 1],
    "index_split_by_slice": lambda d: make(d, 4, 2, 4)[_where(d), :, _where(d)],
    "index_mask_and_integer": lambda d: make(d, 4, 4)[_mask(d), 1],
    "index_int32": lambda d: make(d, 4)[_where(d).int()],
    "index_negative_values": lambda d: make(d, 4)[torch.tensor([-1, -4], device=d)],
    "nonzero": lambda d: (make(d, 3, 4) > 0).nonzero(),
    "nonzero_as_tuple": lambda d: (make(d, 3, 4) > 0).nonzero(as_tuple=True),
    "argwhere": lambda d: torch.argwhere(make(d, 3, 4) > 0),
    "where_one_argument": lambda d: torch.where(make(d, 5) > 0),
    "where": lambda d: torch.where(make(d, 5) > 0, make(d, 5), 0.0),
    "masked_select": lambda d: make(d, 4, 4).masked_select(_mask(d)),
    "take": lambda d: make(d, 4, 4).take(_where(d)),
    "take_along_dim": lambda d: torch.take_along_dim(make(d, 3, 4), make(d, 3, 4).argsort(1), 1),
    "gather": lambda d: make(d, 4, 3).gather(0, torch.tensor([[0, 1, 2], [3, 0, 1]], device=d)),
    "index_select": lambda d: make(d, 4, 3).index_select(0, _where(d)),
    "masked_fill": lambda d: make(d, 4).masked_fill(_mask(d), -1.0),
    "masked_fill_tensor_value": lambda d: make(d, 4).masked_fill(_mask(d), torch.tensor(9.0)),
    "masked_scatter": lambda d: make(d, 4).masked_scatter(_mask(d), make(d, 2, seed=2)),
    "scatter": lambda d: torch.zeros(4, device=d).scatter(0, _where(d), make(d, 3)),
    "scatter_value": lambda d: torch.zeros(4, device=d).scatter(0, _where(d), 2.0),
    "scatter_add": lambda d: torch.zeros(4, device=d).scatter_add(0, torch.tensor([1, 1, 2], device=d), make(d, 3)),
    "scatter_reduce_amax": lambda d: torch.zeros(4, device=d).scatter_reduce(0, _where(d), make(d, 3), reduce="amax"),
    "index_add": lambda d: torch.zeros(4, device=d).index_add(0, _where(d), make(d, 3), alpha=2),
    "index_copy": lambda d: torch.zeros(4, device=d).index_copy(0, _where(d), make(d, 3)),
    "index_fill": lambda d: make(d, 4).index_fill(0, _where(d), 7.0),
    "index_put": lambda d: torch.zeros(4, device=d).index_put((_where(d),), make(d, 3)),
    "index_put_accumulate": lambda d: torch.zeros(4, device=d).index_put(
        (torch.tensor([1, 1, 3], device=d),), make(d, 3), accumulate=True
    ),
    "index_put_from_cpu_index": lambda d: torch.zeros(4, device=d).index_put((_where("cpu"),), make(d, 3)),
    "unique": lambda d: torch.unique(torch.tensor([3, 1, 3, 2, 1], device=d)),
    "unique_all": lambda d: torch.unique(torch.tensor([3, 1, 3, 2], device=d), return_inverse=True, return_counts=True),
    "unique_dim": lambda d: torch.unique(torch.tensor([[1, 2], [1, 2], [0, 1]], device=d), dim=0),
    "unique_consecutive": lambda d: torch.unique_consecutive(torch.tensor([1, 1, 2, 1], device=d), return_counts=True),
    "bincount": lambda d: torch.bincount(torch.tensor([0, 2, 2, 5], device=d)),
    "histc": lambda d: torch.histc(make(d, 20), bins=4, min=-2, max=2),
    "repeat_interleave_tensor": lambda d: make(d, 3).repeat_interleave(torch.tensor([1, 0, 2], device=d)),
    "sort_indexing": lambda d: make(d, 6)[make(d, 6).argsort(descending=True)],
    "topk": lambda d: make(d, 8).topk(3),
    "searchsorted": lambda d: torch.searchsorted(torch.arange(5.0, device=d), make(d, 4)),
    "bucketize": lambda d: torch.bucketize(make(d, 4), torch.tensor([-1.0, 0.0, 1.0], device=d)),
    "isin": lambda d: torch.isin(torch.arange(5, device=d), torch.tensor([1, 3], device=d)),
    "cpu_tensor_by_device_scalar": lambda d: int(torch.arange(5)[torch.tensor(2, device=d)]),
}

WRITE: dict[str, Any] = {
    "set_integer": lambda d: _setting(d, 1, 5.0),
    "set_slice": lambda d: _setting(d, slice(1, 3), 5.0),
    "set_slice_tensor": lambda d: _setting(d, slice(1, 3), make(d, 2, 4, seed=2)),
    "set_broadcast": lambda d: _setting(d, slice(None), make(d, 4, seed=2)),
    "set_column": lambda d: _setting(d, (slice(None), 1), make(d, 4, seed=2)),
    "set_ellipsis": lambda d: _setting(d, ..., 0),
    "set_step": lambda d: _setting(d, (slice(None, None, 2), slice(1, None, 2)), 3),
    "set_mask": lambda d: _setting(d, _mask(d), 5.0),
    "set_mask_from_cpu": lambda d: _setting(d, _mask("cpu"), 5.0),
    "set_mask_tensor": lambda d: _setting(d, _mask(d), make(d, 2, 4, seed=2)),
    "set_mask_full_shape": lambda d: _setting(d, make(d, 4, 4) > 0, 0.0),
    "set_index_tensor": lambda d: _setting(d, _where(d), make(d, 3, 4, seed=2)),
    "set_index_tensor_from_cpu": lambda d: _setting(d, _where("cpu"), 2.0),
    "set_index_two_tensors": lambda d: _setting(d, (_where(d), _where(d)), -1.0),
    "set_list": lambda d: _setting(d, [0, 3], 1.0),
    "set_casts": lambda d: _setting(d, 0, make(d, 4, dtype=torch.float64, seed=2)),
    "set_from_cpu_scalar": lambda d: _setting(d, 0, torch.tensor(4.0)),
}

WRONG: dict[str, Any] = {
    "integer_out_of_range": lambda d: make(d, 4)[7],
    "too_many_indices": lambda d: make(d, 4)[0, 0],
    "negative_step": lambda d: make(d, 4)[::-1],
    "mask_shape_mismatch": lambda d: make(d, 4)[torch.ones(5, dtype=torch.bool, device=d)],
    "index_tensor_out_of_range": lambda d: make(d, 4)[torch.tensor([9], device=d)].sum().item(),
    "index_tensor_float": lambda d: make(d, 4)[make(d, 2)],
    "index_shapes_mismatch": lambda d: make(d, 4, 4)[_where(d), torch.tensor([0, 1], device=d)],
    "set_shape_mismatch": lambda d: _setting(d, slice(0, 2), make(d, 3, seed=2)),
    "set_index_out_of_range": lambda d: _setting(d, 9, 1.0),
    "gather_out_of_range": lambda d: make(d, 4).gather(0, torch.tensor([5], device=d)).sum().item(),
    "index_select_out_of_range": lambda d: make(d, 4).index_select(0, torch.tensor([4], device=d)).sum().item(),
    "string_index": lambda d: make(d, 4)["a"],  # type: ignore[index]
}

for _name, _call in (READ | WRITE).items():
    add(GROUP, _name, _call)
for _name, _call in WRONG.items():
    add(GROUP, f"raises_{_name}", lambda d, call=_call: raised(lambda: call(d)))


@row(GROUP)
def gradient_of_index(d: str) -> Any:
    leaf = make(d, 4, 3, grad=True)
    (leaf[_where(d)] * 2).sum().backward()
    return leaf.grad


@row(GROUP)
def gradient_of_mask(d: str) -> Any:
    leaf = make(d, 4, 3, grad=True)
    (leaf[leaf > 0] ** 2).sum().backward()
    return leaf.grad


@row(GROUP)
def gradient_of_setitem(d: str) -> Any:
    leaf = make(d, 4, grad=True)
    target = torch.zeros(6, device=d)
    target[1:5] = leaf
    (target**2).sum().backward()
    return leaf.grad, target


@row(GROUP)
def augmented_assignment_through_index(d: str) -> Any:
    target = make(d, 4, 4)
    target[1] += 1
    target[:, 2] *= 2
    target[_mask(d)] -= 3
    return target
