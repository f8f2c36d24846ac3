"""GT's own small interface, used the way a program uses it. The CPU has no twin of these rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.registry import make, raised, row

GROUP = "interface"


@row(GROUP, own=True)
def names(d: str) -> Any:
    import gt

    return {"device": torch.device(gt.device).type == d, "version": isinstance(gt.__version__, str)}


@row(GROUP, own=True)
def conveniences(d: str) -> Any:
    import numpy

    import gt

    made = {
        "tensor": gt.tensor([1.0, 2.0]), "zeros": gt.zeros(2), "ones": gt.ones(2), "randn": gt.randn(2), "rand":
        gt.rand(2), "from_numpy": gt.from_numpy(numpy.ones(2)),
    }  # fmt: skip
    return {name: tensor.device.type == d and tensor.numel() == 2 for name, tensor in made.items()}


@row(GROUP, own=True)
def synchronize(d: str) -> Any:
    import gt

    value = make(d, 4) * 2
    gt.synchronize()
    return {"value": torch.equal(value.cpu(), make("cpu", 4) * 2)}


@row(GROUP, own=True)
def connect_is_idempotent(d: str) -> Any:
    import gt

    value = make(d, 4)
    gt.synchronize()
    return {"value survives": torch.equal(value.cpu(), make("cpu", 4))}


@row(GROUP, own=True)
def signal_context(d: str) -> Any:
    import gt

    model = nn.Linear(3, 2).to(d)
    with gt.signal.context("outer"), gt.signal.context("inner"):
        out = model(make(d, 2, 3))
    out.sum().backward()
    assert model.weight.grad is not None
    return {"results are the same": torch.allclose(out.detach().cpu(), model.cpu()(make("cpu", 2, 3)).detach())}


@row(GROUP, own=True)
def config(d: str) -> Any:
    import gt

    gt.config.set({"memory_pool_size": 1 << 20})
    unknown = raised(lambda: gt.config.set({"memory_pol_size": 1}))
    return {
        "kept": gt.config.get("memory_pool_size") == 1 << 20,
        "unknown key names the nearest": "memory_pool_size" in str(unknown),
    }


@row(GROUP, own=True)
def tape(d: str) -> Any:
    import gt

    with gt.debug.tape() as entries:
        (make(d, 4, 4) @ make(d, 4, 4)).sum().item()
    ran = [entry for entry in entries if entry.ran]
    names = [entry.operator for entry in ran]
    return {
        "mm ran": any("mm" in name for name in names),
        "sum ran": any("sum" in name for name in names),
        "each on a worker": all(entry.worker for entry in ran),
    }


@row(GROUP, own=True)
def later_failure_names_what_failed(d: str) -> Any:
    weight, index = make(d, 4, 2), torch.tensor([1, 2], device=d)
    nn.functional.embedding(index, weight).sum().item()  # the template is known from here on
    good = weight * 2
    bad = nn.functional.embedding(torch.tensor([1, 99], device=d), weight)
    found = str(raised(lambda: bad.sum().item()))
    return {
        "raised": found != "nothing was raised",
        "operator": "embedding" in found,
        "shapes": "[4, 2]" in found,
        "worker": "w0" in found or "w1" in found,
        "file and line": "interface.py" in found,
        "other values stay good": torch.equal(good.cpu(), make("cpu", 4, 2) * 2),
    }
