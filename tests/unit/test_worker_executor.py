"""The native executor, driven with words: every kind of argument, failures, poison, the ledger, random numbers, flags,
stalls."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gt_runtime.protocol.words import NumericFlag, Order, order
from gt_runtime.worker._native import Executor
from tests.worker_tools import (
    DYNAMIC,
    FLAGS,
    RANDOM,
    base,
    data,
    definition,
    flags,
    float_word,
    free,
    meta,
    signal,
    tensor,
    words,
)

T = ["t"]


class Harness:
    """One session ``s`` on one executor: values go in as tensors and come out as tensors."""

    def __init__(self, cap: int = 0, limit: int = 0) -> None:
        self.executor = Executor("w0", "cpu", limit)
        self.executor.open("s", cap)
        self.next = 1
        self.templates = 0

    def put(self, value: torch.Tensor) -> int:
        number, self.next = self.next, self.next + 1
        assert self.executor.put("s", number, meta(value), data(value)) is None
        return number

    def define(self, *arguments: Any, **more: Any) -> int:
        self.templates += 1
        self.executor.define("s", [definition(self.templates, *arguments, **more)])
        return self.templates

    def run(self, numbers: list[int], outputs: int = 1, verdict: bool = True) -> int:
        """Run words to their end; the first output's id."""
        first = self.next
        position, self.next, waits = self.executor.run("s", words(*numbers), 0, first, verdict)
        assert (position, waits) == (len(numbers), -1)
        assert self.next == first + outputs
        return first

    def call(
        self,
        operator: str,
        arguments: list[Any],
        inputs: list[torch.Tensor],
        literals: list[int] | None = None,
        **more: Any,
    ) -> Any:
        """Define, upload, run; the results."""
        template = self.define(operator, arguments, inputs, **more)
        outputs = len(more["outputs"]) if more.get("outputs") is not None else 1
        first = self.run([template, *(self.put(t) for t in inputs), *(literals or [])], outputs)
        failure, metas = self.executor.verdict("s")
        assert failure is None, failure
        results = [self.get(first + i) for i in range(outputs)]
        assert metas is not None and [m[1] for m in metas] == [list(r.shape) for r in results]
        return results[0] if outputs == 1 else results

    def get(self, number: int) -> torch.Tensor:
        failure, found, contents = self.executor.read("s", number)
        assert failure is None, failure
        assert found is not None
        return tensor(found, contents)

    def failure(self, number: int) -> list[Any]:
        failure, _, _ = self.executor.read("s", number)
        assert failure is not None
        return failure


@pytest.fixture
def harness() -> Iterator[Harness]:
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield Harness()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)


def metas(*tensors: torch.Tensor) -> list[Any]:
    return [meta(t) for t in tensors]


X = torch.arange(12, dtype=torch.float32).reshape(3, 4)

