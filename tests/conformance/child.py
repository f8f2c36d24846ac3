"""The process that runs feature rows or operator entries for ``isolate.Child``.

``python -m tests.conformance.child features|opinfo DEVICE OPTIONS READ WRITE``: OPTIONS is a JSON object, READ and
WRITE are file descriptors for JSON lines. The first line out says that it is ready. It ends when READ does.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

DUMP_MARGIN = 5.0  # seconds before the parent gives up at which a hanging child says where it hangs


def main(arguments: list[str]) -> None:
    kind, device, options, read, write = arguments
    faulthandler.enable()
    if device != "cpu":
        import gt  # noqa: F401  (registers the device)

    run = _features(device) if kind == "features" else _operators(device, json.loads(options))
    with os.fdopen(int(read), "r") as asks, os.fdopen(int(write), "w", buffering=1) as answers:
        answers.write(json.dumps({"ready": _healthy(device)}) + "\n")
        for line in asks:
            ask = json.loads(line)
            faulthandler.dump_traceback_later(max(1.0, ask["seconds"] - DUMP_MARGIN))
            answer = run(ask["item"])
            _settle()
            answer["healthy"] = answer["outcome"] in ("right", "skipped") or _healthy(device)
            faulthandler.cancel_dump_traceback_later()
            answers.write(json.dumps(answer) + "\n")


def _features(device: str) -> Callable[[str], dict[str, Any]]:
    from tests.conformance import features

    return lambda item: dataclasses.asdict(features.run(features.ROWS[item], device))


def _operators(device: str, options: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    from tests.conformance import opinfo

    chosen = opinfo.Options(**options)
    table = opinfo.entries(chosen.dtype)
    return lambda item: dataclasses.asdict(opinfo.run(table[item], device, chosen))


def _settle() -> None:
    """Undo the process-wide switches that an item may have left behind when it failed in the middle."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)


def _healthy(device: str) -> bool:
    """Does the device still compute? An item that killed the session must not fail the next ones."""
    try:
        return bool((torch.ones(2).to(device) + 1).cpu().tolist() == [2.0, 2.0])
    except Exception as error:
        print(f"the device does not compute any more: {error}", file=sys.stderr)
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
