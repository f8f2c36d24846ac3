"""The comparison finds every kind of difference, and makes none up; samples keep what kernels notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conformance import compare, report
from tests.conformance.registry import ROWS, Host, MetaOnly, Row, add
from tests.conformance.samples import Mover, flatten, map_tensors
from tests.conformance.verdict import Outcome


def _base() -> torch.Tensor:
    return torch.arange(6.0).view(2, 3).clone()


def _found(one: Any, two: Any, **options: Any) -> list[str]:
    return compare.differences(compare.observe(one, "cpu"), compare.observe(two, "cpu"), **options)


DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "value": (_base, lambda: _base() + 1e-3, "not close"),
    "one value of many": (_base, lambda: _base().index_fill(0, torch.tensor([1]), 9), "not close"),
    "nan for a number": (_base, lambda: _base() * float("nan"), "not close"),
    "dtype": (_base, lambda: _base().double(), "dtype"),
    "shape": (_base, lambda: _base()[:, :2], "shape"),
    "strides": (_base, lambda: _base().t().contiguous().t(), "strides"),
    "storage offset": (lambda: torch.zeros(4)[1:], lambda: torch.zeros(4)[:3], "offset"),
    "requires_grad": (_base, lambda: _base().requires_grad_(), "requires_grad"),
    "leaf": (lambda: _base().requires_grad_(), lambda: _base().requires_grad_() * 1, "leaf"),
    "view": (lambda: _base().view(6).clone(), lambda: _base().view(6), "view"),
    "parameter": (_base, lambda: torch.nn.Parameter(_base(), requires_grad=False), "kind"),
    "conjugate bit": (lambda: torch.ones(2) * 1j, lambda: (torch.ones(2) * -1j).conj(), "conj"),
    "device": (_base, lambda: _base().to("meta"), "where"),
    "host tensor": (lambda: Host(_base()), lambda: Host(_base().to("meta")), "where"),
    "sharing lost": (lambda: (lambda t: [t, t])(_base()), lambda: [_base(), _base()], "shares"),
    "sharing gained": (lambda: [_base(), _base()], lambda: (lambda t: [t, t])(_base()), "shares"),
    "length": (lambda: [_base()], lambda: [_base(), _base()], "structure"),
    "keys": (lambda: {"a": 1}, lambda: {"b": 1}, "structure"),
    "tensor for a number": (lambda: torch.tensor(1.0), lambda: 1.0, "one is a tensor"),
    "number": (lambda: 1.0, lambda: 1.1, "expected 1.0"),
    "int for a float": (lambda: 1.0, lambda: 1, "expected 1.0"),
    "bool for an int": (lambda: 1, lambda: True, "expected 1"),
    "text": (lambda: "a", lambda: "b", "expected 'a'"),
    "meta only still has metas": (lambda: MetaOnly(_base()), lambda: MetaOnly(_base().double()), "dtype"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_difference_is_found(name: str) -> None:
    one, two, word = DIFFERENT[name]
    assert any(word in each for each in _found(one(), two())), _found(one(), two())
    assert _found(one(), one()) == []
    assert _found(two(), two()) == []


SAME: dict[str, tuple[Any, Any]] = {
    "nan": (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    "rounding": (torch.tensor([1.0]), torch.tensor([1.0 + 1e-7])),
    "unspecified numbers": (MetaOnly(torch.zeros(3)), MetaOnly(torch.ones(3))),
    "strides of one row": (torch.zeros(1, 3), torch.zeros(1, 3)),
}


@pytest.mark.parametrize("name", SAME)
def test_no_difference_is_made_up(name: str) -> None:
    assert _found(*SAME[name]) == []


def test_tolerance_is_taken() -> None:
    assert _found(torch.ones(2), torch.ones(2) * 1.01) and not _found(
        torch.ones(2), torch.ones(2) * 1.01, rtol=0.1, atol=0.0
    )


def test_ignored_fields_are_ignored() -> None:
    one, two = _base(), _base().t().contiguous().t()
    assert _found(one, two) and not _found(one, two, ignore=frozenset({"strides", "view"}))


def test_a_row_that_fails_on_the_cpu_is_broken_not_right() -> None:
    from tests.conformance import features

    def fails(_: str) -> Any:
        raise ValueError("the row itself")

    assert features.run(Row("self", "fails", fails), "cpu").outcome is Outcome.CRASHED


def test_a_row_whose_exception_is_not_raised_is_broken() -> None:
    from tests.conformance import features
    from tests.conformance.registry import raised

    assert features.run(Row("self", "quiet", lambda _: raised(lambda: 1)), "cpu").outcome is Outcome.CRASHED


def test_names_are_taken_once() -> None:
    from tests.conformance import features  # noqa: F401  (registers the rows)

    taken = next(iter(ROWS.values()))
    with pytest.raises(ValueError, match="two rows"):
        add(taken.group, taken.name, lambda d: None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(8)[1::2],
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(3, dtype=torch.complex64).conj(),
        lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
        lambda: torch.randn(3, requires_grad=True),
        lambda: torch.empty(0, 3),
        lambda: torch.randn(()),
        lambda: torch.empty_strided((2, 1, 3), (3, 3, 1)),
    ],
)
def test_samples_keep_what_a_kernel_notices(make: Callable[[], torch.Tensor]) -> None:
    sample = make()
    moved = Mover("cpu")(sample)
    assert not _found(sample, moved, ignore=frozenset({"view"}))
    assert moved is not sample
    assert moved.untyped_storage()._cdata != sample.untyped_storage()._cdata


def test_samples_keep_sharing() -> None:
    base = torch.randn(6)
    one, two, three, four = Mover("cpu")([base, base[1:3], base, torch.randn(6)])
    assert one is three
    assert one.untyped_storage()._cdata == two.untyped_storage()._cdata != four.untyped_storage()._cdata


def test_samples_move_devices_among_arguments() -> None:
    moved = Mover("meta")({"device": "cpu", "other": torch.device("cpu"), "mode": "reflect"})
    assert moved == {"device": "meta", "other": torch.device("meta"), "mode": "reflect"}


def test_nested_results_are_walked() -> None:
    item = {"a": [torch.zeros(1), 2], "b": torch.zeros(2, 2).max(0)}
    assert sum(isinstance(each, torch.Tensor) for each in flatten(item)) == 3
    assert map_tensors(lambda t: t.numel(), item) == {"a": [1, 2], "b": (2, 2)}


def test_report_groups_causes_and_counts() -> None:
    answers = [
        {"key": "a", "outcome": "wrong", "details": ["sample 1 ((2, 3); ): 5 of 6 differ by 0.25"]},
        {"key": "b", "outcome": "wrong", "details": ["sample 7 ((4,); dim=1): 1 of 9 differ by 3e-7"]},
        {"key": "c", "outcome": "right", "details": []},
        {"key": "d", "outcome": "skipped", "details": []},
    ]
    assert [keys for _, keys in report.causes(answers)] == [["a", "b"]]
    assert report.share_right(answers) == pytest.approx(1 / 3)
    assert "| Rows | 4 | 1 | 2 | 0 | 1 | 0 | 33.3% |" in report.page({"Rows": answers}, "mux")


def test_the_page_survives_an_interrupted_log(tmp_path: Any) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"key": "a", "outcome": "right"}\n{"key": "b", "outc')
    assert list(report.load(log)) == ["a"]
