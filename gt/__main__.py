"""``python -m gt`` is ``gt``: the command line of the running system, which this package doesn't import."""

import runpy

if __name__ == "__main__":
    runpy.run_module("gt_runtime", run_name="__main__")
