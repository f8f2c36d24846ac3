"""The compiled inner loop of a worker. Importing this package without the built module says how to get it."""

from __future__ import annotations

try:
    from gt_runtime.worker._native._executor import Contents, Executor, schema_hash, trim
except ImportError as error:
    raise ImportError(
        "the worker's native module (gt_runtime.worker._native._executor) can't be loaded: "
        f"{error}. It is built against the installed PyTorch: run `make venv` in a clone, or install a wheel of GT "
        "made for this PyTorch (a C++20 compiler is needed to build one)."
    ) from error

__all__ = ["Contents", "Executor", "schema_hash", "trim"]
