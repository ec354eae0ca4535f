"""What is installed is what was tested, file by file; and nothing below a known fault."""

from __future__ import annotations

import re
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support import audit

ROOT = Path(__file__).resolve().parents[2]
LOCKED = {
    "run.txt": ("agent", "master"),
    "aws.txt": ("agent", "master", "aws"),
    "agent.txt": ("agent",),
    "dev.txt": ("agent", "master", "simulator", "dev"),
}

KNOWN_FAULTS = {"jinja2": "3.1.6", "torch": "2.6", "h11": "0.16"}
"""The first version without it."""

RENEW = "`make lock` writes requirements/*.txt anew; commit them with the change"


def project() -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def pins(file: Path) -> dict[str, set[str]]:
    """Versions by name: another Python may have another one."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", file.read_text(), re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


@pytest.mark.parametrize("name", LOCKED)
def test_what_is_locked_is_what_was_tested(name: str) -> None:
    tested, locked = pins(ROOT / "constraints.txt"), pins(ROOT / "requirements" / name)
    assert {n: v for n, v in locked.items() if not v <= tested.get(n, set())} == {}, RENEW
    metadata = project()["project"]
    asked = metadata["dependencies"] + [
        line for extra in LOCKED[name] for line in metadata["optional-dependencies"][extra]
    ]
    assert {canonicalize_name(Requirement(line).name) for line in asked} <= set(locked), RENEW


@pytest.mark.parametrize("name", [*LOCKED, "uv.txt"])
def test_every_file_that_pip_may_take_has_its_hash(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text().split("\n")
    for line, following in pairwise(lines):
        if line and not line.startswith((" ", "#")):
            assert line.endswith(" \\"), line
            assert following.strip().startswith("--hash=sha256:"), line


def test_nothing_may_be_older_than_the_mend_of_a_known_fault() -> None:
    metadata = project()["project"]
    extras = chain.from_iterable(metadata["optional-dependencies"].values())
    asked = [*metadata["dependencies"], *extras]
    found = {r.name: r.specifier for r in map(Requirement, asked) if r.name in KNOWN_FAULTS}
    assert set(found) == set(KNOWN_FAULTS)
    for name, mended in KNOWN_FAULTS.items():
        floors = [Version(s.version) for s in found[name] if s.operator == ">="]
        assert floors, name
        assert max(floors) >= Version(mended), name


def test_what_builds_the_package_is_pinned() -> None:
    tested = pins(ROOT / "constraints.txt")
    for line in project()["build-system"]["requires"]:
        pinned = Requirement(line)
        assert str(pinned.specifier) in {f"=={v}" for v in tested[pinned.name]}
    assert {"pip", "hatchling"} <= set(pins(ROOT / "requirements" / "dev.txt"))


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], audit.CLEAN, "1 packages audited, 0"),
        ([{"name": "a", "skip_reason": "?"}], audit.NOT_AUDITED, "not reachable"),
        (
            [{"name": "a", "skip_reason": "?"}, {"name": "b", "version": "1", "vulns": []}],
            audit.NOT_AUDITED,
            "not audited: a",
        ),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}],
            audit.FAULTY,
            "a 1: X-1, mended in 2",
        ),
        (None, audit.NOT_AUDITED, "no network"),
    ],
)
def test_an_audit_that_did_not_take_place_is_no_success(
    packages: list[dict[str, Any]] | None, code: int, said: str
) -> None:
    report = None if packages is None else {"dependencies": packages}
    found, lines = audit.judge(report, "no network")
    assert (found, said in "\n".join(lines)) == (code, True), lines
