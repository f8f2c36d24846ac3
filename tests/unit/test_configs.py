"""The example files in configs/ are good documents, and say what their comments say they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from gt_runtime.sharding import schema

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert {c.stem for c in CONFIGS} >= {"tensor_parallel", "data_parallel", "pipeline", "explicit"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_example_loads_with_signals(path: Path) -> None:
    document = schema.load(path)
    assert document.signals, f"{path.name} names no signal"
    assert "nothing acts on it yet" in document.text  # to be dropped from the files, and here, once something does


def test_values_reach_the_records() -> None:
    signals = {name: signal for path in CONFIGS for name, signal in schema.load(path).signals.items()}
    assert signals["mlp_in"].strategy is schema.Strategy.TENSOR_PARALLEL
    assert signals["mlp_in"].dimension == 0
    assert signals["model"].batch_split == 4
    assert signals["stage2"].backward == "stage2_bwd"
    assert signals["head"].shard == schema.Shard(0, (0, 1, 2, 3))
