"""Autocast, operator by operator, and gradient scaling.

Only operators that CPU's and CUDA's autocast lists treat alike: what a pool of either kind must do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.registry import add, grads, make, row
from tests.conformance.rows.modules import settle

GROUP = "amp"
LOOSE = {"rtol": 2e-2, "atol": 2e-2}  # bfloat16 has 8 bits

LOWER: dict[str, Callable[[str], torch.Tensor]] = {
    "mm": lambda d: torch.mm(make(d, 3, 4), make(d, 4, 2)),
    "matmul": lambda d: make(d, 2, 3, 4) @ make(d, 4, 2),
    "bmm": lambda d: torch.bmm(make(d, 2, 3, 4), make(d, 2, 4, 2)),
    "addmm": lambda d: torch.addmm(make(d, 3, 2), make(d, 3, 4), make(d, 4, 2)),
    "baddbmm": lambda d: torch.baddbmm(make(d, 2, 3, 2), make(d, 2, 3, 4), make(d, 2, 4, 2)),
    "addbmm": lambda d: torch.addbmm(make(d, 3, 2), make(d, 2, 3, 4), make(d, 2, 4, 2)),
    "linear": lambda d: F.linear(make(d, 3, 4), make(d, 2, 4), make(d, 2)),
    "conv1d": lambda d: F.conv1d(make(d, 1, 2, 6), make(d, 3, 2, 3)),
    "conv2d": lambda d: F.conv2d(make(d, 1, 2, 6, 6), make(d, 3, 2, 3, 3)),
    "conv_transpose2d": lambda d: F.conv_transpose2d(make(d, 1, 2, 4, 4), make(d, 2, 3, 3, 3)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", make(d, 3, 4), make(d, 4, 2)),
    "attention": lambda d: F.scaled_dot_product_attention(
        make(d, 1, 1, 4, 8), make(d, 1, 1, 4, 8), make(d, 1, 1, 4, 8)
    ),
}
FLOAT32: dict[str, Callable[[str, torch.dtype], torch.Tensor]] = {
    "prod": lambda d, t: torch.prod(make(d, 4, dtype=t), 0),
    "cdist": lambda d, t: torch.cdist(make(d, 3, 4, dtype=t), make(d, 2, 4, dtype=t)),
    "smooth_l1_loss": lambda d, t: F.smooth_l1_loss(make(d, 4, dtype=t), make(d, 4, dtype=t, seed=2)),
    "mse_loss": lambda d, t: F.mse_loss(make(d, 4, dtype=t), make(d, 4, dtype=t, seed=2)),
    "nll_loss": lambda d, t: F.nll_loss(make(d, 2, 4, dtype=t), torch.tensor([1, 2], device=d)),
    "cosine_embedding_loss": lambda d, t: F.cosine_embedding_loss(
        make(d, 2, 4, dtype=t), make(d, 2, 4, dtype=t, seed=2), torch.ones(2, device=d)
    ),
    "kl_div": lambda d, t: F.kl_div(make(d, 4, dtype=t), make(d, 4, dtype=t, seed=2).abs(), reduction="sum"),
}
UNCHANGED: dict[str, Callable[[str], Any]] = {
    "add": lambda d: make(d, 3) + make(d, 3),
    "relu": lambda d: F.relu(make(d, 3)),
    "softmax": lambda d: F.softmax(make(d, 3), 0),
    "layer_norm": lambda d: F.layer_norm(make(d, 2, 4), (4,)),
    "exp": lambda d: make(d, 3).exp(),
    "sum": lambda d: make(d, 3).sum(),
    "cross_entropy": lambda d: F.cross_entropy(make(d, 2, 4), torch.tensor([1, 2], device=d)),
    "float64_mm": lambda d: torch.mm(make(d, 3, 4, dtype=torch.float64), make(d, 4, 2, dtype=torch.float64)),
    "int_mm": lambda d: torch.mm(make(d, 3, 4, dtype=torch.int64), make(d, 4, 2, dtype=torch.int64)),
    "cat_promotes": lambda d: torch.cat([make(d, 3), make(d, 3, dtype=torch.bfloat16)]),
    "stack_promotes": lambda d: torch.stack([make(d, 3), make(d, 3, dtype=torch.bfloat16)]),
    "out_variant": lambda d: torch.mm(make(d, 3, 4), make(d, 4, 2), out=torch.empty(3, 2, device=d)),
    "in_place": lambda d: make(d, 3, 2).addmm_(make(d, 3, 4), make(d, 4, 2)),
}


def _cast(d: str, call: Callable[[], Any], dtype: torch.dtype = torch.bfloat16) -> Any:
    with torch.autocast(torch.device(d).type, dtype=dtype):
        return call()


for _name, _call in LOWER.items():
    add(GROUP, f"lower_{_name}", lambda d, call=_call: _cast(d, lambda: call(d)), **LOOSE)
    add(GROUP, f"lower_{_name}_float16", lambda d, call=_call: _cast(d, lambda: call(d), torch.float16), **LOOSE)
for _name, _loss in FLOAT32.items():
    add(GROUP, f"float32_{_name}", lambda d, call=_loss: _cast(d, lambda: call(d, torch.bfloat16)), **LOOSE)
for _name, _call in UNCHANGED.items():
    add(GROUP, f"unchanged_{_name}", lambda d, call=_call: _cast(d, lambda: call(d)), **LOOSE)


def _network(d: str) -> nn.Module:
    return settle(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))).to(d)


@row(GROUP, **LOOSE)
def training_step(d: str) -> Any:
    model = _network(d)
    with torch.autocast(torch.device(d).type, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(make(d, 5, 4)), torch.tensor([0, 1, 1, 0, 1], device=d))
    loss.backward()
    return loss, grads(model.parameters())


@row(GROUP, **LOOSE)
def nested_off(d: str) -> Any:
    kind = torch.device(d).type
    with torch.autocast(kind, dtype=torch.bfloat16):
        low = make(d, 3, 3) @ make(d, 3, 3)
        with torch.autocast(kind, enabled=False):
            return low, make(d, 3, 3) @ make(d, 3, 3), torch.is_autocast_enabled(kind)


@row(GROUP)
def state(d: str) -> Any:
    kind = torch.device(d).type
    with torch.autocast(kind, dtype=torch.bfloat16):
        inside = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return inside, torch.is_autocast_enabled(kind), torch.amp.is_autocast_available(kind)


@row(GROUP, **LOOSE)
def as_decorator(d: str) -> Any:
    return torch.autocast(torch.device(d).type, dtype=torch.bfloat16)(lambda: make(d, 3, 3) @ make(d, 3, 3))()


@row(GROUP, **LOOSE)
def weights_are_cast_once(d: str) -> Any:
    weight = make(d, 3, 4, grad=True)
    with torch.autocast(torch.device(d).type, dtype=torch.bfloat16):
        out = F.linear(make(d, 2, 4), weight) + F.linear(make(d, 2, 4, seed=2), weight)
    out.float().sum().backward()
    return out, weight.grad


@row(GROUP, **LOOSE)
def custom_function(d: str) -> Any:
    kind = torch.device(d).type

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=kind, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type=kind)
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            return gradient

    with torch.autocast(kind, dtype=torch.bfloat16):
        return Product.apply(make(d, 3, 3, dtype=torch.bfloat16))


def _scaled(d: str, gradient_is_finite: bool) -> Any:
    model = _network(d)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(torch.device(d).type, init_scale=1024.0, growth_interval=1)
    scales = []
    for _ in range(2):
        optimiser.zero_grad()
        loss = (model(make(d, 5, 4)) ** 2).mean() * (1.0 if gradient_is_finite else float("inf"))
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, list(model.parameters()), scaler.state_dict()


@row(GROUP)
def grad_scaler(d: str) -> Any:
    return _scaled(d, True)


@row(GROUP)
def grad_scaler_skips_infinite_steps(d: str) -> Any:
    return _scaled(d, False)


@row(GROUP)
def grad_scaler_fused(d: str) -> Any:
    model = _network(d)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler(torch.device(d).type, init_scale=64.0)
    scaler.scale((model(make(d, 5, 4)) ** 2).mean()).backward()
    scaler.step(optimiser)
    scaler.update()
    return list(model.parameters()), scaler.get_scale()


@row(GROUP)
def grad_scaler_disabled(d: str) -> Any:
    scaler = torch.amp.GradScaler(torch.device(d).type, enabled=False)
    return scaler.scale(make(d, 2)), scaler.get_scale()
