"""Between devices and dtypes: ``to`` in all its forms, ``copy_``, assignment across devices, numpy."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from tests.conformance.registry import Host, add, make, raised, row
from tests.conformance.rows.factories import DTYPES

GROUP = "moves"

for _dtype in DTYPES:
    _name = str(_dtype)[6:]
    add(GROUP, f"round_trip_{_name}", lambda d, t=_dtype: [make(d, 3, 4, dtype=t), Host(make(d, 3, 4, dtype=t).cpu())])
    add(GROUP, f"to_{_name}", lambda d, t=_dtype: make(d, 3, 4).to(t))
    add(GROUP, f"item_{_name}", lambda d, t=_dtype: make(d, 1, dtype=t).item())

# ``copy=True`` where the CPU would otherwise hand out its own tensor, which no move between devices does.
TO: dict[str, Any] = {
    "to_device_string": lambda d: make("cpu", 3).to(d),
    "to_device_object": lambda d: make("cpu", 3).to(torch.device(d)),
    "to_device_index": lambda d: make("cpu", 3).to(torch.device(d, 0)),
    "to_device_keyword": lambda d: make("cpu", 3).to(device=d, dtype=torch.float64),
    "to_device_and_dtype": lambda d: make("cpu", 3).to(d, torch.float16),
    "to_non_blocking": lambda d: make("cpu", 3).to(d, non_blocking=True),
    "to_copy": lambda d: make(d, 3).to(d, copy=True),
    "to_other": lambda d: make("cpu", 3).to(make(d, 1, dtype=torch.int64)),
    "to_meta": lambda d: make(d, 3).to("meta").shape,
    "to_cpu": lambda d: Host(make(d, 3).to("cpu")),
    "to_cpu_non_blocking": lambda d: Host(make(d, 3).to("cpu", non_blocking=True)),
    "to_cpu_dtype": lambda d: Host(make(d, 3).to("cpu", torch.float64)),
    "cpu_method": lambda d: Host(make(d, 3).cpu()),
    "to_channels_last": lambda d: make(d, 2, 3, 4, 5).to(memory_format=torch.channels_last),
    "upload_channels_last": lambda d: make("cpu", 2, 3, 4, 5).to(memory_format=torch.channels_last).to(d, copy=True),
    "upload_to_channels_last": lambda d: make("cpu", 2, 3, 4, 5).to(d, memory_format=torch.channels_last),
    "upload_transposed": lambda d: make("cpu", 3, 4).t().to(d, copy=True),
    "upload_expanded": lambda d: make("cpu", 3, 1).expand(3, 4).to(d, copy=True),
    "upload_sliced": lambda d: make("cpu", 8)[1::2].to(d, copy=True),
    "upload_conj": lambda d: make("cpu", 3, dtype=torch.complex64).conj().to(d, copy=True),
    "upload_zero_elements": lambda d: make("cpu", 0, 4).to(d, copy=True),
    "upload_scalar": lambda d: make("cpu").to(d, copy=True),
    "upload_leaf_with_grad": lambda d: make("cpu", 3, grad=True).to(d, copy=True),
    "fetch_transposed": lambda d: Host(make(d, 3, 4).t().to("cpu", copy=True)),
    "fetch_expanded": lambda d: Host(make(d, 3, 1).expand(3, 4).to("cpu", copy=True)),
    "fetch_sliced": lambda d: Host(make(d, 8)[1::2].to("cpu", copy=True)),
    "fetch_conj": lambda d: Host(make(d, 3, dtype=torch.complex64).conj().to("cpu", copy=True)),
    "fetch_zero_elements": lambda d: Host(make(d, 0, 4).to("cpu", copy=True)),
    "fetch_channels_last": lambda d: Host(
        make(d, 2, 3, 4, 5).to(memory_format=torch.channels_last).to("cpu", copy=True)
    ),
    "float_method": lambda d: make(d, 3, dtype=torch.int64).float(),
    "double_method": lambda d: make(d, 3).double(),
    "half_method": lambda d: make(d, 3).half(),
    "bfloat16_method": lambda d: make(d, 3).bfloat16(),
    "long_method": lambda d: make(d, 3).long(),
    "int_method": lambda d: make(d, 3).int(),
    "bool_method": lambda d: make(d, 3).bool(),
    "type_as": lambda d: make(d, 3).type_as(make(d, 1, dtype=torch.float64)),
    "type_dtype": lambda d: make(d, 3).type(torch.int32),
    "numpy_force": lambda d: make(d, 3).numpy(force=True),
    "numpy_of_cpu": lambda d: make(d, 2, 3).cpu().numpy(),
    "tolist": lambda d: make(d, 2, 3).tolist(),
    "tolist_bool": lambda d: make(d, 4, dtype=torch.bool).tolist(),
    "tolist_scalar": lambda d: make(d).tolist(),
    "megabyte": lambda d: make(d, 512, 512),
    "megabyte_back": lambda d: Host((make(d, 512, 512) * 2).cpu()),
}
for _name, _call in TO.items():
    add(GROUP, _name, _call)


@row(GROUP)
def to_same_is_self(d: str) -> Any:
    tensor = make(d, 3)
    return tensor.to(d) is tensor, tensor.to(torch.float32) is tensor, tensor.to(d, copy=True) is tensor


@row(GROUP)
def gradient_through_to_device(d: str) -> Any:
    host = make("cpu", 3, grad=True)
    (host.to(d) ** 2).sum().backward()
    return Host(host.grad)  # type: ignore[arg-type]


@row(GROUP)
def gradient_through_to_cpu(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    (leaf.cpu() ** 2).sum().backward()
    return leaf, leaf.grad


@row(GROUP)
def gradient_through_dtype(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    (leaf.double() ** 2).sum().backward()
    return leaf.grad


@row(GROUP)
def cpu_copy_from_device(d: str) -> Any:
    host = torch.zeros(3)
    back = host.copy_(make(d, 3))
    return Host(host), back is host


@row(GROUP)
def cpu_copy_from_device_casts_and_broadcasts(d: str) -> Any:
    return Host(torch.zeros(2, 3, dtype=torch.float64).copy_(make(d, 3)))


@row(GROUP)
def device_copy_from_cpu(d: str) -> Any:
    target = torch.zeros(3, device=d)
    back = target.copy_(make("cpu", 3))
    return target, back is target


@row(GROUP)
def device_copy_from_cpu_casts_and_broadcasts(d: str) -> Any:
    return torch.zeros(2, 3, device=d, dtype=torch.int32).copy_(make("cpu", 3) * 10)


@row(GROUP)
def device_copy_from_device(d: str) -> Any:
    return torch.zeros(2, 3, device=d, dtype=torch.float64).copy_(make(d, 3), non_blocking=True)


@row(GROUP)
def cpu_slice_assigned_from_device(d: str) -> Any:
    host = torch.zeros(8)
    host[2:6] = make(d, 4)
    return Host(host)


@row(GROUP)
def cpu_element_assigned_from_device(d: str) -> Any:
    host = torch.zeros(4)
    host[1] = make(d)
    return Host(host)


@row(GROUP)
def device_slice_assigned_from_cpu(d: str) -> Any:
    target = torch.zeros(8, device=d)
    target[2:6] = make("cpu", 4)
    return target


@row(GROUP)
def device_element_assigned_from_number(d: str) -> Any:
    target = torch.zeros(2, 4, device=d)
    target[1, 2] = 5
    target[0] = 1.5
    return target


@row(GROUP)
def copy_into_transposed_view(d: str) -> Any:
    target = torch.zeros(3, 4, device=d)
    target.t().copy_(make("cpu", 4, 3))
    return target


@row(GROUP)
def copy_keeps_the_source_apart(d: str) -> Any:
    host = make("cpu", 4)
    moved = host.to(d, copy=True)
    host.zero_()
    return moved


@row(GROUP)
def cpu_scalar_operand(d: str) -> Any:
    scalar = torch.tensor(2.5)
    return make(d, 3) * scalar, scalar + make(d, 3), torch.where(make(d, 3) > 0, make(d, 3), scalar)


@row(GROUP)
def cpu_scalar_promotes_as_a_scalar(d: str) -> Any:
    return make(d, 3, dtype=torch.float16) * torch.tensor(2.5, dtype=torch.float64), make(
        d, 3, dtype=torch.int64
    ) + torch.tensor(1.5)


@row(GROUP)
def numpy_scalar_operand(d: str) -> Any:
    return make(d, 3) * numpy.float32(2.0), make(d, 3) + numpy.int64(3)


@row(GROUP)
def pinned_upload(d: str) -> Any:
    return make("cpu", 64).pin_memory().to(d, non_blocking=True) if d != "cpu" else make("cpu", 64)


@row(GROUP, own=True)
def numpy_of_device_tensor_raises(d: str) -> Any:
    found = raised(lambda: make(d, 3).numpy())
    return {
        "a TypeError": getattr(found, "type", None) == "TypeError",
        "in PyTorch's words": "Tensor.cpu()" in str(found),
    }


@row(GROUP, own=True)
def asarray_of_device_tensor_raises(d: str) -> Any:
    return {"a TypeError": getattr(raised(lambda: numpy.asarray(make(d, 3))), "type", None) == "TypeError"}


@row(GROUP, own=True)
def mixed_devices_raise(d: str) -> Any:
    calls = {
        "add": lambda: make(d, 3) + make("cpu", 3),
        "add, cpu first": lambda: make("cpu", 3) + make(d, 3),
        "mm": lambda: make(d, 3, 3) @ make("cpu", 3, 3),
        "in-place": lambda: make(d, 3).add_(make("cpu", 3)),
        "cpu in-place": lambda: make("cpu", 3).add_(make(d, 3)),
        "cat": lambda: torch.cat([make(d, 3), make("cpu", 3)]),
        "linear": lambda: torch.nn.functional.linear(make(d, 2, 3), make("cpu", 4, 3)),
        "where": lambda: torch.where(make(d, 3) > 0, make(d, 3), make("cpu", 3)),
    }
    facts = {}
    for name, call in calls.items():
        found = raised(call)
        facts[name] = (getattr(found, "type", None) == "RuntimeError" and "device" in str(found)) or str(found)
    return facts


@row(GROUP, own=True)
def storage_addresses_tell_apart(d: str) -> Any:
    one, two = make(d, 3), make(d, 3)
    return {
        "not on the cpu": not one.is_cpu,
        "own storages": one.untyped_storage()._cdata != two.untyped_storage()._cdata,
    }
