"""The patches without a cluster: where no mux tensor is concerned, a patched torch answers as an unpatched one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120  # for a program that imports torch, on a machine that does other things too

PROGRAM = """
import copy, io, json, pickle, sys
if sys.argv[1] == "1":
    import gt
import torch
from torch import nn

torch.manual_seed(0)
facts = {}
x = torch.arange(6.0).view(2, 3).requires_grad_()
facts["repr"] = [repr(x), repr(x * 2), repr(torch.arange(2000)), repr(torch.zeros(0, 3)), repr(x.to("meta"))]

model = nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(2))
before = [id(p) for p in model.parameters()]
model.double().float()
facts["apply"] = [before == [id(p) for p in model.parameters()], [type(p).__name__ for p in model.parameters()]]
facts["switch"] = torch.__future__.get_swap_module_params_on_conversion()

one, two = torch.ones(2), nn.Parameter(torch.zeros(3))
torch.utils.swap_tensors(one, two)
facts["swap"] = [type(one).__name__, one.tolist(), type(two).__name__, two.tolist()]

(x * 2).sum().backward()
facts["backward"] = [x.grad.tolist(), torch.autograd.grad((x ** 2).sum(), x)[0].tolist()]

storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
facts["storage"] = [
    storage.cpu() is storage, storage.to(device="cpu") is storage, storage.clone().tolist(), storage[1], list(storage),
    storage.data_ptr() != 0, torch.UntypedStorage(4).copy_(storage).tolist(), torch.UntypedStorage(2).fill_(7).tolist(),
]
storage[0] = 9
facts["storage written"] = storage.tolist()
shared = torch.zeros(4).share_memory_()
facts["shared"] = [shared.is_shared(), torch.zeros(2).untyped_storage()._share_fd_cpu_()[1]]

base = torch.arange(4.0)
for new_format in (True, False):
    file = io.BytesIO()
    torch.save([base, base[1:]], file, _use_new_zipfile_serialization=new_format)
    file.seek(0)
    a, b = torch.load(file)
    a.zero_()
    facts[f"file {new_format}"] = [a.tolist(), b.tolist()]
facts["pickle"] = [pickle.loads(pickle.dumps(base[1:])).tolist(), copy.deepcopy([base, base[1:]])[1].tolist()]

facts["dlpack"] = [
    torch.from_dlpack(base).tolist(), list(map(int, base.__dlpack_device__())),
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(base)).tolist(), str(torch.to_dlpack(base))[:8],
]
facts["nested"] = [t.tolist() for t in torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]).unbind()]
facts["nested too"] = torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)]).size(0)
facts["functionalize"] = torch.func.functionalize(lambda t: t.clone().add_(1))(base).tolist()
facts["linearize"] = torch.func.linearize(lambda t: t * t, base)[1](torch.ones(4)).tolist()
facts["make_fx"] = torch.fx.experimental.proxy_tensor.make_fx(lambda t: t + 1)(base).code
facts["compile"] = torch.compile(lambda t: t + 1, backend="eager")(base).tolist()

conj = torch.tensor([1 + 2j, 3 - 1j]).conj()
facts["conj"] = [conj.is_conj(), str(conj), conj[1:].is_conj(), str(conj.clone()), str(conj @ conj), conj.imag.is_neg()]
facts["one_hot"] = torch.nn.functional.one_hot(torch.tensor([1, 0])).tolist()
with torch.inference_mode():
    facts["inference"] = torch.isclose(base, base + 1e-9).tolist()

torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = False
facts["flags"] = [torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32]
facts["denormal"] = torch.set_flush_denormal(False)
torch.backends.cuda.matmul.allow_tf32 = True
facts["cublas"] = torch.backends.cuda.matmul.allow_tf32
print(json.dumps(facts))
"""

TABLE = """
import json
from gt import patches, session
facts = {}
for patch in patches.PATCHES:
    owner, attribute = patches.locate(patch.name)
    found = getattr(owner, attribute)
    code = getattr(found, "__code__", None)
    facts[patch.name] = [patch.why, code is None or "/gt/patches/" in code.co_filename, hasattr(owner, attribute)]
print(json.dumps([facts, session._session is None]))
"""


def run(program: str, *arguments: str) -> Any:
    """What ``program`` prints as JSON, in a process of its own: registering a device is for life."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GT_ADDRESS": "ipc:///nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=SECONDS, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    return run(PROGRAM, "0"), run(PROGRAM, "1")


def test_a_program_without_mux_tensors_sees_no_difference(both: tuple[Any, Any]) -> None:
    plain, patched = both
    assert patched == plain


def test_names_are_said_once_with_a_reason_and_start_nothing() -> None:
    facts, nothing_started = run(TABLE)
    assert nothing_started
    assert facts and all(why for why, _, _ in facts.values())
    assert [name for name, (_, ours, there) in facts.items() if not (ours and there)] == []


def test_the_page_shows_every_name() -> None:
    facts, _ = run(TABLE)
    page = (ROOT / "docs" / "device.md").read_text()
    assert [name for name, (why, _, _) in facts.items() if f"| `{name}` | {why} |" not in page] == []
