"""Are two results of the same code the same? Values and everything that a program can see of a tensor.

``observe`` takes a result apart into observations on the device it was made on; ``differences`` compares two of
them. Pure: no processes, no GT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy
import torch

from tests.conformance.registry import Host, MetaOnly

MAX_DIFFERENCES = 8  # more than that says nothing new about one row


@dataclass(frozen=True, slots=True)
class Seen:
    """What a program can see of a tensor, read before its values are fetched."""

    kind: str  # Tensor, Parameter, Buffer, ...
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    offset: int | None
    requires_grad: bool
    leaf: bool
    view: bool
    conj: bool
    neg: bool
    where: str  # "device": where the row runs; "cpu": a Host; anything else is an error of the row or of GT


@dataclass(frozen=True, slots=True)
class Observation:
    """One leaf of a result: where in the result it stands, and what is there."""

    path: str
    seen: Seen | None
    value: Any  # a CPU tensor, or any other value
    shares: int | None  # index of the first tensor of the result with the same storage
    values: bool = True  # False: the numbers aren't specified


def observe(result: Any, device: str) -> list[Observation]:
    """Flatten ``result``; tensors are looked at first and fetched after, so that a fetch can't tidy up what is
    looked at.
    """
    found = list(_walk(result, "result"))
    storages: dict[int, int] = {}
    out: list[Observation] = []
    for index, (path, item) in enumerate(found):
        wrapped = item.tensor if isinstance(item, Host | MetaOnly) else item
        if not isinstance(wrapped, torch.Tensor):
            out.append(Observation(path, None, wrapped, None))
            continue
        seen = _look(wrapped, "cpu" if isinstance(item, Host) else device, isinstance(item, Host))
        storage = _storage(wrapped)
        shares = None if storage is None else storages.setdefault(storage, index)
        out.append(Observation(path, seen, wrapped, shares, not isinstance(item, MetaOnly)))
    return [_fetched(observation) for observation in out]


def _walk(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(item, Mapping):
        yield path + ".keys", sorted(map(str, item))
        for key in item:
            yield from _walk(item[key], f"{path}[{key!r}]")
    elif isinstance(item, list | tuple) and not isinstance(item, torch.Size):
        yield path + ".len", len(item)
        for index, each in enumerate(item):
            yield from _walk(each, f"{path}[{index}]")
    else:
        yield path, item


def _look(tensor: torch.Tensor, expected: str, host: bool) -> Seen:
    strided = tensor.layout is torch.strided
    right = torch.device(expected).type
    where = ("cpu" if host else "device") if tensor.device.type == right else str(tensor.device)
    return Seen(
        kind=type(tensor).__name__,
        dtype=str(tensor.dtype),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()) if strided else None,
        offset=int(tensor.storage_offset()) if strided else None,
        requires_grad=tensor.requires_grad,
        leaf=tensor.is_leaf,
        view=tensor._is_view(),
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
        where=where,
    )


def _storage(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # meta-like tensors have none: seen as a difference in `shares`
        return None


def _fetched(observation: Observation) -> Observation:
    if observation.seen is None or not observation.values:
        return observation
    value = observation.value.detach()
    value = value.to_dense() if value.layout is not torch.strided else value
    if value.is_meta:
        value = None
    else:
        value = value.resolve_conj().resolve_neg().to("cpu").contiguous().clone()
    return Observation(observation.path, observation.seen, value, observation.shares, True)


def differences(
    expected: list[Observation],
    actual: list[Observation],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    ignore: frozenset[str] = frozenset(),
) -> list[str]:
    """Sentences, one a difference, at most ``MAX_DIFFERENCES``; empty when the two are the same.

    ``ignore`` names fields of ``Seen`` (or ``"shares"``) that aren't compared. Tolerances are absolute and relative,
    as in
    ``torch.testing.assert_close``; without them its defaults for the dtype hold. NaN equals NaN.
    """
    paths = [o.path for o in expected]
    if paths != [o.path for o in actual]:
        extra = sorted(set(paths) ^ {o.path for o in actual})
        return [f"the results have different structure: {', '.join(extra[:4])}"]
    out: list[str] = []
    for one, two in zip(expected, actual, strict=True):
        out += _differences(one, two, rtol, atol, ignore)
        if len(out) >= MAX_DIFFERENCES:
            break
    return out[:MAX_DIFFERENCES]


def _differences(
    one: Observation, two: Observation, rtol: float | None, atol: float | None, ignore: frozenset[str]
) -> list[str]:
    if (one.seen is None) != (two.seen is None):
        return [f"{one.path}: one is a tensor, the other is {one.value!r} / {two.value!r}"]
    if one.seen is None or two.seen is None:
        same = _same(one.value, two.value, rtol, atol)
        return [] if same else [f"{one.path}: expected {one.value!r}, found {two.value!r}"]
    out = [
        f"{one.path}.{field.name}: expected {getattr(one.seen, field.name)}, found {getattr(two.seen, field.name)}"
        for field in fields(Seen)
        if field.name not in ignore and getattr(one.seen, field.name) != getattr(two.seen, field.name)
    ]
    if "shares" not in ignore and one.shares != two.shares:
        out.append(f"{one.path}.shares: expected storage of leaf {one.shares}, found {two.shares}")
    if (
        one.values
        and two.values
        and one.value is not None
        and two.value is not None
        and one.seen.shape == two.seen.shape
    ):
        try:
            torch.testing.assert_close(
                two.value,
                one.value,
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                check_device=False,
                check_stride=False,
                check_dtype=False,
            )
        except AssertionError as error:
            out.append(f"{one.path}: {' '.join(str(error).split())[:300]}")
    return out


def _same(one: Any, two: Any, rtol: float | None, atol: float | None) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, numpy.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and bool(numpy.allclose(one, two, equal_nan=True))
    if isinstance(one, float | complex):
        relative, absolute = (1.3e-6 if rtol is None else rtol), (1e-5 if atol is None else atol)
        return bool(one == two or (one != one and two != two) or abs(one - two) <= absolute + relative * abs(one))
    return bool(one == two)
