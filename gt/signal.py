"""Names for parts of a program: ``with gt.signal.context("layer1"): ...``.

What is issued inside carries the name in the stream; backward operations carry their forward operation's. A cluster's
YAML says what a name means; nothing acts on it yet. Names change where work runs, never what it computes.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType

from gt._native import _capture

_NAME_BYTES = 200  # a name is shown in tables and logs


def _check(name: str) -> None:
    if type(name) is not str or not name or len(name.encode()) > _NAME_BYTES or not name.isprintable():
        raise ValueError(f"a signal is named by 1 to {_NAME_BYTES} printable characters, not {name!r}")


class context(ContextDecorator):
    """Everything issued in this thread inside ``with`` belongs to ``name``; contexts nest, the innermost counts.

    Also a decorator. ``name`` is 1 to 200 printable characters, else ValueError.
    """

    def __init__(self, name: str) -> None:
        _check(name)
        self.name = name
        self._before: list[int] = []

    def __enter__(self) -> context:
        self._before.append(_capture.enter_signal(_capture.signal_number(self.name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _capture.enter_signal(self._before.pop())
