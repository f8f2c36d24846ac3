"""Caps on what is read and how much is under way. Each has a unit and a reason."""

from __future__ import annotations

PROTOCOL_VERSION = 1

MAX_FRAME_BYTES = 64 << 20  # a frame larger than this is refused: tensors go through shared memory or in chunks
MAX_HEAD_BYTES = 16 << 20  # everything of a message but its payloads; MAX_TOGETHER batches full of definitions fit
MAX_TOGETHER = 16  # messages that travel as one
MAX_DEPTH = 16  # nesting of a head; arguments of an operator nest two deep
MAX_DEFINITIONS = 4096  # new templates in one batch
MAX_WORDS = 1 << 22  # words of one batch (32 MiB)
MAX_IDS = 1 << 20  # ids in one Poison
MAX_TEMPLATES = 1 << 20  # templates of one session
MAX_DIMS = 64  # dimensions of a tensor, as in PyTorch

INLINE_BYTES = 64 << 10  # up to here a tensor travels inside its message; beyond, shared memory or chunks
CHUNK_BYTES = 4 << 20  # one piece of a large tensor
CHUNK_WINDOW = 8  # chunks under way for one transfer

CREDIT_INSTRUCTIONS = 65536  # how far a client may run ahead of its workers
CREDIT_BYTES = 512 << 20  # uploaded bytes not yet on a worker

BEAT_SECONDS = 0.25  # both ways, from a thread of its own
LOST_SECONDS = 1.75  # silence after which a worker is lost
# Silence after which a client's values are freed (a client may be stopped in a debugger: its pid is looked at too where
# it is on the same host).
CLIENT_LOST_SECONDS = 4.0
