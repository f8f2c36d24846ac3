"""Flags that change numbers travel with the stream; those that are dear to ask for are read again when they are set."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.backends import ContextProp

from gt._native import _capture

_flush_denormal = False  # torch has no getter for it


def refreshing(original: Callable[..., Any]) -> Callable[..., Any]:
    """For a function that sets TF32 or the precision of float32 products."""

    @wraps(original)
    def setter(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        _capture.refresh_flags(_flush_denormal)
        return found

    return setter


def refreshing_property(original: Any) -> Any:
    """For a flag of ``torch.backends`` that is a property of its module."""
    return ContextProp(original.getter, refreshing(original.setter))


def flush_denormal(original: Callable[[bool], bool]) -> Callable[[bool], bool]:
    """For ``torch.set_flush_denormal``."""

    @wraps(original)
    def set_flush_denormal(mode: bool) -> bool:
        global _flush_denormal
        supported = original(mode)
        _flush_denormal = bool(mode) and supported
        _capture.refresh_flags(_flush_denormal)
        return supported

    return set_flush_denormal
