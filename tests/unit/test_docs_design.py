"""docs/design.md is about this code: the modules and invariants that it names are there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")
MODULES = sorted(set(re.findall(r"`(spothop(?:_agent|_master)?(?:\.[a-z_]+)+)`", DESIGN)))
SOURCES = [
    file
    for folder in ("client", "agent", "master", "tests", "examples")
    for file in (ROOT / folder).rglob("*.py")
]


@pytest.mark.parametrize("module", MODULES)
def test_each_module_that_the_design_names_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(
    "package", ["client/spothop", "agent/spothop_agent", "master/spothop_master"]
)
def test_each_module_is_in_the_readme_of_its_folder(package: str) -> None:
    """By its folder and its file name, so that a module's home can be found by reading one page."""
    readme = (ROOT / package).parent.joinpath("README.md").read_text("utf-8")
    modules = [file for file in (ROOT / package).rglob("*.py") if file.name != "__init__.py"]
    assert len(modules) > 20
    missing = [
        str(file.relative_to(ROOT))
        for file in modules
        if not re.search(rf"\b{file.stem}\b", readme)
        or (file.parent.name not in readme and file.parent != ROOT / package)
    ]
    assert missing == []


def test_each_invariant_that_the_code_cites_is_stated() -> None:
    stated = set(re.findall(r"^- \*\*(I\d+) ", DESIGN, re.MULTILINE))
    assert {f"I{n}" for n in range(1, 14)} == stated
    cited = {
        name
        for file in SOURCES
        for name in re.findall(r"\(\s?(I\d{1,2})\b", file.read_text("utf-8"))
    }
    assert cited  # the code does cite them
    assert cited <= stated


def test_no_source_cites_a_file_outside_the_project() -> None:
    outside = re.compile(
        r"\b(science|cloud-facts|mission|engines|peers|architecture)\.md\b|papers/"
    )
    this = Path(__file__)
    citing = [
        str(file.relative_to(ROOT))
        for file in SOURCES
        if file != this and outside.search(file.read_text("utf-8"))
    ]
    assert citing == []
