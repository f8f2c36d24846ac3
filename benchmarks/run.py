"""``python -m benchmarks.run`` (or ``make bench``): measures `mux` against plain PyTorch on this machine.

One thread each: one worker with one thread (`cluster.py`), plain PyTorch with one thread, so that a ratio tells what
the way through the dispatcher costs.
"""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    """Returns 0 when everything was measured, whether or not targets are met: this is no test."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read once by torch
    from benchmarks import cluster, measures, report  # after the environment is set: they import torch and gt
    from benchmarks.figures import Figure

    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.partition("\n")[0])
    known = ", ".join(measures.MEASURES)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {known} (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="how often each is run (default: 9)")
    parser.add_argument("--no-save", action="store_true", help="show only, keep no file in benchmarks/results")
    args = parser.parse_args()
    if unknown := set(args.measures) - set(measures.MEASURES):
        parser.error(f"no measure {', '.join(sorted(unknown))}; there are {known}")

    import torch

    import gt

    torch.set_num_threads(1)
    load = os.getloadavg()
    figures: list[Figure] = []
    with cluster.one_thread_worker():
        for name in args.measures or measures.MEASURES:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            figures.extend(measures.MEASURES[name](args.rounds))
        gt.shutdown()
    print(report.table(figures))
    print(f"load {load[0]:.2f} before, {os.getloadavg()[0]:.2f} after, {report.machine()['cores']} cores")
    if not args.no_save:
        settings = {"rounds": args.rounds, "workers": 1, "threads": 1, "worker_threads": 1}
        path = report.save(figures, load, settings)
        print(f"kept as {path.relative_to(report.RESULTS.parents[1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
