"""Views and in-place writes: what shares memory on the CPU must be seen to share it, in both directions, through any
chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.conformance.registry import add, make, raised, row, without_legacy_types

GROUP = "views"

#: name -> view of a (4, 6) float tensor
VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda t: t.view(6, 4),
    "view_minus_one": lambda t: t.view(-1),
    "reshape": lambda t: t.reshape(2, 12),
    "view_as": lambda t: t.view_as(torch.empty(3, 8, device=t.device)),
    "transpose": lambda t: t.transpose(0, 1),
    "permute": lambda t: t.permute(1, 0),
    "t": lambda t: t.t(),
    "T": lambda t: t.T,
    "mT": lambda t: t.mT,
    "expand": lambda t: t[:1].expand(3, 6),
    "narrow": lambda t: t.narrow(1, 2, 3),
    "select": lambda t: t.select(0, 2),
    "slice": lambda t: t[1:3, ::2],
    "split": lambda t: t.split(2),
    "split_sizes": lambda t: t.split([1, 3]),
    "tensor_split": lambda t: t.tensor_split(4, dim=1),
    "chunk": lambda t: t.chunk(2, dim=1),
    "hsplit": lambda t: t.hsplit(2),
    "unbind": lambda t: t.unbind(1),
    "diagonal": lambda t: t.diagonal(),
    "unfold": lambda t: t.unfold(1, 3, 3),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(),
    "squeeze_dim": lambda t: t.unsqueeze(1).squeeze(1),
    "flatten": lambda t: t.flatten(),
    "unflatten": lambda t: t.unflatten(1, (2, 3)),
    "movedim": lambda t: t.movedim(0, 1),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "as_strided": lambda t: t.as_strided((3, 2), (2, 5), 1),
    "detach": lambda t: t.detach(),
    "alias": lambda t: torch.ops.aten.alias(t),
    "view_dtype": lambda t: t.view(torch.int32).view(torch.float32),
    "view_dtype_wider": lambda t: t.view(torch.float64).view(torch.float32),
    "data": lambda t: t.data,
    "contiguous_is_self": lambda t: t.contiguous(),
    "ravel": lambda t: t.ravel(),
    "atleast_3d": lambda t: torch.atleast_3d(t),
    "broadcast_to": lambda t: t[0].broadcast_to(1, 6),
    "chained": lambda t: t.t()[1:5].unsqueeze(0).permute(0, 2, 1)[0],
}


def _first(views: Any) -> torch.Tensor:
    found: torch.Tensor = views[0] if isinstance(views, tuple | list) else views
    return found


def _look(d: str, take: Callable[[torch.Tensor], Any]) -> Any:
    base = make(d, 4, 6)
    return base, take(base)


def _write_through_view(d: str, take: Callable[[torch.Tensor], Any]) -> Any:
    base = make(d, 4, 6)
    view = take(base)
    for index, each in enumerate(view if isinstance(view, tuple | list) else (view,)):
        target = each[:1] if 0 in each.stride() else each
        target.mul_(2).add_(index + 1)
    return base, view, base._version


def _write_base(d: str, take: Callable[[torch.Tensor], Any]) -> Any:
    base = make(d, 4, 6)
    view = take(base)
    base.add_(1)
    base[1:3] = 7
    return base, view, _first(view)._version


def _gradient(d: str, take: Callable[[torch.Tensor], Any]) -> Any:
    leaf = make(d, 4, 6, grad=True)
    view = _first(take(leaf * 1))
    if view.requires_grad:
        (view * make(d, *view.shape, seed=3)).sum().backward()
    return leaf.grad, view.requires_grad


for _name, _take in VIEWS.items():
    add(GROUP, _name, lambda d, take=_take: _look(d, take))
    add(GROUP, f"{_name}_write_through", lambda d, take=_take: _write_through_view(d, take))
    add(GROUP, f"{_name}_sees_base", lambda d, take=_take: _write_base(d, take))
    if _name not in ("view_dtype", "view_dtype_wider", "detach", "data"):
        add(GROUP, f"{_name}_gradient", lambda d, take=_take: _gradient(d, take))


#: name -> in-place operation on a tensor whose elements don't lie in the order of its dimensions
UNORDERED: dict[str, Callable[[torch.Tensor], Any]] = {
    "index_add": lambda t: t.index_add_(0, torch.zeros(len(t), dtype=torch.long, device=t.device), torch.ones_like(t)),
    "cumsum": lambda t: t.cumsum_(1),
    "masked_fill": lambda t: t.masked_fill_(t > 0, 3.0),
    "add_row": lambda t: t.add_(torch.ones_like(t[0])),
    "clamp": lambda t: t.clamp_(-0.5, 0.5),
    "swapaxes": lambda t: t.swapaxes_(0, 1).cumsum_(1),
}


def _write_unordered(d: str, take: Callable[[torch.Tensor], Any], write: Callable[[torch.Tensor], Any]) -> Any:
    base = make(d, 4, 6)
    view = take(base)
    write(view)
    return base, view, base.view(-1), view.is_contiguous(), base.t(), view.reshape(-1)


for _name, _write in UNORDERED.items():
    for _where in ("t", "slice", "unfold"):
        add(GROUP, f"{_name}_on_{_where}", lambda d, w=_write, t=VIEWS[_where]: _write_unordered(d, t, w))


def _complex(d: str) -> torch.Tensor:
    return make(d, 3, 2, dtype=torch.complex64)


COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view_as_real": torch.view_as_real,
    "real": lambda t: t.real,
    "imag": lambda t: t.imag,
    "view_as_complex": lambda t: torch.view_as_complex(torch.view_as_real(t)),
}
for _name, _take in COMPLEX.items():

    def _complex_write(d: str, take: Callable[[torch.Tensor], torch.Tensor] = _take) -> Any:
        base = _complex(d)
        view = take(base)
        view.mul_(3)
        base.add_(1)
        return base, view

    add(GROUP, f"complex_{_name}", _complex_write)

CONJ: dict[str, Any] = {
    "conj": lambda d: _complex(d).conj(),
    "conj_physical": lambda d: _complex(d).conj_physical(),
    "resolve_conj": lambda d: _complex(d).conj().resolve_conj(),
    "conj_transpose": lambda d: _complex(d).mH,
    "conj_imag_is_negative_view": lambda d: _complex(d).conj().imag,
    "resolve_neg": lambda d: _complex(d).conj().imag.resolve_neg(),
    "conj_in_product": lambda d: _complex(d).conj() @ _complex(d).t(),
}
for _name, _call in CONJ.items():
    add(GROUP, _name, _call)


@row(GROUP)
def conj_write_through(d: str) -> Any:
    base = _complex(d)
    base.conj().mul_(2j)
    return base


def _changed(d: str, change: Callable[[torch.Tensor], Any]) -> Any:
    tensor = make(d, 4, 6)
    back = change(tensor)
    return tensor, back is tensor, tensor._version


IN_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda t: t.add_(1),
    "add_alpha": lambda t: t.add_(t, alpha=2),
    "mul_": lambda t: t.mul_(2),
    "sub_div_pow": lambda t: t.sub_(1).div_(2).abs_().pow_(2),
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(3),
    "fill_tensor": lambda t: t.fill_(torch.tensor(3.0)),
    "clamp_": lambda t: t.clamp_(-0.5, 0.5),
    "masked_fill_": lambda t: t.masked_fill_(t > 0, 0),
    "copy_": lambda t: t.copy_(t.flip(0)),
    "exp_relu_sigmoid": lambda t: t.exp_().relu_().sigmoid_(),
    "addmm_": lambda t: t.addmm_(t[:, :4].clone(), t.clone()),
    "addcmul_": lambda t: t.addcmul_(t, t, value=0.5),
    "lerp_": lambda t: t.lerp_(t.flip(1), 0.25),
    "scatter_": lambda t: t.scatter_(1, torch.zeros(4, 1, dtype=torch.int64, device=t.device), 9.0),
    "index_add_": lambda t: t.index_add_(0, torch.tensor([0, 0], device=t.device), t[2:].clone()),
    "index_put_": lambda t: t.index_put_((torch.tensor([1], device=t.device),), torch.tensor(2.0, device=t.device)),
    "t_": lambda t: t.t_(),
    "transpose_": lambda t: t.transpose_(0, 1),
    "squeeze_": lambda t: t.unsqueeze_(0).squeeze_(0),
    "tril_": lambda t: t.tril_(),
    "fill_diagonal_": lambda t: t.fill_diagonal_(5),
    "cumsum_": lambda t: t.cumsum_(0),
    "swapdims_": lambda t: t.swapdims_(0, 1),
    "resize_same": lambda t: t.resize_(6, 4),
    "resize_smaller": lambda t: t.resize_(2, 3),
    "as_strided_": lambda t: t.as_strided_((3,), (2,), 1),
    "iadd": lambda t: t.__iadd__(1),
    "logical_not_": lambda t: t.logical_not_(),
    "random_free_unary": lambda t: t.sqrt_().nan_to_num_(),
}
for _name, _change in IN_PLACE.items():
    add(GROUP, f"in_place_{_name}", lambda d, change=_change: _changed(d, change))

OUT: dict[str, Any] = {
    "out_add": lambda d, out: torch.add(make(d, 3), 1, out=out),
    "out_mm": lambda d, out: torch.mm(make(d, 1, 2), make(d, 2, 3), out=out.view(1, 3)),
    "out_sum": lambda d, out: torch.sum(make(d, 4, 3), 0, out=out),
    "out_cat": lambda d, out: torch.cat([make(d, 1), make(d, 2)], out=out),
    "out_exp": lambda d, out: torch.exp(make(d, 3), out=out),
}
for _name, _call in OUT.items():

    def _write_out(d: str, call: Any = _call) -> Any:
        base = torch.zeros(2, 3, device=d)
        call(d, base[1])
        return base

    add(GROUP, _name, _write_out)


@row(GROUP)
def out_resizes(d: str) -> Any:
    out = torch.empty(0, device=d)
    return torch.add(make(d, 3), make(d, 3), out=out), out


@row(GROUP)
def out_max_pair(d: str) -> Any:
    values, indices = torch.empty(3, device=d), torch.empty(3, dtype=torch.int64, device=d)
    torch.max(make(d, 4, 3), 0, out=(values, indices))
    return values, indices


@row(GROUP)
def base_and_is_view(d: str) -> Any:
    base = make(d, 4, 6)
    view = base.t()[1:]
    return view._base is base, base._base is None, view._is_view(), base._is_view(), base._version


@row(GROUP)
def resize_grows(d: str) -> Any:
    tensor = make(d, 4)
    tensor.resize_(2, 4)
    return tensor[0], tensor.shape, tensor.stride()


@row(GROUP)
def resize_as(d: str) -> Any:
    return make(d, 6).resize_as_(make(d, 2, 3))


@row(GROUP)
def set_source(d: str) -> Any:
    source, target = make(d, 3), torch.zeros(0, device=d)
    target.set_(source)
    target.add_(1)
    return source, target


@row(GROUP)
def set_storage(d: str) -> Any:
    source = make(d, 6)
    target = torch.empty(0, device=d).set_(source.untyped_storage(), 1, (2, 2), (2, 1))
    target.zero_()
    return source, target


@row(GROUP)
def set_empty(d: str) -> Any:
    return make(d, 3).set_().shape


@row(GROUP)
def data_assignment(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    leaf.data = make(d, 2, 2, seed=2)
    return leaf


@row(GROUP)
def data_write_keeps_the_version(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    leaf.data.mul_(2)
    leaf.data[1] = 5
    return leaf, leaf._version


@row(GROUP)
def data_write_is_seen_by_older_views(d: str) -> Any:
    tensor = make(d, 4)
    view = tensor[1:3]
    tensor.data.zero_()
    return view, tensor


@row(GROUP)
def detach_shares_and_counts(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    apart = leaf.detach()
    apart.add_(1)
    return leaf, apart, leaf._version


@row(GROUP)
def two_views_of_one_base(d: str) -> Any:
    base = make(d, 8)
    left, right, whole = base[:5], base[3:], base.view(2, 4)
    left.add_(10)
    right.mul_(2)
    whole[1] = 0
    return base, left, right, whole


@row(GROUP)
def overlapping_self_copy(d: str) -> Any:
    base = make(d, 8)
    base[2:6] = base[0:4].clone()
    return base


@row(GROUP)
def as_strided_of_a_view(d: str) -> Any:
    """It counts from the beginning of the storage, whatever it is called on, and writes there."""
    base = make(d, 12)
    view = base[4:].view(2, 4)
    one, two = view.as_strided((2,), (3,), 5), view[1].as_strided((2, 2), (1, 2))
    one.add_(10)
    return base, view, one, two, view.view(torch.int32).as_strided((2,), (1,), 9)


@row(GROUP)
def offsets_of_like_views(d: str) -> Any:
    """Views that differ only in where they begin."""
    found: list[torch.Tensor] = []
    for begin in range(4):
        part = make(d, 4, 6)[begin]
        found += [part, part.view(2, 3), part.view(2, 3).t(), part.detach(), part[2:], *part.split(2)]
        found += [part.view(torch.int16)[3:], part[1:].as_strided((2,), (2,)), part * 1]
    return found


@row(GROUP)
def view_outlives_base(d: str) -> Any:
    view = make(d, 4, 6).t()[2:4]
    view.add_(1)
    return view


@row(GROUP)
def in_place_on_view_of_graph(d: str) -> Any:
    leaf = make(d, 4, 3, grad=True)
    middle = leaf * 2
    middle[1].mul_(3)
    middle[:, 0] = 1
    (middle**2).sum().backward()
    return leaf.grad, middle


@row(GROUP)
def channels_last(d: str) -> Any:
    tensor = make(d, 2, 3, 4, 5).to(memory_format=torch.channels_last)
    return (
        tensor,
        tensor.is_contiguous(),
        tensor.is_contiguous(memory_format=torch.channels_last),
        tensor * 2,
        tensor.contiguous(),
    )


@row(GROUP)
def channels_last_survives_convolution(d: str) -> Any:
    layer = torch.nn.Conv2d(3, 4, 3, bias=False)
    layer.weight.data.copy_(make("cpu", 4, 3, 3, 3))
    layer = layer.to(d, memory_format=torch.channels_last)
    return layer(make(d, 2, 3, 6, 6).to(memory_format=torch.channels_last)), layer.weight


@row(GROUP)
def clone_formats(d: str) -> Any:
    tensor = make(d, 3, 4).t()
    return tensor.clone(), tensor.clone(memory_format=torch.contiguous_format), make(d, 1, 2).expand(3, 2).clone()


@row(GROUP)
def storage_facts(d: str) -> Any:
    base = make(d, 4, 6)
    view = base[1:]
    return base.untyped_storage().nbytes(), view.untyped_storage().nbytes(), view.storage_offset(), base.is_contiguous()


@row(GROUP)
def is_set_to(d: str) -> Any:
    base = make(d, 4)
    return base.is_set_to(base.view(4)), base.is_set_to(base[1:]), base.is_set_to(base.clone())


@row(GROUP)
def swap_tensors(d: str) -> Any:
    one, two = make(d, 2), make(d, 3, seed=2)
    torch.utils.swap_tensors(one, two)
    return one, two


WRONG: dict[str, Any] = {
    "view_of_non_contiguous": lambda d: make(d, 4, 6).t().view(-1),
    "view_wrong_size": lambda d: make(d, 4, 6).view(5, 5),
    "expand_wrong": lambda d: make(d, 4, 6).expand(3, 6),
    "write_to_expanded": lambda d: make(d, 1, 6).expand(4, 6).add_(1),
    "in_place_shape_grows": lambda d: make(d, 6).add_(make(d, 4, 6)),
    "in_place_on_leaf": lambda d: make(d, 3, grad=True).add_(1),
    "in_place_on_view_of_leaf": lambda d: make(d, 3, grad=True)[1:].add_(1),
    "in_place_on_unbind_view": lambda d: (make(d, 3, 2, grad=True) * 1).unbind(0)[0].add_(1),
    "in_place_result_type": lambda d: make(d, 3, dtype=torch.int64).add_(1.5),
    "select_out_of_range": lambda d: make(d, 3).select(0, 5),
    "narrow_out_of_range": lambda d: make(d, 3).narrow(0, 2, 4),
    "view_dtype_of_odd": lambda d: make(d, 3).view(torch.float64),
    "out_wrong_dtype": lambda d: torch.add(make(d, 3), 1, out=torch.empty(3, dtype=torch.int64, device=d)),
    "data_of_other_type": lambda d: setattr(make(d, 3), "data", 3),
    "as_strided_out_of_bounds": lambda d: make(d, 3).as_strided((4,), (2,)),
}
for _name, _call in WRONG.items():
    add(GROUP, f"raises_{_name}", lambda d, call=_call: raised(lambda: call(d)))


@row(GROUP)
def raises_saved_tensor_modified(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    middle = leaf * 2
    total = (middle**2).sum()
    middle.add_(1)
    return without_legacy_types(raised(total.backward))
