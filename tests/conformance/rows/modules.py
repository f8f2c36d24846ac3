"""``torch.nn``: layers built on either side, train and eval, losses, containers, what ``to`` and ``state_dict``
keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.conformance.registry import add, grads, make, raised, row

GROUP = "modules"

# Recurrent layers and transformers add up many products: their kernels may take another order than the CPU's.
LOOSE = {"rtol": 1e-4, "atol": 1e-5}


def settle(module: nn.Module) -> nn.Module:
    """Give every parameter and buffer the same numbers on any device: initialisation draws random ones."""
    with torch.no_grad():
        for index, tensor in enumerate([*module.parameters(), *module.buffers()]):
            if tensor.is_floating_point():
                tensor.copy_(make("cpu", *tensor.shape, seed=index + 11).mul(0.2).abs().add(0.1))
    return module


def train(module: nn.Module, *inputs: torch.Tensor, **named: Any) -> Any:
    """Outputs, gradients of inputs and parameters, and buffers after one training step's forward and backward."""
    module.train()
    out = module(*inputs, **named)
    first = out[0] if isinstance(out, tuple) else out
    (first * make(str(first.device), *first.shape, seed=5)).sum().backward()
    return out, grads(module.parameters()), grads(inputs), list(module.buffers())


def _x(d: str, *shape: int) -> torch.Tensor:
    return make(d, *shape, seed=3, grad=True)


#: name -> (constructor, input shape)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "Linear_no_bias": (lambda: nn.Linear(4, 3, bias=False), (2, 5, 4)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 8)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2), (2, 3, 8, 8)),
    "Conv2d_groups": (lambda: nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding="same"), (2, 4, 8, 8)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), (2, 3, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (2, 3, 6)),
    "RMSNorm": (lambda: nn.RMSNorm(6), (2, 3, 6)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (2, 3, 4, 4)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(5), (6, 5)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 2, 2)),
    "BatchNorm2d_cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (4, 3, 2, 2)),
    "BatchNorm1d_no_stats": (lambda: nn.BatchNorm1d(5, track_running_stats=False), (6, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 4, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (2, 3, 4, 4)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 4, 4)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), (2, 3, 5, 5)),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), (2, 3, 4, 4)),
    "Upsample_nearest": (lambda: nn.Upsample(scale_factor=2), (1, 2, 3, 3)),
    "Upsample_bilinear": (lambda: nn.Upsample(size=(5, 5), mode="bilinear", align_corners=False), (1, 2, 3, 3)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (1, 8, 3, 3)),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(1), (1, 2, 3, 3)),
    "Unfold": (lambda: nn.Unfold(2), (1, 2, 4, 4)),
    "Fold": (lambda: nn.Fold((4, 4), 2, stride=2), (1, 8, 4)),
    "Flatten": (lambda: nn.Flatten(), (2, 3, 4)),
    "Sequential": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)), (3, 4)),
    "PReLU": (lambda: nn.PReLU(4), (2, 4)),
    "GLU": (lambda: nn.GLU(), (2, 4)),
    "Softmax": (lambda: nn.Softmax(dim=-1), (2, 4)),
    "LogSoftmax": (lambda: nn.LogSoftmax(dim=-1), (2, 4)),
    "CosineSimilarity": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmin(dim=1)), (2, 4)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "TransformerEncoderLayer_norm_first": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True, activation="gelu"),
        (5, 2, 8),
    ),
    "RNN": (lambda: nn.RNN(4, 5, batch_first=True), (2, 6, 4)),
    "GRU": (lambda: nn.GRU(4, 5), (6, 2, 4)),
    "GRU_bidirectional": (lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True), (2, 6, 4)),
    "LSTM": (lambda: nn.LSTM(4, 5, batch_first=True), (2, 6, 4)),
    "LSTM_bidirectional": (lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True), (6, 2, 4)),
    "LSTM_projected": (lambda: nn.LSTM(4, 5, proj_size=3), (6, 2, 4)),
    "LSTM_unbatched": (lambda: nn.LSTM(4, 5), (6, 4)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 5), (2, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 5), (2, 4)),
    "ParametrizedWeightNorm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
    "Orthogonal_eval_of_linear": (lambda: nn.Linear(4, 4), (4, 4)),
}

