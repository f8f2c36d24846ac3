"""A model, its sizes and its data, drawn by a seed: what is measured beside the GPT that everybody tunes for."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

SEED = int(os.environ.get("GT_BENCH_SEED", "1"))


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """``loss(model, device)`` runs the model on its data there and returns a scalar."""

    name: str
    model: nn.Module
    loss: Callable[[nn.Module, str], Tensor]


def draw(seed: int) -> Drawn:
    """One of four kinds; widths, depths and batches from its own generator."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kind = rng.choice((perceptron, convolutional, recurrent, encoder))
    name, model, inputs, targets = kind(rng)
    at = {"cpu": (inputs, targets), "mux": (inputs.to("mux"), targets.to("mux"))}

    def loss(model: nn.Module, device: str) -> Tensor:
        x, y = at[device]
        return F.cross_entropy(model(x), y)

    return Drawn(f"{name} (seed {seed})", model, loss)


Parts = tuple[str, nn.Module, Tensor, Tensor]


class Last(nn.Module):
    """The last step of what a recurrent or attending network gives, mapped to classes. (batch, time, width) in."""

    def __init__(self, inner: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        found = found[0] if isinstance(found, tuple) else found
        out: Tensor = self.head(found[:, -1])
        return out


def perceptron(rng: random.Random) -> Parts:
    width, depth, batch = rng.choice((128, 256, 512)), rng.randint(2, 8), rng.choice((16, 64, 256))
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    return f"perceptron {depth} x {width}, batch {batch}", model, *data(rng, (batch, width))


def convolutional(rng: random.Random) -> Parts:
    channels, depth, side, batch = rng.choice((16, 32)), rng.randint(2, 5), rng.choice((16, 32)), rng.choice((8, 32))
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return f"convolutional {depth} x {channels}, batch {batch} x {side}", model, *data(rng, (batch, 3, side, side))


def recurrent(rng: random.Random) -> Parts:
    width, layers, length, batch = rng.choice((64, 128)), rng.randint(1, 2), rng.choice((16, 32)), rng.choice((8, 32))
    model = Last(nn.LSTM(width, width, layers, batch_first=True), width, 10)
    return f"LSTM {layers} x {width}, batch {batch} x {length}", model, *data(rng, (batch, length, width))


def encoder(rng: random.Random) -> Parts:
    width, layers, length, batch = rng.choice((128, 256)), rng.randint(1, 4), rng.choice((32, 64)), rng.choice((8, 16))
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = Last(nn.TransformerEncoder(layer, layers), width, 10)
    return f"encoder {layers} x {width}, batch {batch} x {length}", model, *data(rng, (batch, length, width))


def data(rng: random.Random, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return torch.randn(shape, generator=generator), torch.randint(10, shape[:1], generator=generator)