ONE, PLACES = torch.tensor(1.0), torch.tensor([1, 3])
interpolate = torch.nn.functional.interpolate

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    # name: operator, overload, arguments, inputs, literals, what it is in plain PyTorch
    "tensors, literal int": ("add", "Tensor", [T, T, 2], [X, X], [], lambda: X + 2 * X),
    "travelling float": ("add", "Tensor", [T, T, ["f"]], [X, X], [float_word(0.5)], lambda: X + 0.5 * X),
    "travelling int as Scalar": ("add", "Scalar", [T, ["i"]], [X], [7], lambda: X + 7),
    "bool as Scalar": ("mul", "Scalar", [T, True], [X], [], lambda: X * True),
    "complex": ("mul", "Scalar", [T, ["z"]], [X], [float_word(1), float_word(-2)], lambda: X * (1 - 2j)),
    "wrapped number": ("mul", "Tensor", [T, ["c", 7, True]], [X], [float_word(0.1)], lambda: X * 0.1),
    "scalar tensor": ("mul", "Tensor", [T, ["c", 7, False]], [X], [float_word(3)], lambda: X * torch.tensor(3.0)),
    "int scalar tensor": ("add", "Tensor", [T, ["c", 4, True], 1], [X], [-5], lambda: X + -5),
    "bool scalar tensor": ("logical_and", "", [T, ["c", 11, False]], [X], [1], lambda: X.bool()),
    "complex scalar tensor": (
        "mul",
        "Tensor",
        [T, ["c", 9, False]],
        [X],
        [float_word(0), float_word(1)],
        lambda: X * 1j,
    ),
    "int list": ("sum", "dim_IntList", [T, ["l", 0], True, None], [X], [], lambda: X.sum(0, keepdim=True)),
    "int for a fixed list": ("roll", "", [T, 1, ["l", 0]], [X], [], lambda: X.roll(1, 0)),
    "travelling ints in a list": ("view_copy", "", [T, ["l", ["i"], 2]], [X], [6], lambda: X.view(6, 2)),
    "sizes": ("view_copy", "", [T, ["l", 2, 6]], [X], [], lambda: X.view(2, 6)),
    "dtype": ("_to_copy", "", [T, 7, None, None, None, False, None], [X], [], lambda: X.double()),
    "device, layout, dtype": ("zeros", "", [["l", 2, 2], 6, 0, ["d"], None], [], [], lambda: torch.zeros(2, 2)),
    "memory format": ("clone", "", [T, 2], [X[None, None]], [], lambda: X[None, None]),
    "string": (
        "div",
        "Tensor_mode",
        [T, T, "floor"],
        [X, X + 1],
        [],
        lambda: torch.div(X, X + 1, rounding_mode="floor"),
    ),
    "tensor list": ("cat", "", [["l", T, T], 1], [X, X], [], lambda: torch.cat([X, X], 1)),
    "scalar tensor in a list": (
        "stack",
        "",
        [["l", T, ["c", 6, False]]],
        [ONE],
        [float_word(2)],
        lambda: torch.tensor([1.0, 2.0]),
    ),
    "maybe tensors": ("index", "Tensor", [T, ["l", None, T]], [X, PLACES], [], lambda: X[:, [1, 3]]),
    "no tensor": ("clamp", "Tensor", [T, None, T], [X, X / 2], [], lambda: torch.clamp(X, max=X / 2)),
    "floats": (
        "_histogramdd_from_bin_cts",
        "",
        [T, ["l", 4], ["l", 0.0, 8.0], None, False],
        [X.reshape(12, 1)],
        [],
        lambda: torch.histogramdd(X.reshape(12, 1), [4], range=[0.0, 8.0]).hist,
    ),
    "travelling floats in a list": (
        "_histogramdd_from_bin_cts",
        "",
        [T, ["l", 4], ["l", ["f"], ["f"]], None, False],
        [X.reshape(12, 1)],
        [float_word(0.0), float_word(8.0)],
        lambda: torch.histogramdd(X.reshape(12, 1), [4], range=[0.0, 8.0]).hist,
    ),
    "defaults are filled in": ("cumsum", "", [T, 1], [X], [], lambda: X.cumsum(1)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(harness: Harness, name: str) -> None:
    operator, overload, arguments, inputs, literals, plain = ARGUMENTS[name]
    found, expected = harness.call(operator, arguments, inputs, literals, overload=overload), plain()
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_bool_list_and_undefined_results_take_ids(harness: Harness) -> None:
    x, w = torch.randn(1, 1, 4), torch.randn(1, 1, 2)
    grad = torch.ones(1, 1, 3)
    pair = ["l", 0]
    arguments = [T, T, T, None, ["l", 1], pair, ["l", 1], False, pair, 1, ["l", True, False, False]]
    template = harness.define("convolution_backward", arguments, [grad, x, w], [meta(x), None, None])
    first = harness.run([template, harness.put(grad), harness.put(x), harness.put(w)], 3)
    failure, found = harness.executor.verdict("s")
    assert failure is None and found is not None and found[1:] == [None, None] and found[0][1] == [1, 1, 4]
    assert [harness.executor.state("s", first + i) for i in range(3)] == ["ready", "unknown", "unknown"]


def test_lists_of_results(harness: Harness) -> None:
    parts = X.split(2, 1)
    found = harness.call("split_copy", [T, 2, 1], [X], overload="Tensor", outputs=metas(*parts))
    assert all(torch.equal(a, b) for a, b in zip(found, parts, strict=True))


def test_foreach_with_scalars(harness: Harness) -> None:
    values = [["l", T, T], ["l", ["f"], ["i"]]]
    found = harness.call(
        "_foreach_mul", values, [X, X], [float_word(0.5), 3], overload="ScalarList", outputs=metas(X, X)
    )
    assert torch.equal(found[0], X * 0.5) and torch.equal(found[1], X * 3)


def test_a_new_literal_makes_a_new_scalar_tensor(harness: Harness) -> None:
    template = harness.define("mul", [T, ["c", 7, True]], [X], overload="Tensor")
    x = harness.put(X)
    first = harness.run([template, x, float_word(2), template, x, float_word(2), template, x, float_word(3)], 3)
    assert [harness.get(first + i)[0, 1].item() for i in range(3)] == [2, 2, 3]


# -- views ------------------------------------------------------------------------------------------------------------


def test_views_alias_and_weigh_nothing(harness: Harness) -> None:
    x = harness.put(X)
    before = harness.executor.stats()["value_bytes"]
    for operator, arguments in {
        "t_copy": [T],
        "view_copy": [T, ["l", 12]],
        "detach_copy": [T],
        "alias_copy": [T],
    }.items():
        harness.run([harness.define(operator, arguments, [X], metas(X)), x])
    assert harness.executor.stats()["value_bytes"] == before == X.nbytes
    assert torch.equal(harness.get(x + 1), X.t())


def test_a_view_that_strides_forbid_is_a_copy(harness: Harness) -> None:
    x = harness.put(X)
    transposed = harness.run([harness.define("t_copy", [T], [X]), x])
    template = harness.define("view_copy", [T, ["l", 12]], [X.t()])
    for _ in range(2):  # the second call doesn't try the view again
        assert torch.equal(harness.get(harness.run([template, transposed])), X.t().reshape(12))


def test_a_wrong_view_says_what_torch_says(harness: Harness) -> None:
    with pytest.raises(RuntimeError) as plain:
        X.view(5)
    first = harness.run([harness.define("view_copy", [T, ["l", 5]], [X]), harness.put(X)])
    assert harness.failure(first)[1:3] == ["RuntimeError", str(plain.value)]


@pytest.mark.parametrize("operator", ["as_strided_copy", "_reshape_alias_copy"])
def test_strides_count_as_the_client_sees_them(harness: Harness, operator: str) -> None:
    """The client believes its value contiguous; here it is a transposed view."""
    x = harness.put(X)
    transposed = harness.run([harness.define("t_copy", [T], [X]), x])
    arguments = [T, ["l", 6], ["l", 2]]
    first = harness.run([harness.define(operator, arguments, [X.t().contiguous()]), transposed])
    assert torch.equal(harness.get(first), X.t().contiguous().as_strided((6,), (2,)))


def test_as_strided_aliases_where_the_layout_is_the_clients(harness: Harness) -> None:
    first = harness.run([harness.define("as_strided_copy", [T, ["l", 3], ["l", 4], 1], [X]), harness.put(X)])
    assert torch.equal(harness.get(first), X[:, 1])
    assert harness.executor.stats()["value_bytes"] == X.nbytes


@pytest.mark.parametrize("operator", ["as_strided_copy", "_reshape_alias_copy", "_reshape_alias", "as_strided"])
def test_nothing_beyond_a_storage_is_read(harness: Harness, operator: str) -> None:
    first = harness.run([harness.define(operator, [T, ["l", 1000], ["l", 100]], [X]), harness.put(X)])
    assert "out of bounds" in harness.failure(first)[2]


def test_conjugate_bits_are_resolved(harness: Harness) -> None:
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(harness.call("_conj_copy", [T], [z]), z.conj().resolve_conj())
    assert torch.equal(harness.call("_conj", [T], [z]), z.conj().resolve_conj())


# -- uploads and fetches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 1).expand(3, 4),
        torch.arange(10.0).as_strided((4, 3), (2, 1)),
        torch.randn(10)[::3],
        torch.randn(0, 3),
        torch.tensor(3.5),
        torch.tensor([True, False]),
        torch.randn(4).bfloat16(),
        torch.randn(4, dtype=torch.complex128),
        torch.tensor([-3, 5], dtype=torch.int16),
    ],
    ids=[
        "transposed",
        "channels last",
        "expanded",
        "overlapping",
        "gaps",
        "empty",
        "0-dim",
        "bool",
        "bfloat16",
        "complex",
        "int16",
    ],
)
def test_layouts_travel(harness: Harness, value: torch.Tensor) -> None:
    number = harness.put(value)
    failure, found, contents = harness.executor.read("s", number)
    assert failure is None and found is not None
    assert found[:3] == meta(value)[:3]
    assert torch.equal(tensor(found, contents), value)


