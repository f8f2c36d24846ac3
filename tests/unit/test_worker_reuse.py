"""Dying inputs become outputs where nobody could tell, and nowhere else; seen by where values lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.test_worker_executor import Harness, T
from tests.worker_tools import DYNAMIC, float_word, free, meta


@pytest.fixture
def harness() -> Harness:
    return Harness()


X, Y = torch.linspace(-2, 2, 12).reshape(3, 4), torch.linspace(1, 3, 12).reshape(3, 4)
HALF = float_word(0.5)


def place(h: Harness, number: int) -> int:
    """The address of a value's bytes."""
    failure, _, contents = h.executor.read("s", number)
    assert failure is None, failure
    return int(numpy.frombuffer(contents, numpy.uint8).ctypes.data)


def run(harness: Harness, words: list[int], outputs: int = 1) -> int:
    """Words of which no verdict is asked: as all calls but the first."""
    first = harness.next
    position, harness.next, waits = harness.executor.run(
        "s", b"".join(w.to_bytes(8, "little", signed=True) for w in words), 0, first, False
    )
    assert (position, waits, harness.next) == (len(words), -1, first + outputs)
    return first


ONE: dict[str, tuple[Any, ...]] = {
    # operator, overload, arguments, inputs, literals, what it is in plain PyTorch
    "add": ("add", "Tensor", [T, T, 2], [X, Y], [], lambda: X + 2 * Y),
    "mul by a number": ("mul", "Scalar", [T, ["f"]], [X], [HALF], lambda: X * 0.5),
    "one without a schema of lists": ("sigmoid", "", [T], [X], [], lambda: X.sigmoid()),
    "addcmul": ("addcmul", "", [T, T, T, ["f"]], [X, Y, Y], [HALF], lambda: torch.addcmul(X, Y, Y, value=0.5)),
    "lerp": ("lerp", "Scalar", [T, T, ["f"]], [X, Y], [HALF], lambda: X.lerp(Y, 0.5)),
    "copy": ("copy", "", [T, T], [X, Y], [], lambda: Y),
    "fill": ("fill", "Scalar", [T, ["f"]], [X], [HALF], lambda: torch.full_like(X, 0.5)),
    "broadcast other": ("sub", "Tensor", [T, T], [X, Y[0]], [], lambda: X - Y[0]),
    "matrix": ("addmm", "", [T, T, T], [X, torch.ones(3, 5), torch.ones(5, 4)], [], lambda: X + 5),
    "cumsum": ("cumsum", "", [T, 1], [X], [], lambda: X.cumsum(1)),
    "transposed, dense": ("exp", "", [T], [X], [], lambda: X.exp()),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_an_input_that_dies_is_the_output(harness: Harness, name: str) -> None:
    operator, overload, arguments, inputs, literals, expected = ONE[name]
    template = harness.define(operator, arguments, inputs, overload=overload, outputs=[meta(expected())])
    ids = [harness.put(t) for t in inputs]
    before = place(harness, ids[0])
    made = run(harness, [template, *ids, *literals, *free(ids[0])])
    assert place(harness, made) == before
    torch.testing.assert_close(harness.get(made), expected())
    assert harness.executor.read("s", ids[0])[0] is not None, "it is gone all the same"
    for number, value in zip(ids[1:], inputs[1:], strict=True):
        assert torch.equal(harness.get(number), value)


def not_freed(h: Harness, x: int, y: int, t: int) -> list[int]:
    return [t, x, y]


def freed_later(h: Harness, x: int, y: int, t: int) -> list[int]:
    return [t, x, y, t, y, y, *free(x)]


def another_freed(h: Harness, x: int, y: int, t: int) -> list[int]:
    return [t, x, y, *free(y)]


def used_twice(h: Harness, x: int, y: int, t: int) -> list[int]:
    return [t, x, x, *free(x)]


def alias_lives(h: Harness, x: int, y: int, t: int) -> list[int]:
    h.run([h.define("alias_copy", [T], [X]), x])
    return [t, x, y, *free(x)]


def view_lives(h: Harness, x: int, y: int, t: int) -> list[int]:
    h.run([h.define("select_copy", [T, 0, 0], [X], overload="int"), x])
    return [t, x, y, *free(x)]


def lent(h: Harness, x: int, y: int, t: int) -> list[int]:
    failure, *_ = h.executor.lend("s", x)
    assert failure is None
    return [t, x, y, *free(x)]


@pytest.mark.parametrize(
    "words",
    [not_freed, freed_later, another_freed, used_twice, alias_lives, view_lives, lent],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_an_input_that_somebody_may_see_is_left_alone(
    harness: Harness, words: Callable[[Harness, int, int, int], list[int]]
) -> None:  # fmt: skip
    template = harness.define("add", [T, T], [X, Y], overload="Tensor", outputs=[meta(X)])
    x, y = harness.put(X), harness.put(Y)
    before = place(harness, x)
    sentence = words(harness, x, y, template)
    made = run(harness, sentence, outputs=2 if words is freed_later else 1)
    assert place(harness, made) != before
    torch.testing.assert_close(harness.get(made), X + (X if words is used_twice else Y))


OTHERS: dict[str, tuple[Any, ...]] = {
    "another dtype": ("eq", "Tensor", [T, T], [X, Y], X == Y, 0),
    "another dtype, by promotion": (
        "add",
        "Tensor",
        [T, T],
        [torch.arange(4), torch.ones(4)],
        torch.arange(4) + 1.0,
        0,
    ),
    "another shape": ("add", "Tensor", [T, T], [X[0], Y], X[0] + Y, 0),
    "other strides": ("add", "Tensor", [T, T], [X, Y], (X + Y).t().contiguous().t(), 0),
    "sizes by the data": ("add", "Tensor", [T, T], [X, Y], X + Y, DYNAMIC),
    "no twin": ("mm", "", [T, T], [torch.ones(3, 3), torch.ones(3, 3)], torch.full((3, 3), 3.0), 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_input_unlike_the_output_is_left_alone(harness: Harness, name: str) -> None:
    operator, overload, arguments, inputs, expected, flags = OTHERS[name]
    template = harness.define(operator, arguments, inputs, overload=overload, outputs=[meta(expected)], flags=flags)
    ids = [harness.put(t) for t in inputs]
    before = place(harness, ids[0])
    keep = harness.executor.read("s", ids[0])[2] if name == "no twin" else None  # its memory might come again
    made = run(harness, [template, *ids, *free(ids[0])])
    if name != "no twin":
        assert place(harness, made) != before
    torch.testing.assert_close(harness.get(made), expected)
    del keep


def test_a_slice_of_something_large_is_no_home(harness: Harness) -> None:
    big = harness.put(torch.arange(1000.0))
    part = harness.run([harness.define("slice_copy", [T, 0, 0, 12], [torch.ones(1000)], overload="Tensor"), big])
    template = harness.define("neg", [T], [torch.ones(12)], outputs=[meta(torch.ones(12))])
    before = place(harness, part)
    made = run(harness, [*free(big), template, part, *free(part)])
    assert place(harness, made) != before and harness.executor.stats()["value_bytes"] == 48
    assert torch.equal(harness.get(made), -torch.arange(12.0))


def test_an_immutable_tensor_of_zeros_is_no_home(harness: Harness) -> None:
    zeros = harness.run([harness.define("_efficientzerotensor", [["l", 3, 4], 6, 0, ["d"], None])])
    template = harness.define("add", [T, T], [X, Y], overload="Tensor", outputs=[meta(X)])
    made = run(harness, [template, zeros, harness.put(Y), *free(zeros)])
    assert torch.equal(harness.get(made), Y)


def test_what_a_first_call_is_answered_with_is_the_operators_own(harness: Harness) -> None:
    template = harness.define("add", [T, T], [X, X.t().contiguous().t()], overload="Tensor")
    x, y = harness.put(X), harness.put(Y)
    before = place(harness, x)
    first = harness.run([template, x, y, *free(x)])
    assert place(harness, first) != before
    again = place(harness, first)
    assert place(harness, run(harness, [template, first, y, *free(first)])) == again, "what was learned is used"


def adamw(harness: Harness, scale: bool) -> tuple[list[int], list[torch.Tensor], list[torch.Tensor], int]:
    """Ids, tensors, what comes out, and the template of a fused AdamW over two parameters."""
    torch.manual_seed(0)
    groups = [[torch.randn(3, 4), torch.randn(5)] for _ in range(4)]
    groups[3] = [t.abs() for t in groups[3]]
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    extra = [torch.tensor(2.0)] if scale else []
    lists: list[Any] = [["l", T, T] for _ in range(4)]
    arguments = [*lists, ["l"], ["l", T, T], 1e-3, 0.9, 0.999, 1e-2, 1e-8, False, False, T if scale else None, None]
    tensors = [t for group in groups for t in group] + steps + extra
    options: dict[str, Any] = {
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 1e-2,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
    found = torch.ops.aten._fused_adamw.default(
        *groups, [], steps, **options, grad_scale=extra[0] if scale else None, found_inf=None
    )
    results = [t for group in found for t in group]
    template = harness.define("_fused_adamw", arguments, tensors, outputs=[meta(t) for t in results])
    return [harness.put(t) for t in tensors], tensors, results, template


@pytest.mark.parametrize("scale", [False, True])
def test_a_fused_optimiser_needs_no_copies(harness: Harness, scale: bool) -> None:
    ids, tensors, expected, template = adamw(harness, scale)
    updated = ids[:8]
    places = [place(harness, i) for i in updated]
    held = harness.executor.stats()["value_bytes"]
    dying = updated if scale else [*updated[:2], *updated[4:]]  # gradients live on, and aren't written without a scale
    first = run(harness, [template, *ids, *free(*dying)], outputs=8)
    assert [place(harness, first + i) for i in range(8)] == places
    assert harness.executor.stats()["value_bytes"] == held
    for i, value in enumerate(expected):
        torch.testing.assert_close(harness.get(first + i), value)
    if not scale:
        assert torch.equal(harness.get(ids[2]), tensors[2]), "a gradient is what it was"


def test_a_fused_optimiser_with_one_that_lives_copies(harness: Harness) -> None:
    ids, tensors, expected, template = adamw(harness, False)
    first = run(harness, [template, *ids, *free(*ids[:2], *ids[4:7])], outputs=8)
    for i, value in enumerate(expected):
        torch.testing.assert_close(harness.get(first + i), value)
    assert torch.equal(harness.get(ids[7]), tensors[7])


def test_lists(harness: Harness) -> None:
    some = [torch.full((4,), float(i)) for i in range(20)]
    arguments = [["l", *[T] * 20], ["f"]]
    template = harness.define("_foreach_add", arguments, some, overload="Scalar", outputs=[meta(t) for t in some])
    ids = [harness.put(t) for t in some]
    places = [place(harness, i) for i in ids]
    first = run(harness, [template, *ids, HALF, *free(*reversed(ids))], outputs=20)
    assert [place(harness, first + i) for i in range(20)] == places
    assert all(torch.equal(harness.get(first + i), t + 0.5) for i, t in enumerate(some))
    twice = [first, *range(first, first + 19)]
    again = run(harness, [template, *twice, HALF, *free(*set(twice))], outputs=20)
    assert torch.equal(harness.get(again), harness.get(again + 1)) and torch.equal(
        harness.get(again + 19), some[18] + 1
    )


def test_no_memory_is_asked_for_what_is_reused() -> None:
    harness = Harness(cap=100)
    x = harness.put(torch.ones(20))
    template = harness.define("neg", [T], [torch.ones(20)], outputs=[meta(torch.ones(20))])
    kept = run(harness, [template, x])
    assert harness.failure(kept)[0] == "memory"
    made = run(harness, [template, x, *free(x)])
    assert torch.equal(harness.get(made), -torch.ones(20))


def test_a_call_that_fails_costs_only_its_output(harness: Harness) -> None:
    template = harness.define("index_add", [T, 0, T, T], [X, torch.tensor([0]), Y[:1]], outputs=[meta(X)])
    x, index, y = harness.put(X), harness.put(torch.tensor([7])), harness.put(Y[:1])
    made = run(harness, [template, x, index, y, *free(x)])
    assert harness.failure(made)[1] in ("IndexError", "RuntimeError")
    assert torch.equal(harness.get(y), Y[:1])


def test_frees_that_are_cut_off_end_the_session_as_before(harness: Harness) -> None:
    template = harness.define("neg", [T], [X], outputs=[meta(X)])
    x = harness.put(X)
    made = run(harness, [template, x, free(x)[0]])
    assert torch.equal(harness.get(made), -X) and torch.equal(harness.get(x), X)
    assert "but the batch has 0 more" in harness.failure(harness.next)[2]
