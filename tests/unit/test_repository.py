"""The repository keeps its own promises: pins fit ranges, links lead somewhere, make targets named are there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = sorted(p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
OUTSIDE = ("http://", "https://", "mailto:", "#")


def requirements() -> list[Requirement]:
    extras = [r for group in PROJECT["optional-dependencies"].values() for r in group]
    own = canonicalize_name(PROJECT["name"])
    return [r for r in map(Requirement, [*PROJECT["dependencies"], *extras]) if canonicalize_name(r.name) != own]


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    found = dict(line.split("==") for line in lines)
    return {canonicalize_name(name): version for name, version in found.items()}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_each_requirement_has_an_exact_version_within_its_range(requirement: Requirement) -> None:
    version = pins().get(canonicalize_name(requirement.name))
    assert version, f"{requirement.name} has no exact version in constraints.txt"
    assert requirement.specifier.contains(version, prereleases=True)


def test_pins_name_no_local_builds() -> None:
    assert pins()["torch"] == "2.13.0"
    assert not [v for v in pins().values() if "+" in v]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    inside = [link.split("#")[0] for link in links if not link.startswith(OUTSIDE)]
    missing = [link for link in inside if not (page.parent / link).exists()]
    assert not missing, f"{page.name} points at {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_that_pages_name_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    # In code only (`make wheel`, or an indented line): prose may "make sure".
    named = set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", page.read_text(), re.MULTILINE))
    assert named <= targets, f"{page.name} names make targets that don't exist: {sorted(named - targets)}"


def test_make_help_lists_the_targets_people_use() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout
    for target in ("venv", "test", "lint", "conformance", "bench", "demo", "wheel", "screenshots", "clean"):
        assert f"make {target} " in shown
