"""``python -m tests.fuzz [--messages N] [--live N] [--seed S]`` (or ``make fuzz``): attacks, until N messages.

The core first (thousands a second), then a real cluster. What is found is printed with its seed, which shows it again:
``python -m tests.fuzz --seed S --messages 1 --live 0``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import traceback

MESSAGES_OF_AN_ATTACK = 60
_TOLD_SECONDS = 5.0


def core(first: int, messages: int) -> int:
    """Attacks on the core from seed ``first`` on; how many found something."""
    from tests.fuzz.world import Attack

    logging.disable(logging.CRITICAL)
    began = told = time.monotonic()
    sent, found, seed = 0, 0, first
    while sent < messages:
        for turn in (None, 0, 100):
            attack = Attack(seed, turn, 1 + seed % 3)
            try:
                attack.run(MESSAGES_OF_AN_ATTACK)
            except Exception:
                found += 1
                print(f"\nseed {seed}, turns of {turn} bytes:", file=sys.stderr)
                traceback.print_exc()
            sent += attack.sent
        seed += 1
        if time.monotonic() - told > _TOLD_SECONDS or sent >= messages:
            told = time.monotonic()
            rate = sent / (told - began)
            print(f"core: {sent:,} of {messages:,} messages, {rate:,.0f}/s, seed {seed}, found {found}", flush=True)
    return found


def live(seed: int, messages: int) -> int:
    """A siege of a cluster of its own."""
    os.environ["GT_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="gt-fuzz-")
    from tests.fuzz.live import Siege
    from tests.system.clusters import gt

    gt("up", "--name", "siege", "--workers", "2", "--device", "cpu", "--detach")
    try:
        siege = Siege("siege", seed)
        try:
            while siege.sent < messages:
                siege.attack(min(2_000, messages - siege.sent))
                print(f"live: {siege.sent:,} of {messages:,} messages, canary right {siege.rounds} times", flush=True)
            siege.end()
        finally:
            siege.close()
    except AssertionError:
        traceback.print_exc()
        return 1
    finally:
        gt("down", "--name", "siege")
    return 0


def main() -> int:
    """Returns 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="to the core (default: 2,000,000)")
    parser.add_argument("--live", type=int, default=200_000, help="to a real cluster (default: 200,000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first attack (default: the time)")
    args = parser.parse_args()
    print(f"from seed {args.seed}")
    found = core(args.seed, args.messages) if args.messages else 0
    found += live(args.seed, args.live) if args.live else 0
    print("nothing found" if not found else f"found {found}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
