"""The YAML that says how signals are laid out, read into frozen records. Text in, records or errors out.

Knows no workers, no tensors and no torch: whether the named workers exist, or a dimension can be split, is judged where
the document is applied. Nothing acts on a document yet (``docs/cli.md``).

    signals:                 # or `sharding_config:`, or the signals themselves at the top
      layer1: {strategy: tensor_parallel, dimension: 0, replicas: 2}
      layer2: {strategy: data_parallel, batch_split: 4}
      stage2: {strategy: pipeline_parallel, workers: [2, 3], backward: stage2_bwd}
      head:   {shard: {axis: 0, workers: [0, 1, 2, 3]}, compile: true}
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

MAX_BYTES = 1 << 20  # a document; thousands of signals fit
MAX_NUMBER = 1 << 20  # workers, replicas, axes: far above any cluster, far below a typing slip
MAX_PROBLEMS = 20  # of one document that are told
TOP_KEYS = ("signals", "sharding_config")


class Strategy(StrEnum):
    """How the layers under a signal share their work."""

    TENSOR_PARALLEL = "tensor_parallel"
    DATA_PARALLEL = "data_parallel"
    PIPELINE_PARALLEL = "pipeline_parallel"


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A place in a document: line and column, both from 1."""

    line: int
    column: int


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """An explicit split: axis ``axis`` of a value, in order, over ``workers`` (numbers as in ``w0``; empty = all)."""

    axis: int
    workers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Signal:
    """What one signal asks for. Not said: an empty tuple or string, 0 replicas or splits, and a ``dimension`` of None
    (0 is a dimension)."""

    name: str
    strategy: Strategy | None = None
    dimension: int | None = None  # of the parameters, for tensor_parallel; negative counts from the end
    replicas: int = 0  # copies of the split whole
    batch_split: int = 0  # parts of the batch, for data_parallel
    workers: tuple[int, ...] = ()  # the worker set, in order; empty = all
    shard: Shard | None = None
    backward: str = ""  # the signal of the backward operations; empty = this one
    compile: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One YAML document as it was read. ``marks`` says where each signal stands in ``text``."""

    text: str
    source: str  # the file, or what stands for one
    signals: Mapping[str, Signal]
    marks: Mapping[str, Mark]


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``key`` is a dotted path (``layer1.shard.axis``), empty for the document; ``nearest`` is
    the known key that was probably meant, or empty."""

    source: str
    mark: Mark
    key: str
    found: str
    expected: str
    nearest: str = ""

    def __str__(self) -> str:
        where = f"{self.source}:{self.mark.line}:{self.mark.column}: "
        what = f"{self.key}: {self.found}" if self.key else self.found
        meant = f" (did you mean '{self.nearest}'?)" if self.nearest else ""
        return f"{where}{what}{meant}; expected {self.expected}"


