"""The device itself: ``torch.accelerator``, the device module, streams and events, threads, flags that change
numbers.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from tests.conformance.registry import add, make, raised, row
from tests.conformance.rows.modules import settle

GROUP = "devices"


@row(GROUP)
def device_of_tensor(d: str) -> Any:
    tensor = make(d, 2)
    return (
        tensor.device.type == d,
        tensor.device == torch.device(d) or tensor.device == torch.device(d, 0),
        tensor.is_meta,
    )


@row(GROUP)
def device_module_common(d: str) -> Any:
    module = torch.get_device_module(d)
    module.synchronize()
    return (
        module.is_available(),
        module.device_count() >= 1,
        module.is_initialized() if hasattr(module, "is_initialized") else True,
    )


@row(GROUP)
def stream_context(d: str) -> Any:
    module = torch.get_device_module(d)
    with module.stream(module.current_stream()):
        return make(d, 2) * 2


@row(GROUP)
def current_device(d: str) -> Any:
    return str(torch.get_device_module(d).current_device()) in ("0", "cpu")


@row(GROUP, own=True)
def module_functions(d: str) -> Any:
    module = torch.get_device_module(d)
    module.set_device(0)
    with module.device(0):
        inside = module.current_device()
    module.empty_cache() if hasattr(module, "empty_cache") else None
    return {
        "is torch.mux": module is getattr(torch, d),
        "is_available": module.is_available() is True,
        "device_count": module.device_count() >= 1,
        "current_device": module.current_device() == 0,
        "device context": inside == 0,
        "initial_seed": isinstance(module.initial_seed() if hasattr(module, "initial_seed") else 0, int),
        "bfloat16": torch.bfloat16 in module.get_amp_supported_dtype(),
    }


@row(GROUP, own=True)
def module_seeds(d: str) -> Any:
    module = torch.get_device_module(d)
    module.manual_seed(3)
    one = torch.rand(5, device=d)
    module.manual_seed_all(3)
    return {"one seed, one sequence": torch.equal(one, torch.rand(5, device=d))}


@row(GROUP, own=True)
def accelerator(d: str) -> Any:
    found = torch.accelerator.current_accelerator()
    torch.accelerator.synchronize()
    torch.accelerator.set_device_index(0)
    return {
        "is mux": found is not None and found.type == d,
        "is_available": torch.accelerator.is_available(),
        "device_count": torch.accelerator.device_count() >= 1,
        "current_device_index": torch.accelerator.current_device_index() == 0,
        "current_stream": torch.accelerator.current_stream().device.type == d,
    }


@row(GROUP, own=True)
def accelerator_device_index(d: str) -> Any:
    with torch.accelerator.device_index(0):
        tensor = make(d, 2)
    return {"works inside": tensor.device.type == d}


@row(GROUP, own=True)
def streams_and_events(d: str) -> Any:
    stream = torch.Stream(device=d)
    start, end = torch.Event(d, enable_timing=True), torch.Event(d, enable_timing=True)
    with stream:
        start.record()
        value = (make(d, 64, 64) @ make(d, 64, 64)).sum()
        end.record()
    stream.synchronize()
    end.synchronize()
    return {"query": end.query(), "elapsed": start.elapsed_time(end) >= 0, "value": value.isfinite().item() is True}


@row(GROUP, own=True)
def pinned_memory(d: str) -> Any:
    pinned = torch.empty(16).pin_memory()
    return {
        "is_pinned": pinned.is_pinned(),
        "fills": torch.equal(pinned.fill_(3.0).to(d, non_blocking=True).cpu(), torch.full((16,), 3.0)),
    }


@row(GROUP, own=True)
def identity_of_tensors(d: str) -> Any:
    tensor = make(d, 2)
    return {
        "get_device": tensor.get_device() == 0,
        "not cpu": not tensor.is_cpu,
        "not cuda": not tensor.is_cuda,
        "string": str(tensor.device) == f"{d}:0",
        "ordinary type": type(tensor) is torch.Tensor,
        "layout": tensor.layout is torch.strided,
        "Parameter": type(nn.Parameter(tensor)) is nn.Parameter,
    }


@row(GROUP, own=True)
def second_device_is_named(d: str) -> Any:
    count = torch.get_device_module(d).device_count()
    found = raised(lambda: torch.ones(2, device=f"{d}:{count}").cpu())
    return {
        "a RuntimeError, not a crash": getattr(found, "type", None) in ("RuntimeError", "AcceleratorError")
        or str(found)
    }


# ---------------------------------------------------------------------------------------------------------------------
# flags that change numbers
# ---------------------------------------------------------------------------------------------------------------------


@row(GROUP)
def deterministic_algorithms(d: str) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        filled = torch.empty(4, device=d)
        return filled.isnan().all(), torch.zeros(4, device=d).index_add(0, torch.tensor([1, 1], device=d), make(d, 2))
    finally:
        torch.use_deterministic_algorithms(False)


@row(GROUP)
def float32_matmul_precision(d: str) -> Any:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return make(d, 32, 32) @ make(d, 32, 32)
    finally:
        torch.set_float32_matmul_precision(before)


@row(GROUP)
def default_dtype_changes_results(d: str) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return torch.tensor([1.5], device=d), torch.arange(3, device=d) / 2, make(d, 3, dtype=torch.int64) * 1.5
    finally:
        torch.set_default_dtype(torch.float32)


@row(GROUP)
def deterministic_fill(d: str) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return make(d, 2).resize_(4)[2:].isnan()
    finally:
        torch.use_deterministic_algorithms(False)


#: type promotion, by PyTorch's own table: every pair of these, tensor with tensor, tensor with 0-dim tensor, tensor
#: with number
PROMOTED = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
for _dtype in PROMOTED:

    def _promoted(d: str, one: torch.dtype = _dtype) -> Any:
        left = make(d, 3, dtype=one, high=2)
        pairs = [left + make(d, 3, dtype=two, high=2, seed=2) for two in PROMOTED]
        scalars = [left * make(d, dtype=two, high=2, seed=2) for two in PROMOTED]
        return pairs, scalars, [left + 1, left + 1.5, left * True, left + 1j]

    add(GROUP, f"promotion_of_{str(_dtype)[6:]}", _promoted, rtol=1e-2, atol=1e-2)


# ---------------------------------------------------------------------------------------------------------------------
# threads
# ---------------------------------------------------------------------------------------------------------------------


@row(GROUP)
def threads_compute_side_by_side(d: str) -> Any:
    def work(index: int) -> torch.Tensor:
        value = make(d, 8, 8, seed=index)
        for _ in range(20):
            value = (value @ make(d, 8, 8, seed=index)).tanh()
        return value

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(work, range(8)))


@row(GROUP)
def threads_train_side_by_side(d: str) -> Any:
    def work(index: int) -> list[torch.Tensor]:
        model = settle(nn.Linear(4, 3)).to(d)
        optimiser = torch.optim.AdamW(model.parameters())
        for step in range(3):
            optimiser.zero_grad()
            (model(make(d, 5, 4, seed=index + step)) ** 2).mean().backward()
            optimiser.step()
        return [p.detach().clone() for p in model.parameters()]

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, range(3)))


@row(GROUP)
def threads_write_into_one_tensor(d: str) -> Any:
    shared = torch.zeros(100, device=d)

    def work(index: int) -> None:
        for _ in range(50):
            (shared[3:7] if index % 2 else shared).add_(1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    return shared.shape, shared[0] <= 100


@row(GROUP)
def tensor_made_in_one_thread_used_in_another(d: str) -> Any:
    made: list[torch.Tensor] = []
    maker = threading.Thread(target=lambda: made.append(make(d, 4, grad=True) * 2))
    maker.start()
    maker.join()
    made[0].sum().backward()
    return made[0]


@row(GROUP)
def last_reference_dies_in_another_thread(d: str) -> Any:
    held = [make(d, 64) for _ in range(50)]
    total = sum(held)
    killer = threading.Thread(target=held.clear)
    killer.start()
    killer.join()
    return total


@row(GROUP)
def grad_mode_is_per_thread(d: str) -> Any:
    seen: list[bool] = []
    leaf = make(d, 2, grad=True)
    with torch.no_grad():
        other = threading.Thread(target=lambda: seen.append((leaf * 2).requires_grad))
        other.start()
        other.join()
        return seen, (leaf * 2).requires_grad


@row(GROUP)
def backward_in_a_thread(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    value = (leaf**2).sum()
    other = threading.Thread(target=value.backward)
    other.start()
    other.join()
    return leaf.grad


@row(GROUP)
def many_small_operations(d: str) -> Any:
    value = torch.zeros(8, device=d)
    for index in range(3000):
        value = value + index
    return value


@row(GROUP)
def profiler_runs(d: str) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (make(d, 8, 8) @ make(d, 8, 8)).sum().item()
    return any("mm" in event.key for event in profile.key_averages())


@row(GROUP)
def dispatch_mode_sees_operators(d: str) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(call))
            return call(*args, **(kwargs or {}))

    one = make(d, 3)
    with Record():
        out = one.add(1).mul(2)
    return [name for name in seen if "add" in name or "mul" in name], out


@row(GROUP)
def function_mode_sees_calls(d: str) -> Any:
    from torch.overrides import TorchFunctionMode

    seen: list[str] = []

    class Record(TorchFunctionMode):
        def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(call, "__name__", str(call)))
            return call(*args, **(kwargs or {}))

    one = make(d, 3)
    with Record():
        torch.sin(one).relu()
    return seen


@row(GROUP)
def tensor_subclass(d: str) -> Any:
    class Marked(torch.Tensor):
        pass

    marked = make(d, 3).as_subclass(Marked)
    return type(marked * 2).__name__, (marked * 2).as_subclass(torch.Tensor)


@row(GROUP)
def assert_close_and_testing(d: str) -> Any:
    torch.testing.assert_close(make(d, 3), make(d, 3))
    return raised(lambda: torch.testing.assert_close(make(d, 3), make(d, 3) + 1)).__class__.__name__


@row(GROUP)
def linear_algebra(d: str) -> Any:
    square = make(d, 4, 4, dtype=torch.float64)
    positive = square @ square.T + 4 * torch.eye(4, dtype=torch.float64, device=d)
    inverse, determinant = torch.linalg.inv(positive), torch.linalg.det(positive)
    solved, upper = torch.linalg.solve(positive, square), torch.linalg.qr(square).R.abs()
    values = torch.linalg.eigvalsh(positive), torch.linalg.svdvals(square), torch.linalg.norm(square)
    return inverse, determinant, solved, upper, values, torch.linalg.cholesky(positive)


@row(GROUP)
def fourier(d: str) -> Any:
    x = make(d, 2, 8)
    return (
        torch.fft.rfft(x),
        torch.fft.irfft(torch.fft.rfft(x)),
        torch.fft.fft2(x),
        torch.fft.fftshift(x),
        torch.stft(x, 4, return_complex=True),
    )
