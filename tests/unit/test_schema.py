"""The YAML schema: what loads, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gt_runtime.sharding import schema
from gt_runtime.sharding.schema import Document, SchemaError, Shard, Signal, Strategy

BODY = """\
layer1: {strategy: tensor_parallel, dimension: 0, replicas: 2}
layer2: {strategy: data_parallel, batch_split: 4}
stage2: {strategy: pipeline_parallel, workers: [2, 3], backward: stage2_bwd}
head:   {shard: {axis: 0, workers: [0, 1, 2, 3]}, compile: true}
"""
EXPECTED = {
    "layer1": Signal("layer1", Strategy.TENSOR_PARALLEL, dimension=0, replicas=2),
    "layer2": Signal("layer2", Strategy.DATA_PARALLEL, batch_split=4),
    "stage2": Signal("stage2", Strategy.PIPELINE_PARALLEL, workers=(2, 3), backward="stage2_bwd"),
    "head": Signal("head", shard=Shard(0, (0, 1, 2, 3)), compile=True),
}


def indented(top: str) -> str:
    return top + ":\n" + "".join(f"  {line}\n" for line in BODY.splitlines())


@pytest.mark.parametrize("text", [BODY, indented("signals"), indented("sharding_config")])
def test_all_three_spellings_mean_the_same(text: str) -> None:
    assert schema.parse(text).signals == EXPECTED


def test_marks_say_where_a_signal_stands() -> None:
    document = schema.parse(indented("signals"))
    assert document.marks["layer2"] == schema.Mark(3, 3)


@pytest.mark.parametrize("text", ["", "# nothing\n", "signals:\n", "sharding_config: {}\n", "null\n"])
def test_an_empty_document_has_no_signals(text: str) -> None:
    assert schema.parse(text).signals == {}


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("signals:\n  a: {stratgy: data_parallel}", 2, 7, ["a.stratgy", "'strategy'"]),
        ("a: {strategy: tensor_paralel}", 1, 15, ["a.strategy", "'tensor_parallel'", "pipeline_parallel"]),
        ("a:\n  shard: {axis: zero}", 2, 17, ["a.shard.axis", "text (zero)", "a whole number"]),
        ("a:\n  shard: {workers: [0]}", 2, 10, ["a.shard", "no 'axis'"]),
        ("a:\n  shard: {axes: 0}", 2, 11, ["a.shard.axes", "'axis'"]),
        ("a: {workers: [0, 1, 0]}", 1, 21, ["a.workers[2]", "worker 0 a second time"]),
        ("a: {workers: []}", 1, 14, ["a.workers", "empty list"]),
        ("a: {workers: 3}", 1, 14, ["a.workers", "a list"]),
        ("a: {replicas: 0}", 1, 15, ["a.replicas", "at least 1"]),
        ("a: {replicas: 99999999}", 1, 15, ["a.replicas", "at most"]),
        ("a: {compile: 1}", 1, 14, ["a.compile", "true or false"]),
        ("a: {backward: [b]}", 1, 15, ["a.backward", "name of a signal"]),
        ("a: {backward: b}\na: {backward: c}", 2, 1, ["a", "a second time"]),
        ("a: {dimension: 1}", 1, 5, ["a.dimension", "strategy: tensor_parallel"]),
        ("a: {strategy: data_parallel, dimension: 1}", 1, 30, ["a.dimension", "the strategy is data_parallel"]),
        ("a: {batch_split: 2, strategy: pipeline_parallel}", 1, 5, ["a.batch_split", "strategy: data_parallel"]),
        ("a: {strategy: data_parallel, shard: {axis: 0}}", 1, 30, ["a.shard", "one of the two"]),
        ("a: {workers: [1], shard: {axis: 0}}", 1, 5, ["a.workers", "inside 'shard'"]),
        ("signals: {}\nlayer1: {compile: true}", 2, 1, ["layer1", "beside 'signals:'"]),
        ("signals: {}\nsharding_config: {}", 2, 1, ["sharding_config", "beside 'signals:'"]),
        ("[a, b]", 1, 1, ["a list", "a map of signals"]),
        ("signals: 7", 1, 10, ["whole number (7)", "a map of signals"]),
        ("a:\n", 1, 3, ["a: is empty"]),
        ("7: {compile: true}", 1, 1, ["the key 7", "quote it"]),
        ("a: {compile: true", 1, 18, ["not YAML"]),
        ("a: {compile: true}\n---\nb: {}", 2, 1, ["not YAML", "one YAML document"]),
        ("a: \x07", 1, 4, ["not YAML", "forbids"]),
        ("[" * 5000, 1, 1, ["not YAML"]),
    ],
)
def test_an_error_names_place_key_and_what_was_expected(text: str, line: int, column: int, words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        schema.parse(text, "pool.yaml")
    problem = caught.value.problems[0]
    assert str(problem).startswith(f"pool.yaml:{line}:{column}: "), str(problem)
    for word in words:
        assert word in str(problem)


def test_every_problem_is_told_in_the_order_of_the_document() -> None:
    with pytest.raises(SchemaError) as caught:
        schema.parse("a: {compil: true}\nb: {replicas: x}\nc: {workers: {}}")
    assert [p.key for p in caught.value.problems] == ["a.compil", "b.replicas", "c.workers"]


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(BODY)
    assert schema.load(good).signals == EXPECTED
    assert schema.load(good).source == str(good)
    with pytest.raises(SchemaError, match=r"missing\.yaml:1:1: can't be read"):
        schema.load(tmp_path / "missing.yaml")
    bad = tmp_path / "latin.yaml"
    bad.write_bytes(b"a: {}\nb\xe4: {}")
    with pytest.raises(SchemaError, match=r"latin\.yaml:2:2: isn't UTF-8"):
        schema.load(bad)


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Cn", "Co")), min_size=1, max_size=12)
numbers = st.lists(st.integers(0, 63), min_size=1, max_size=6, unique=True)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Keys of one good signal, as they stand in YAML."""
    body: dict[str, Any] = draw(
        st.fixed_dictionaries({}, optional={"backward": names, "compile": st.booleans(), "replicas": st.integers(1, 9)})
    )
    shape = draw(st.sampled_from(["shard", "none", *Strategy]))
    if shape == "shard":
        body["shard"] = draw(st.fixed_dictionaries({"axis": st.integers(-8, 8)}, optional={"workers": numbers}))
    elif shape != "none":
        body["strategy"] = str(shape)
        body |= draw(st.fixed_dictionaries({}, optional={"workers": numbers}))
        if shape is Strategy.TENSOR_PARALLEL:
            body |= draw(st.fixed_dictionaries({}, optional={"dimension": st.integers(-8, 8)}))
        if shape is Strategy.DATA_PARALLEL:
            body |= draw(st.fixed_dictionaries({}, optional={"batch_split": st.integers(1, 64)}))
    return body


