"""PyTorch's own operator database as the specification: every entry's samples on the CPU and on the device under test.

An entry is right only if every sample's results are the CPU's and, on ``mux``, the tape shows that workers executed
the operator. Random operators are held to metas and to one seed giving one result. Needs ``expecttest``: PyTorch's own
``torch.testing._internal`` imports it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conformance import compare
from tests.conformance.registry import MetaOnly, is_refusal
from tests.conformance.samples import Mover, flatten, map_tensors
from tests.conformance.verdict import Outcome, story

SEED = 1234
MAX_DETAILS = 4

#: results whose numbers nobody specifies
UNSPECIFIED = frozenset({
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_",
})  # fmt: skip

#: what a program can see of a result besides its numbers; how it came about (leaf, view) is the feature table's
#: business
IGNORED = frozenset({"kind", "leaf", "view", "shares", "offset", "strides", "conj", "neg"})

#: of these, what tells how a result is laid out: differences are counted and listed, not held against the entry
LAYOUT = frozenset({"strides", "conj", "neg"})

#: operators that need no instruction: they hand out their input again, or are a fetch
FREE = frozenset({
    "detach", "alias", "lift", "lift_fresh", "conj", "_conj", "_neg_view", "resolve_conj", "resolve_neg",
    "is_same_size", "_local_scalar_dense",
})  # fmt: skip

#: operators whose further tensor arguments live on the CPU whatever the device, by PyTorch's own rule
CPU_ARGUMENTS = frozenset({"tensor_split"})


@dataclass(frozen=True, slots=True)
class Options:
    """``samples``: at most so many an entry, spread evenly over the database's list; 0 takes them all."""

    dtype: str = "float32"
    samples: int = 12
    backward: bool = False


@dataclass(slots=True)
class Entry:
    """How one entry ended. Counts are samples."""

    key: str
    outcome: Outcome = Outcome.SKIPPED
    details: list[str] = field(default_factory=list)
    samples: int = 0
    right: int = 0
    wrong: int = 0
    refused: int = 0
    skipped: int = 0  # the CPU itself refuses them
    random: int = 0
    free: int = 0  # right without an instruction, because the CPU runs none either
    strides: int = 0  # right, but laid out in another way than the CPU's
    renamed: list[str] = field(default_factory=list)  # right, but what ran has another name than on the CPU


def entries(dtype: str) -> dict[str, OpInfo]:
    """The database's entries that take ``dtype`` on the CPU, by name: ``var_mean``, ``var_mean[unbiased]``."""
    wanted = getattr(torch, dtype)
    found: dict[str, OpInfo] = {}
    for op in op_db:
        if wanted in op.dtypes:
            found[f"{op.name}[{op.variant_test_name}]" if op.variant_test_name else op.name] = op
    return found


def run(op: OpInfo, device: str, options: Options) -> Entry:
    """Run an entry's samples. Never raises for what an operator does: that is the entry's outcome."""
    name = f"{op.name}[{op.variant_test_name}]" if op.variant_test_name else op.name
    entry = Entry(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in _samples(op, options):
            entry.samples += 1
            _run_sample(entry, op, sample, index, device, options)
    if entry.wrong:
        entry.outcome = Outcome.WRONG
    elif entry.refused:
        entry.outcome = Outcome.REFUSED
    elif entry.right:
        entry.outcome = Outcome.RIGHT
    return entry


def _samples(op: OpInfo, options: Options) -> Iterator[tuple[int, Any]]:
    torch.manual_seed(SEED)
    dtype = getattr(torch, options.dtype)
    found = list(op.sample_inputs("cpu", dtype, requires_grad=options.backward and _has_gradient(op, dtype)))
    count = len(found) if options.samples == 0 else min(options.samples, len(found))
    for position in range(count):
        index = position * len(found) // count
        yield index, found[index]


def _has_gradient(op: OpInfo, dtype: torch.dtype) -> bool:
    return bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))


# ---------------------------------------------------------------------------------------------------------------------
# one sample
# ---------------------------------------------------------------------------------------------------------------------


