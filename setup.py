"""Builds the two native modules against the installed torch; everything else is said in pyproject.toml.

``GT_NATIVE`` limits what is built: a comma list of module names, or ``none`` (the editable install of ``make venv``
uses it: the modules are then built in place, incrementally, by ``make native``).
"""

import os
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
# module -> what is compiled for it; the other files of the same folder are included there
NATIVE = {
    "gt._native._capture": ["gt/_native/unity.cpp", "gt/_native/site.cpp"],
    "gt_runtime.worker._native._executor": ["gt_runtime/worker/_native/executor.cpp"],
}
SHARED_HEADERS = ["gt_runtime/protocol/words.hpp"]


def wanted() -> dict[str, list[str]]:
    """The modules that are to be built now."""
    only = os.environ.get("GT_NATIVE", "all")
    if only == "none":
        return {}
    names = set(NATIVE) if only == "all" else set(only.split(","))
    if unknown := names - set(NATIVE):
        names_known = ", ".join(NATIVE)
        raise SystemExit(f"GT_NATIVE={only}: no native module {', '.join(sorted(unknown))}; there are {names_known}")
    return {name: sources for name, sources in NATIVE.items() if name in names}


def native() -> dict[str, object]:
    """Arguments for setup(): extensions and the command that builds them; none if nothing is to be built."""
    modules = wanted()
    if not modules:
        return {}
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as error:
        raise SystemExit(
            "GT's native parts are built against the installed PyTorch, and none can be imported here "
            f"({error}). Install torch>=2.13,<2.14 first and use `pip install --no-build-isolation .`, "
            "or run `make venv`."
        ) from error
    extensions = []
    for name, sources in modules.items():
        included = [f for f in (ROOT / sources[0]).parent.iterdir() if f.suffix in (".cpp", ".hpp")]
        extensions.append(
            CppExtension(
                name,
                sources,
                depends=SHARED_HEADERS + sorted(str(f.relative_to(ROOT)) for f in included),
                include_dirs=[str(ROOT)],
                extra_compile_args=["-O2", "-g0", "-Wall", "-Wno-unused-parameter", "-fvisibility=hidden"],
            )
        )
    return {"ext_modules": extensions, "cmdclass": {"build_ext": BuildExtension}}


setup(**native())