def plain(signal: Signal) -> dict[str, Any]:
    """A signal as it would stand in YAML."""
    body: dict[str, Any] = {}
    if signal.strategy:
        body["strategy"] = str(signal.strategy)
    if signal.dimension is not None:
        body["dimension"] = signal.dimension
    for key in ("replicas", "batch_split", "backward"):
        if getattr(signal, key):
            body[key] = getattr(signal, key)
    if signal.workers:
        body["workers"] = list(signal.workers)
    if signal.shard:
        body["shard"] = {"axis": signal.shard.axis} | (
            {"workers": list(signal.shard.workers)} if signal.shard.workers else {}
        )
    if signal.compile:
        body["compile"] = True
    return body


documents = st.dictionaries(names.filter(lambda n: n not in schema.TOP_KEYS), bodies(), max_size=5)


@given(documents, st.sampled_from(["", *schema.TOP_KEYS]), st.booleans())
def test_a_good_document_comes_back_as_it_was_said(body: dict[str, Any], top: str, flow: bool) -> None:
    text = yaml.safe_dump({top: body} if top else body, default_flow_style=flow, allow_unicode=True)
    document = schema.parse(text)
    for said in body.values():
        if said.get("compile") is False:  # the default: not said
            del said["compile"]
    assert {n: plain(s) for n, s in document.signals.items()} == body
    lines = text.splitlines()
    assert all(1 <= m.line <= len(lines) + 1 for m in document.marks.values())


@given(documents.filter(bool), st.data())
def test_a_slip_in_a_key_is_found_and_the_nearest_key_named(body: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(body)))
    key = data.draw(st.sampled_from(["strategy", "dimension", "replicas", "batch_split", "workers", "backward"]))
    at = data.draw(st.integers(1, len(key) - 2))
    slip = key[:at] + key[at + 1 :]  # one letter missing
    body[name] = {slip: 1}
    with pytest.raises(SchemaError) as caught:
        schema.parse(yaml.safe_dump(body, allow_unicode=True))
    assert [(p.key, p.nearest) for p in caught.value.problems] == [(f"{name}.{slip}", key)]


@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(list("{}[]:,&*!|>-'\"# \n\tab01?%@")), max_size=40)))
def test_any_text_is_a_document_or_a_schema_error(text: str | list[str]) -> None:
    try:
        assert isinstance(schema.parse("".join(text)), Document)
    except SchemaError as error:
        assert all(p.mark.line >= 1 and p.mark.column >= 1 and p.expected for p in error.problems)
