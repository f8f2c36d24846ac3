"""Random numbers: one seed gives one sequence, generators and states hold what they promise, draws have the right
distribution.

The numbers themselves are the device's own (CUDA's differ from the CPU's too), so rows return facts about them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.registry import add, make, row

GROUP = "randomness"
MANY = 20_000  # draws: the mean of a unit normal is then within 0.03 but for one time in 40,000, and the seed is fixed

DRAWS: dict[str, Callable[[str], torch.Tensor]] = {
    "rand": lambda d: torch.rand(50, device=d),
    "randn": lambda d: torch.randn(50, device=d),
    "randint": lambda d: torch.randint(0, 1000, (50,), device=d),
    "randperm": lambda d: torch.randperm(50, device=d),
    "rand_like": lambda d: torch.rand_like(torch.zeros(50, device=d)),
    "randn_like": lambda d: torch.randn_like(torch.zeros(50, device=d)),
    "normal": lambda d: torch.normal(0.0, 1.0, (50,), device=d),
    "normal_of_tensors": lambda d: torch.normal(torch.zeros(50, device=d), torch.ones(50, device=d)),
    "bernoulli": lambda d: torch.bernoulli(torch.full((200,), 0.5, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(50, device=d), 30),
    "poisson": lambda d: torch.poisson(torch.full((50,), 9.0, device=d)),
    "dropout": lambda d: F.dropout(torch.ones(200, device=d), 0.5),
    "alpha_dropout": lambda d: F.alpha_dropout(torch.ones(200, device=d), 0.5, training=True),
    "feature_dropout": lambda d: F.dropout2d(torch.ones(2, 100, 2, 2, device=d), 0.5),
    "rrelu": lambda d: F.rrelu(-torch.ones(50, device=d), training=True),
    "gumbel_softmax": lambda d: F.gumbel_softmax(torch.zeros(50, device=d)),
    "attention_dropout": lambda d: F.scaled_dot_product_attention(
        *[torch.ones(1, 1, 8, 8, device=d) for _ in range(3)], dropout_p=0.5
    ),
    "uniform_": lambda d: torch.zeros(50, device=d).uniform_(),
    "normal_": lambda d: torch.zeros(50, device=d).normal_(),
    "exponential_": lambda d: torch.zeros(50, device=d).exponential_(),
    "cauchy_": lambda d: torch.zeros(50, device=d).cauchy_(),
    "log_normal_": lambda d: torch.zeros(50, device=d).log_normal_(),
    "geometric_": lambda d: torch.zeros(50, device=d).geometric_(0.2),
    "random_": lambda d: torch.zeros(50, device=d).random_(0, 1000),
    "bernoulli_": lambda d: torch.zeros(200, device=d).bernoulli_(0.5),
    "kaiming_uniform_": lambda d: nn.init.kaiming_uniform_(torch.zeros(10, 5, device=d)),
    "xavier_normal_": lambda d: nn.init.xavier_normal_(torch.zeros(10, 5, device=d)),
    "trunc_normal_": lambda d: nn.init.trunc_normal_(torch.zeros(10, 5, device=d)),
    "orthogonal_": lambda d: nn.init.orthogonal_(torch.zeros(5, 5, device=d)),
    "linear_weights": lambda d: nn.Linear(10, 5, device=d).weight.detach(),
    "distribution_normal": lambda d: torch.distributions.Normal(torch.zeros(50, device=d), 1.0).sample(),
    "distribution_categorical": lambda d: torch.distributions.Categorical(torch.ones(50, device=d)).sample((50,)),
    "distribution_gamma": lambda d: torch.distributions.Gamma(
        torch.ones(50, device=d), torch.ones(50, device=d)
    ).sample(),
    "distribution_dirichlet": lambda d: torch.distributions.Dirichlet(torch.ones(50, device=d)).sample(),
}


def _one_seed_one_sequence(d: str, draw: Callable[[str], torch.Tensor]) -> Any:
    torch.manual_seed(7)
    one, two = draw(d), draw(d)
    torch.manual_seed(7)
    again = draw(d)
    torch.manual_seed(8)
    other = draw(d)
    return torch.equal(one, again), torch.equal(one, two), torch.equal(one, other), one.dtype, one.shape


for _name, _draw in DRAWS.items():
    add(GROUP, f"seed_{_name}", lambda d, draw=_draw: _one_seed_one_sequence(d, draw))

#: name -> (draw, mean, standard deviation), by each distribution's definition
DISTRIBUTIONS: dict[str, tuple[Callable[[str], torch.Tensor], float, float]] = {
    "rand": (lambda d: torch.rand(MANY, device=d), 0.5, 0.2887),
    "randn": (lambda d: torch.randn(MANY, device=d), 0.0, 1.0),
    "randint": (lambda d: torch.randint(0, 10, (MANY,), device=d).float(), 4.5, 2.872),
    "bernoulli": (lambda d: torch.bernoulli(torch.full((MANY,), 0.3, device=d)), 0.3, 0.458),
    "exponential": (lambda d: torch.empty(MANY, device=d).exponential_(2.0), 0.5, 0.5),
    "uniform": (lambda d: torch.empty(MANY, device=d).uniform_(-1, 3), 1.0, 1.155),
    "normal": (lambda d: torch.empty(MANY, device=d).normal_(2, 3), 2.0, 3.0),
    "geometric": (lambda d: torch.empty(MANY, device=d).geometric_(0.5), 2.0, 1.414),
    "poisson": (lambda d: torch.poisson(torch.full((MANY,), 4.0, device=d)), 4.0, 2.0),
    "dropout": (lambda d: F.dropout(torch.ones(MANY, device=d), 0.25), 1.0, 0.577),
}
for _name, (_draw, _mean, _spread) in DISTRIBUTIONS.items():

    def _moments(d: str, draw: Any = _draw, mean: float = _mean, spread: float = _spread) -> Any:
        torch.manual_seed(3)
        drawn = draw(d)
        return abs(drawn.mean().item() - mean) < 0.05 * max(1.0, spread), abs(drawn.std().item() / spread - 1) < 0.05

    add(GROUP, f"distribution_of_{_name}", _moments)


@row(GROUP)
def ranges(d: str) -> Any:
    drawn = torch.rand(MANY, device=d)
    whole = torch.randint(3, 9, (MANY,), device=d)
    return (
        bool((drawn >= 0).all() and (drawn < 1).all()),
        whole.min(),
        whole.max(),
        torch.randperm(100, device=d).sort().values,
    )


@row(GROUP)
def initial_seed(d: str) -> Any:
    torch.manual_seed(123)
    return torch.initial_seed()


def _device_module(d: str) -> Any:
    """Where the device's own RNG state lives: ``torch`` itself for the CPU."""
    return torch if torch.device(d).type == "cpu" else torch.get_device_module(d)


