"""Autograd: backward in all its forms, hooks of every kind, custom functions, checkpointing, modes, errors raised in
backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.conformance.registry import NOTHING_RAISED, add, grads, make, raised, row
from tests.conformance.rows.modules import settle

GROUP = "autograd"


def _leaf(d: str, *shape: int, seed: int = 1) -> torch.Tensor:
    return make(d, *(shape or (3,)), seed=seed, grad=True)


# ---------------------------------------------------------------------------------------------------------------------
# backward and grad
# ---------------------------------------------------------------------------------------------------------------------


@row(GROUP)
def backward_scalar(d: str) -> Any:
    leaf = _leaf(d)
    (leaf**2).sum().backward()
    return leaf, leaf.grad


@row(GROUP)
def backward_with_gradient(d: str) -> Any:
    leaf = _leaf(d)
    (leaf * 2).backward(torch.tensor([1.0, 2.0, 3.0], device=d))
    return leaf.grad


@row(GROUP)
def backward_accumulates(d: str) -> Any:
    leaf = _leaf(d)
    for _ in range(3):
        (leaf * 2).sum().backward()
    return leaf.grad


@row(GROUP)
def backward_inputs(d: str) -> Any:
    one, two = _leaf(d), _leaf(d)
    (one * two).sum().backward(inputs=[one])
    return one.grad, two.grad


@row(GROUP)
def backward_diamond(d: str) -> Any:
    leaf = _leaf(d)
    middle = leaf.exp()
    (middle.sin() * middle.cos() + middle).sum().backward()
    return leaf.grad


@row(GROUP)
def grad_function(d: str) -> Any:
    leaf = _leaf(d)
    return torch.autograd.grad((leaf**3).sum(), leaf), leaf.grad


@row(GROUP)
def grad_unused(d: str) -> Any:
    one, two = _leaf(d), _leaf(d)
    loss = (one * 2).sum()
    return (
        torch.autograd.grad(loss, [one, two], allow_unused=True, retain_graph=True),
        torch.autograd.grad(loss, [one, two], materialize_grads=True),
    )


@row(GROUP)
def grad_batched(d: str) -> Any:
    leaf = _leaf(d)
    return torch.autograd.grad(leaf**2, leaf, torch.eye(3, device=d), is_grads_batched=True)


@row(GROUP)
def double_backward(d: str) -> Any:
    leaf = _leaf(d)
    (first,) = torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)
    first.pow(2).sum().backward()
    return first, leaf.grad


@row(GROUP)
def triple_backward(d: str) -> Any:
    leaf = _leaf(d)
    value = (leaf**5).sum()
    for _ in range(3):
        (value,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    return value


@row(GROUP)
def gradient_penalty_through_a_network(d: str) -> Any:
    model = settle(nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1))).to(d)
    leaf = _leaf(d, 5, 3)
    (slope,) = torch.autograd.grad(model(leaf).sum(), leaf, create_graph=True)
    ((slope.norm(dim=1) - 1) ** 2).mean().backward()
    return grads(model.parameters())


@row(GROUP)
def retain_graph(d: str) -> Any:
    leaf = _leaf(d)
    loss = (leaf**2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return leaf.grad


@row(GROUP)
def retain_grad(d: str) -> Any:
    leaf = _leaf(d)
    middle = leaf * 2
    middle.retain_grad()
    middle.sum().backward()
    return middle.grad, middle.retains_grad


@row(GROUP)
def grad_assignment(d: str) -> Any:
    leaf = _leaf(d)
    leaf.grad = torch.ones(3, device=d)
    (leaf * 2).sum().backward()
    return leaf.grad


@row(GROUP)
def gradient_layout(d: str) -> Any:
    leaf = make(d, 3, 4).t().detach().requires_grad_()
    (leaf * 2).sum().backward()
    return leaf.grad


@row(GROUP)
def graph_names(d: str) -> Any:
    value = (_leaf(d).exp() + 1).sum()
    node = value.grad_fn
    assert node is not None
    return node.name(), [child[0].name() for child in node.next_functions if child[0]], _leaf(d).grad_fn is None


@row(GROUP)
def functional_jacobian_hessian_vjp(d: str) -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        return (x**3).sum()

    x = make(d, 3)
    return (
        torch.autograd.functional.jacobian(lambda v: v.exp(), x),
        torch.autograd.functional.hessian(call, x),
        torch.autograd.functional.vjp(lambda v: v * 2, x, torch.ones(3, device=d)),
        torch.autograd.functional.hvp(call, x, torch.ones(3, device=d)),
    )


@row(GROUP)
def gradcheck(d: str) -> Any:
    x = make(d, 2, 3, dtype=torch.float64, grad=True)
    w = make(d, 3, 2, dtype=torch.float64, seed=2, grad=True)
    return torch.autograd.gradcheck(lambda a, b: (a @ b).tanh(), (x, w)), torch.autograd.gradgradcheck(
        lambda a: a.tanh(), (x,)
    )


@row(GROUP)
def graph_outlives_its_inputs(d: str) -> Any:
    leaf = _leaf(d)
    value = (leaf * 2).exp().sum()
    keep = [torch.zeros(4, device=d) for _ in range(10)]
    del keep
    value.backward()
    return leaf.grad


# ---------------------------------------------------------------------------------------------------------------------
# modes
# ---------------------------------------------------------------------------------------------------------------------


@row(GROUP)
def no_grad(d: str) -> Any:
    leaf = _leaf(d)
    with torch.no_grad():
        inside = leaf * 2
        with torch.enable_grad():
            again = leaf * 2
    return inside, again, leaf * 2


@row(GROUP)
def no_grad_in_place_on_leaf(d: str) -> Any:
    leaf = _leaf(d)
    with torch.no_grad():
        leaf.sub_(0.1).mul_(2)
    return leaf


@row(GROUP)
def set_grad_enabled(d: str) -> Any:
    with torch.set_grad_enabled(False):
        return _leaf(d) * 2, torch.is_grad_enabled()


@row(GROUP)
def inference_mode(d: str) -> Any:
    leaf = _leaf(d)
    with torch.inference_mode():
        made = leaf * 2
        made.add_(1)
        return made.is_inference(), made.requires_grad, made.clone(), leaf.is_inference()


@row(GROUP)
def inference_mode_writes_a_normal_tensor(d: str) -> Any:
    normal = make(d, 3)
    with torch.inference_mode():
        normal.add_(1)
        normal[0] = 9
    return normal, (normal * 2).requires_grad


@row(GROUP)
def inference_tensor_outside(d: str) -> Any:
    with torch.inference_mode():
        made = make(d, 3)
    return made * 2, raised(lambda: made.add_(1)), raised(lambda: (made * _leaf(d)).sum().backward())


@row(GROUP)
def inference_view_outside(d: str) -> Any:
    with torch.inference_mode():
        made = make(d, 4)
        view = made[1:]
    return view.is_inference(), made.clone()


@row(GROUP)
def requires_grad_switch(d: str) -> Any:
    tensor = make(d, 3)
    before = (tensor * 2).requires_grad
    tensor.requires_grad_()
    return before, tensor * 2, tensor.detach(), tensor.requires_grad_(False)


# ---------------------------------------------------------------------------------------------------------------------
# hooks
# ---------------------------------------------------------------------------------------------------------------------


@row(GROUP)
def hook_on_tensor_changes_gradient(d: str) -> Any:
    leaf = _leaf(d)
    middle = leaf * 2
    handle = middle.register_hook(lambda gradient: gradient * 10)
    middle.sum().backward()
    handle.remove()
    (leaf * 2).sum().backward()
    return leaf.grad


@row(GROUP)
def hook_on_leaf(d: str) -> Any:
    leaf, seen = _leaf(d), []
    leaf.register_hook(lambda gradient: seen.append(gradient.clone()))
    (leaf * 3).sum().backward()
    return seen, leaf.grad


@row(GROUP)
def hook_post_accumulate_grad(d: str) -> Any:
    leaf, seen = _leaf(d), []
    leaf.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    (leaf * 3).sum().backward()
    (leaf * 2).sum().backward()
    return seen


@row(GROUP)
def hook_on_node(d: str) -> Any:
    value, seen = _leaf(d).exp(), []
    assert value.grad_fn is not None
    value.grad_fn.register_hook(lambda inputs, outputs: seen.append(("post", len(inputs), len(outputs))))
    value.grad_fn.register_prehook(lambda outputs: seen.append(("pre", len(outputs))))
    value.sum().backward()
    return seen


@row(GROUP)
def hook_multi_grad(d: str) -> Any:
    one, two, seen = _leaf(d), _leaf(d, seed=2), []
    torch.autograd.graph.register_multi_grad_hook(
        [one, two], lambda gradients: seen.append([g.clone() for g in gradients])
    )
    (one * two).sum().backward()
    return seen


@row(GROUP)
def hook_saved_tensors(d: str) -> Any:
    leaf, seen = _leaf(d), []

    def pack(saved: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(saved.shape))
        return saved * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed * 2):
        value = (leaf**2).sum()
    value.backward()
    return seen, leaf.grad


@row(GROUP)
def hook_save_on_cpu(d: str) -> Any:
    leaf = _leaf(d)
    with torch.autograd.graph.save_on_cpu():
        value = (leaf.exp() * leaf).sum()
    value.backward()
    return leaf.grad


@row(GROUP)
def hook_saved_tensors_disabled(d: str) -> Any:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return (_leaf(d) ** 2).sum()


MODULE_HOOKS: dict[str, Callable[[nn.Module, list[Any]], Any]] = {
    "forward_pre": lambda m, seen: m.register_forward_pre_hook(lambda _, args: (args[0] + 1,)),
    "forward_pre_kwargs": lambda m, seen: m.register_forward_pre_hook(
        lambda _, args, named: (args, named), with_kwargs=True
    ),
    "forward": lambda m, seen: m.register_forward_hook(lambda _, args, out: out * 2),
    "forward_prepend_always": lambda m, seen: m.register_forward_hook(
        lambda *_: seen.append("called"), prepend=True, always_call=True
    ),
    "full_backward": lambda m, seen: m.register_full_backward_hook(lambda _, gin, gout: (gin[0] * 3,)),
    "full_backward_pre": lambda m, seen: m.register_full_backward_pre_hook(lambda _, gout: (gout[0] * 3,)),
    "state_dict": lambda m, seen: m.register_state_dict_pre_hook(lambda *_: seen.append("saved")),
    "load_state_dict_post": lambda m, seen: m.register_load_state_dict_post_hook(lambda *_: seen.append("loaded")),
}
for _name, _hook in MODULE_HOOKS.items():

    def _hooked(d: str, hook: Any = _hook) -> Any:
        seen: list[Any] = []
        model, leaf = settle(nn.Linear(3, 2)).to(d), _leaf(d, 4, 3)
        handle = hook(model, seen)
        out = model(leaf)
        out.sum().backward()
        model.load_state_dict(model.state_dict())
        handle.remove()
        return out, leaf.grad, grads(model.parameters()), seen, model(leaf)

    add(GROUP, f"hook_module_{_name}", _hooked)


@row(GROUP)
def hook_global_module(d: str) -> Any:
    seen: list[str] = []
    handles = [
        nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append("forward " + type(m).__name__)),
        nn.modules.module.register_module_forward_pre_hook(lambda m, *_: seen.append("pre " + type(m).__name__)),
        nn.modules.module.register_module_full_backward_hook(lambda m, *_: seen.append("backward " + type(m).__name__)),
    ]
    try:
        nn.Sequential(nn.Linear(3, 2), nn.Tanh()).to(d)(_leaf(d, 4, 3)).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    return seen


@row(GROUP)
def hook_parameter_registration(d: str) -> Any:
    seen: list[str] = []
    handle = nn.modules.module.register_module_parameter_registration_hook(lambda m, name, p: seen.append(name))
    try:
        nn.Linear(3, 2).to(d)
    finally:
        handle.remove()
    return seen


# ---------------------------------------------------------------------------------------------------------------------
# custom functions
# ---------------------------------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """x -> x^3, written out."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class Split(torch.autograd.Function):
    """Several outputs, one not differentiable; separate setup_context."""

    @staticmethod
    def forward(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        return x * factor, x > 0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:  # type: ignore[override]
        return gradient * ctx.factor, None


class DoubleInPlace(torch.autograd.Function):
    """Writes to its input and says so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2


@row(GROUP)
def custom_function(d: str) -> Any:
    leaf = _leaf(d)
    out = Cube.apply(leaf)
    out.sum().backward()
    return out, leaf.grad


@row(GROUP)
def custom_function_twice(d: str) -> Any:
    leaf = _leaf(d)
    (first,) = torch.autograd.grad(Cube.apply(leaf).sum(), leaf, create_graph=True)
    return torch.autograd.grad(first.sum(), leaf)


@row(GROUP)
def custom_function_setup_context(d: str) -> Any:
    leaf = _leaf(d)
    out, mask = Split.apply(leaf, 3.0)
    out.sum().backward()
    return out, mask, leaf.grad


@row(GROUP)
def custom_function_in_place(d: str) -> Any:
    leaf = _leaf(d)
    middle = leaf * 1
    out = DoubleInPlace.apply(middle)
    out.sum().backward()
    return out is middle, out, leaf.grad


@row(GROUP)
def custom_function_once_differentiable(d: str) -> Any:
    leaf = _leaf(d)
    (first,) = torch.autograd.grad((DoubleInPlace.apply(leaf * leaf) ** 2).sum(), leaf, create_graph=True)
    return raised(lambda: first.sum().backward())


@row(GROUP)
def custom_function_needs_input_grad(d: str) -> Any:
    seen: list[Any] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            seen.append(ctx.needs_input_grad)
            return gradient * ctx.saved_tensors[1], None

    leaf = _leaf(d)
    Product.apply(leaf, make(d, 3)).sum().backward()
    return seen, leaf.grad


@row(GROUP)
def custom_operator(d: str) -> Any:
    name = f"gtconformance::twice_{torch.device(d).type}"

    @torch.library.custom_op(name, mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 2

    twice.register_autograd(lambda ctx, gradient: gradient * 5)
    twice.register_fake(lambda x: torch.empty_like(x))
    leaf = _leaf(d)
    out = twice(leaf)
    out.sum().backward()
    return out, leaf.grad


# ---------------------------------------------------------------------------------------------------------------------
# checkpointing and anomaly mode
# ---------------------------------------------------------------------------------------------------------------------

for _reentrant in (False, True):

    def _checkpointed(d: str, reentrant: bool = _reentrant) -> Any:
        model, leaf = settle(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))).to(d), _leaf(d, 5, 3)
        out = checkpoint(model, leaf, use_reentrant=reentrant)
        out.sum().backward()
        return out, leaf.grad, grads(model.parameters())

    def _checkpointed_dropout(d: str, reentrant: bool = _reentrant) -> Any:
        leaf = torch.ones(200, device=d, requires_grad=True)
        out = checkpoint(lambda x: nn.functional.dropout(x * 1, 0.5), leaf, use_reentrant=reentrant)
        out.sum().backward()
        return torch.equal(out != 0, leaf.grad != 0), bool(100 * 0.4 < float(out.sum()) / 2 < 200 * 0.8)  # type: ignore[arg-type]

    def _checkpointed_error(d: str, reentrant: bool = _reentrant) -> Any:
        calls: list[int] = []

        def block(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            if len(calls) > 1:
                raise LookupError("recompute failed")
            return x.exp()

        return raised(lambda: checkpoint(block, _leaf(d), use_reentrant=reentrant).sum().backward())

    _suffix = "reentrant" if _reentrant else "not_reentrant"
    add(GROUP, f"checkpoint_{_suffix}", _checkpointed)
    add(GROUP, f"checkpoint_dropout_{_suffix}", _checkpointed_dropout)
    add(GROUP, f"raises_in_checkpoint_{_suffix}", _checkpointed_error)


@row(GROUP)
def checkpoint_in_sequence(d: str) -> Any:
    model = settle(nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])).to(d)
    leaf = _leaf(d, 2, 3)
    checkpoint_sequential(model, 2, leaf, use_reentrant=False).sum().backward()
    return leaf.grad, grads(model.parameters())


@row(GROUP)
def anomaly_mode_passes(d: str) -> Any:
    leaf = _leaf(d)
    with torch.autograd.detect_anomaly(check_nan=True):
        (leaf**2).sum().backward()
    return leaf.grad


@row(GROUP)
def anomaly_mode_finds_nan(d: str) -> Any:
    leaf = torch.zeros(3, device=d, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        value = (leaf.sqrt() * 0).sum()
        return raised(value.backward)


# ---------------------------------------------------------------------------------------------------------------------
# exceptions in backward surface as themselves
# ---------------------------------------------------------------------------------------------------------------------


class Surprise(Exception):
    """No exception of PyTorch's."""


def _raise(*_: Any) -> Any:
    raise Surprise("from inside backward")


class Failing(torch.autograd.Function):
    """Backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    backward = staticmethod(_raise)


def _with_hook(d: str, register: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    middle = _leaf(d) * 2
    register(middle)
    return middle.sum()


def _with_unpack(d: str) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, _raise):
        return (_leaf(d) ** 2).sum()


def _with_module_hook(d: str) -> torch.Tensor:
    model = nn.Linear(3, 2).to(d)
    model.register_full_backward_hook(_raise)
    out: torch.Tensor = model(_leaf(d, 2, 3)).sum()
    return out


def _with_post_accumulate(d: str) -> torch.Tensor:
    leaf = _leaf(d)
    leaf.register_post_accumulate_grad_hook(_raise)
    return (leaf * 2).sum()


RAISES: dict[str, Callable[[str], torch.Tensor]] = {
    "tensor_hook": lambda d: _with_hook(d, lambda t: t.register_hook(_raise)),
    "node_hook": lambda d: _with_hook(d, lambda t: t.grad_fn.register_hook(_raise)),  # type: ignore[union-attr]
    "node_prehook": lambda d: _with_hook(d, lambda t: t.grad_fn.register_prehook(_raise)),  # type: ignore[union-attr]
    "unpack_hook": _with_unpack,
    "module_hook": _with_module_hook,
    "post_accumulate_hook": _with_post_accumulate,
    "custom_function": lambda d: Failing.apply(_leaf(d)).sum(),
}
for _name, _loss in RAISES.items():

    def _surfaces(d: str, loss: Callable[[str], torch.Tensor] = _loss) -> Any:
        found = raised(lambda: loss(d).backward())
        leaf = _leaf(d)  # and the next backward is as good as any
        (leaf * 2).sum().backward()
        return found, leaf.grad

    add(GROUP, f"raises_in_{_name}", _surfaces)


@row(GROUP)
def raises_keyboard_interrupt_in_hook(d: str) -> Any:
    def stop(_: torch.Tensor) -> None:
        raise KeyboardInterrupt

    try:
        _with_hook(d, lambda t: t.register_hook(stop)).backward()
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return NOTHING_RAISED


@row(GROUP)
def raises_in_pack_hook(d: str) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(_raise, lambda packed: packed):
        return raised(lambda: _leaf(d) ** 2)


WRONG: dict[str, Callable[[str], Any]] = {
    "backward_twice": lambda d: [v.backward() for v in [(_leaf(d) ** 2).sum()] * 2],
    "backward_of_non_scalar": lambda d: (_leaf(d) * 2).backward(),
    "backward_without_graph": lambda d: make(d, 1).sum().backward(),
    "gradient_of_wrong_shape": lambda d: (_leaf(d) * 2).backward(torch.ones(4, device=d)),
    "grad_of_wrong_shape": lambda d: setattr(_leaf(d), "grad", torch.ones(4, device=d)),
    "grad_of_wrong_dtype": lambda d: setattr(_leaf(d), "grad", torch.ones(3, device=d, dtype=torch.float64)),
    "requires_grad_of_int": lambda d: make(d, 3, dtype=torch.int64).requires_grad_(),
    "requires_grad_off_for_non_leaf": lambda d: (_leaf(d) * 2).requires_grad_(False),
    "grad_of_unused": lambda d: torch.autograd.grad((_leaf(d) * 2).sum(), _leaf(d)),
    "deepcopy_of_non_leaf": lambda d: __import__("copy").deepcopy(_leaf(d) * 2),
    "numpy_of_requires_grad": lambda d: _leaf(d).cpu().numpy(),
    "hook_on_no_grad_tensor": lambda d: make(d, 3).register_hook(lambda g: g),
}
for _name, _call in WRONG.items():
    add(GROUP, f"raises_{_name}", lambda d, call=_call: raised(lambda: call(d)))
