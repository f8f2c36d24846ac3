"""The one client of the control methods (``docs/protocol.md``, "Control"), for the command line, the launcher and
gt-top. Synchronous.

with ControlClient("ipc:///run/.../front.sock", timeout=2.0) as control:
    control.request("status")["ready"]
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import zmq

from gt_runtime.control.requests import ControlError
from gt_runtime.protocol import codec
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import MAX_FRAME_BYTES, PROTOCOL_VERSION

__all__ = ["ControlClient", "ControlError"]


class ControlClient:
    """A connection to a cluster's front endpoint. For one thread.

    Args:
        address: ``ipc://...`` or ``tcp://host:port``.
        timeout: seconds that a request waits for its reply.
    """

    def __init__(self, address: str, timeout: float = 5.0) -> None:
        self.address, self.timeout = address, timeout
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._number = 0
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise ControlError(f"connect to {address}", str(error), "give ipc://PATH or tcp://HOST:PORT") from error

    def request(self, method: str, **arguments: Any) -> Any:
        """Call ``method`` and return its result, as the table in docs/protocol.md says.

        Raises:
            ControlError: no answer in time, or the dispatcher's own error.
        """
        self._number += 1
        message = m.Request(PROTOCOL_VERSION, self._number, method, arguments)
        self._socket.send_multipart(codec.encode(message))
        deadline = time.monotonic() + self.timeout
        while (left := deadline - time.monotonic()) > 0:
            if not self._socket.poll(int(left * 1000) + 1):
                continue
            for reply in self._read(method):
                if isinstance(reply, m.Refused):
                    raise ControlError(reply.asked, reply.found, reply.do)
                if isinstance(reply, m.Reply) and reply.request == self._number:  # else: of a request that timed out
                    if reply.error is not None:
                        raise ControlError.unpack(reply.error)
                    return reply.result
        raise ControlError(
            f"{method} at {self.address}",
            f"no answer within {self.timeout:g} s",
            "see whether the cluster runs (gt status, its logs)",
        )

    def _read(self, method: str) -> list[Any]:
        try:
            return codec.decode_all(self._socket.recv_multipart())
        except codec.ProtocolError as error:
            raise ControlError(
                f"{method} at {self.address}", f"an answer that isn't GT's: {error}", "check the address"
            ) from error

    def close(self) -> None:
        """Give the socket back; calling it twice is fine."""
        self._socket.close(0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
