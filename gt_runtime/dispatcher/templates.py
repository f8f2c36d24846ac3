"""What the dispatcher must know of a template to read a batch's words: how many words an instruction has, what its
inputs weigh and how many ids it makes. Compiled from the definition when a session's words are first read, never
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gt_runtime.dispatcher.errors import StreamError
from gt_runtime.protocol.words import TemplateFlag
from gt_runtime.sharding.layouts import COMPLEX, meta_bytes

_DEFINITION_FIELDS = 7
_OUTPUTS = 5  # index of the output metas in a definition
_LITERAL_WORDS = {"f": 1, "i": 1, "z": 2, "t": 0, "d": 0, "g": 0}


@dataclass(frozen=True, slots=True)
class Template:
    """The shape of an instruction.

    Attributes:
        inputs: input ids after the head word.
        words: all words after the head word.
        input_bytes: one an input.
        outputs: ids that it makes; None where only its first verdict will tell.
        output_bytes: what it makes in all, 0 where that isn't known.
    """

    inputs: int
    words: int
    input_bytes: tuple[int, ...]
    outputs: int | None
    output_bytes: int


def check_definition(definition: Any) -> int:
    """The template number of a definition that just arrived.

    Raises:
        StreamError: not a list of the right fields.
    """
    if (
        type(definition) is not list
        or len(definition) != _DEFINITION_FIELDS
        or type(definition[0]) is not int
        or not 0 <= definition[0] < 1 << 32
        or not (definition[_OUTPUTS] is None or type(definition[_OUTPUTS]) is list)
    ):
        raise StreamError("to define a template", str(definition)[:200])
    number: int = definition[0]
    return number


def compile_template(definition: Sequence[Any]) -> Template:
    """What a reader of words needs of ``definition`` (its fields as ``check_definition`` wants them).

    Raises:
        StreamError: arguments or metas that don't fit the contract of ``messages.Definition``.
    """
    number, operator, _, arguments, inputs, outputs, flags = definition
    try:
        if type(flags) is not int:
            raise ValueError(f"flags {str(flags)[:40]} are no integer")
        tensors, literals = _count(arguments)
        if type(inputs) is not list or len(inputs) != tensors:
            raise ValueError(f"{tensors} inputs in its arguments, metas {str(inputs)[:80]}")
        input_bytes = tuple(meta_bytes(m) for m in inputs)
        # The sizes of a DYNAMIC template's outputs are only known once it has run.
        sized = outputs is not None and not flags & TemplateFlag.DYNAMIC
        output_bytes = sum(meta_bytes(m) for m in outputs) if sized else 0
        random = 2 if flags & TemplateFlag.RANDOM else 0
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise StreamError(f"to define template {number} ({str(operator)[:60]})", str(error)[:200]) from error
    return Template(
        inputs=tensors,
        words=tensors + literals + random,
        input_bytes=input_bytes,
        outputs=None if outputs is None else len(outputs),
        output_bytes=output_bytes,
    )


def learned(definition: list[Any], outputs: list[Any]) -> list[Any]:
    """The definition with the output metas that the first verdict named."""
    return [*definition[:_OUTPUTS], outputs, *definition[_OUTPUTS + 1 :]]


def knows_outputs(definition: Sequence[Any]) -> bool:
    """Whether the definition says how many ids an instruction makes."""
    return definition[_OUTPUTS] is not None


def _count(arguments: Any) -> tuple[int, int]:
    """Input values and literal words in nested arguments (``messages.Definition``)."""
    if type(arguments) is not list:
        raise ValueError(f"arguments {str(arguments)[:80]} are not a list")
    tensors = literals = 0
    for argument in arguments:
        if type(argument) is not list:
            continue
        tag = argument[0]
        if tag == "l":
            more_tensors, more_literals = _count(argument[1:])
            tensors, literals = tensors + more_tensors, literals + more_literals
        elif tag == "c":
            literals += 2 if argument[1] in COMPLEX else 1
        else:
            tensors += tag == "t"
            literals += _LITERAL_WORDS[tag]
    return tensors, literals
