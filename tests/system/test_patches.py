"""The table of patched torch names: docs/device.md shows what ``gt.patches`` does; nothing else of torch is changed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.system.clusters import ROOT
from tests.system.programs import facts

PAGE = ROOT / "docs" / "device.md"

# Every attribute of torch's modules and main classes, and of the copying of the standard library, before and after.
CHANGED = """
import copy, copyreg, inspect, json, pickle, sys, types
import torch, torch.utils.data, torch.utils.checkpoint, torch.utils.dlpack, torch.multiprocessing.reductions
import torch.distributed, torch.testing, torch.func, torch.ao.quantization, torch._tensor_str, torch.serialization
import torch.amp, torch.accelerator, torch.utils.benchmark, torch.sparse, torch.nested

OWN = ("torch", "copy", "copyreg", "pickle")

def places():
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in OWN and isinstance(module, types.ModuleType):
            yield name, vars(module)
    for kind in (
        torch.Tensor, torch.nn.Module, torch.nn.Parameter, torch.UntypedStorage, torch.TypedStorage, torch.Generator,
        torch.optim.Optimizer, torch.amp.GradScaler, torch.autocast, torch.utils.data.DataLoader,
    ):
        yield f"{kind.__module__}.{kind.__qualname__}", vars(kind)
    yield "copyreg.dispatch_table", {repr(k): v for k, v in copyreg.dispatch_table.items()}
    yield "copy._deepcopy_dispatch", {repr(k): v for k, v in copy._deepcopy_dispatch.items()}

def shot():
    kept = {}
    for place, names in list(places()):
        for name, value in list(names.items()):
            if not (isinstance(value, types.ModuleType) or name.startswith("__")):
                kept[f"{place}.{name}"] = value
    return kept

before = shot()
import gt, gt.patches
after = shot()
places_before = {name.rsplit(".", 1)[0] for name in before}
changed = sorted(
    name for name, value in after.items()
    if (name not in before and name.rsplit(".", 1)[0] in places_before)
    or (name in before and before[name] is not value)
)
print(json.dumps({"changed": changed, "patches": [[p.name, p.why] for p in gt.patches.PATCHES]}))
"""

#: state that torch itself keeps in modules and that registering any device, or importing more of torch, moves
STATE = re.compile(
    r"(_cache|_registry|_lock|_stack|_initialized|registry|_cached|counter|torch\\.mux|_device_modules|_privateuse1_backend_name)",
    re.I,
)


@pytest.fixture(scope="module")
def seen() -> Any:
    return facts(CHANGED)


def rows() -> dict[str, str]:
    """The table of docs/device.md: name -> why. It is the table whose head's first cell is ``name``."""
    found: dict[str, str] = {}
    inside = False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|"):
            inside = False
        elif cells[0].lower() == "name":
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            found[cells[0].strip("`")] = cells[1]
    return found


def test_the_page_shows_the_table(seen: Any) -> None:
    assert rows() == dict(seen["patches"])


def test_every_name_of_the_table_exists(seen: Any) -> None:
    import importlib

    for name, _ in seen["patches"]:
        parts, found = name.removesuffix("()").split("."), None
        for length in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:length]))
            except ImportError:
                continue
            for part in parts[length:]:
                found = getattr(found, part.split("[")[0])
            break
        assert found is not None, f"{name} names nothing in this torch"


def test_nothing_else_is_changed(seen: Any) -> None:
    """What ``import gt`` replaces or adds, by identity; the table may name a container (``copyreg.dispatch_table``)."""
    named = [name.split("[")[0] for name, _ in seen["patches"]]
    unnamed = [
        change
        for change in seen["changed"]
        if not STATE.search(change) and not any(change == name or change.startswith(name + ".") for name in named)
    ]
    assert unnamed == []