@row(GROUP)
def rng_state(d: str) -> Any:
    where = _device_module(d)
    torch.manual_seed(5)
    torch.rand(7, device=d)
    state = where.get_rng_state()
    one = torch.rand(9, device=d)
    where.set_rng_state(state)
    return torch.equal(one, torch.rand(9, device=d)), state.dtype, state.device.type


@row(GROUP)
def rng_state_is_a_copy(d: str) -> Any:
    where = _device_module(d)
    state = where.get_rng_state()
    kept = state.clone()
    torch.rand(9, device=d)
    return torch.equal(state, kept)


@row(GROUP)
def fork_rng(d: str) -> Any:
    kind = torch.device(d).type
    options: dict[str, Any] = {} if kind == "cpu" else {"devices": [0], "device_type": kind}
    torch.manual_seed(5)
    with torch.random.fork_rng(**options):
        torch.rand(3, device=d)
        torch.manual_seed(99)
        torch.rand(3, device=d)
    one = torch.rand(5, device=d)
    torch.manual_seed(5)
    return torch.equal(one, torch.rand(5, device=d))


@row(GROUP)
def generator(d: str) -> Any:
    made = torch.Generator(device=d)
    made.manual_seed(11)
    one = torch.rand(9, device=d, generator=made)
    two = torch.rand(9, device=d, generator=made)
    made.manual_seed(11)
    again = torch.rand(9, device=d, generator=made)
    return torch.equal(one, again), torch.equal(one, two), made.initial_seed(), made.device.type == torch.device(d).type


