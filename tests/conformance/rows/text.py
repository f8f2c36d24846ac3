"""Tensors as Python values: printing, formatting, numbers, iteration, truth."""

from __future__ import annotations

from typing import Any

import torch

from tests.conformance.registry import add, make, plain, printed, raised, row

GROUP = "text"


def _special(d: str) -> torch.Tensor:
    return torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0], device=d)


REPR: dict[str, Any] = {
    "repr_float": lambda d: make(d, 2, 3),
    "repr_int": lambda d: make(d, 2, 3, dtype=torch.int64),
    "repr_bool": lambda d: make(d, 2, 3, dtype=torch.bool),
    "repr_complex": lambda d: make(d, 2, dtype=torch.complex64),
    "repr_bfloat16": lambda d: make(d, 4, dtype=torch.bfloat16),
    "repr_float64": lambda d: make(d, 2, dtype=torch.float64),
    "repr_scalar": lambda d: make(d),
    "repr_empty": lambda d: torch.zeros(0, 3, device=d),
    "repr_large_is_summarised": lambda d: torch.arange(3000, device=d).float().view(30, 100),
    "repr_long_vector": lambda d: torch.arange(2000, device=d),
    "repr_special_values": _special,
    "repr_scientific": lambda d: torch.tensor([1e-9, 1e9], device=d),
    "repr_requires_grad": lambda d: make(d, 2, grad=True),
    "repr_grad_fn": lambda d: make(d, 2, grad=True) * 2,
    "repr_parameter": lambda d: torch.nn.Parameter(make(d, 2)),
    "repr_view": lambda d: make(d, 3, 4).t()[1:],
    "repr_channels_last": lambda d: make(d, 1, 2, 2, 2).to(memory_format=torch.channels_last),
}
for _name, _make in REPR.items():
    add(GROUP, _name, lambda d, call=_make: plain(repr(call(d))))

VALUES: dict[str, Any] = {
    "str": lambda d: plain(str(make(d, 3))),
    "print": lambda d: printed(lambda: print(make(d, 3))),
    "print_in_a_list": lambda d: printed(lambda: print([make(d, 2), make(d, 1)])),
    "format_scalar": lambda d: f"{make(d):.3f}",
    "format_scalar_int": lambda d: f"{make(d, dtype=torch.int64):04d}",
    "format_tensor": lambda d: plain(f"{make(d, 2)}"),
    "percent_format": lambda d: "%.2f" % make(d),  # noqa: UP031
    "module_repr": lambda d: repr(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).to(d)),
    "item": lambda d: make(d).item(),
    "item_int": lambda d: make(d, 1, 1, dtype=torch.int64).item(),
    "float": lambda d: float(make(d)),
    "int": lambda d: int(make(d) * 10),
    "complex": lambda d: complex(make(d, dtype=torch.complex64)),
    "bool": lambda d: bool(make(d) > 0),
    "index": lambda d: list(range(10))[make(d, dtype=torch.int64)],
    "range_of_tensor": lambda d: list(range(make(d, dtype=torch.int64))),
    "len": lambda d: len(make(d, 5, 2)),
    "contains": lambda d: (3 in torch.arange(5, device=d), 9 in torch.arange(5, device=d)),
    "unpack": lambda d: (lambda a, b: [b, a])(*make(d, 2, 3)),
    "iterate": lambda d: list(make(d, 3, 2)),
    "iterate_values": lambda d: [float(value) for value in make(d, 4)],
    "reversed": lambda d: reversed(make(d, 4)),
    "if_statement": lambda d: "yes" if (make(d, 4) > -100).all() else "no",
    "comparison_chain": lambda d: [bool(make(d) == make(d)), bool(make(d) != make(d))],
    "max_of_python": lambda d: max(make(d, 4)),
    "sum_of_python": lambda d: sum(make(d, 4)),
    "sorted_of_python": lambda d: sorted(make(d, 4)),
    "round": lambda d: make(d, 3).round(decimals=2),
    "divmod_raises": lambda d: raised(lambda: divmod(make(d, 3), 0.5)),  # type: ignore[operator]
    "abs_neg_pos_invert": lambda d: [abs(make(d, 3)), -make(d, 3), +make(d, 3), ~make(d, 3, dtype=torch.bool)],
    "right_operators": lambda d: [2 - make(d, 3), 2 / make(d, 3), 2 ** make(d, 3), 7 // make(d, 3), 7 % make(d, 3)],
    "bit_operators": lambda d: [
        make(d, 3, dtype=torch.int64) & 3,
        make(d, 3, dtype=torch.int64) << 2,
        5 ^ make(d, 3, dtype=torch.int64),
    ],
    "dir_works": lambda d: "backward" in dir(make(d, 2)),
    "equal": lambda d: (torch.equal(make(d, 3), make(d, 3)), torch.equal(make(d, 3), make(d, 4))),
    "allclose": lambda d: torch.allclose(make(d, 3), make(d, 3) + 1e-9),
    "is_nonzero": lambda d: torch.is_nonzero(make(d)),
    "hash_is_identity": lambda d: (lambda t: {t: 1}[t])(make(d, 2)),
    "bool_of_many_raises": lambda d: raised(lambda: bool(make(d, 2))),
    "item_of_many_raises": lambda d: raised(lambda: make(d, 2).item()),
    "len_of_scalar_raises": lambda d: raised(lambda: len(make(d))),
    "iterate_scalar_raises": lambda d: raised(lambda: list(make(d))),
    "index_of_float_raises": lambda d: raised(lambda: [0, 1][make(d)]),
    "int_of_nan_raises": lambda d: raised(lambda: int(_special(d)[0])),
    "format_spec_of_many_raises": lambda d: raised(lambda: f"{make(d, 2):.2f}"),
    "numel_and_sizes": lambda d: [
        make(d, 2, 3).numel(),
        make(d, 2, 3).dim(),
        make(d, 2, 3).size(1),
        make(d, 2, 3).nbytes,
    ],
    "element_size_itemsize": lambda d: [make(d, 1).element_size(), make(d, 1, dtype=torch.float64).itemsize],
    "type_string": lambda d: torch.typename(make(d, 1)).split(".")[-1],
}
for _name, _call in VALUES.items():
    add(GROUP, _name, _call)


@row(GROUP)
def print_options(d: str) -> Any:
    torch.set_printoptions(precision=2, sci_mode=False, threshold=5)
    try:
        return plain(repr(make(d, 3))), plain(repr(make(d, 10)))
    finally:
        torch.set_printoptions(profile="default")


@row(GROUP, own=True)
def repr_names_the_device(d: str) -> Any:
    return {
        "suffix": repr(make(d, 2)).endswith(f", device='{d}:0')"),
        "of a view": f"device='{d}:0'" in repr(make(d, 2, 3).t()),
    }
