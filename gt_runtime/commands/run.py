"""``gt run``: a script or module that uses the device ``mux``, run as Python itself would run it.

The program sees its own ``__main__``, ``sys.argv`` and ``sys.path``, its tracebacks begin in its own file, it ends with
the exit status Python would give it. Only ``import gt`` comes first. This module imports no torch itself: gt does.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import CodeType


class NotRunnable(Exception):
    """There is no such script or module; the text is what Python would say."""


def run(target: str, arguments: Sequence[str], module: bool) -> int:
    """Run ``target``, a path or (``module``) a module's name, with ``arguments``.

    Returns 0, or 1 for a script that can't be compiled. An exception the program doesn't catch has been shown when it
    leaves here; it goes on so that the interpreter ends as it does for any (SystemExit, KeyboardInterrupt, others).

    Raises:
        NotRunnable: there is none.
    """
    source = b"" if module else _read(target)
    # Before sys.path is the program's: GT may be run from a source tree that only the working directory leads to.
    import gt  # noqa: F401  # registers the device

    try:
        code, main = _module(target) if module else _script(target, source)
    except SyntaxError as error:  # shown as Python shows it, without a traceback
        sys.excepthook(type(error), error.with_traceback(None), None)
        return 1
    sys.argv = [main.__file__ or target if module else target, *arguments]
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # the first frame is this one
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.excepthook = lambda *told: None
        raise
    return 0


def _read(path: str) -> bytes:
    """The source of a script."""
    try:
        with io.open_code(os.path.abspath(path)) as file:
            return file.read()
    except OSError as error:
        found = f"[Errno {error.errno}] {error.strerror}"
        raise NotRunnable(f"can't open file {os.path.abspath(path)!r}: {found}") from None


def _script(target: str, source: bytes) -> tuple[CodeType, types.ModuleType]:
    """Code and ``__main__`` of a script; its folder becomes the head of ``sys.path``."""
    _set_path(str(Path(target).resolve().parent))
    path = os.path.abspath(target)
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None)
    return compile(source, path, "exec", dont_inherit=True), main


def _module(name: str) -> tuple[CodeType, types.ModuleType]:
    """Code and ``__main__`` of a module, or of a package's ``__main__``; the working directory heads ``sys.path``."""
    _set_path(os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            package, name = name, f"{name}.__main__"
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise NotRunnable(f"No module named {name}; {package!r} is a package and cannot be directly executed")
    except (ImportError, ValueError) as error:
        raise NotRunnable(f"Error while finding module specification for {name!r} ({error})") from None
    loader = spec.loader if spec is not None else None
    if spec is None or loader is None:
        raise NotRunnable(f"No module named {name}")
    code: CodeType | None = loader.get_code(name) if hasattr(loader, "get_code") else None
    if code is None:
        raise NotRunnable(f"No code object available for {name}")
    main = types.ModuleType("__main__")
    main.__file__ = spec.origin
    main.__loader__ = loader
    main.__package__ = spec.parent
    main.__spec__ = spec
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=spec.cached)
    return code, main


def _set_path(first: str) -> None:
    """Put ``first`` where the interpreter put the folder of our own script (``-m``: the working directory)."""
    if getattr(sys.flags, "safe_path", False):  # it put nothing there
        sys.path.insert(0, first)
        return
    sys.path[0] = first
