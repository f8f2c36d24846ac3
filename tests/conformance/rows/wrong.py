"""Wrong calls: PyTorch's own error, by type and by its own words, at the line that makes the call."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.registry import add, make, raised, row, without_legacy_types

GROUP = "wrong"

CALLS: dict[str, Callable[[str], Any]] = {
    "mm_shapes": lambda d: torch.mm(make(d, 2, 3), make(d, 2, 3)),
    "mm_dtypes": lambda d: torch.mm(make(d, 2, 3), make(d, 3, 2, dtype=torch.int64)),
    "mm_dims": lambda d: torch.mm(make(d, 3), make(d, 3, 2)),
    "matmul_shapes": lambda d: make(d, 2, 3, 4) @ make(d, 5, 2),
    "bmm_batches": lambda d: torch.bmm(make(d, 2, 3, 4), make(d, 3, 4, 2)),
    "linear_shapes": lambda d: nn.Linear(3, 2).to(d)(make(d, 2, 4)),
    "linear_dtypes": lambda d: nn.Linear(3, 2).to(d)(make(d, 2, 3, dtype=torch.float64)),
    "addmm_bias": lambda d: torch.addmm(make(d, 5), make(d, 2, 3), make(d, 3, 4)),
    "dot_shapes": lambda d: torch.dot(make(d, 3), make(d, 4)),
    "broadcast": lambda d: make(d, 3) + make(d, 4),
    "broadcast_where": lambda d: torch.where(make(d, 3) > 0, make(d, 4), make(d, 5)),
    "cat_shapes": lambda d: torch.cat([make(d, 2, 3), make(d, 2, 4)]),
    "cat_nothing": lambda d: torch.cat([]),
    "stack_shapes": lambda d: torch.stack([make(d, 2), make(d, 3)]),
    "sum_dim": lambda d: make(d, 2, 3).sum(5),
    "softmax_dim": lambda d: make(d, 2, 3).softmax(4),
    "transpose_dim": lambda d: make(d, 2, 3).transpose(0, 3),
    "permute_repeats": lambda d: make(d, 2, 3).permute(0, 0),
    "reshape_size": lambda d: make(d, 2, 3).reshape(4, 2),
    "reshape_two_unknown": lambda d: make(d, 2, 3).reshape(-1, -1),
    "unsqueeze_dim": lambda d: make(d, 2).unsqueeze(5),
    "split_sizes": lambda d: make(d, 5).split([2, 2]),
    "chunk_none": lambda d: make(d, 5).chunk(0),
    "zeros_negative": lambda d: torch.zeros(-2, device=d),
    "arange_sign": lambda d: torch.arange(5, 0, 1, device=d),
    "eye_negative": lambda d: torch.eye(-1, device=d),
    "linspace_steps": lambda d: torch.linspace(0, 1, -1, device=d),
    "full_dtype": lambda d: torch.full((2,), 1 + 2j, dtype=torch.float32, device=d),
    "tensor_ragged": lambda d: torch.tensor([[1, 2], [3]], device=d),
    "tensor_of_object": lambda d: torch.tensor([object()], device=d),
    "tensor_overflow": lambda d: torch.tensor([300], dtype=torch.int8, device=d),
    "conv_channels": lambda d: F.conv2d(make(d, 1, 3, 4, 4), make(d, 2, 4, 3, 3)),
    "conv_kernel_too_large": lambda d: F.conv2d(make(d, 1, 3, 2, 2), make(d, 2, 3, 3, 3)),
    "conv_dtype": lambda d: F.conv2d(make(d, 1, 3, 4, 4), make(d, 2, 3, 3, 3, dtype=torch.float64)),
    "max_pool_too_large": lambda d: F.max_pool2d(make(d, 1, 1, 2, 2), 5),
    "layer_norm_shape": lambda d: F.layer_norm(make(d, 2, 3), (4,)),
    "batch_norm_one_value": lambda d: F.batch_norm(make(d, 1, 3), None, None, training=True),
    "embedding_out_of_range": lambda d: F.embedding(torch.tensor([7], device=d), make(d, 3, 2)).sum().item(),
    "embedding_float_index": lambda d: F.embedding(make(d, 2), make(d, 3, 2)),
    "cross_entropy_out_of_range": lambda d: F.cross_entropy(make(d, 2, 3), torch.tensor([0, 5], device=d)).item(),
    "cross_entropy_shapes": lambda d: F.cross_entropy(make(d, 2, 3), torch.tensor([0, 1, 2], device=d)),
    "cross_entropy_dtype": lambda d: F.cross_entropy(make(d, 2, 3), make(d, 2)),
    "binary_cross_entropy_range": lambda d: F.binary_cross_entropy(make(d, 3) * 5, torch.ones(3, device=d)).item(),
    "mse_reduction": lambda d: F.mse_loss(make(d, 3), make(d, 3), reduction="average"),
    "one_hot_negative": lambda d: F.one_hot(torch.tensor([-1], device=d)),
    "dropout_probability": lambda d: F.dropout(make(d, 3), 1.5),
    "bernoulli_probability": lambda d: torch.bernoulli(torch.full((2,), 2.0, device=d)).sum().item(),
    "multinomial_too_many": lambda d: torch.multinomial(torch.ones(2, device=d), 5),
    "normal_negative_std": lambda d: torch.normal(0.0, -1.0, (2,), device=d),
    "uniform_reversed": lambda d: torch.zeros(2, device=d).uniform_(2, 1),
    "gather_dims": lambda d: make(d, 2, 3).gather(0, torch.tensor([0], device=d)),
    "gather_dtype": lambda d: make(d, 2).gather(0, torch.tensor([0.0], device=d)),
    "scatter_out_of_range": lambda d: (
        torch.zeros(2, device=d).scatter(0, torch.tensor([5], device=d), 1.0).sum().item()
    ),
    "index_add_shapes": lambda d: torch.zeros(2, device=d).index_add(0, torch.tensor([0], device=d), make(d, 3)),
    "take_out_of_range": lambda d: make(d, 3).take(torch.tensor([9], device=d)).sum().item(),
    "topk_too_many": lambda d: make(d, 3).topk(5),
    "kthvalue_range": lambda d: make(d, 3).kthvalue(5),
    "argmax_empty": lambda d: torch.zeros(0, device=d).argmax(),
    "max_empty": lambda d: torch.zeros(0, device=d).max(),
    "mean_of_int": lambda d: make(d, 3, dtype=torch.int64).mean(),
    "std_of_int": lambda d: make(d, 3, dtype=torch.int64).std(),
    "bitwise_of_float": lambda d: make(d, 3) & make(d, 3),
    "not_of_float": lambda d: ~make(d, 3),
    "bool_subtract": lambda d: make(d, 3, dtype=torch.bool) - make(d, 3, dtype=torch.bool),
    "bool_negate": lambda d: -make(d, 3, dtype=torch.bool),
    "integer_power": lambda d: make(d, 3, dtype=torch.int64) ** -1,
    "integer_division_in_place": lambda d: make(d, 3, dtype=torch.int64).div_(2),
    "integer_division_by_zero": lambda d: (
        (make(d, 3, dtype=torch.int64) // torch.zeros(3, dtype=torch.int64, device=d)).sum().item()
    ),
    "clamp_nothing": lambda d: make(d, 3).clamp(),
    "cholesky_not_positive": lambda d: torch.linalg.cholesky(-torch.eye(3, device=d)),
    "inverse_singular": lambda d: torch.linalg.inv(torch.zeros(3, 3, device=d)),
    "inverse_not_square": lambda d: torch.linalg.inv(make(d, 2, 3)),
    "solve_singular": lambda d: torch.linalg.solve(torch.zeros(3, 3, device=d), make(d, 3)),
    "einsum_subscripts": lambda d: torch.einsum("ij,jk->ik", make(d, 2, 3), make(d, 2, 3)),
    "fft_size": lambda d: torch.fft.fft(make(d, 3), n=0),
    "view_as_complex_shape": lambda d: torch.view_as_complex(make(d, 3)),
    "complex_dtypes": lambda d: torch.complex(make(d, 3), make(d, 3, dtype=torch.float64)),
    "real_required": lambda d: make(d, 3, dtype=torch.complex64) > 0,
    "repeat_dims": lambda d: make(d, 2, 3).repeat(2),
    "roll_dims": lambda d: make(d, 2, 3).roll(1, 5),
    "flip_dims": lambda d: make(d, 2, 3).flip(0, 0),
    "pad_length": lambda d: F.pad(make(d, 3), (1, 1, 1, 1)),
    "interpolate_both": lambda d: F.interpolate(make(d, 1, 1, 2), size=3, scale_factor=2.0),
    "grid_sample_shapes": lambda d: F.grid_sample(make(d, 1, 1, 2, 2), make(d, 1, 2, 2, 3), align_corners=False),
    "attention_shapes": lambda d: F.scaled_dot_product_attention(make(d, 1, 2, 4), make(d, 1, 2, 5), make(d, 1, 2, 5)),
    "lstm_input": lambda d: nn.LSTM(3, 2).to(d)(make(d, 4, 1, 5)),
    "multihead_embed": lambda d: nn.MultiheadAttention(4, 2).to(d)(
        make(d, 2, 1, 5), make(d, 2, 1, 5), make(d, 2, 1, 5)
    ),
    "unknown_argument": lambda d: make(d, 3).sum(axes=1),
    "unknown_attribute": lambda d: make(d, 3).nonsense,
    "unknown_dtype": lambda d: make(d, 3).to("float33"),
    "copy_shapes": lambda d: make(d, 3).copy_(make(d, 4)),
    "fill_many": lambda d: make(d, 3).fill_(make(d, 3)),
    "item_of_nothing": lambda d: torch.zeros(0, device=d).item(),
    "set_of_other_dtype": lambda d: make(d, 3).set_(make(d, 3, dtype=torch.float64)),
    "foreach_lengths": lambda d: torch._foreach_add([make(d, 2)], [make(d, 2), make(d, 2)]),
    "optimiser_of_non_leaf": lambda d: torch.optim.SGD([make(d, 2, grad=True) * 2], lr=0.1),
    "parameter_of_int": lambda d: nn.Parameter(make(d, 2, dtype=torch.int64)),
    "nan_to_int_index": lambda d: make(d, 3)[float("nan")],  # type: ignore[index]
}
for _name, _call in CALLS.items():
    add(GROUP, _name, lambda d, call=_call: without_legacy_types(raised(lambda: call(d))))


@row(GROUP)
def surfaces_at_the_line(d: str) -> Any:
    one, two = make(d, 2, 3), make(d, 2, 3)
    one + 1
    try:
        one @ two
        one * 2
    except RuntimeError as error:
        return [
            frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.name == "surfaces_at_the_line"
        ]
    return "nothing was raised"


@row(GROUP)
def other_values_stay_good(d: str) -> Any:
    one = make(d, 2, 3)
    before = one * 2
    found = raised(lambda: one @ one)
    return found, before, one + 1


@row(GROUP)
def the_same_wrong_call_twice(d: str) -> Any:
    one = make(d, 2, 3)
    return raised(lambda: one @ one), raised(lambda: one @ one), one


@row(GROUP)
def wrong_in_place_leaves_the_value(d: str) -> Any:
    one = make(d, 3)
    return raised(lambda: one.add_(make(d, 4))), one, one._version


@row(GROUP)
def wrong_in_backward(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    middle = leaf * 2
    middle.register_hook(lambda gradient: torch.ones(5, device=d))
    return raised(middle.sum().backward), leaf.grad
