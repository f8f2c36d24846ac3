"""Numbers, stamps and sends the records of the feed, and keeps what a snapshot needs. Knows no socket: it is given a
``send``.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

from gt_runtime.protocol import codec
from gt_runtime.telemetry.records import EVENT, FRAME, Event, Frame

HISTORY = 200  # events in a snapshot


class Publisher:
    """The writing end of the feed.

    Args:
        send: takes the two frames of a record (topic, MessagePack map).
    """

    def __init__(self, send: Callable[[list[bytes]], object]) -> None:
        self._send = send
        self._seq = 0
        self._frame: dict[str, Any] | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=HISTORY)

    def event(self, event: Event, time: float) -> None:
        """Send an event at once. ``time``: unix time."""
        packed = dataclasses.replace(event, seq=self._next(), time=time).pack()
        self._events.append(packed)
        self._send([EVENT, codec.pack(packed)])

    def frame(self, frame: Frame, time: float) -> None:
        """Send a frame. ``time``: unix time."""
        self._frame = dataclasses.replace(frame, seq=self._next(), time=time).pack()
        self._send([FRAME, codec.pack(self._frame)])

    def snapshot(self) -> dict[str, Any]:
        """The newest frame (None before the first) and the last ``HISTORY`` events, as maps."""
        return {"frame": self._frame, "events": list(self._events)}

    def _next(self) -> int:
        self._seq += 1
        return self._seq
