"""``python -m gt_runtime.launch.child MODULE OPTIONS``: a child that ends with its launcher.

A worker looks after its ``--parent`` itself once it beats, which is after importing torch: seconds on a busy machine.
This watches from before that, on a thread of its own. Imports nothing of what it runs.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading

from gt_runtime.launch import parent


def watch(pid: int) -> None:
    """End this process as soon as process ``pid`` has ended."""

    def run() -> None:
        parent.wait_end(pid, None)
        print(f"ends: its launcher, process {pid}, has ended", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=run, name="gt-parent", daemon=True).start()


def main() -> None:
    """Run the module named in ``sys.argv[1]`` as ``__main__``, with the options after it."""
    module, *options = sys.argv[1:]
    if "--parent" in options[:-1] and (pid := options[options.index("--parent") + 1]).isdecimal():
        watch(int(pid))
    sys.argv[1:] = options
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
