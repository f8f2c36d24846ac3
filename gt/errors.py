"""The exceptions of GT, and how a worker's failure becomes the exception a user sees."""

from __future__ import annotations

import torch

from gt_runtime.protocol.messages import Failure, FailureKind


class GTError(RuntimeError):
    """Base of GT's own errors."""


class NotSupported(GTError):
    """A case that mux refuses.

    Attributes:
        what: what was asked.
        why: the reason it can't be done.
        instead: what to do instead.
    """

    def __init__(self, what: str, why: str, instead: str) -> None:
        super().__init__(f"{what} is not supported on mux: {why}; instead: {instead}")
        self.what, self.why, self.instead = what, why, instead

    def __reduce__(self) -> tuple[type[NotSupported], tuple[str, str, str]]:
        return (type(self), (self.what, self.why, self.instead))


class ClusterError(GTError):
    """The cluster can't be reached, refused this program, or is gone."""


class WorkerLost(GTError):
    """A value is gone because the worker that held its only copy is."""


_TYPES: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "ValueError": ValueError,
    "TypeError": TypeError,
    "NotImplementedError": NotImplementedError,
    "LinAlgError": torch.linalg.LinAlgError,  # type: ignore[attr-defined]  # missing from torch's stubs
    "OutOfMemoryError": torch.OutOfMemoryError,
    "AssertionError": AssertionError,
}


def exception_of(failure: Failure, place: str, at_the_call: bool) -> Exception:
    """The exception for ``failure``.

    ``place`` is the user's line that issued it ("file.py:12", or ""); ``at_the_call`` says that this very line is
    running, so that PyTorch's own words are enough.
    """
    if failure.kind == FailureKind.LOST:
        return WorkerLost(_late(failure, place))
    if failure.kind in (FailureKind.PROTOCOL, FailureKind.REFUSED):
        return GTError(_late(failure, place))
    kind = _TYPES.get(failure.type, RuntimeError)
    if at_the_call and failure.kind == FailureKind.OPERATOR:
        return kind(failure.message)
    return kind(_late(failure, place))


def _late(failure: Failure, place: str) -> str:
    what = failure.operator or "a value"
    text = f"{failure.message}\n[gt] {what}"
    if failure.shapes:
        text += f" on {failure.shapes}"
    if failure.worker:
        text += f", worker {failure.worker}"
    if place:
        text += f", issued at {place}"
    if failure.signal:
        text += f", signal {failure.signal}"
    return text
