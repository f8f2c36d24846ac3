"""``python -m gt_runtime`` is ``gt``."""

import sys

from gt_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