for _name, (_build, _shape) in LAYERS.items():

    def _built_on_cpu(d: str, build: Any = _build, shape: Any = _shape) -> Any:
        return train(settle(build()).to(d), _x(d, *shape))

    def _built_there(d: str, build: Any = _build, shape: Any = _shape) -> Any:
        with torch.device(d):
            module = build()
        return train(settle(module), _x(d, *shape))

    def _eval(d: str, build: Any = _build, shape: Any = _shape) -> Any:
        module = settle(build()).to(d).eval()
        with torch.no_grad():
            return module(_x(d, *shape))

    add(GROUP, f"{_name}_moved", _built_on_cpu, **LOOSE)
    add(GROUP, f"{_name}_built_there", _built_there, **LOOSE)
    add(GROUP, f"{_name}_eval", _eval, **LOOSE)

ACTIVATIONS = (
    "ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh", "Softplus",
    "Softsign", "Hardtanh", "Hardsigmoid", "Hardswish", "LogSigmoid", "Tanhshrink", "Softshrink", "Hardshrink",
)  # fmt: skip
for _name in ACTIVATIONS:
    add(GROUP, _name, lambda d, name=_name: train(getattr(nn, name)(), _x(d, 3, 5)))
for _name in ("ReLU", "LeakyReLU", "ELU", "SiLU", "Hardtanh"):
    add(GROUP, f"{_name}_in_place", lambda d, name=_name: getattr(nn, name)(inplace=True)(make(d, 3, 5)))

LOSSES: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda d, x: F.cross_entropy(x, torch.tensor([1, 0, 3], device=d)),
    "cross_entropy_smoothed": lambda d, x: F.cross_entropy(
        x, torch.tensor([1, 0, -100], device=d), label_smoothing=0.1
    ),
    "cross_entropy_weighted": lambda d, x: F.cross_entropy(
        x, torch.tensor([1, 0, 3], device=d), weight=torch.arange(4.0, device=d)
    ),
    "cross_entropy_of_probabilities": lambda d, x: F.cross_entropy(x, make(d, 3, 4, seed=9).softmax(1)),
    "nll_loss": lambda d, x: F.nll_loss(x.log_softmax(1), torch.tensor([1, 0, 3], device=d), reduction="sum"),
    "mse_loss": lambda d, x: F.mse_loss(x, make(d, 3, 4, seed=9)),
    "l1_loss": lambda d, x: F.l1_loss(x, make(d, 3, 4, seed=9)),
    "smooth_l1_loss": lambda d, x: F.smooth_l1_loss(x, make(d, 3, 4, seed=9)),
    "huber_loss": lambda d, x: F.huber_loss(x, make(d, 3, 4, seed=9)),
    "binary_cross_entropy": lambda d, x: F.binary_cross_entropy(x.sigmoid(), make(d, 3, 4, seed=9).sigmoid()),
    "binary_cross_entropy_with_logits": lambda d, x: F.binary_cross_entropy_with_logits(
        x, make(d, 3, 4, seed=9).sigmoid(), pos_weight=torch.arange(4.0, device=d)
    ),
    "kl_div": lambda d, x: F.kl_div(x.log_softmax(1), make(d, 3, 4, seed=9).softmax(1), reduction="batchmean"),
    "gaussian_nll_loss": lambda d, x: F.gaussian_nll_loss(x, make(d, 3, 4, seed=9), torch.ones(3, 4, device=d)),
    "poisson_nll_loss": lambda d, x: F.poisson_nll_loss(x, make(d, 3, 4, seed=9).abs()),
    "margin_ranking_loss": lambda d, x: F.margin_ranking_loss(x[0], x[1], torch.ones(4, device=d)),
    "hinge_embedding_loss": lambda d, x: F.hinge_embedding_loss(x, torch.ones(3, 4, device=d)),
    "multi_margin_loss": lambda d, x: F.multi_margin_loss(x, torch.tensor([1, 0, 3], device=d)),
    "multilabel_soft_margin_loss": lambda d, x: F.multilabel_soft_margin_loss(x, torch.ones(3, 4, device=d)),
    "triplet_margin_loss": lambda d, x: F.triplet_margin_loss(x, make(d, 3, 4, seed=9), make(d, 3, 4, seed=8)),
    "cosine_embedding_loss": lambda d, x: F.cosine_embedding_loss(x, make(d, 3, 4, seed=9), torch.ones(3, device=d)),
    "soft_margin_loss": lambda d, x: F.soft_margin_loss(x, torch.ones(3, 4, device=d)),
    "ctc_loss": lambda d, x: F.ctc_loss(
        x.unsqueeze(1).log_softmax(2), torch.tensor([[1, 2]], device=d), torch.tensor([3]), torch.tensor([2])
    ),
}


