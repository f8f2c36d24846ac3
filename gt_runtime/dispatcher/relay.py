"""Chunks of large tensors between clients and workers: which worker a transfer goes to, and nothing of what is in
it.
"""

from __future__ import annotations

from gt_runtime.dispatcher.errors import StreamError
from gt_runtime.dispatcher.records import Session, Transfer, Worker
from gt_runtime.dispatcher.state import State
from gt_runtime.protocol import messages as m
from gt_runtime.protocol.limits import CHUNK_BYTES, CHUNK_WINDOW

MAX_TRANSFERS = 1024  # of one session under way
MAX_HELD_CHUNKS = 16 * CHUNK_WINDOW  # of one session while there is no worker


class Relay:
    """Handlers of chunks, on the shared state; what they emit is in ``state.chunks``."""

    def __init__(self, state: State) -> None:
        self.state = state

    def from_client(self, session: Session, chunk: m.Chunk) -> None:
        """A piece of an upload, or the acknowledgement of a piece of a fetch.

        The first piece of an upload chooses the worker that will get the Upload.

        Raises:
            StreamError: the session can't go on.
        """
        size = memoryview(chunk.data).nbytes
        if size > CHUNK_BYTES or chunk.offset + size > chunk.nbytes:
            raise StreamError(
                f"to move {size} bytes at {chunk.offset} of transfer {chunk.transfer}", f"it has {chunk.nbytes} bytes"
            )
        transfer = session.transfers.get(chunk.transfer)
        if transfer is None:
            if not size and chunk.nbytes:
                return  # acknowledges a fetch whose worker was lost
            transfer = self._stage(session, chunk)
            if transfer is None:
                return
        if transfer.link is None:
            self.state.chunks.append((session.id, m.Chunk("", chunk.transfer, chunk.offset, chunk.nbytes, True)))
            return
        if not transfer.upload and chunk.last:
            del session.transfers[chunk.transfer]
        self.state.chunks.append((transfer.worker, named(chunk, session.id)))

    def from_worker(self, worker: Worker, chunk: m.Chunk) -> None:
        """A piece of a fetch, or the acknowledgement of a piece of an upload; dropped if the session has ended."""
        session = self.state.sessions.get(chunk.session)
        transfer = session.transfers.get(chunk.transfer) if session is not None else None
        if (
            session is not None
            and transfer is not None
            and transfer.link is not None
            and transfer.link.worker is worker
        ):
            self.state.chunks.append((session.id, named(chunk, "")))

    def release(self, session: Session) -> None:
        """A worker may have come: pass on what was held.

        Raises:
            StreamError: the session can't go on.
        """
        held, session.held_chunks = session.held_chunks, []
        for chunk in held:
            self.from_client(session, chunk)

    def _stage(self, session: Session, chunk: m.Chunk) -> Transfer | None:
        if len(session.transfers) >= MAX_TRANSFERS:
            raise StreamError(f"to begin transfer {chunk.transfer}", f"{MAX_TRANSFERS} are under way")
        link = self.state.place(session, chunk.nbytes)
        if link is None:
            if len(session.held_chunks) >= MAX_HELD_CHUNKS:
                raise StreamError(
                    f"to begin transfer {chunk.transfer}", "no worker, and too many chunks wait", "start a worker"
                )
            session.held_chunks.append(chunk)
            return None
        transfer = session.transfers[chunk.transfer] = Transfer(link, link.worker.id, chunk.nbytes, upload=True)
        return transfer


def named(chunk: m.Chunk, session: str) -> m.Chunk:
    """The same chunk under the name that its next reader knows the session by."""
    return m.Chunk(session, chunk.transfer, chunk.offset, chunk.nbytes, chunk.last, chunk.data)
