"""A classifier of handwritten digits: plain PyTorch on the digits that ship with scikit-learn (1,797 pictures of 8x8).

Not a word about GT in it; ``gt run`` makes the device known::

    python examples/digits.py --steps 500
    gt run examples/digits.py --steps 500 --device mux      # the same program on GT's workers
"""

from __future__ import annotations

import argparse
import json
import signal
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

TEST_PICTURES = 297


def network() -> nn.Sequential:
    """(batch, 1, 8, 8) pictures of 0 to 1 -> (batch, 10) logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="train a digit classifier on scikit-learn's digits")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or mux for GT's workers (default: cpu)")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: train until stopped)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--every", type=int, default=20, help="look at the loss every so many steps")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parser.add_argument("--json", metavar="FILE", help="write steps, seconds, accuracy and all losses there at the end")
    return parser.parse_args()


def main() -> None:
    args = parse()
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: stop.append(got))

    pictures, labels = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    test_x, test_y = x[-TEST_PICTURES:].to(args.device), y[-TEST_PICTURES:].to(args.device)
    x, y = x[:-TEST_PICTURES], y[:-TEST_PICTURES]

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    model = network().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    losses: list[float] = []
    pending: list[Tensor] = []  # losses that are still where they were computed
    begin = time.monotonic()

    def accuracy() -> float:
        with torch.no_grad():
            right: Tensor = model(test_x).argmax(1) == test_y
        return right.float().mean().item()

    def look() -> None:
        losses.extend(torch.stack(pending).tolist())
        pending.clear()
        if not args.quiet:
            rate = len(losses) / (time.monotonic() - begin)
            right = f"test {accuracy():.1%}"
            print(f"step {len(losses):6d}  loss {losses[-1]:.4f}  {right}  {rate:.1f} steps/s", flush=True)

    step = 0
    while not stop and time.monotonic() - begin < args.seconds and (step < args.steps or not args.steps):
        chosen = torch.randint(len(x), (args.batch,), generator=generator)
        loss = F.cross_entropy(model(x[chosen].to(args.device)), y[chosen].to(args.device))
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
            json.dump(
                {"device": args.device, "steps": step, "seconds": seconds, "losses": losses, "accuracy": accuracy()},
                file,
            )


if __name__ == "__main__":
    main()
