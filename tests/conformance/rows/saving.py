"""Copies and files: deepcopy, pickle, torch.save and torch.load in all their cases, what stays shared."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.conformance.registry import Host, add, make, row
from tests.conformance.rows.modules import Tied, settle

GROUP = "saving"


def _saved(item: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(item, file, **options)
    file.seek(0)
    return file


TENSORS: dict[str, Callable[[str], Any]] = {
    "float": lambda d: make(d, 2, 3),
    "int": lambda d: make(d, 2, 3, dtype=torch.int64),
    "bool": lambda d: make(d, 4, dtype=torch.bool),
    "bfloat16": lambda d: make(d, 4, dtype=torch.bfloat16),
    "complex": lambda d: make(d, 4, dtype=torch.complex64),
    "scalar": lambda d: make(d),
    "empty": lambda d: torch.zeros(0, 3, device=d),
    "transposed": lambda d: make(d, 2, 3).t(),
    "channels_last": lambda d: make(d, 2, 3, 2, 2).to(memory_format=torch.channels_last),
    "requires_grad": lambda d: make(d, 3, grad=True),
    "parameter": lambda d: nn.Parameter(make(d, 3)),
    "frozen_parameter": lambda d: nn.Parameter(make(d, 3), requires_grad=False),
    "buffer": lambda d: nn.Buffer(make(d, 3)),
}
for _name, _make in TENSORS.items():
    add(GROUP, f"deepcopy_{_name}", lambda d, build=_make: copy.deepcopy(build(d)))
    add(GROUP, f"pickle_{_name}", lambda d, build=_make: pickle.loads(pickle.dumps(build(d))))
    add(GROUP, f"save_load_{_name}", lambda d, build=_make: torch.load(_saved(build(d))))


@row(GROUP)
def deepcopy_is_apart(d: str) -> Any:
    tensor = make(d, 3)
    twin = copy.deepcopy(tensor)
    twin.add_(1)
    return tensor, twin


@row(GROUP)
def deepcopy_keeps_gradient(d: str) -> Any:
    leaf = make(d, 3, grad=True)
    (leaf * 2).sum().backward()
    twin = copy.deepcopy(leaf)
    return twin, twin.grad, twin.grad is leaf.grad


@row(GROUP)
def deepcopy_keeps_views_shared(d: str) -> Any:
    base = make(d, 4)
    one, two = copy.deepcopy((base, base[1:3]))
    two.zero_()
    return one, two


@row(GROUP)
def deepcopy_keeps_one_object_one(d: str) -> Any:
    tensor = make(d, 4)
    one, two = copy.deepcopy([tensor, tensor])
    return one is two


@row(GROUP)
def copy_copy(d: str) -> Any:
    tensor = make(d, 3)
    twin = copy.copy(tensor)
    twin.add_(1)
    return twin is tensor, tensor


@row(GROUP)
def deepcopy_module(d: str) -> Any:
    model = settle(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).to(d)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
    return list(model.parameters()), list(twin.parameters()), list(twin.buffers())


@row(GROUP)
def deepcopy_module_tied(d: str) -> Any:
    twin = copy.deepcopy(settle(Tied()).to(d))
    return twin.head.weight is twin.embed.weight, twin.head.weight


@row(GROUP)
def deepcopy_trained_module(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d)
    model(make(d, 4, 3)).sum().backward()
    return [p.grad for p in copy.deepcopy(model).parameters()]


@row(GROUP)
def pickle_module(d: str) -> Any:
    return pickle.loads(pickle.dumps(settle(nn.Linear(3, 2)).to(d))).state_dict()


@row(GROUP)
def pickle_protocols(d: str) -> Any:
    return [pickle.loads(pickle.dumps(make(d, 3), protocol=p)) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)]


LOCATIONS: dict[str, Callable[[str], Any]] = {
    "none": lambda d: None,
    "string": lambda d: d,
    "string_with_index": lambda d: f"{d}:0" if d != "cpu" else "cpu",
    "device": lambda d: torch.device(d),
    "callable": lambda d: lambda storage, location: storage,
    "dict": lambda d: {d: d, f"{d}:0": d},
}
for _name, _location in LOCATIONS.items():
    for _only in (True, False):

        def _load(d: str, location: Any = _location, only: bool = _only) -> Any:
            item = {"a": make(d, 3), "b": [make(d, 2, dtype=torch.int64)]}
            loaded = torch.load(_saved(item), map_location=location(d), weights_only=only)
            if callable(location(d)):  # the storage as it was read, on the CPU
                return Host(loaded["a"].cpu()), Host(loaded["b"][0].cpu())
            return loaded

        add(GROUP, f"map_location_{_name}{'' if _only else '_any_pickle'}", _load)


@row(GROUP)
def map_location_cpu(d: str) -> Any:
    return Host(torch.load(_saved(make(d, 3)), map_location="cpu"))


@row(GROUP)
def map_location_device_of_cpu_file(d: str) -> Any:
    return torch.load(_saved(make("cpu", 3)), map_location=d)


@row(GROUP)
def map_location_callable_to_device(d: str) -> Any:
    return Host(torch.load(_saved(make(d, 3)), map_location=lambda storage, location: storage.cpu()))


@row(GROUP)
def map_location_meta(d: str) -> Any:
    return torch.load(_saved(make(d, 3)), map_location="meta").is_meta


@row(GROUP)
def load_under_default_device(d: str) -> Any:
    file = _saved(make(d, 3))
    with torch.device("meta"):
        return torch.load(file, map_location=d)


@row(GROUP)
def views_stay_shared(d: str) -> Any:
    base = make(d, 6)
    one, two = torch.load(_saved([base, base[2:5]]))
    two.zero_()
    return one, two


@row(GROUP)
def views_saved_alone_keep_their_offset(d: str) -> Any:
    return torch.load(_saved(make(d, 6)[2:5]))


@row(GROUP)
def one_object_twice(d: str) -> Any:
    tensor = make(d, 3)
    one, two = torch.load(_saved([tensor, tensor]))
    one.add_(1)
    return one, two


@row(GROUP)
def tied_weights_stay_shared(d: str) -> Any:
    state = torch.load(_saved(settle(Tied()).to(d).state_dict()))
    state["head.weight"].zero_()
    return state


@row(GROUP)
def tied_module_stays_tied(d: str) -> Any:
    model = torch.load(_saved(settle(Tied()).to(d)), weights_only=False)
    return model.head.weight is model.embed.weight, model.head.weight


@row(GROUP)
def state_dict_to_file_and_back(d: str) -> Any:
    model = settle(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).to(d)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        loaded = torch.load(Path(folder) / "model.pt")
    twin = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(d)
    twin.load_state_dict(loaded)
    return twin.state_dict()


@row(GROUP)
def mapped_file(d: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.save({"a": make(d, 3)}, path)
        return Host(torch.load(path, mmap=True, map_location="cpu")["a"].clone())


@row(GROUP)
def legacy_format(d: str) -> Any:
    return torch.load(_saved(make(d, 3), _use_new_zipfile_serialization=False))


@row(GROUP)
def saved_twice_is_the_same_file(d: str) -> Any:
    return _saved(make(d, 3)).getvalue() == _saved(make(d, 3)).getvalue()


@row(GROUP)
def non_leaf_saves_as_a_leaf(d: str) -> Any:
    return torch.load(_saved(make(d, 3, grad=True) * 2)), pickle.loads(pickle.dumps(make(d, 3, grad=True) * 2))


LOADER = """
import sys
sys.modules["gt"] = None  # as where GT isn't installed
import torch
loaded = torch.load(sys.argv[1], map_location="cpu", weights_only=sys.argv[2] == "1")
assert loaded["w"].device.type == "cpu" and loaded["w"].tolist() == [1.0, 2.0], loaded
assert loaded["v"].untyped_storage().data_ptr() == loaded["w"].untyped_storage().data_ptr()
print("loaded")
"""

for _only in (True, False):

    def _elsewhere(d: str, only: bool = _only) -> Any:
        base = torch.tensor([1.0, 2.0], device=d)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pt"
            torch.save({"w": base, "v": base[1:], "p": nn.Parameter(make(d, 2))}, path)
            command = [sys.executable, "-c", LOADER, str(path), str(int(only))]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.strip() or done.stderr[-500:]

    add(GROUP, f"loads_where_gt_is_not_installed{'' if _only else '_any_pickle'}", _elsewhere)
