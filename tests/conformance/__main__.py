"""``python -m tests.conformance``: see ``run``."""

import sys

from tests.conformance.run import main

if __name__ == "__main__":
    sys.exit(main())
