"""Programs that don't import ``gt`` see torch as if GT weren't installed; ``import gt`` starts nothing."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from tests.system.programs import facts, run

# What a registered device changes in a program that never uses it.
FACTS = """
import json, sys
if sys.argv[1] == "hidden":
    sys.modules["gt"] = None
import torch, torch.utils.benchmark

def outcome(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]

leaf = torch.ones(2, requires_grad=True)
(leaf * 2).sum().backward()
found = {
    "gt is imported": "gt" in sys.modules and sys.modules["gt"] is not None,
    "accelerator": outcome(torch.accelerator.current_accelerator),
    "is_available": outcome(torch.accelerator.is_available),
    "privateuse1": torch._C._get_privateuse1_backend_name(),
    "device": outcome(lambda: torch.device("mux")),
    "module": hasattr(torch, "mux"),
    "pin_memory": outcome(lambda: torch.ones(2).pin_memory().is_pinned()),
    "fork_rng": outcome(lambda: torch.random.fork_rng().__enter__()),
    "timer": outcome(lambda: torch.utils.benchmark.Timer("1 + 1").timeit(2).number_per_run),
    "multithreading": torch.autograd.is_multithreading_enabled(),
    "swap": torch.__future__.get_swap_module_params_on_conversion(),
    "backward": leaf.grad.tolist(),
    "repr": repr(torch.ones(2)),
    "threads": torch.get_num_threads(),
}
import copyreg, copy, torch.serialization, torch._tensor_str
found["pickle"] = torch.Tensor in copyreg.dispatch_table
found["deepcopy"] = torch.Tensor in copy._deepcopy_dispatch
found["intern"] = torch._tensor_str._str_intern.__module__
found["serialization"] = len(torch.serialization._package_registry)
found["environment"] = sorted(name for name in __import__("os").environ if name.startswith("TORCH_"))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def plain() -> Any:
    """The facts in a program where GT can't be imported at all."""
    return facts(FACTS, "hidden")


def test_a_program_without_gt_sees_plain_torch(plain: Any) -> None:
    assert facts(FACTS, "visible") == plain
    assert plain["privateuse1"] == "privateuseone" and not plain["gt is imported"]


def test_the_facts_do_notice_a_registered_device(plain: Any) -> None:
    seen = facts("import gt\n" + FACTS, "visible")
    changed = {name for name in plain if plain[name] != seen[name]}
    assert {"gt is imported", "accelerator", "privateuse1", "device", "module"} <= changed
    assert not {"repr", "backward", "threads"} & changed


def test_no_entry_point_loads_gt_with_torch() -> None:
    assert [
        point for point in importlib.metadata.entry_points(group="torch.backends") if point.value.startswith("gt")
    ] == []


@pytest.mark.parametrize(
    "module",
    ["gt_runtime.worker.server", "gt_runtime.dispatcher.server", "gt_runtime.cli", "gt_top", "gt_runtime.control"],
)
def test_the_running_system_registers_no_device(module: str) -> None:
    code = f"""
    import json
    import {module}
    import torch
    print(json.dumps([torch._C._get_privateuse1_backend_name(), hasattr(torch, "mux")]))
    """
    assert facts(code) == ["privateuseone", False]


def test_import_starts_nothing() -> None:
    code = """
    import json, os, threading
    import psutil
    import torch
    before = set(os.listdir(os.environ["GT_RUNTIME_DIR"]))
    import gt
    print(json.dumps([
        len(psutil.Process().children(recursive=True)), threading.active_count(),
        sorted(set(os.listdir(os.environ["GT_RUNTIME_DIR"])) - before),
    ]))
    """
    assert facts(code) == [0, 1, []]


@pytest.mark.parametrize(
    "order",
    [
        "import gt\nimport torch",
        "import torch\nimport gt",
        "import torch.nn, torch.optim, torch.utils.data\nimport gt",
        "from gt import tensor\nimport torch",
        "import numpy\nimport gt\nimport torch",
        "import torch\ntorch.ones(2).sum().item()\nimport gt",
        "import torch\nx = torch.ones(2, requires_grad=True)\n(x * 2).sum().backward()\nimport gt",
    ],
)
def test_every_import_order_works(order: str) -> None:
    code = f"""{order}
import json
host = (torch.ones(2) + 1).tolist()
print(json.dumps([str(torch.device("mux", 0)), torch.get_device_module("mux").is_available(), host]))
"""
    assert facts(code) == ["mux:0", True, [2.0, 2.0]]


def test_a_device_registered_late_computes() -> None:
    code = "import torch\ntorch.ones(2).sum().item()\nimport gt\nprint((torch.ones(3, device='mux') * 2).tolist())"
    assert run(code, GT_WORKERS="1").strip() == "[2.0, 2.0, 2.0]"
