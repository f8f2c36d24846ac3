"""What an embedded cluster reads from its caller and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gt_runtime.launch import children, embedded
from gt_runtime.launch.devices import DeviceKind
from gt_runtime.launch.errors import LaunchError
from gt_runtime.sharding.schema import SchemaError


def test_workers_come_from_the_caller_or_the_environment() -> None:
    assert embedded.worker_count(None, {}) is None
    assert embedded.worker_count(None, {"GT_WORKERS": " 3 "}) == 3
    assert embedded.worker_count(2, {"GT_WORKERS": "3"}) == 2
    for text in ("0", "x", "-1", "1.5"):
        with pytest.raises(LaunchError):
            embedded.worker_count(None, {"GT_WORKERS": text})
    with pytest.raises(LaunchError):
        embedded.worker_count(0, {})


def test_kinds_of_device() -> None:
    assert embedded.device_kind("cuda") is DeviceKind.CUDA
    with pytest.raises(LaunchError, match="auto, cuda, cpu"):
        embedded.device_kind("tpu")


def test_the_configuration_is_checked_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GT_CONFIG", raising=False)
    assert embedded.config_text(None) is None
    good = tmp_path / "good.yaml"
    good.write_text("a: {compile: true}\n")
    assert embedded.config_text(good) == "a: {compile: true}\n"
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: {compil: true}\n")
    monkeypatch.setenv("GT_CONFIG", str(bad))
    with pytest.raises(SchemaError, match="did you mean 'compile'"):
        embedded.config_text(None)


def test_the_environment_of_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("PYTHONPATH", f"relative:{tmp_path}")
    monkeypatch.chdir(tmp_path)
    found = children.environment(3, {"CUDA_VISIBLE_DEVICES": "MIG-1"})
    assert "PYTHONINSPECT" not in found
    assert found["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert found["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert all(Path(p).is_absolute() for p in found["PYTHONPATH"].split(":"))
    assert str(tmp_path / "relative") in found["PYTHONPATH"]


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "w0.log"
    log.write_text("".join(f"line {i}\n" for i in range(1000)))
    assert children.tail(log, 2) == ["line 998", "line 999"]
    assert children.tail(tmp_path / "missing", 2) == []