BLANK: dict[str, tuple[Any, ...]] = {
    # name: operator, overload, arguments, inputs, output
    "empty": ("empty", "memory_format", [["l", 64, 64], 6, None, ["d"], None, None], [], torch.zeros(64, 64)),
    "empty_strided": ("empty_strided", "", [["l", 64, 64], ["l", 1, 64], 6, None, ["d"]], [], torch.zeros(64, 64).t()),
    "empty_like": ("empty_like", "", [T], [torch.ones(64, 64)], torch.zeros(64, 64)),
    "new_empty": ("new_empty", "", [T, ["l", 64, 64]], [torch.ones(2)], torch.zeros(64, 64)),
    "resize": ("resize", "", [T, ["l", 64, 64]], [torch.ones(2)], torch.tensor([1.0] * 2 + [0.0] * 4094).view(64, 64)),
}


@pytest.mark.parametrize("name", BLANK)
def test_new_memory_shows_nothing_of_others(harness: Harness, name: str) -> None:
    """PyTorch's empty is memory as it was found: here that could be another program's."""
    operator, overload, arguments, inputs, expected = BLANK[name]
    for _ in range(20):
        left = [torch.full((64, 64), 7.0) for _ in range(8)]
        del left
        found = harness.call(operator, arguments, inputs, overload=overload, outputs=[meta(expected)])
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("wrong", "nbytes"),
    [
        ([6, [2, 2], [2, 1], 0], 15),
        ([6, [2, 2], [2], 0], 16),
        ([6, [-2], [1], 0], 16),
        ([6, [2], [-1], 0], 8),
        ([6, [1 << 40, 1 << 40], [1, 1], 0], 8),
        ([6, [2], [1 << 60], 0], 8),
        ([99, [2], [1], 0], 8),
        ([13, [2], [1], 0], 2),
        (["x", [2], [1], 0], 8),
        ([6, "ab", [1], 0], 8),
        ([6, [2], [1]], 8),
        (None, 8),
        ([6, [1] * 65, [1] * 65, 0], 4),
    ],
)
def test_uploads_that_make_no_sense(harness: Harness, wrong: Any, nbytes: int) -> None:
    failure = harness.executor.put("s", 1, wrong, bytes(nbytes))
    assert failure is not None and failure[0] == "protocol"
    assert harness.executor.state("s", 1) == "poison"


def test_an_unknown_value_is_said_by_its_number(harness: Harness) -> None:
    assert "no value 17" in harness.failure(17)[2]


# -- failures ---------------------------------------------------------------------------------------------------------

