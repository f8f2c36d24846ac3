"""``torch.func`` and forward-mode differentiation: vmap, grad, vjp, jvp, jacobians, functional_call, ensembles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import func, nn
from torch.autograd import forward_ad

from tests.conformance.registry import add, make, raised, row
from tests.conformance.rows.modules import settle

GROUP = "transforms"


def _f(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sin().sum()


CALLS: dict[str, Callable[[str], Any]] = {
    "vmap": lambda d: func.vmap(lambda x: x.sin() * 2)(make(d, 4, 3)),
    "vmap_dot": lambda d: func.vmap(torch.dot)(make(d, 4, 3), make(d, 4, 3, seed=2)),
    "vmap_in_dims": lambda d: func.vmap(torch.mul, in_dims=(0, 1))(make(d, 4, 3), make(d, 3, 4)),
    "vmap_unbatched": lambda d: func.vmap(torch.add, in_dims=(0, None))(make(d, 4, 3), make(d, 3)),
    "vmap_out_dims": lambda d: func.vmap(lambda x: x * 2, out_dims=1)(make(d, 4, 3)),
    "vmap_nested": lambda d: func.vmap(func.vmap(lambda x: x.sum()))(make(d, 2, 3, 4)),
    "vmap_chunked": lambda d: func.vmap(lambda x: x.exp(), chunk_size=2)(make(d, 5, 3)),
    "vmap_matmul": lambda d: func.vmap(torch.mv, in_dims=(None, 0))(make(d, 2, 3), make(d, 4, 3)),
    "vmap_in_place": lambda d: func.vmap(lambda x: x.clone().mul_(2).add_(1))(make(d, 4, 3)),
    "vmap_indexing": lambda d: func.vmap(lambda x, i: x.gather(0, i))(
        make(d, 4, 3), torch.tensor([[0], [2], [1], [0]], device=d)
    ),
    "grad": lambda d: func.grad(_f)(make(d, 3)),
    "grad_and_value": lambda d: func.grad_and_value(_f)(make(d, 3)),
    "grad_argnums": lambda d: func.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(make(d, 3), make(d, 3, seed=2)),
    "grad_has_aux": lambda d: func.grad(lambda a: (_f(a), a * 2), has_aux=True)(make(d, 3)),
    "grad_of_grad": lambda d: func.grad(lambda x: func.grad(_f)(x).sum())(make(d, 3)),
    "vjp": lambda d: (lambda out, pull: (out, pull(torch.ones(3, device=d))))(*func.vjp(lambda x: x.sin(), make(d, 3))),
    "jvp": lambda d: func.jvp(lambda x: x.sin(), (make(d, 3),), (make(d, 3, seed=2),)),
    "jacrev": lambda d: func.jacrev(lambda x: x.sin())(make(d, 3)),
    "jacfwd": lambda d: func.jacfwd(lambda x: x.sin())(make(d, 3)),
    "hessian": lambda d: func.hessian(_f)(make(d, 3)),
    "linearize": lambda d: func.linearize(lambda x: x.sin(), make(d, 3))[1](make(d, 3, seed=2)),
    "vmap_of_grad": lambda d: func.vmap(func.grad(_f))(make(d, 4, 3)),
    "functionalize": lambda d: func.functionalize(lambda x: x.clone().add_(1).view(-1))(make(d, 2, 2)),
}
for _name, _call in CALLS.items():
    add(GROUP, _name, _call)


def _network(d: str) -> nn.Module:
    return settle(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))).to(d)


@row(GROUP)
def functional_call(d: str) -> Any:
    model = _network(d)
    doubled = {name: p * 2 for name, p in model.named_parameters()}
    return func.functional_call(model, doubled, (make(d, 5, 3),)), model(make(d, 5, 3))


@row(GROUP)
def gradients_per_sample(d: str) -> Any:
    model = _network(d)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = func.functional_call(model, values, (x.unsqueeze(0),))
        return nn.functional.mse_loss(out, y.unsqueeze(0))

    return func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, make(d, 5, 3), make(d, 5, 2))


@row(GROUP)
def ensemble(d: str) -> Any:
    models = [_network(d) for _ in range(3)]
    parameters, buffers = func.stack_module_state(models)

    def call(p: Any, b: Any, x: torch.Tensor) -> Any:
        return func.functional_call(models[0], (p, b), (x,))

    return func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, make(d, 5, 3))


@row(GROUP)
def vmap_random_different(d: str) -> Any:
    out = func.vmap(lambda x: x + torch.rand(3, device=d), randomness="different")(torch.zeros(4, 3, device=d))
    return out.shape, bool((out[0] != out[1]).any())


@row(GROUP)
def vmap_random_same(d: str) -> Any:
    out = func.vmap(lambda x: x + torch.rand(3, device=d), randomness="same")(torch.zeros(4, 3, device=d))
    return out.shape, bool((out[0] == out[1]).all())


@row(GROUP)
def vmap_random_error(d: str) -> Any:
    return raised(lambda: func.vmap(lambda x: x + torch.rand(3, device=d))(torch.zeros(4, 3, device=d)))


@row(GROUP)
def vmap_item_raises(d: str) -> Any:
    return raised(lambda: func.vmap(lambda x: x.sum().item())(make(d, 4, 3)))


@row(GROUP)
def vmap_of_custom_function(d: str) -> Any:
    class Triple(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            return gradient * 3

    return func.vmap(func.grad(lambda x: Triple.apply(x).sum()))(make(d, 4, 3))


@row(GROUP)
def dual_numbers(d: str) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(make(d, 3), make(d, 3, seed=2))
        primal, tangent = forward_ad.unpack_dual(dual.exp() * 2)
        return primal.clone(), tangent.clone() if tangent is not None else None


@row(GROUP)
def dual_numbers_through_a_network(d: str) -> Any:
    model = _network(d)
    with forward_ad.dual_level():
        out = model(forward_ad.make_dual(make(d, 2, 3), make(d, 2, 3, seed=2)))
        return forward_ad.unpack_dual(out).tangent


@row(GROUP)
def forward_over_reverse(d: str) -> Any:
    return func.jvp(func.grad(_f), (make(d, 3),), (make(d, 3, seed=2),))