def _loss(d: str, call: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    leaf = _x(d, 3, 4)
    loss = call(d, leaf)
    loss.backward()
    return loss, leaf.grad


for _name, _call in LOSSES.items():
    add(GROUP, _name, lambda d, call=_call: _loss(d, call), **LOOSE)


@row(GROUP)
def embedding(d: str) -> Any:
    layer = settle(nn.Embedding(6, 3, padding_idx=0)).to(d)
    out = layer(torch.tensor([[0, 2], [5, 2]], device=d))
    out.sum().backward()
    return out, layer.weight.grad


@row(GROUP)
def embedding_max_norm(d: str) -> Any:
    layer = settle(nn.Embedding(6, 3, max_norm=0.5)).to(d)
    return layer(torch.tensor([0, 2], device=d)), layer.weight


@row(GROUP)
def embedding_bag(d: str) -> Any:
    layer = settle(nn.EmbeddingBag(6, 3, mode="mean")).to(d)
    out = layer(torch.tensor([0, 2, 5, 1], device=d), torch.tensor([0, 2], device=d))
    out.sum().backward()
    return out, layer.weight.grad


@row(GROUP)
def bilinear(d: str) -> Any:
    return train(settle(nn.Bilinear(3, 4, 2)).to(d), _x(d, 5, 3), _x(d, 5, 4))


@row(GROUP, **LOOSE)
def multihead_attention(d: str) -> Any:
    x = _x(d, 5, 2, 8)
    return train(settle(nn.MultiheadAttention(8, 2)).to(d), x, x, x)


@row(GROUP, **LOOSE)
def multihead_attention_masked(d: str) -> Any:
    layer = settle(nn.MultiheadAttention(8, 2, batch_first=True)).to(d)
    x = _x(d, 2, 5, 8)
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=d)
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool, device=d), 1)
    return layer(x, x, x, key_padding_mask=hidden, attn_mask=causal, average_attn_weights=False)


@row(GROUP, **LOOSE)
def multihead_attention_fast_path(d: str) -> Any:
    layer = settle(nn.MultiheadAttention(8, 2, batch_first=True)).to(d).eval()
    with torch.inference_mode():
        x = make(d, 2, 5, 8)
        return tuple(t.clone() for t in layer(x, x, x))


@row(GROUP, **LOOSE)
def transformer_encoder_fast_path(d: str) -> Any:
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False)
    layer = settle(layer).to(d).eval()
    with torch.no_grad():
        return layer(make(d, 2, 5, 8))


@row(GROUP, **LOOSE)
def transformer(d: str) -> Any:
    layer = settle(nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)).to(d)
    return train(layer, _x(d, 5, 2, 8), make(d, 4, 2, 8, seed=6, grad=True))


ATTENTION: dict[str, Any] = {
    "plain": lambda d: {},
    "causal": lambda d: {"is_causal": True},
    "mask_bool": lambda d: {"attn_mask": torch.ones(5, 5, dtype=torch.bool, device=d).tril()},
    "mask_float": lambda d: {"attn_mask": make(d, 5, 5, seed=7)},
    "scale": lambda d: {"scale": 0.3},
}
for _name, _named in ATTENTION.items():

    def _attend(d: str, named: Any = _named) -> Any:
        q, k, v = (make(d, 2, 2, 5, 4, seed=s, grad=True) for s in (1, 2, 3))
        out = F.scaled_dot_product_attention(q, k, v, **named(d))
        (out * make(d, 2, 2, 5, 4, seed=4)).sum().backward()
        return out, grads([q, k, v])

    add(GROUP, f"attention_{_name}", _attend, **LOOSE)


@row(GROUP, **LOOSE)
def lstm_packed(d: str) -> Any:
    layer = settle(nn.LSTM(4, 5, batch_first=True)).to(d)
    packed = nn.utils.rnn.pack_padded_sequence(_x(d, 2, 6, 4), torch.tensor([6, 3]), batch_first=True)
    out, state = layer(packed)
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0], state


@row(GROUP, **LOOSE)
def lstm_with_state(d: str) -> Any:
    layer = settle(nn.LSTM(4, 5)).to(d)
    state = (make(d, 1, 2, 5, seed=8), make(d, 1, 2, 5, seed=9))
    _, state = layer(_x(d, 3, 2, 4), state)
    return layer(make(d, 3, 2, 4, seed=4), state)