S = torch.zeros(3, 3)
FAILURES: dict[str, tuple[Any, ...]] = {
    "RuntimeError": ("mm", "", [T, T], [X, X], lambda: X.mm(X)),
    "IndexError": ("select_copy", "int", [T, 0, 7], [X], lambda: torch.select_copy(X, 0, 7)),
    "LinAlgError": ("linalg_inv_ex", "", [T, True], [S], lambda: torch.linalg.inv_ex(S, check_errors=True)),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_pytorchs_own(harness: Harness, name: str) -> None:
    operator, overload, arguments, inputs, plain = FAILURES[name]
    with pytest.raises((RuntimeError, IndexError)) as raised:
        plain()
    names = [*signal(3)]
    harness.executor.signals("s", [[3, "layer1"]])
    outputs = metas(S, torch.zeros((), dtype=torch.int32)) if operator == "linalg_inv_ex" else None
    template = harness.define(operator, arguments, inputs, outputs, overload=overload)
    count = 2 if outputs else 1
    first = harness.run([*names, template | 5 << 32, *(harness.put(t) for t in inputs)], count)
    failure = harness.failure(first)
    assert type(raised.value).__name__ in (name, f"_{name}") and failure[1] == name
    assert failure[2] == str(raised.value)
    assert (
        failure[0] == "operator" and failure[3].startswith(f"aten::{operator}.") and failure[5:] == ["w0", 5, "layer1"]
    )
    assert failure[4] == " x ".join(f"float32{list(t.shape)}" for t in inputs)


def test_a_failure_flows_along_uses_and_nowhere_else(harness: Harness) -> None:
    x, wrong = harness.put(X), harness.define("mm", [T, T], [X, X])
    add = harness.define("add", [T, T], [X, X], overload="Tensor")
    bad = harness.run([wrong, x, x, add, x, harness.next, add, x, x], 3)
    assert harness.failure(bad) == harness.failure(bad + 1)
    assert harness.failure(bad + 1)[3] == "aten::mm.default"
    assert torch.equal(harness.get(bad + 2), X + X)


def test_the_verdict_is_the_failure(harness: Harness) -> None:
    x = harness.put(X)
    bad = harness.run([harness.define("mm", [T, T], [X, X]), x, x])
    failure, found = harness.executor.verdict("s")
    assert found is None and failure == harness.failure(bad)
    harness.run([harness.define("neg", [T], [X]), bad])
    assert harness.executor.verdict("s")[0] == failure  # poisoned inputs count too


def test_sync_tells_each_failure_once_and_not_what_was_told(harness: Harness) -> None:
    x, template = harness.put(X), harness.define("mm", [T, T], [X, X])
    first = harness.run([template, x, x, template, x, x, template, x, x], 3, verdict=False)
    told = harness.failure(first)
    second, third = harness.executor.unreported("s"), harness.executor.unreported("s")
    assert second is not None and third is not None and told[3] == second[3]
    assert harness.executor.unreported("s") is None


REFUSED: dict[str, tuple[Any, ...]] = {
    "files": ("from_file", "", ["/etc/passwd", False, 4, 0, None, None, None], []),
    "in place": ("add_", "Tensor", [T, T], [X, X]),
    "out": ("add", "out", [T, T, 1, T], [X, X, X]),
    "storage": ("set_", "source_Tensor", [T, T], [X, X]),
    "secretly in place": ("_copy_from", "", [T, T, False], [X, X]),
    "no tensor": ("equal", "", [T, T], [X, X]),
    "no result": ("_cufft_clear_plan_cache", "", ["cuda"], []),
    "unknown": ("no_such_operator", "", [T], [X]),
    "unknown overload": ("add", "Nothing", [T], [X]),
    "other namespace": ("prims::neg", "", [T], [X]),
    "stream": ("record_stream", "", [T, 1], [X]),
    "wrong type": ("neg", "", ["text"], []),
    "too many": ("neg", "", [T, T], [X, X]),
    "too few": ("mm", "", [T], [X]),
    "bad dtype": ("_to_copy", "", [T, 77], [X]),
    "quantised dtype": ("_to_copy", "", [T, 13], [X]),
    "sparse layout": ("_to_copy", "", [T, None, 1], [X]),
    "bad memory format": ("clone", "", [T, 99], [X]),
    "a device by name": ("zeros", "", [["l", 2], 6, 0, "meta", None], []),
    "list for a tensor": ("neg", "", [["l", T]], [X]),
    "tensor for a number": ("add", "Scalar", [T, T], [X, X]),
    "dict": ("neg", "", [{}], []),
    "sparse result": ("to_sparse", "", [T], [X]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(harness: Harness, name: str) -> None:
    operator, overload, arguments, inputs = REFUSED[name]
    x = [harness.put(t) for t in inputs]
    template = harness.define(operator, arguments, inputs, metas(X), overload=overload)
    add = harness.define("add", [T, T], [X, X], overload="Tensor")
    ok = harness.put(X)
    first = harness.run([template, *x, add, ok, ok], 2)
    assert harness.failure(first)[1] in ("NotImplementedError", "TypeError", "RuntimeError")
    assert torch.equal(harness.get(first + 1), X + X), "the rest of the batch runs"


def test_values_never_change(harness: Harness) -> None:
    """native_batch_norm writes running statistics that its schema doesn't mark."""
    x, mean, var = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    arguments = [T, None, None, T, T, True, 0.5, 1e-5]
    inputs = [harness.put(t) for t in (x, mean, var)]
    template = harness.define("native_batch_norm", arguments, [x, mean, var], metas(x, mean, var))
    first = harness.run([template, *inputs], 3)
    torch.testing.assert_close(harness.get(first), torch.nn.functional.batch_norm(x, None, None, training=True))
    assert torch.equal(harness.get(inputs[1]), mean) and torch.equal(harness.get(inputs[2]), var)


def test_a_wrong_number_of_results(harness: Harness) -> None:
    first = harness.run([harness.define("unbind_copy", [T], [X], metas(X[0], X[0]), overload="int"), harness.put(X)], 2)
    assert "gave 3 tensors where 2 were expected" in harness.failure(first)[2] == harness.failure(first + 1)[2]


# -- the ledger -------------------------------------------------------------------------------------------------------


def figures(harness: Harness) -> tuple[int, int]:
    stats = harness.executor.stats()
    assert stats["sessions"]["s"][:2] == (stats["values"], stats["value_bytes"])
    return stats["values"], stats["value_bytes"]


def test_a_storage_counts_once_until_its_last_value_goes(harness: Harness) -> None:
    x = harness.put(X)
    view = harness.run([harness.define("slice_copy", [T, 0, 0, 1], [X], overload="Tensor"), x])
    assert figures(harness) == (2, X.nbytes)
    harness.run(free(x), 0)
    assert figures(harness) == (1, X.nbytes)
    harness.run(free(view, view, 999), 0)
    assert figures(harness) == (0, 0)


def test_dead_inputs_are_freed_inside_a_batch(harness: Harness) -> None:
    add = harness.define("add", [T, T], [X, X], overload="Tensor")
    x = harness.put(X)
    numbers, last = [], x
    for i in range(100):
        numbers += [add, last, x, *(free(last) if last != x else [])]
        last = harness.next + i
    harness.run(numbers, 100)
    assert figures(harness) == (2, 2 * X.nbytes)
    assert torch.equal(harness.get(last), X * 101)


def test_lent_values_count_until_released(harness: Harness) -> None:
    x = harness.put(X)
    failure, found, lent, token = harness.executor.lend("s", x)
    assert failure is None and found == meta(X) and lent is not None and lent.dtype == torch.uint8
    harness.executor.free("s", [x])
    assert figures(harness) == (0, X.nbytes)
    harness.executor.release(token)
    assert figures(harness) == (0, 0)
    harness.executor.release(token)  # once is enough


def test_lent_values_keep_strides_where_dense(harness: Harness) -> None:
    value = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    _, found, lent, _ = harness.executor.lend("s", harness.put(value))
    assert found == meta(value)
    harness.executor.expect("s", 500)
    assert harness.executor.settle("s", 500, found, lent.clone()) is None
    assert torch.equal(harness.get(500), value)
    expanded = torch.randn(3, 1).expand(3, 4)
    _, found, lent, _ = harness.executor.lend("s", harness.put(expanded))
    assert found == meta(expanded.contiguous())


def test_closing_frees_everything(harness: Harness) -> None:
    harness.put(X)
    harness.executor.lend("s", 1)
    harness.executor.close("s")
    harness.executor.release(1)
    assert harness.executor.stats() == {"instructions": 0, "values": 0, "value_bytes": 0, "sessions": {}}


def test_the_sessions_cap(harness: Harness) -> None:
    big = torch.zeros(256, 1024)  # 1 MiB
    harness.executor.open("s", 3 << 20)
    harness.executor.open("other", 0)
    harness.executor.put("other", 1, meta(X), data(X))
    x = harness.put(big)
    add = harness.define("add", [T, T], [big, big], metas(big), overload="Tensor")
    first = harness.run([add, x, x, add, x, x, add, x, x], 3)
    failure = harness.failure(first + 2)
    assert failure[:2] == ["memory", "OutOfMemoryError"]
    assert failure[2] == (
        "session s asked for 1.0 MiB (aten::add.Tensor of float32[256, 1024] x float32[256, 1024]); "
        "it holds 3.0 MiB of its 3.0 MiB cap; others hold: other 48 B"
    )
    assert harness.get(first + 1).shape == big.shape
    fourth = harness.executor.put("s", 900, meta(big), data(big))
    assert fourth is not None and "an upload of float32[256, 1024]" in fourth[2]
    harness.run(free(first), 0)
    assert harness.executor.put("s", 901, meta(big), data(big)) is None


def test_the_cap_holds_for_sizes_that_only_the_run_knows(harness: Harness) -> None:
    harness.executor.open("s", 2 << 20)
    mask = torch.ones(1 << 18, dtype=torch.bool)
    first = harness.run([harness.define("nonzero", [T], [mask], [None], flags=DYNAMIC), harness.put(mask)])
    assert harness.failure(first)[0] == "memory"
    assert figures(harness) == (2, mask.nbytes)


def test_the_workers_limit() -> None:
    harness = Harness(limit=1 << 20)
    big = torch.zeros(256, 512)
    first = harness.run(
        [harness.define("add", [T, T], [big, big], metas(big), overload="Tensor"), *[harness.put(big)] * 2]
    )
    assert harness.get(first).shape == big.shape
    second = harness.executor.put("s", 900, meta(big), data(big))
    assert (
        second is not None
        and "worker w0 has 1.0 MiB of its 1.0 MiB in use; nobody else holds anything here" in second[2]
    )


def test_memory_that_nobody_foretold(harness: Harness) -> None:
    """The client doesn't say what comes out: the allocator refuses before the host pays."""
    harness.executor.open("s", 1 << 20)
    x = harness.put(X)
    repeat = harness.define("repeat", [T, ["l", 1 << 30, 100]], [X])
    failure = harness.failure(harness.run([repeat, x]))
    assert failure[:2] == ["memory", "OutOfMemoryError"] and failure[3] == "aten::repeat.default"
    assert "asked for 4.7 TiB (aten::repeat.default of float32[3, 4]); it holds 48 B of its 1.0 MiB cap" in failure[2]
    small = harness.define("repeat", [T, ["l", 2, 1]], [X])
    assert torch.equal(harness.get(harness.run([small, x])), X.repeat(2, 1))
    torch.empty(1 << 20)  # outside of instructions nothing is bounded


def test_the_first_run_teaches_number_and_bytes(harness: Harness) -> None:
    harness.executor.open("s", 4 * X.nbytes)
    x = harness.put(X)
    template = harness.define("_foreach_mul", [["l", T, T], ["f"]], [X, X], overload="Scalar")
    first = harness.run([template, x, x, float_word(2)], 2)
    assert torch.equal(harness.get(first + 1), X * 2)
    failed = harness.run([template, x, x, float_word(2)], 2)
    assert f"asked for {2 * X.nbytes} B" in harness.failure(failed)[2], "both results, before it runs"
    harness.run(free(first, first + 1), 0)
    assert torch.equal(harness.get(harness.run([template, x, x, float_word(3)], 2)), X * 3)


def test_an_allocation_that_fails(harness: Harness) -> None:
    huge = [6, [1 << 50], [1], 0]
    first = harness.run([harness.define("zeros", [["l", 1 << 50], 6, 0, ["d"], None], [], [None])])
    assert harness.failure(first)[:2] == ["memory", "OutOfMemoryError"]
    first = harness.run([harness.define("zeros", [["l", 1 << 50], 6, 0, ["d"], None], [], [huge])])
    assert harness.failure(first)[:2] == ["memory", "OutOfMemoryError"]


# -- random numbers, flags, orders ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operator", "generator"), [("rand", []), ("rand", [["g"]]), ("randn", [])])
def test_one_seed_and_offset_give_one_result(harness: Harness, operator: str, generator: list[Any]) -> None:
    overload = "generator" if generator else ""
    template = harness.define(
        operator,
        [["l", 50], *generator, 6, 0, ["d"], None],
        [],
        metas(torch.zeros(50)),
        overload=overload,
        flags=RANDOM,
    )
    first = harness.run([template, 1, 0, template, 1, 1, template, 2, 0, template, 1, 0], 4)
    a, b, c, again = (harness.get(first + i) for i in range(4))
    assert torch.equal(a, again)
    assert not torch.equal(a, b) and not torch.equal(a, c) and not torch.equal(b, c)


def test_dropout_draws_from_the_instructions_seed(harness: Harness) -> None:
    x = torch.ones(1000)
    template = harness.define("native_dropout", [T, 0.5, True], [x], metas(x, x.bool()), flags=RANDOM)
    number = harness.put(x)
    torch.manual_seed(1)
    first = harness.run([template, number, 7, 8], 2)
    torch.manual_seed(2)
    second = harness.run([template, number, 7, 8], 2)
    assert torch.equal(harness.get(first), harness.get(second))
    assert 400 < harness.get(first + 1).sum() < 600


def test_flags_hold_for_what_follows(harness: Harness) -> None:
    template = harness.define("full", [["l", 1], ["f"], None, 0, ["d"], None], [])
    numbers = [*flags(7), template, float_word(1), *flags(6), template, float_word(1)]
    first = harness.run(numbers, 2)
    assert [harness.get(first + i).dtype for i in range(2)] == [torch.float64, torch.float32]
    F = NumericFlag
    harness.run(flags(FLAGS | F.DETERMINISTIC | F.DETERMINISTIC_WARN_ONLY | F.MATMUL_HIGH), 0)
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
    harness.run(flags(6), 0)
    assert not torch.are_deterministic_algorithms_enabled() and torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32


def test_sessions_have_their_own_flags(harness: Harness) -> None:
    harness.executor.open("other", 0)
    full = definition(1, "full", [["l", 1], ["f"], None, 0, ["d"], None], [])
    for session in ("s", "other"):
        harness.executor.define(session, [full])
    harness.executor.run("other", words(*flags(7)), 0, 1, False)
    harness.executor.run("s", words(*flags(6), 1, float_word(1)), 0, 1, False)
    harness.executor.run("other", words(1, float_word(1)), 0, 1, False)
    _, found, _ = harness.executor.read("other", 1)
    assert found is not None and found[0] == 7


def test_a_base_order_moves_the_ids(harness: Harness) -> None:
    x, neg = harness.put(X), harness.define("neg", [T], [X])
    position, following, _ = harness.executor.run("s", words(neg, x, *base(50), neg, x), 0, 10, False)
    assert (position, following) == (6, 51)
    assert torch.equal(harness.get(10), harness.get(50))


def test_the_trace(harness: Harness) -> None:
    x, neg, wrong = harness.put(X), harness.define("neg", [T], [X]), harness.define("mm", [T, T], [X, X])
    first = harness.run([neg, x, *flags(FLAGS | NumericFlag.TRACE), neg, x, wrong, x, x], 3)
    trace = memoryview(harness.executor.trace("s")).cast("q").tolist()
    assert trace == [neg, first + 1, 1, wrong, first + 2, 0]
    assert harness.executor.trace("s") == b""
    assert harness.executor.instructions("s") == 3


# -- values under way -------------------------------------------------------------------------------------------------


def test_a_run_waits_for_a_value_under_way_and_goes_on(harness: Harness) -> None:
    x = harness.put(X)
    harness.executor.expect("s", 40)
    neg, add = harness.define("neg", [T], [X]), harness.define("add", [T, T], [X, X], overload="Tensor")
    batch = words(neg, x, add, x, 40, neg, 40)
    state = harness.executor.run("s", batch, 0, 50, True)
    assert state == (2, 51, 40)
    assert harness.executor.run("s", batch, 2, 51, True) == (2, 51, 40)
    harness.executor.settle("s", 40, meta(X), X.reshape(-1).view(torch.uint8).clone())
    assert harness.executor.run("s", batch, 2, 51, True) == (7, 53, -1)
    assert torch.equal(harness.get(51), X + X) and torch.equal(harness.get(52), -X)
    assert harness.executor.verdict("s")[0] is None
    assert harness.executor.instructions("s") == 3


def test_a_value_under_way_can_fail_or_be_freed(harness: Harness) -> None:
    harness.executor.expect("s", 40)
    harness.executor.poison("s", [40], ["lost", "RuntimeError", "gone", "", "", "w1", 0, ""])
    first = harness.run([harness.define("neg", [T], [X]), 40])
    assert harness.failure(first)[:3] == ["lost", "RuntimeError", "gone"]
    harness.executor.expect("s", 41)
    harness.run(free(41), 0)
    harness.executor.settle("s", 41, meta(X), X.reshape(-1).view(torch.uint8).clone())
    assert harness.executor.state("s", 41) == "unknown"


# -- what a client must not be able to do -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "numbers",
    [
        [77],
        [1],
        [1 | 9 << 32],
        [order(Order.FREE, 5), 1],
        [order(Order.BASE, 1)],
        [order(Order.BASE, 2), 1, 2],
        [order(Order.BASE, 1), -4],
        [~(9 | 1 << 8), 0],
        [-1],
        [-(1 << 63)],
        [(1 << 63) - 1],
    ],
)
def test_words_that_make_no_sense_break_their_session_alone(harness: Harness, numbers: list[int]) -> None:
    x, _ = harness.put(X), harness.define("neg", [T], [X])
    position, _, waits = harness.executor.run("s", words(*numbers), 0, 50, True)
    assert (position, waits) == (len(numbers), -1)
    failure, _ = harness.executor.verdict("s")
    assert failure is not None and failure[0] == "protocol"
    assert harness.failure(50) == failure, "what the rest would have made"
    assert torch.equal(harness.get(x), X), "what was there"
    harness.executor.open("t", 0)
    assert harness.executor.put("t", 1, meta(X), data(X)) is None


@pytest.mark.parametrize("unknown", [9999, -5, 1 << 62])
def test_an_unknown_input_fails_its_instruction(harness: Harness, unknown: int) -> None:
    x, neg = harness.put(X), harness.define("neg", [T], [X])
    first = harness.run([neg, unknown, neg, x], 2)
    assert f"no value {unknown}" in harness.failure(first)[2]
    assert torch.equal(harness.get(first + 1), -X)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "text",
        [1],
        [-1, "aten::neg", "", [["t"]], [meta(X)], None, 0],
        [1 << 20, "aten::neg", "", [["t"]], [meta(X)], None, 0],
        [1 << 63, "aten::neg", "", [["t"]], [meta(X)], None, 0],
        [1, 5, "", [["t"]], [meta(X)], None, 0],
        [1, "aten::neg", "", [["x"]], [meta(X)], None, 0],
        [1, "aten::neg", "", [[]], [meta(X)], None, 0],
        [1, "aten::neg", "", [["t"]], [], None, 0],
        [1, "aten::neg", "", [["t"]], [[6, [1 << 60, 1 << 60], [1, 1], 0]], None, 0],
        [1, "aten::neg", "", [["c", 99, True]], [], None, 0],
        [1, "aten::neg", "", [["c"]], [], None, 0],
        [1, "aten::neg", "", [["l", ["l", ["l", ["l", ["l", ["l", ["t"]]]]]]]], [meta(X)], None, 0],
        [1, "aten::neg", "", [["t"]], [meta(X)], 5, 0],
        [1, "aten::neg", "", [["t"]], [meta(X)], [5], 0],
        [1, "aten::neg", "", [["t"]], [meta(X)], None, "x"],
    ],
)
def test_definitions_that_make_no_sense(harness: Harness, wrong: Any) -> None:
    harness.executor.define("s", [wrong])
    failure = harness.executor.unreported("s")
    assert failure is not None and failure[0] == "protocol" and "a definition makes no sense" in failure[2]


