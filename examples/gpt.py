"""A small GPT that learns to write like Python's own manual: plain PyTorch, no data to fetch.

The text is what ``help()`` shows, `pydoc_data.topics`, which ships with Python. On the CPU nothing of GT is needed::

    python examples/gpt.py --steps 200
    python examples/gpt.py --steps 200 --device mux      # the same program on GT's workers

Batches are drawn on the CPU from their own generator and weights are made on the CPU, so that one seed gives one
training, whatever the device.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class Block(nn.Module):
    """Attention over the past, then a small network, each beside a residual path. (batch, time, width) in and out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.mlp(self.ln2(x))
        return out


class GPT(nn.Module):
    """Called with tokens and the tokens that follow them, both (batch, time) int64; returns the mean loss in nats."""

    def __init__(self, vocabulary: int, width: int = 128, context: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.ln(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Text:
    """The manual's text as tokens, one a character, and batches drawn from it."""

    def __init__(self, seed: int) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(text))
        index = {c: i for i, c in enumerate(self.characters)}
        self.tokens = torch.tensor([index[c] for c in text])
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, size: int, context: int) -> tuple[Tensor, Tensor]:
        """``size`` random windows and the same windows one character later, on the CPU."""
        starts = torch.randint(len(self.tokens) - context - 1, (size, 1), generator=self.generator)
        window = starts + torch.arange(context)
        return self.tokens[window], self.tokens[window + 1]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="train a small GPT on the text of Python's manual")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or mux for GT's workers (default: cpu)")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: train until stopped)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--every", type=int, default=10, help="look at the loss every so many steps")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parser.add_argument("--json", metavar="FILE", help="write steps, seconds and all losses there at the end")
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.device.startswith("mux"):
        import gt  # noqa: F401  (registers the device; `gt run SCRIPT` does it for scripts that don't)

    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: stop.append(got))

    torch.manual_seed(args.seed)
    text = Text(args.seed)
    model = GPT(len(text.characters)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    losses: list[float] = []
    pending: list[Tensor] = []  # losses that are still where they were computed
    begin = time.monotonic()

    def look() -> None:
        losses.extend(torch.stack(pending).tolist())
        pending.clear()
        if not args.quiet:
            rate = len(losses) / (time.monotonic() - begin)
            print(f"step {len(losses):6d}  loss {losses[-1]:.4f}  {rate:.1f} steps/s", flush=True)

    step = 0
    while not stop and time.monotonic() - begin < args.seconds and (step < args.steps or not args.steps):
        tokens, targets = (t.to(args.device) for t in text.batch(args.batch, 64))
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        pending.append(loss.detach())
        if step % args.every == 0:
            look()
    if pending:
        look()
    seconds = time.monotonic() - begin
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": args.device, "steps": step, "seconds": seconds, "losses": losses}, file)


if __name__ == "__main__":
    main()
