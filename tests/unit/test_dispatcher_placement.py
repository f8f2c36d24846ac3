"""Placement, plans and layouts: pure functions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.dispatcher.placement import TURN_MIN_BYTES, Candidate, Wheel, turn_limit
from gt_runtime.sharding import plan
from gt_runtime.sharding.layouts import Layout, gone, meta_bytes, whole


def candidate(worker: str, speed: float = 10.0, free: float = 1.0, queue: int = 0, tenants: int = 0) -> Candidate:
    return Candidate(worker, speed, free, queue, tenants)


def test_weight_is_the_documented_formula() -> None:
    assert candidate("w0", 100.0, 0.5, 3000, 1).weight() == 100.0 * 0.5 / 4 / 2
    assert candidate("w0", speed=0.0).weight() == 1.0, "unknown speed"
    assert candidate("w0", free=0.0).weight() > 0, "a full worker isn't starved for ever"


def test_turns_are_smooth() -> None:
    """nginx's own example: weights 5, 1, 1 give a a b a c a a."""
    wheel = Wheel()
    workers = [candidate("a", 5.0), candidate("b", 1.0), candidate("c", 1.0)]
    assert "".join(wheel.take(workers) or "" for _ in range(14)) == "aabacaa" * 2


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_shares_are_the_weights(weights: list[int]) -> None:
    """Over sum(weights) turns each worker gets exactly its weight."""
    wheel = Wheel()
    workers = [candidate(f"w{n}", float(weight)) for n, weight in enumerate(weights)]
    turns = Counter(wheel.take(workers) for _ in range(sum(weights)))
    assert [turns[w.worker] for w in workers] == weights


def test_nobody_to_take() -> None:
    assert Wheel().take([]) is None


def test_one_who_left_takes_no_debt_along() -> None:
    wheel = Wheel()
    pair = [candidate("a"), candidate("b")]
    assert wheel.take(pair) == "a"
    wheel.forget("a")
    assert wheel.take(pair) == "b"
    assert wheel.take([candidate("b")]) == "b"


def test_turn_limit() -> None:
    assert turn_limit(0, 1 << 40) == 0 and turn_limit(5, 0) == 5
    assert turn_limit(None, 1 << 40) == 1 << 39 and turn_limit(None, 10) == TURN_MIN_BYTES


def test_layouts_are_one_object_each() -> None:
    both = whole("w0").added("w1")
    assert both is whole("w0").added("w1") and both.added("w0") is both
    assert both.without("w0") is whole("w1") and both.without("w9") is both
    assert whole("w0").without("w0") is gone("w0") and gone("w0").workers == () and gone("w0").lost == "w0"


layouts = st.lists(st.sampled_from(["w0", "w1", "w2"]), unique=True).map(lambda names: Layout(tuple(names)))


@given(st.lists(st.tuples(layouts, st.integers(0, 100)), max_size=6), st.sampled_from(["w0", "w1", "w2"]))
def test_a_plan_brings_everything_that_is_left(inputs: list[tuple[Layout, int]], preferred: str) -> None:
    held = [layout for layout, _ in inputs]
    sizes = [size for _, size in inputs]
    target = plan.place(held, sizes, preferred)
    bytes_on = {w: sum(size for layout, size in inputs if w in layout.workers) for w in ("w0", "w1", "w2")}
    if any(layout.workers for layout in held):
        assert bytes_on[target] == max(bytes_on.values())
    else:
        assert target == preferred
    moves = plan.moves(list(range(len(held))), held, target)
    arrived = {move.value for move in moves}
    for value, layout in enumerate(held):
        assert (value in arrived) == (bool(layout.workers) and target not in layout.workers)
    assert all(move.source in held[move.value].workers and move.target == target for move in moves)


def test_a_tie_goes_to_the_preferred() -> None:
    pair = [whole("w0"), whole("w1")]
    assert plan.place(pair, [4, 4], "w1") == "w1" and plan.place(pair, [4, 4], "w0") == "w0"
    assert plan.place(pair, [5, 4], "w1") == "w0"


def test_a_value_is_moved_once() -> None:
    assert plan.moves([7, 7], [whole("w0")] * 2, "w1") == [plan.Move(7, "w0", "w1")]


@pytest.mark.parametrize(
    ("meta", "nbytes"),
    [([6, [2, 3], [3, 1], 0], 24), ([11, [], [], 0], 1), ([10, [0, 5]], 0), (None, 0), ([15, [3]], 6)],
)
def test_meta_bytes(meta: object, nbytes: int) -> None:
    assert meta_bytes(meta) == nbytes  # type: ignore[arg-type]


@pytest.mark.parametrize("meta", [[], [6], ["f", [1]], [6, [-1]], [6, ["x"]], [6, 3], "no", [True, [1]]])
def test_bad_metas(meta: object) -> None:
    with pytest.raises(ValueError, match=r"meta|dtype|sizes"):
        meta_bytes(meta)  # type: ignore[arg-type]