class SchemaError(Exception):
    """A document that can't be used. ``problems`` has every one that was found, in the document's order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in problems))


def load(path: str | Path) -> Document:
    """The document in a file.

    Raises:
        SchemaError: it can't be read, or isn't a good document.
    """
    source = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        found = f"can't be read ({error.strerror})"
        raise SchemaError([Problem(source, Mark(1, 1), "", found, "a YAML file")]) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise SchemaError([Problem(source, Mark(line, column), "", "isn't UTF-8", "text in UTF-8")]) from error
    return parse(text, source)


def parse(text: str, source: str = "<text>") -> Document:
    """The document in ``text``. An empty one is good and has no signals.

    Raises:
        SchemaError: not YAML, or not of this schema; names every key that is wrong, where, and what was expected.
    """
    if len(text) > MAX_BYTES:
        found = f"over {MAX_BYTES} characters"
        raise SchemaError([Problem(source, Mark(1, 1), "", found, f"at most {MAX_BYTES}")])
    reader = _Reader(source)
    root = reader.compose(text)
    signals: dict[str, Signal] = {}
    marks: dict[str, Mark] = {}
    if root is not None:
        for name, key, value in reader.entries(reader.body(root), "", "signals, each under its name"):
            marks[name] = _mark(key)
            signals[name] = reader.signal(name, value)
    if reader.problems:
        raise SchemaError(sorted(reader.problems, key=lambda p: (p.mark.line, p.mark.column))[:MAX_PROBLEMS])
    return Document(text, source, MappingProxyType(signals), MappingProxyType(marks))


class _Reader:
    """Walks the node tree of one document and collects what is wrong with it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self._loader = yaml.SafeLoader("")

    def report(self, node: yaml.Node, key: str, found: str, expected: str, nearest: str = "") -> None:
        self.problems.append(Problem(self.source, _mark(node), key, found, expected, nearest))

    def compose(self, text: str) -> yaml.Node | None:
        """The root node; None for an empty document.

        Raises:
            SchemaError: not one YAML document.
        """
        try:
            node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            at = error.problem_mark or error.context_mark
            mark = Mark(at.line + 1, at.column + 1) if at else Mark(1, 1)
            raise SchemaError([self._syntax(mark, error.problem or "unreadable")]) from error
        except yaml.reader.ReaderError as error:
            before = text[: error.position]
            mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
            raise SchemaError([self._syntax(mark, f"a character that YAML forbids ({error.reason})")]) from error
        except (RecursionError, ValueError) as error:
            raise SchemaError([self._syntax(Mark(1, 1), "nested too deep, or a bad number")]) from error
        empty = isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
        return None if empty else node

    def _syntax(self, mark: Mark, found: str) -> Problem:
        return Problem(self.source, mark, "", f"not YAML: {found}", "one YAML document")

    def body(self, root: yaml.Node) -> yaml.Node:
        """The mapping of signals, under whichever top key."""
        if not isinstance(root, yaml.MappingNode):
            return root
        tops = [(k, v) for k, v in root.value if isinstance(k, yaml.ScalarNode) and k.value in TOP_KEYS]
        if not tops:
            return root
        for key, _ in root.value:
            if key is not tops[0][0]:
                name = key.value if isinstance(key, yaml.ScalarNode) else "a key"
                self.report(key, str(name), f"stands beside '{tops[0][0].value}:'", "nothing else at the top")
        value: yaml.Node = tops[0][1]
        if isinstance(value, yaml.ScalarNode) and value.tag == "tag:yaml.org,2002:null":
            return yaml.MappingNode("tag:yaml.org,2002:map", [], value.start_mark, value.end_mark)
        return value

    def entries(self, node: yaml.Node, path: str, expected: str) -> Iterable[tuple[str, yaml.Node, yaml.Node]]:
        """(name, key node, value node) of a mapping with distinct, non-empty string keys; what isn't so is reported."""
        if not isinstance(node, yaml.MappingNode):
            self.report(node, path, f"is {_kind(node)}", f"a map of {expected}")
            return
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str" or not key.value:
                shown = key.value if isinstance(key, yaml.ScalarNode) else _kind(key)
                expected_key = "a name; quote it if it looks like a number"
                self.report(key, path, f"the key {shown!s:.40} is {_kind(key)}", expected_key)
            elif key.value in seen:
                self.report(key, _join(path, key.value), "stands here a second time", "each key once")
            else:
                seen.add(key.value)
                yield key.value, key, value

    def signal(self, name: str, node: yaml.Node) -> Signal:
        """One signal; what couldn't be read is left at its default and reported."""
        found: dict[str, Any] = {}
        keys: dict[str, yaml.Node] = {}
        for key, key_node, value in self.entries(node, name, "keys: " + ", ".join(_SIGNAL_KEYS)):
            read = _SIGNAL_KEYS.get(key)
            path = _join(name, key)
            if read is None:
                self._unknown(key_node, path, key, _SIGNAL_KEYS)
                continue
            keys[key] = key_node
            value_read = read(self, value, path)
            if value_read is not None:
                found[key] = value_read
        self._fit(name, found, keys)
        return Signal(name, **found)

    def _fit(self, name: str, found: Mapping[str, Any], keys: Mapping[str, yaml.Node]) -> None:
        """Keys that say something only together with others."""
        strategy = found.get("strategy")
        for key, owner in (("dimension", Strategy.TENSOR_PARALLEL), ("batch_split", Strategy.DATA_PARALLEL)):
            if key in keys and strategy is not owner and ("strategy" not in keys or strategy is not None):
                said = f"the strategy is {strategy}" if strategy else "no strategy is said"
                expected = f"strategy: {owner}, or no {key}"
                self.report(keys[key], _join(name, key), f"is for {owner}, but {said}", expected)
        if "shard" in keys and "strategy" in keys:
            self.report(keys["shard"], _join(name, "shard"), "stands beside 'strategy'", "one of the two")
        if "shard" in keys and "workers" in keys:
            path = _join(name, "workers")
            self.report(keys["workers"], path, "stands beside 'shard'", "the workers inside 'shard'")

    def _unknown(self, node: yaml.Node, path: str, key: str, known: Iterable[str]) -> None:
        known = list(known)
        near = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.6)
        self.report(node, path, "is no known key", "one of " + ", ".join(known), near[0] if near else "")

    # Readers of one value: None means that it was reported.

    def strategy(self, node: yaml.Node, path: str) -> Strategy | None:
        names = [s.value for s in Strategy]
        if isinstance(node, yaml.ScalarNode) and node.value in names:
            return Strategy(node.value)
        shown = repr(node.value) if isinstance(node, yaml.ScalarNode) else _kind(node)
        near = difflib.get_close_matches(str(node.value), names, n=1, cutoff=0.5)
        self.report(node, path, f"is {shown}", "one of " + ", ".join(names), near[0] if near else "")
        return None

    def integer(self, node: yaml.Node, path: str, low: int) -> int | None:
        expected = f"a whole number of at least {low}" if low >= 0 else "a whole number"
        if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:int":
            self.report(node, path, f"is {_kind(node)}", expected)
            return None
        try:
            value = int(self._loader.construct_yaml_int(node))
        except ValueError:
            self.report(node, path, f"is {node.value!r:.40}", expected)
            return None
        if not low <= value <= MAX_NUMBER:
            self.report(node, path, f"is {node.value!s:.40}", f"{expected}, {MAX_NUMBER} at most")
            return None
        return value

    def workers(self, node: yaml.Node, path: str) -> tuple[int, ...] | None:
        expected = "a list of distinct worker numbers, such as [0, 1]"
        if not isinstance(node, yaml.SequenceNode):
            self.report(node, path, f"is {_kind(node)}", expected)
            return None
        if not node.value:
            self.report(node, path, "is an empty list", expected + "; leave the key out for all workers")
            return None
        numbers: list[int] = []
        for index, item in enumerate(node.value):
            number = self.integer(item, f"{path}[{index}]", 0)
            if number is not None and number in numbers:
                self.report(item, f"{path}[{index}]", f"names worker {number} a second time", expected)
            elif number is not None:
                numbers.append(number)
        return tuple(numbers)

    def name(self, node: yaml.Node, path: str) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str" and node.value:
            return str(node.value)
        self.report(node, path, f"is {_kind(node)}", "the name of a signal")
        return None

    def boolean(self, node: yaml.Node, path: str) -> bool | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:bool":
            return bool(self._loader.construct_yaml_bool(node))
        self.report(node, path, f"is {_kind(node)}", "true or false")
        return None

    def shard(self, node: yaml.Node, path: str) -> Shard | None:
        axis: int | None = None
        workers: tuple[int, ...] = ()
        before = len(self.problems)
        said = False
        for key, key_node, value in self.entries(node, path, "axis and workers"):
            if key == "axis":
                said = True
                axis = self.integer(value, _join(path, key), -MAX_NUMBER)
            elif key == "workers":
                workers = self.workers(value, _join(path, key)) or ()
            else:
                self._unknown(key_node, _join(path, key), key, ("axis", "workers"))
        if not said and len(self.problems) == before:
            self.report(node, path, "has no 'axis'", "axis: N, the axis to split")
        return None if axis is None else Shard(axis, workers)


_SIGNAL_KEYS: dict[str, Callable[[_Reader, yaml.Node, str], Any]] = {
    "strategy": _Reader.strategy,
    "dimension": lambda reader, node, path: reader.integer(node, path, -MAX_NUMBER),
    "replicas": lambda reader, node, path: reader.integer(node, path, 1),
    "batch_split": lambda reader, node, path: reader.integer(node, path, 1),
    "workers": _Reader.workers,
    "shard": _Reader.shard,
    "backward": _Reader.name,
    "compile": _Reader.boolean,
}


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _kind(node: yaml.Node) -> str:
    """What a node is, in a reader's words."""
    if isinstance(node, yaml.MappingNode):
        return "a map"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    kinds = {"int": "a whole number", "float": "a number", "bool": "true or false", "null": "empty", "str": "text"}
    kind = kinds.get(node.tag.removeprefix("tag:yaml.org,2002:"), f"a {node.tag}")
    value = str(node.value)
    return kind if kind == "empty" else f"{kind} ({value[:30]})"
