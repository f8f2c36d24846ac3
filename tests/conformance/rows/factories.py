"""Every way to make a tensor out of nothing, or out of Python's and numpy's data."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from tests.conformance.registry import MetaOnly, add, make, row

GROUP = "factories"

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip

#: name -> what it makes; every entry is a row
PLAIN: dict[str, Any] = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "zeros_size_tuple": lambda d: torch.zeros((2, 0, 3), device=d),
    "zeros_scalar": lambda d: torch.zeros((), device=d),
    "ones": lambda d: torch.ones(2, 3, device=d),
    "full_float": lambda d: torch.full((2, 3), 1.5, device=d),
    "full_int": lambda d: torch.full((2, 3), 7, device=d),
    "full_bool": lambda d: torch.full((2, 3), True, device=d),
    "full_complex": lambda d: torch.full((2, 3), 1 + 2j, device=d),
    "arange": lambda d: torch.arange(7, device=d),
    "arange_float": lambda d: torch.arange(0.0, 1.0, 0.25, device=d),
    "arange_negative": lambda d: torch.arange(5, -5, -2, device=d),
    "arange_dtype": lambda d: torch.arange(4, dtype=torch.bfloat16, device=d),
    "range": lambda d: torch.range(0, 3, device=d),
    "linspace": lambda d: torch.linspace(-1, 1, 9, device=d),
    "linspace_one_step": lambda d: torch.linspace(-1, 1, 1, device=d),
    "linspace_tensor_ends": lambda d: torch.linspace(
        torch.tensor(0.0, device=d), torch.tensor(2.0, device=d), 5, device=d
    ),
    "logspace": lambda d: torch.logspace(0, 3, 4, device=d),
    "eye": lambda d: torch.eye(4, device=d),
    "eye_rectangular": lambda d: torch.eye(2, 5, dtype=torch.int32, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 4, offset=1, device=d),
    "triu_indices": lambda d: torch.triu_indices(4, 3, device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(3.5, device=d),
    "hann_window": lambda d: torch.hann_window(8, device=d),
    "hamming_window": lambda d: torch.hamming_window(8, device=d),
    "blackman_window": lambda d: torch.blackman_window(8, device=d),
    "bartlett_window": lambda d: torch.bartlett_window(8, device=d),
    "kaiser_window": lambda d: torch.kaiser_window(8, device=d),
    "signal_windows_gaussian": lambda d: torch.signal.windows.gaussian(8, std=2.0, device=d),
    "fft_fftfreq": lambda d: torch.fft.fftfreq(6, device=d),
    "fft_rfftfreq": lambda d: torch.fft.rfftfreq(6, device=d),
    "tensor_scalar": lambda d: torch.tensor(3.0, device=d),
    "tensor_int": lambda d: torch.tensor(3, device=d),
    "tensor_bool": lambda d: torch.tensor([True, False], device=d),
    "tensor_complex": lambda d: torch.tensor([1 + 1j], device=d),
    "tensor_nested": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "tensor_empty_list": lambda d: torch.tensor([], device=d),
    "tensor_of_numpy": lambda d: torch.tensor(numpy.arange(6.0).reshape(2, 3), device=d),
    "tensor_of_list_of_tensors": lambda d: torch.tensor([torch.tensor(1.0), torch.tensor(2.0)], device=d),
    "tensor_requires_grad": lambda d: torch.tensor([1.0, 2.0], device=d, requires_grad=True),
    "tensor_of_device_tensor": lambda d: torch.tensor(make(d, 3), device=d),
    "as_tensor_list": lambda d: torch.as_tensor([1.0, 2.0], device=d),
    "as_tensor_numpy": lambda d: torch.as_tensor(numpy.ones((2, 2), dtype=numpy.int16), device=d),
    "asarray": lambda d: torch.asarray([[1.0], [2.0]], device=d),
    "asarray_copy": lambda d: torch.asarray(make(d, 3), copy=True),
    "from_numpy_to": lambda d: torch.from_numpy(numpy.arange(4)).to(d),
    "frombuffer_to": lambda d: torch.frombuffer(bytearray(range(8)), dtype=torch.uint8).to(d),
    "complex": lambda d: torch.complex(make(d, 3), make(d, 3, seed=2)),
    "polar": lambda d: torch.polar(make(d, 3).abs(), make(d, 3, seed=2)),
    "vander": lambda d: torch.vander(make(d, 4), N=3),
    "cartesian_prod": lambda d: torch.cartesian_prod(make(d, 2), make(d, 3)),
    "meshgrid": lambda d: torch.meshgrid(make(d, 2), make(d, 3), indexing="ij"),
    "combinations": lambda d: torch.combinations(make(d, 4)),
    "block_diag": lambda d: torch.block_diag(make(d, 2, 2), make(d, 1, 3)),
    "zeros_requires_grad": lambda d: torch.zeros(2, device=d, requires_grad=True),
    "zeros_channels_last": lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last).zero_(),
    "legacy_new": lambda d: make(d, 3).new([1, 2]),
}

LIKE: dict[str, Any] = {
    "zeros_like": lambda t: torch.zeros_like(t),
    "ones_like": lambda t: torch.ones_like(t, dtype=torch.int64),
    "full_like": lambda t: torch.full_like(t, 2.5),
    "empty_like": lambda t: MetaOnly(torch.empty_like(t)),
    "empty_like_contiguous": lambda t: MetaOnly(torch.empty_like(t, memory_format=torch.contiguous_format)),
    "new_zeros": lambda t: t.new_zeros(2, 3),
    "new_ones": lambda t: t.new_ones((2, 3), dtype=torch.bool),
    "new_full": lambda t: t.new_full((2,), 4.0),
    "new_tensor": lambda t: t.new_tensor([1, 2, 3]),
    "new_empty": lambda t: MetaOnly(t.new_empty(2, 3)),
    "new_empty_strided": lambda t: MetaOnly(t.new_empty_strided((2, 3), (1, 2))),
    "rand_like": lambda t: MetaOnly(torch.rand_like(t)),
    "randn_like": lambda t: MetaOnly(torch.randn_like(t)),
    "randint_like": lambda t: MetaOnly(torch.randint_like(t, 5)),
}

UNSPECIFIED: dict[str, Any] = {
    "empty": lambda d: torch.empty(2, 3, device=d),
    "empty_channels_last": lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (4, 1), device=d),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3, 4), (2, 0, 1), device=d),
    "rand": lambda d: torch.rand(2, 3, device=d),
    "rand_float64": lambda d: torch.rand(2, 3, dtype=torch.float64, device=d),
    "randn": lambda d: torch.randn(2, 3, device=d),
    "randn_complex": lambda d: torch.randn(2, 3, dtype=torch.complex64, device=d),
    "randint": lambda d: torch.randint(0, 5, (2, 3), device=d),
    "randperm": lambda d: torch.randperm(6, device=d),
    "normal": lambda d: torch.normal(0.0, 1.0, (2, 3), device=d),
    "normal_tensor_mean": lambda d: torch.normal(make(d, 4), 1.0),
    "bernoulli": lambda d: torch.bernoulli(torch.full((2, 3), 0.5, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(4, device=d), 2),
    "poisson": lambda d: torch.poisson(torch.ones(4, device=d)),
    "binomial": lambda d: torch.binomial(torch.full((4,), 10.0, device=d), torch.full((4,), 0.5, device=d)),
}

for _name, _make in PLAIN.items():
    add(GROUP, _name, _make)
for _name, _make in LIKE.items():
    add(GROUP, _name, lambda d, call=_make: call(make(d, 4, 3).t()))
for _name, _make in UNSPECIFIED.items():
    add(GROUP, _name, lambda d, call=_make: MetaOnly(call(d)))
for _dtype in DTYPES:
    add(GROUP, f"ones_{str(_dtype)[6:]}", lambda d, dtype=_dtype: torch.ones(2, 2, dtype=dtype, device=d))


def _out(d: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, device=d)


OUT: dict[str, Any] = {
    "zeros_out": lambda d: torch.zeros(2, 3, out=_out(d, (2, 3))),
    "ones_out_resizes": lambda d: torch.ones(2, 3, out=_out(d, (0,))),
    "full_out": lambda d: torch.full((2,), 3.0, out=_out(d, (2,))),
    "arange_out": lambda d: torch.arange(5, out=torch.empty(0, dtype=torch.int64, device=d)),
    "linspace_out": lambda d: torch.linspace(0, 1, 4, out=_out(d, (4,))),
    "eye_out": lambda d: torch.eye(3, out=_out(d, (3, 3))),
    "randperm_out_is_a_permutation": lambda d: (
        torch.randperm(8, out=torch.empty(8, dtype=torch.int64, device=d)).sort().values
    ),
}
for _name, _make in OUT.items():
    add(GROUP, _name, _make)


@row(GROUP)
def device_context(d: str) -> Any:
    with torch.device(d):
        return torch.zeros(2), torch.arange(3), torch.tensor([1.0]), torch.nn.Linear(2, 2).weight.shape


@row(GROUP)
def device_context_nested(d: str) -> Any:
    with torch.device("meta"):
        with torch.device(d):
            inner = torch.ones(2)
        outer = torch.ones(2).is_meta
    return inner, outer


@row(GROUP)
def device_context_explicit_wins(d: str) -> Any:
    with torch.device("meta"):
        return torch.ones(2, device=d)


@row(GROUP)
def set_default_device(d: str) -> Any:
    before = torch.get_default_device()
    torch.set_default_device(d)
    try:
        made = torch.linspace(0, 1, 3)
        kind = torch.get_default_device().type == torch.device(d).type
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)
    return made, kind


@row(GROUP)
def default_dtype_travels(d: str) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(2, device=d), torch.arange(0.0, 2, device=d), torch.ones(2, dtype=torch.int64, device=d) / 3
    finally:
        torch.set_default_dtype(torch.float32)


@row(GROUP)
def from_file_of_generator_list(d: str) -> Any:
    return torch.tensor([value * 0.5 for value in range(4)], device=d)


@row(GROUP)
def device_object_with_index(d: str) -> Any:
    return torch.zeros(2, device=torch.device(d, 0))


@row(GROUP)
def uninitialised_is_writable(d: str) -> Any:
    made = torch.empty(3, device=d)
    made[0], made[1], made[2] = 1.0, 2.0, 3.0
    return made
