"""The least that a way through three processes costs with ZeroMQ: a DEALER, a process with two ROUTERs, a DEALER that
sends back what comes. One small message there and back, in plain pyzmq: nothing is read, decided or run.

    python -m benchmarks.echo relay|worker FOLDER       # the other two processes
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import zmq

_READY_SECONDS = 30


@contextlib.contextmanager
def three_processes() -> Iterator[Callable[[], object]]:
    """While inside: a function that sends 100 bytes to the third process and waits until they are back."""
    with tempfile.TemporaryDirectory(prefix="gt-echo-") as folder:
        ends = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.echo", role, folder]) for role in ("relay", "worker")
        ]
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.connect(f"ipc://{folder}/front")
        message = bytes(100)

        def there_and_back() -> object:
            socket.send(message)
            return socket.recv()

        try:
            socket.send(message)
            if not socket.poll(_READY_SECONDS * 1000):
                raise RuntimeError(f"no echo within {_READY_SECONDS} s")
            socket.recv()
            yield there_and_back
        finally:
            for end in ends:
                end.kill()
                end.wait()
            context.destroy(linger=0)


def relay(context: zmq.Context[zmq.Socket[bytes]], folder: str) -> None:
    """From whoever comes first on ``front`` to whoever comes first on ``back``, and the other way."""
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    front.bind(f"ipc://{folder}/front")
    back.bind(f"ipc://{folder}/back")
    worker = back.recv_multipart()[0]
    poller = zmq.Poller()
    poller.register(front, zmq.POLLIN)
    poller.register(back, zmq.POLLIN)
    client = b""
    while True:
        for socket, _ in poller.poll():
            if socket is front:
                client, message = front.recv_multipart()
                back.send_multipart([worker, message])
            else:
                front.send_multipart([client, back.recv_multipart()[1]])


def worker(context: zmq.Context[zmq.Socket[bytes]], folder: str) -> None:
    """Sends back what comes."""
    socket = context.socket(zmq.DEALER)
    socket.connect(f"ipc://{folder}/back")
    socket.send(b"here")
    while True:
        socket.send(socket.recv())


if __name__ == "__main__":
    {"relay": relay, "worker": worker}[sys.argv[1]](zmq.Context(), sys.argv[2])
