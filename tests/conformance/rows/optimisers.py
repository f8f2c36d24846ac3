"""Every optimiser of ``torch.optim`` in each of its implementations, and what surrounds a step."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn

from tests.conformance.registry import Host, add, grads, make, raised, row
from tests.conformance.rows.modules import settle

GROUP = "optimisers"
STEPS = 3

#: optimiser -> variants of its options; the first is the default
OPTIMISERS: dict[str, dict[str, dict[str, Any]]] = {
    "SGD": {
        "": {"lr": 0.1},
        "momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        "maximize": {"lr": 0.1, "maximize": True},
    },
    "Adam": {"": {"lr": 0.01}, "amsgrad": {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}},
    "AdamW": {"": {"lr": 0.01}, "amsgrad": {"lr": 0.01, "amsgrad": True}, "tensor_lr": {"lr": "tensor"}},
    "Adagrad": {"": {"lr": 0.1}},
    "Adadelta": {"": {}},
    "Adamax": {"": {"lr": 0.01}},
    "NAdam": {"": {"lr": 0.01}, "decoupled": {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}},
    "RAdam": {"": {"lr": 0.01}},
    "RMSprop": {"": {"lr": 0.01}, "centered": {"lr": 0.01, "centered": True, "momentum": 0.5}},
    "Rprop": {"": {"lr": 0.01}},
    "ASGD": {"": {"lr": 0.1}},
    "Adafactor": {"": {"lr": 0.01}},
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
WAYS: dict[str, dict[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "for_loop": {"foreach": False},
}


def _model(d: str) -> nn.Module:
    return settle(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))).to(d)


def _steps(d: str, model: nn.Module, optimiser: torch.optim.Optimizer, count: int = STEPS) -> list[float]:
    losses = []
    for index in range(count):
        optimiser.zero_grad()
        loss = (model(make(d, 6, 4, seed=20 + index)) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def _state(optimiser: torch.optim.Optimizer) -> Any:
    """State without step counters: their device is the optimiser's own choice for each implementation. NAdam keeps its
    running product on the CPU beside them, whatever the device of the parameters.
    """
    kept = optimiser.state_dict()["state"]
    return {
        k: {n: Host(v) if n == "mu_product" else v for n, v in each.items() if n != "step" and v is not None}
        for k, each in kept.items()
    }


def _run(d: str, name: str, options: dict[str, Any]) -> Any:
    named = {k: torch.tensor(0.01) if v == "tensor" else v for k, v in options.items()}
    model = _model(d)
    optimiser = getattr(torch.optim, name)(model.parameters(), **named)
    return _steps(d, model, optimiser), list(model.parameters()), _state(optimiser)


for _name, _variants in OPTIMISERS.items():
    for _variant, _options in _variants.items():
        for _way, _switch in WAYS.items():
            if (_way == "fused" and _name not in FUSED) or (_way == "foreach" and _variant == "tensor_lr"):
                continue
            _merged = _options | _switch
            _label = "_".join(filter(None, (_name, _variant, _way)))
            add(GROUP, _label, lambda d, name=_name, options=_merged: _run(d, name, options), rtol=1e-5, atol=1e-6)


@row(GROUP, rtol=1e-4, atol=1e-5)
def Muon(d: str) -> Any:
    model = settle(nn.Linear(4, 4, bias=False)).to(d)
    optimiser = torch.optim.Muon(model.parameters(), lr=0.01)
    return _steps(d, model, optimiser), list(model.parameters())


@row(GROUP, rtol=1e-4, atol=1e-5)
def LBFGS(d: str) -> Any:
    model = _model(d)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = (model(make(d, 6, 4)) ** 2).mean()
        loss.backward()
        return loss

    losses = [float(optimiser.step(closure)) for _ in range(2)]  # type: ignore[arg-type]
    return losses, list(model.parameters())


@row(GROUP)
def fused_where_there_is_none(d: str) -> Any:
    return raised(lambda: torch.optim.Adadelta(_model(d).parameters(), fused=True))  # type: ignore[call-arg]


@row(GROUP)
def foreach_and_fused(d: str) -> Any:
    return raised(lambda: torch.optim.Adam(_model(d).parameters(), foreach=True, fused=True))


@row(GROUP)
def state_dict_round_trip(d: str) -> Any:
    model = _model(d)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    _steps(d, model, optimiser)
    saved, twin = copy.deepcopy(optimiser.state_dict()), copy.deepcopy(model)
    again = torch.optim.AdamW(twin.parameters(), lr=0.5)
    again.load_state_dict(saved)
    one, two = _steps(d, model, optimiser, 1), _steps(d, twin, again, 1)
    return one == two, list(model.parameters()), list(twin.parameters())


@row(GROUP)
def state_dict_from_cpu(d: str) -> Any:
    host = _model("cpu")
    trained = torch.optim.SGD(host.parameters(), lr=0.1, momentum=0.9)
    _steps("cpu", host, trained)
    model = copy.deepcopy(host).to(d)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimiser.load_state_dict(trained.state_dict())
    return _steps(d, model, optimiser), _state(optimiser), list(model.parameters())


@row(GROUP)
def state_dict_saved_and_loaded(d: str) -> Any:
    model = _model(d)
    optimiser = torch.optim.Adam(model.parameters())
    _steps(d, model, optimiser)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    return dict(loaded["model"]), _state(optimiser)


@row(GROUP)
def parameter_groups(d: str) -> Any:
    model = _model(d)
    optimiser = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.5}], lr=0.1)  # type: ignore[index]
    optimiser.add_param_group({"params": list(model[2].parameters()), "weight_decay": 0.3})  # type: ignore[index]
    return _steps(d, model, optimiser), list(model.parameters())


@row(GROUP)
def step_hooks(d: str) -> Any:
    model, seen = _model(d), []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser.register_step_pre_hook(lambda *_: seen.append("before"))
    optimiser.register_step_post_hook(lambda *_: seen.append("after"))
    _steps(d, model, optimiser, 2)
    return seen


@row(GROUP)
def optimiser_in_backward(d: str) -> Any:
    model = _model(d)
    each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        each[parameter].step()  # type: ignore[index]
        each[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    (model(make(d, 6, 4)) ** 2).mean().backward()
    return list(model.parameters()), grads(model.parameters())


@row(GROUP)
def gradient_accumulation(d: str) -> Any:
    model = _model(d)
    optimiser = torch.optim.AdamW(model.parameters())
    for index in range(4):
        ((model(make(d, 6, 4, seed=index)) ** 2).mean() / 2).backward()
        if index % 2:
            optimiser.step()
            optimiser.zero_grad()
    return list(model.parameters())


@row(GROUP)
def averaged_model(d: str) -> Any:
    model = _model(d)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        _steps(d, model, optimiser, 1)
        average.update_parameters(model)
    return list(average.parameters()), average(make(d, 2, 4))


SCHEDULERS: dict[str, Any] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=5),
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "LinearLR": lambda o: torch.optim.lr_scheduler.LinearLR(o),
}
for _name, _build in SCHEDULERS.items():

    def _scheduled(d: str, build: Any = _build) -> Any:
        model, rates = _model(d), []
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        schedule = build(optimiser)
        for _ in range(STEPS):
            _steps(d, model, optimiser, 1)
            schedule.step()
            rates.append(schedule.get_last_lr())
        return rates, list(model.parameters())

    add(GROUP, _name, _scheduled)


@row(GROUP)
def ReduceLROnPlateau(d: str) -> Any:
    model = _model(d)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, patience=0)
    for _ in range(3):
        schedule.step(torch.tensor(1.0, device=d))  # type: ignore[arg-type]
    return optimiser.param_groups[0]["lr"]


FOREACH: dict[str, Any] = {
    "add": lambda a, b: torch._foreach_add(a, b),
    "add_scalar": lambda a, b: torch._foreach_add(a, 2.0),
    "add_scalars": lambda a, b: torch._foreach_add(a, [1.0, 2.0, 3.0]),
    "mul_": lambda a, b: torch._foreach_mul_(a, b),
    "norm": lambda a, b: torch._foreach_norm(a),
    "lerp_": lambda a, b: torch._foreach_lerp_(a, b, 0.1),
    "addcmul_": lambda a, b: torch._foreach_addcmul_(a, b, b, 0.5),
    "addcdiv_scalars": lambda a, b: torch._foreach_addcdiv_(a, b, [t.abs() + 1 for t in b], [0.1, 0.2, 0.3]),
    "sqrt_of_zero_": lambda a, b: (torch._foreach_zero_(a), torch._foreach_sqrt_(a))[1],
    "copy_": lambda a, b: torch._foreach_copy_(a, b),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
}
for _name, _call in FOREACH.items():

    def _foreach(d: str, call: Any = _call) -> Any:
        one = [make(d, *shape, seed=1) for shape in ((2,), (3, 2), (1,))]
        two = [make(d, *shape, seed=2) for shape in ((2,), (3, 2), (1,))]
        return call(one, two), one

    add(GROUP, f"foreach_{_name}", _foreach)
