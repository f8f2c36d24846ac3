"""The table of feature rows and the words that rows are written in.

A row is a function of a device name. It runs once with ``"cpu"`` and once with the device under test, and what it
returns (or raises) must be the same. Knows nothing of GT: rows that need GT's own interface import ``gt`` inside.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch

Body = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One feature.

    ``refused``: on ``mux`` the row must end with ``gt.NotSupported``, and only that.
    ``own``: the CPU has no twin; the row returns a dict of facts that must all be true, and the CPU skips it.
    ``rtol``, ``atol``: tolerances where PyTorch's defaults for the dtype are too tight for what the row computes.
    """

    group: str
    name: str
    body: Body
    refused: bool = False
    own: bool = False
    rtol: float | None = None
    atol: float | None = None

    @property
    def key(self) -> str:
        return f"{self.group}/{self.name}"


ROWS: dict[str, Row] = {}


def add(group: str, name: str, body: Body, **options: Any) -> None:
    """Register ``body`` as a row. Raises ValueError when the name is taken: a row that hides another one tests
    nothing.
    """
    found = Row(group, name, body, **options)
    if found.key in ROWS:
        raise ValueError(f"two rows are called {found.key}: rename one")
    ROWS[found.key] = found


def row(group: str, **options: Any) -> Callable[[Body], Body]:
    """Decorator: register the function under its own name."""

    def register(body: Body) -> Body:
        add(group, body.__name__, body, **options)
        return body

    return register


# ---------------------------------------------------------------------------------------------------------------------
# Words for rows
# ---------------------------------------------------------------------------------------------------------------------


def make(
    device: str,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
    grad: bool = False,
    low: int = 0,
    high: int = 10,
) -> torch.Tensor:
    """A leaf on ``device`` with the same numbers wherever it lives: drawn on the CPU by a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    else:
        made = torch.randint(low, 2 if dtype is torch.bool else high, shape, generator=generator)
    return made.to(dtype).to(device).requires_grad_(grad)


@dataclass(frozen=True, slots=True)
class Host:
    """A tensor that must be on the CPU whatever the device under test."""

    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class MetaOnly:
    """A tensor whose numbers aren't specified (``empty``, random draws): everything else about it is compared."""

    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that a row expects, as a value."""

    type: str
    message: str


#: What ``raised`` answers for a call that raises nothing; on the CPU that makes the row itself a broken one.
NOTHING_RAISED = "nothing was raised"


def raised(call: Callable[[], Any]) -> Raised | str:
    """The exception that ``call`` raises, or ``NOTHING_RAISED``; a refusal passes through."""
    try:
        call()
    except Exception as error:
        if is_refusal(error):
            raise
        return Raised(type(error).__name__, str(error))
    return NOTHING_RAISED


def is_refusal(error: BaseException) -> bool:
    """Is it ``gt.NotSupported``? By name, so that the harness needs no GT on the CPU."""
    return any(
        base.__name__ == "NotSupported" and base.__module__.split(".")[0] == "gt" for base in type(error).__mro__
    )


DEVICE_SUFFIX = re.compile(r",\s+device='[a-z]+(:\d+)?'")


def plain(text: str) -> str:
    """A printed tensor without its device: the CPU prints none."""
    return DEVICE_SUFFIX.sub("", text)


LEGACY_TYPE = re.compile(r"torch\.(?:\w+\.)?(\w+)Tensor\b|\b(?:CPU|CUDA|mux)(\w+)Type\b")


def without_legacy_types(found: Raised | str) -> Raised | str:
    """A message that names a tensor's legacy type ("torch.FloatTensor", "torch.mux.FloatTensor", "CPUFloatType")
    without the device in it: every device has its own spelling.
    """
    if isinstance(found, str):
        return found
    return Raised(found.type, LEGACY_TYPE.sub(lambda m: f"{m[1] or m[2]}Tensor", found.message))


def printed(call: Callable[[], Any]) -> str:
    """What ``call`` writes to stdout, without device suffixes."""
    with redirect_stdout(io.StringIO()) as out:
        call()
    return plain(out.getvalue())


def grads(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients, in order."""
    return [tensor.grad for tensor in tensors]
