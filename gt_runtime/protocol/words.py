"""The words of a batch: little-endian int64, written by the client's capture, read by the worker's executor (both C++).

An instruction is::

    template | site << 32        one word, not negative; site is the client's number of a source line
                                 (31 bits, 0 = unknown)
    input ids                    one word each, as many as the template has ["t"]
    literals                     float64 bits, int64, or two words of a complex128, in the order of the
                                 template's arguments
    seed, offset                 two words, only if the template is RANDOM

Its outputs get the next ids: the batch's ``base``, then counting up, one for each tensor the operator returns, in
order, whether it is defined or not (an output list counts each element). How many that are is known from the operator's
schema and, for a list, from the definition's output metas.

Between instructions stand orders, one negative word each, ``~(code | count << 8)``, followed by ``count`` words.

A batch stands for itself: it says FLAGS and SIGNAL before its first instruction, even where they are as in the batch
before. So the dispatcher may begin to split a session's stream at any batch without having read the earlier ones.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Order(IntEnum):
    """Codes of the negative words."""

    FREE = 1  # count ids: dead from here on
    SIGNAL = 2  # one word: the signal id of what follows, 0 = none
    FLAGS = 3  # one word: the client's numeric flags from here on (see NumericFlag)
    BASE = 4  # one word: the id of the next output (a rewritten batch has gaps)


class NumericFlag(IntFlag):
    """Client settings that change numbers; bits 0-7 hold the default dtype's ScalarType number."""

    DETERMINISTIC = 1 << 8
    DETERMINISTIC_WARN_ONLY = 1 << 9
    DETERMINISTIC_FILL = 1 << 10
    TF32_CUDNN = 1 << 11
    MATMUL_HIGH = 1 << 12  # float32 matmul precision "high"
    MATMUL_MEDIUM = 1 << 13  # "medium"
    TRACE = 1 << 16  # keep a log of what runs, for Sync(want_log)
    FLUSH_DENORMAL = 1 << 17
    TF32_CUBLAS = 1 << 18


class TemplateFlag(IntFlag):
    """What a definition says about its template."""

    RANDOM = 1  # draws from a generator: two more words
    DYNAMIC = 2  # output sizes depend on data: every call asks for a verdict


def order(code: Order, count: int) -> int:
    """The negative word that announces ``count`` words of ``code``."""
    return ~(int(code) | count << 8)