def test_signals_that_make_no_sense(harness: Harness) -> None:
    for wrong in ([1], "x", [1, 2], [True, "a"], [1 << 63, "a"]):
        harness.executor.signals("s", [wrong])
        assert harness.executor.unreported("s")[0] == "protocol"


def test_bytes_that_are_no_words(harness: Harness) -> None:
    assert harness.executor.run("s", b"123", 0, 1, False)[2] == -1
    assert harness.executor.unreported("s")[0] == "protocol"


def test_a_crooked_buffer_is_read_all_the_same(harness: Harness) -> None:
    x, neg = harness.put(X), harness.define("neg", [T], [X])
    crooked = memoryview(b"\0" * 3 + words(neg, x))[3:]
    assert harness.executor.run("s", crooked, 0, 50, False) == (2, 51, -1)
    assert torch.equal(harness.get(50), -X)


def test_a_session_that_is_not_open(harness: Harness) -> None:
    with pytest.raises(KeyError, match="no session nobody"):
        harness.executor.run("nobody", b"", 0, 1, False)


WORD = st.one_of(
    st.integers(0, 12),
    st.builds(lambda code, count: order(Order(code), count), st.integers(1, 4), st.integers(0, 4)),
    st.builds(lambda code, count: ~(code | count << 8), st.integers(0, 255), st.integers(0, 1 << 40)),
    st.builds(lambda t, site: t | site << 32, st.integers(0, 8), st.integers(0, (1 << 31) - 1)),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.just(float_word(math.nan)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORD, max_size=40), st.integers(0, (1 << 63) - 1), st.booleans())