@row(GROUP)
def generator_is_apart_from_the_default(d: str) -> Any:
    torch.manual_seed(1)
    one = torch.rand(9, device=d)
    torch.manual_seed(1)
    torch.rand(50, device=d, generator=torch.Generator(device=d).manual_seed(4))
    return torch.equal(one, torch.rand(9, device=d))


@row(GROUP)
def generator_state(d: str) -> Any:
    made = torch.Generator(device=d).manual_seed(2)
    torch.rand(3, device=d, generator=made)
    state = made.get_state()
    one = torch.rand(5, device=d, generator=made)
    made.set_state(state)
    two = torch.rand(5, device=d, generator=made)
    other = torch.Generator(device=d)
    other.set_state(state)
    return torch.equal(one, two), torch.equal(one, torch.rand(5, device=d, generator=other))


@row(GROUP)
def generator_clone_state(d: str) -> Any:
    made = torch.Generator(device=d).manual_seed(2)
    twin = made.clone_state()
    return torch.equal(torch.rand(5, device=d, generator=made), torch.rand(5, device=d, generator=twin))


@row(GROUP)
def generator_seed_draws_one(d: str) -> Any:
    made = torch.Generator(device=d)
    seed = made.seed()
    return seed == made.initial_seed()


GENERATED: dict[str, Callable[[str, torch.Generator], torch.Tensor]] = {
    "randn": lambda d, g: torch.randn(9, device=d, generator=g),
    "randint": lambda d, g: torch.randint(0, 1000, (9,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(50, device=d, generator=g),
    "normal_": lambda d, g: torch.zeros(9, device=d).normal_(generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((99,), 0.5, device=d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(50, device=d), 9, generator=g),
    "kaiming": lambda d, g: nn.init.kaiming_normal_(torch.zeros(3, 3, device=d), generator=g),
}
for _name, _generated in GENERATED.items():

    def _with_generator(d: str, draw: Any = _generated) -> Any:
        one = draw(d, torch.Generator(device=d).manual_seed(6))
        return torch.equal(one, draw(d, torch.Generator(device=d).manual_seed(6)))

    add(GROUP, f"generator_{_name}", _with_generator)


@row(GROUP)
def dropout_mask_matches_backward(d: str) -> Any:
    leaf = torch.ones(300, device=d, requires_grad=True)
    out = F.dropout(leaf * 1, 0.5)
    out.sum().backward()
    assert leaf.grad is not None
    return torch.equal(leaf.grad, out.detach()), sorted(set(out.tolist()))


@row(GROUP)
def training_is_reproducible(d: str) -> Any:
    def train() -> torch.Tensor:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1)).to(d)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimiser.zero_grad()
            (model(torch.randn(6, 4, device=d)) ** 2).mean().backward()
            optimiser.step()
        return model[0].weight.detach()

    return torch.equal(train(), train())


@row(GROUP)
def in_place_draw_into_a_view(d: str) -> Any:
    base = torch.zeros(4, 4, device=d)
    base[1:3].uniform_(5, 6)
    return base[0], base[3], bool((base[1:3] >= 5).all())


@row(GROUP)
def reparametrised_sample_has_gradient(d: str) -> Any:
    mean = make(d, 3, grad=True)
    torch.distributions.Normal(mean, 1.0).rsample((4,)).sum().backward()
    return mean.grad


@row(GROUP, own=True)
def cpu_and_device_sequences_are_apart(d: str) -> Any:
    torch.manual_seed(1)
    host = torch.rand(9)
    torch.manual_seed(1)
    torch.rand(50, device=d)
    return {"a draw on the device leaves the CPU's generator alone": torch.equal(host, torch.rand(9))}


@row(GROUP)
def wrong_generator_leaves_nothing_behind(d: str) -> Any:
    """What is refused while it is recorded must not stand half-written in the stream."""
    try:
        torch.rand(3, generator=torch.Generator(), device=d)
    except RuntimeError:
        pass  # on the CPU it is the right one
    return torch.randperm(10, device=d).sort().values
