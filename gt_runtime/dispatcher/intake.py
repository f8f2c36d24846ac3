"""From frames to the core: decodes what a peer has sent and hands it on. What it does to a handler is caught here and
costs its sender alone. Knows no sockets, so that what fuzzes it needs none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gt_runtime.dispatcher.core import Core
from gt_runtime.dispatcher.records import Address, Peer, Side
from gt_runtime.protocol import codec
from gt_runtime.protocol import messages as m

log = logging.getLogger("gt.dispatcher")


class Intake:
    """What comes in on front and back."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(self, address: Address, frames: Sequence[Any], peer: Callable[[], Peer], now: Callable[[], float]) -> None:
        """The messages in ``frames`` (bytes or zmq frames), in order. ``peer`` (what the kernel says of the sender) and
        ``now`` (the steady clock) are asked only where they matter: most messages are batches.
        """
        core = self._core
        try:
            messages = codec.decode_all(frames)
        except codec.ProtocolError as error:
            log.warning("malformed message: %s", error)
            core.malformed(address, str(error))
            return
        for message in messages:
            try:
                if type(message) is m.Hello:
                    core.hello(address, message, peer(), now())
                elif type(message) is m.Request and address.side == Side.FRONT:
                    core.request(address, message, peer(), now())
                else:
                    core.message(address, message)
            except Exception as error:
                log.exception("a handler failed; its sender pays for it")
                core.broken(address, error)