def test_random_words_never_crash(numbers: list[int], first: int, verdict: bool) -> None:
    harness = Harness(cap=1 << 20)
    harness.put(X)
    harness.define("neg", [T], [X])
    harness.define("add", [T, T, ["f"]], [X, X], metas(X), overload="Tensor")
    harness.define("split_copy", [T, ["i"], 1], [X], metas(X[:, :2], X[:, 2:]), overload="Tensor")
    harness.define("rand", [["l", 3], 6, 0, ["d"], None], [], flags=RANDOM)
    harness.define("as_strided_copy", [T, ["l", ["i"], ["i"]], ["l", ["i"], ["i"]], ["i"]], [X])
    harness.define("index", [T, ["l", T]], [X, X.long()], overload="Tensor")
    harness.executor.expect("s", 2)
    position, _, waits = harness.executor.run("s", words(*numbers), 0, first, verdict)
    assert position <= len(numbers) and (waits == 2 or position == len(numbers))
    if verdict:
        harness.executor.verdict("s")
    stats = harness.executor.stats()
    harness.executor.close("s")
    assert stats["values"] >= 0 and harness.executor.stats()["value_bytes"] == 0


ARGUMENT = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 64), 1 << 64),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from(
            [["t"], ["f"], ["i"], ["z"], ["d"], ["g"], ["c", 7, True], ["c", 9, False], ["c", 4], [], ["l"]]
        ),
        st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(lambda items: ["l", *items])),
    max_leaves=8,
)
OPERATOR = st.sampled_from(
    [
        ("add", "Tensor"),
        ("neg", ""),
        ("cat", ""),
        ("index", "Tensor"),
        ("sum", "dim_IntList"),
        ("zeros", ""),
        ("clamp", ""),
    ]
)


