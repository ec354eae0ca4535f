"""Which files of this installation an agent needs, under the names by which they are imported.

Our own packages are taken from the folders that this process imports them from, which is right for
editable installs too. Those of others are taken by their RECORD (PyPA: recording installed
projects), and by folder where an installer wrote none. What is left out differs from one
installation to the next without changing what is imported: caches, scripts, who installed it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata, util
from pathlib import Path, PurePosixPath

OWN = ("spothop", "spothop_agent")
DISTRIBUTION = "spothop"
EXTRA = "agent"

_LEFT_OUT = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


class PackageError(Exception):
    """This installation lacks something that an agent needs; the message names it."""


def own_files() -> dict[str, Path]:
    """Client and agent: name in the archive -> file."""
    found: dict[str, Path] = {}
    for name in OWN:
        found |= _package(name)
    return found


def dependency_files() -> dict[str, Path]:
    """What client and agent import of others. Raises PackageError."""
    found: dict[str, Path] = {}
    for distribution in closure(DISTRIBUTION, [EXTRA]):
        if distribution.files is not None and not _is_editable(distribution):
            found |= dict(_recorded(distribution))
        else:
            for package in _packages_of(distribution):
                found |= _package(package)
    return found


def closure(name: str, extras: Iterable[str]) -> list[metadata.Distribution]:
    """The distributions that one needs, itself left out. A requirement that is not installed was
    not meant for this Python or platform, as pip has decided. Raises PackageError."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    pending = [(name, extra) for extra in ("", *extras)]
    while pending:
        wanted, extra = pending.pop()
        if (_canonical(wanted), extra) in seen:
            continue
        seen.add((_canonical(wanted), extra))
        try:
            distribution = metadata.distribution(wanted)
        except metadata.PackageNotFoundError:
            if wanted == name:
                raise PackageError(
                    f"{name} is not installed as a package; install it with pip, so that agents"
                    " can be given what it needs"
                ) from None
            continue
        found[_canonical(wanted)] = distribution
        pending += _requirements(distribution.requires or (), extra)
    del found[_canonical(name)]
    return [found[key] for key in sorted(found)]


def _requirements(lines: Collection[str], extra: str) -> Iterator[tuple[str, str]]:
    """Name and extra of each that is for this extra, or, "", for none."""
    for line in lines:
        requirement, _, marker = line.partition(";")
        asked = _EXTRA.search(marker)
        if (asked.group(1) if asked else "") != extra:
            continue
        match = _REQUIREMENT.match(requirement.strip())
        if match is not None:
            extras = (more.strip() for more in (match.group(2) or "").split(","))
            for each in dict.fromkeys(("", *extras)):
                yield match.group(1), each


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_editable(distribution: metadata.Distribution) -> bool:
    return '"editable": true' in (distribution.read_text("direct_url.json") or "")


def _recorded(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    for file in distribution.files or ():
        name = PurePosixPath(file)
        if ".." in name.parts or name.is_absolute() or _is_left_out(name):
            continue
        path = Path(str(distribution.locate_file(file)))
        if path.is_file():  # some installers drop what the RECORD names
            yield str(name), path


def _packages_of(distribution: metadata.Distribution) -> list[str]:
    names = metadata.packages_distributions()
    own = distribution.metadata["Name"]
    found = [package for package, owners in names.items() if own in owners]
    top = (distribution.read_text("top_level.txt") or "").split()
    if not found and not top:
        raise PackageError(
            f"nobody knows which files {own} consists of; install it anew with pip: agents need it"
        )
    return sorted({*found, *top})


def _package(name: str) -> dict[str, Path]:
    """Every file of a package, or the one of a module."""
    spec = util.find_spec(name)
    if spec is None:
        raise PackageError(f"{name} cannot be imported; install it anew: agents need it")
    if spec.submodule_search_locations is None:
        origin = Path(spec.origin or "")
        return {origin.name: origin} if origin.is_file() else {}
    found: dict[str, Path] = {}
    for root in map(Path, spec.submodule_search_locations):
        for path in root.rglob("*"):
            inside = PurePosixPath(path.relative_to(root))
            if path.is_file() and not _is_left_out(inside):
                found[f"{name}/{inside}"] = path
    return found


def _is_left_out(name: PurePosixPath) -> bool:
    info = len(name.parts) > 1 and name.parts[-2].endswith(".dist-info")
    return "__pycache__" in name.parts or (info and name.name in _LEFT_OUT)
