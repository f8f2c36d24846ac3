"""``python -m gt_runtime.worker``: one worker process."""

from __future__ import annotations

import sys

from gt_runtime.worker.options import parse
from gt_runtime.worker.run import run


def main() -> int:
    return run(parse())


if __name__ == "__main__":
    sys.exit(main())