class Trace(TorchDispatchMode):
    """What the CPU runs for a call: names of operators, and whether one of them draws random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.random = False

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(bare(str(call)))
        self.random |= torch.Tag.nondeterministic_seeded in call.tags
        return call(*args, **(kwargs or {}))


def bare(name: str) -> str:
    """``aten::add_.Tensor``, ``aten.add.Tensor`` -> ``add``; ``view_copy`` -> ``view``."""
    name = name.replace("::", ".").removeprefix("aten.").split(".")[0]
    return name.removesuffix("_copy").rstrip("_") or name


def _run_sample(entry: Entry, op: OpInfo, sample: Any, index: int, device: str, options: Options) -> None:
    trace = Trace()
    try:
        call = Call(op, sample, "cpu")
        with trace:
            call(False)
        expected = compare.observe(Call(op, sample, "cpu")(options.backward), "cpu")
    except Exception as error:
        entry.skipped += 1
        if entry.skipped == entry.samples and len(entry.details) < MAX_DETAILS:
            entry.details.append(f"sample {index}: the CPU itself: {story(error)}")
        return
    try:
        call = Call(op, sample, device)
        with _tape(device) as tape:
            result = call(options.backward)
            if trace.random or op.name in UNSPECIFIED:
                result = map_tensors(MetaOnly, result)
            actual = compare.observe(result, device)
            _fetch(result)
        found = _judge(entry, op, expected, actual, trace, options)
        if trace.random and not found:
            found = _same_again(op, sample, device)
        found += _judge_tape(entry, trace, tape, {each.shape for each in _tensors(sample)})
    except Exception as error:
        if is_refusal(error):
            entry.refused += 1
            _say(entry, index, sample, [str(error)])
            return
        found = [f"expected a result, found {story(error)}"]
    if found:
        entry.wrong += 1
        _say(entry, index, sample, found)
    else:
        entry.right += 1


class Call:
    """One call of an operator with inputs of its own on ``device``; calling it gives results, inputs written to,
    gradients.
    """

    def __init__(self, op: OpInfo, sample: Any, device: str) -> None:
        mover = Mover(device)
        self._op = op
        stays = Mover("cpu") if op.name in CPU_ARGUMENTS else mover
        self._args = [mover(sample.input), *(stays(each) for each in sample.args)]
        self._kwargs = {name: mover(each) for name, each in sample.kwargs.items()}

    def __call__(self, backward: bool) -> dict[str, Any]:
        inputs = [tensor for tensor in flatten((self._args, self._kwargs)) if isinstance(tensor, torch.Tensor)]
        versions = [_version(tensor) for tensor in inputs]
        torch.manual_seed(SEED)
        result = self._op(*self._args, **self._kwargs)
        written = [tensor for tensor, version in zip(inputs, versions, strict=True) if _version(tensor) != version]
        return {"result": result, "written": written, "gradients": _gradients(result, inputs) if backward else []}


def _tensors(sample: Any) -> list[torch.Tensor]:
    return [each for each in flatten((sample.input, sample.args)) if isinstance(each, torch.Tensor)]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _gradients(result: Any, inputs: list[torch.Tensor]) -> list[Any]:
    outputs = [each for each in flatten(result) if isinstance(each, torch.Tensor) and each.requires_grad]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    if not outputs or not leaves:
        return []
    weights = [torch.linspace(0.5, 1.5, each.numel()).view(each.shape).to(each.device, each.dtype) for each in outputs]
    return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def _judge(
    entry: Entry,
    op: OpInfo,
    expected: list[compare.Observation],
    actual: list[compare.Observation],
    trace: Trace,
    options: Options,
) -> list[str]:
    rtol, atol = _tolerance(op, getattr(torch, options.dtype))
    found = compare.differences(expected, actual, rtol=rtol, atol=atol, ignore=IGNORED)
    entry.random += trace.random
    if not found and compare.differences(expected, actual, rtol=rtol, atol=atol, ignore=IGNORED - LAYOUT):
        entry.strides += 1
    return found


def _same_again(op: OpInfo, sample: Any, device: str) -> list[str]:
    one = compare.observe(Call(op, sample, device)(False), device)
    two = compare.observe(Call(op, sample, device)(False), device)
    return [f"one seed, two results: {each}" for each in compare.differences(one, two, rtol=0.0, atol=0.0)]


def _judge_tape(entry: Entry, trace: Trace, tape: list[Any] | None, shapes: set[torch.Size]) -> list[str]:
    if tape is None:
        return []
    free = FREE | {"equal"} if len(shapes) > 1 else FREE  # tensors of different shapes are told apart without a look
    expected = {name for name in trace.names if name not in free}
    ran = {bare(each.operator) for each in tape if each.ran and each.worker}
    if not expected:
        entry.free += 1
        return []
    if not ran:
        return [f"the tape shows nothing that ran on a worker; the CPU ran {', '.join(sorted(expected)[:5])}"]
    if not expected & ran:
        named = f"{'+'.join(sorted(expected)[:4])} -> {'+'.join(sorted(ran)[:4])}"
        if named not in entry.renamed:
            entry.renamed.append(named)
    return []


def _tolerance(op: OpInfo, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """The widest tolerance that the database itself grants this entry on the CPU; else ``assert_close``'s defaults."""
    found: tuple[float | None, float | None] = (None, None)
    for decorator in op.decorators or ():
        if not isinstance(decorator, DecorateInfo) or decorator.device_type not in (None, "cpu"):
            continue
        for each in decorator.decorators:
            if isinstance(each, toleranceOverride) and dtype in each.d:
                rtol, atol = each.d[dtype].rtol, each.d[dtype].atol
                found = (max(rtol, found[0] or 0.0), max(atol, found[1] or 0.0))
    return found


def _fetch(result: Any) -> None:
    for each in flatten(result):
        tensor = each.tensor if isinstance(each, MetaOnly) else each
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_meta:
            tensor.detach().cpu()


@contextlib.contextmanager
def _tape(device: str) -> Iterator[list[Any] | None]:
    """GT's tape of what runs inside; None on the CPU, which has none."""
    if device == "cpu":
        yield None
        return
    import gt

    kept: list[Any] = []
    with gt.debug.tape() as tape:
        yield kept
        gt.synchronize()
    kept.extend(tape)


def _say(entry: Entry, index: int, sample: Any, found: list[str]) -> None:
    if len(entry.details) < MAX_DETAILS:
        shapes = Counter(str(tuple(tensor.shape)) for tensor in _tensors(sample))
        named = ", ".join(f"{key}={value!r}"[:60] for key, value in sample.kwargs.items())
        entry.details.append(f"sample {index} ({' '.join(shapes)}; {named}): {'; '.join(found)[:700]}")
