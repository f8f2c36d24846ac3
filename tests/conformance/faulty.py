"""A child that misbehaves on request: what ``test_isolate`` holds against ``isolate.Child``."""

from __future__ import annotations

import json
import os
import sys
import threading


def main(arguments: list[str]) -> None:
    read, write = map(int, arguments[-2:])
    if arguments[0] == "never":
        print("can't start like this", file=sys.stderr)
        sys.exit(3)
    with os.fdopen(read, "r") as asks, os.fdopen(write, "w", buffering=1) as answers:
        answers.write('{"ready": true}\n')
        for line in asks:
            item = json.loads(line)["item"]
            if item == "abort":
                print("about to abort", file=sys.stderr, flush=True)
                os.abort()
            if item == "hang":
                threading.Event().wait()
            answers.write(
                json.dumps({"key": item, "outcome": "right", "healthy": item != "sick", "pid": os.getpid()}) + "\n"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