@settings(max_examples=300, deadline=None)
@given(OPERATOR, st.lists(ARGUMENT, max_size=5), st.integers(0, 4), st.lists(st.integers(-2, 3), max_size=8))
def test_random_definitions_never_crash(
    operator: tuple[str, str], arguments: list[Any], inputs: int, rest: list[int]
) -> None:
    harness = Harness(cap=1 << 20)
    for _ in range(3):
        harness.put(X)
    harness.executor.define("s", [definition(1, operator[0], arguments, [X] * inputs, overload=operator[1])])
    harness.executor.run("s", words(1, *rest), 0, 10, True)
    failure, found = harness.executor.verdict("s")
    assert (failure is None) != (found is None)
    assert torch.equal(harness.get(2), X)


def test_many_values_come_and_go(harness: Harness) -> None:
    """The table grows, shrinks and keeps its entries apart (ids that a client picks to collide included)."""
    shuffle = random.Random(0)
    alive: dict[int, float] = {}
    for step in range(6):
        for i in range(1500):
            number = step * 10000 + i * shuffle.choice([1, 256, 65536])
            harness.executor.put("s", number, meta(torch.tensor(0.0)), data(torch.tensor(float(number % 97))))
            alive[number] = float(number % 97)
        dead = shuffle.sample(sorted(alive), len(alive) * 9 // 10)
        harness.executor.free("s", dead)
        for number in dead:
            del alive[number]
        assert figures(harness) == (len(alive), 4 * len(alive))
    assert all(harness.get(number).item() == value for number, value in alive.items())


# -- operators that trust their arguments -----------------------------------------------------------------------------

WAVE = torch.ones(3, dtype=torch.complex64)
POOL = [torch.ones(1, 1, 1), torch.ones(1, 4, 4), torch.full((1, 1, 1), 1 << 40)]
NORM = [None, None, None, True, 0.1, 1e-5]

NONSENSE: dict[str, tuple[str, str, list[Any], list[torch.Tensor], int]] = {
    # operator, overload, arguments, inputs, outputs: each brings a process down that calls it so
    "a transform over no such dimension": ("_fft_c2c", "", [T, ["l", 7], 0, True], [WAVE], 1),
    "lists of unequal length": ("_foreach_copy", "", [["l", T, T], ["l", T]], [X, X, X], 2),
    "neither statistics nor training": ("native_batch_norm", "", [T, *[None] * 4, False, 0.1, 1e-5], [X], 3),
    "a weight for too few channels": ("native_batch_norm", "", [T, T, *NORM], [X, ONE[None]], 3),
    "norms of nothing": ("_weight_norm_interface", "", [T, T, 0], [torch.zeros(0), ONE], 2),
    "gradients of another padding": ("reflection_pad1d_backward", "", [T, T, ["l", 1, 1]], [X, X], 1),
    "distances of other points": ("_pdist_backward", "", [T, T, 2.0, T], [ONE[None], X, ONE[None]], 1),
    "out of the pool": ("fractional_max_pool2d_backward", "", [T, T, ["l", 2, 2], ["l", 1, 1], T], POOL, 1),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_an_error_where_the_kernel_would_trust_it(harness: Harness, name: str) -> None:
    operator, overload, arguments, inputs, outputs = NONSENSE[name]
    template = harness.define(operator, arguments, inputs, overload=overload, outputs=[meta(X)] * outputs)
    made = harness.run([template, *(harness.put(t) for t in inputs)], outputs)
    assert harness.failure(made)[0] == "operator"
    assert torch.equal(harness.get(harness.put(X)), X)


@pytest.mark.parametrize(
    "operator", ["_stack", "_slow_conv2d_backward.output_mask", "_convert_indices_from_csr_to_coo", "softmax.int"]
)
def test_building_blocks_and_composites_are_refused_by_name(harness: Harness, operator: str) -> None:
    name, _, overload = operator.partition(".")
    made = harness.run([harness.define(name, [], [], overload=overload, outputs=[meta(X)])])
    kind, _, text, *_ = harness.failure(made)
    assert kind == "refused" or f"workers don't run aten::{name}" in text, (kind, text)