@row(GROUP)
def pad_sequence(d: str) -> Any:
    return nn.utils.rnn.pad_sequence([make(d, 2), make(d, 4, seed=2)], batch_first=True, padding_value=-1)


@row(GROUP)
def dropout_eval_is_identity(d: str) -> Any:
    x = make(d, 3, 4)
    return nn.Dropout(0.5).eval()(x) is x, F.dropout(x, 0.0), F.dropout(x, 1.0)


class Tied(nn.Module):
    """Embedding and output share one matrix, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, index: torch.Tensor) -> Any:
        return self.head(self.embed(index))


@row(GROUP)
def tied_weights_stay_tied(d: str) -> Any:
    model = settle(Tied()).to(d)
    model(torch.tensor([1, 2, 5], device=d)).pow(2).sum().backward()
    same = model.head.weight is model.embed.weight
    return same, len(list(model.parameters())), model.embed.weight.grad, model.state_dict()


@row(GROUP)
def tied_weights_and_back(d: str) -> Any:
    model = settle(Tied()).to(d).to("cpu").to(d)
    return model.head.weight is model.embed.weight, model.head.weight


@row(GROUP)
def tied_module_used_twice(d: str) -> Any:
    layer = settle(nn.Linear(3, 3))
    model = nn.Sequential(layer, nn.Tanh(), layer).to(d)
    return model[0] is model[2], train(model, _x(d, 2, 3))


@row(GROUP)
def tied_by_plain_attribute(d: str) -> Any:
    model = nn.Linear(3, 3)
    model.other = model.weight
    model.to(d)
    with torch.no_grad():
        model.weight.fill_(2.0)
    return model.other is model.weight, model.other


@row(GROUP)
def to_keeps_identity(d: str) -> Any:
    model = nn.Linear(3, 2)
    weight = model.weight
    back = model.to(d)
    return back is model, model.weight is weight, weight.device.type == torch.device(d).type


@row(GROUP)
def to_keeps_the_optimiser(d: str) -> Any:
    model = settle(nn.Linear(3, 2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to(d)
    model(make(d, 4, 3)).sum().backward()
    optimiser.step()
    return list(model.parameters())


@row(GROUP)
def to_moves_gradients(d: str) -> Any:
    model = settle(nn.Linear(3, 2))
    model(make("cpu", 4, 3)).sum().backward()
    model.to(d)
    return grads(model.parameters())


@row(GROUP)
def to_dtype(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d, torch.float64)
    return model(make(d, 4, 3).double()), [str(p.dtype) for p in model.parameters()]


MOVES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "double": lambda m: m.double(),
    "channels_last": lambda m: m.to(memory_format=torch.channels_last),
    "requires_grad_off": lambda m: m.requires_grad_(False),
    "share_buffers": lambda m: m.to(next(m.parameters()).device),
}
for _name, _move in MOVES.items():

    def _moved(d: str, move: Any = _move) -> Any:
        model = move(settle(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))).to(d))
        return list(model.parameters()), list(model.buffers())

    add(GROUP, f"module_{_name}", _moved)


@row(GROUP)
def to_meta_and_to_empty(d: str) -> Any:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model = settle(model.to_empty(device=d))
    return model(make(d, 2, 3)), list(model.parameters())


@row(GROUP)
def state_dict(d: str) -> Any:
    return settle(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).to(d).state_dict()


@row(GROUP)
def state_dict_shares_memory(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d)
    model.state_dict()["bias"].fill_(4.0)
    return model.bias


@row(GROUP)
def load_state_dict_from_cpu(d: str) -> Any:
    model = nn.Linear(3, 2).to(d)
    report = model.load_state_dict(settle(nn.Linear(3, 2)).state_dict())
    return str(report), list(model.parameters())


@row(GROUP)
def load_state_dict_assign(d: str) -> Any:
    model = nn.Linear(3, 2, device="meta")
    model.load_state_dict(settle(nn.Linear(3, 2)).to(d).state_dict(), assign=True)
    return list(model.parameters())


@row(GROUP)
def load_state_dict_wrong_shape(d: str) -> Any:
    return raised(lambda: nn.Linear(3, 2).to(d).load_state_dict(nn.Linear(3, 4).to(d).state_dict()))


@row(GROUP)
def load_state_dict_missing_key(d: str) -> Any:
    return raised(lambda: nn.Linear(3, 2).to(d).load_state_dict({"weight": make(d, 2, 3)}))


@row(GROUP)
def buffers(d: str) -> Any:
    model = nn.Module()
    model.register_buffer("kept", make("cpu", 3))
    model.register_buffer("temporary", make("cpu", 2), persistent=False)
    model.to(d)
    return dict(model.named_buffers()), sorted(model.state_dict())


@row(GROUP)
def zero_grad(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d)
    model(make(d, 4, 3)).sum().backward()
    model.zero_grad(set_to_none=False)
    zeros = [g.clone() for g in grads(model.parameters()) if g is not None]
    model.zero_grad()
    return zeros, grads(model.parameters())


@row(GROUP)
def clip_grad_norm(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d)
    (model(make(d, 4, 3)) * 100).sum().backward()
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0), grads(model.parameters())


@row(GROUP)
def clip_grad_norm_foreach(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d)
    (model(make(d, 4, 3)) * 100).sum().backward()
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1.0, foreach=True), grads(model.parameters())


@row(GROUP)
def clip_grad_value(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d)
    (model(make(d, 4, 3)) * 100).sum().backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    return grads(model.parameters())


@row(GROUP)
def parameters_to_vector(d: str) -> Any:
    model = settle(nn.Linear(3, 2)).to(d)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return vector, list(model.parameters())


@row(GROUP)
def containers(d: str) -> Any:
    model = nn.Module()
    model.layers = nn.ModuleList([settle(nn.Linear(2, 2)) for _ in range(2)])
    model.named = nn.ModuleDict({"a": settle(nn.Linear(2, 1))})
    model.free = nn.ParameterList([nn.Parameter(make("cpu", 2))])
    model.to(d)
    return dict(model.named_parameters())


@row(GROUP)
def lazy_linear(d: str) -> Any:
    model = nn.LazyLinear(2).to(d)
    model(make(d, 3, 5))
    return settle(model)(make(d, 3, 5)), type(model).__name__


@row(GROUP)
def prune_and_parametrize(d: str) -> Any:
    from torch.nn.utils import prune

    model = settle(nn.Linear(4, 3)).to(d)
    prune.l1_unstructured(model, "weight", amount=0.5)
    return model(make(d, 2, 4)), dict(model.named_buffers())


@row(GROUP)
def spectral_norm(d: str) -> Any:
    model = nn.utils.parametrizations.spectral_norm(settle(nn.Linear(4, 3)).to(d), n_power_iterations=20)
    return torch.linalg.matrix_norm(model.weight, 2).round(decimals=2)


@row(GROUP)
def cosine_similarity_and_distance(d: str) -> Any:
    one, two = make(d, 3, 4), make(d, 3, 4, seed=2)
    return F.cosine_similarity(one, two), F.pairwise_distance(one, two), torch.cdist(one, two)


@row(GROUP)
def one_hot(d: str) -> Any:
    return F.one_hot(torch.tensor([0, 2, 1], device=d)), F.one_hot(torch.tensor([0, 1], device=d), 5)


@row(GROUP)
def interpolate_and_grid_sample(d: str) -> Any:
    x = make(d, 1, 2, 4, 4)
    grid = F.affine_grid(torch.tensor([[[1.0, 0.1, 0], [0, 1, 0.2]]], device=d), [1, 2, 4, 4], align_corners=False)
    return F.interpolate(x, scale_factor=0.5, mode="area"), F.grid_sample(x, grid, align_corners=False)


@row(GROUP)
def skip_init(d: str) -> Any:
    model = nn.utils.skip_init(nn.Linear, 3, 2, device=d)
    return settle(model)(make(d, 2, 3))


@row(GROUP)
def fuse_conv_bn(d: str) -> Any:
    conv, norm = settle(nn.Conv2d(2, 3, 1)).to(d).eval(), settle(nn.BatchNorm2d(3)).to(d).eval()
    return nn.utils.fuse_conv_bn_eval(conv, norm)(make(d, 1, 2, 3, 3))  # type: ignore[type-var]


INIT: dict[str, Any] = {
    "constant": lambda t: nn.init.constant_(t, 0.3),
    "eye": lambda t: nn.init.eye_(t),
    "dirac": lambda t: nn.init.dirac_(t.view(4, 2, 3)),
    "zeros": lambda t: nn.init.zeros_(t),
}
for _name, _call in INIT.items():
    add(GROUP, f"init_{_name}", lambda d, call=_call: call(make(d, 4, 6)))
