"""Which files of a code directory go into a bundle, and what is left out by which rule.

`.gitignore` files count as git counts them: nested ones, and those above the directory up to the
top of its git repository. `code.include` of the job file brings back what they leave out, also
below a folder that is ignored as a whole. `.git`, `__pycache__` and `.venv` never go in.

A data set beside the code may have millions of files, and all of them are left out. So that asking
what a bundle would hold stays quick, the counting of what is left out ends at `COUNTED_AT_MOST`
files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from spothop.sdk.gitignore import Patterns

DEFAULT_LIMIT_BYTES = 200_000_000
ALWAYS_SKIPPED = frozenset({".git", "__pycache__", ".venv"})
LARGEST_SHOWN = 5
COUNTED_AT_MOST = 200_000
"""Files that were left out: from here on only `code.include` makes us read on."""


class BundleError(Exception):
    """The directory cannot be packed; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Rule(str, Enum):
    """By what a file is left out."""

    GITIGNORE = ".gitignore"
    ALWAYS = "always"
    """Its name, or that of a folder above it, is in `ALWAYS_SKIPPED`."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """The files that one rule leaves out."""

    rule: Rule
    files: int
    bytes: int
    largest: str
    """Path inside the code directory of the largest of them."""
    all_counted: bool = True
    """False: there are more files than these."""
    names: tuple[str, ...] = ()
    """Of `Rule.ALWAYS`: which names there were."""


class Entry(NamedTuple):
    """One file, folder or link that goes in."""

    name: str
    """Path inside the bundle."""
    path: str
    size: int = 0
    executable: bool = False
    is_dir: bool = False
    link: str | None = None


@dataclass(frozen=True, kw_only=True)
class CodeFiles:
    """What of a code directory goes in, sorted by name, and what does not."""

    entries: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def files(self) -> int:
        return sum(1 for entry in self.entries if not entry.is_dir)

    @property
    def bytes(self) -> int:
        """Before compression."""
        return sum(entry.size for entry in self.entries)


def survey(
    directory: Path, *, include: Sequence[str] = (), limit: int = DEFAULT_LIMIT_BYTES
) -> CodeFiles:
    """Look through `directory` without reading a file but `.gitignore`.

    `include` has patterns as in a `.gitignore`, of what goes in although one leaves it out. `limit`
    bounds the bytes before compression: a bundle is code, data have their own key. Raises
    `BundleError` for a missing directory, one over the limit, what cannot be read, symlinks that
    lead out of it, sockets and devices, and an `include` that matches nothing.
    """
    if not directory.is_dir():
        raise BundleError(
            f"no code directory {directory}", "`code:` is relative to the folder of the job file"
        )
    walk = _Walk(directory, include)
    try:
        walk.run()
    except OSError as error:
        raise BundleError(
            f"cannot read {error.filename}: {error.strerror or error}",
            "make it readable and leave it alone while it is packed, or name it in .gitignore",
        ) from None
    walk.includes.check(directory)
    tallies = ((Rule.GITIGNORE, walk.ignored), (Rule.ALWAYS, walk.skipped))
    found = CodeFiles(
        entries=tuple(sorted(walk.entries.values(), key=lambda entry: entry.name)),
        left_out=tuple(tally.result(rule) for rule, tally in tallies if tally.files),
    )
    _check_size(found, limit)
    return found


@dataclass
class _Tally:
    files: int = 0
    bytes: int = 0
    largest: str = ""
    largest_bytes: int = -1
    all_counted: bool = True
    names: set[str] = field(default_factory=set)

    def add(self, name: str, count: int) -> None:
        self.files += 1
        self.bytes += count
        if count > self.largest_bytes:
            self.largest, self.largest_bytes = name, count

    def result(self, rule: Rule) -> LeftOut:
        return LeftOut(
            rule=rule,
            files=self.files,
            bytes=self.bytes,
            largest=self.largest,
            all_counted=self.all_counted,
            names=tuple(sorted(self.names)),
        )


class _Walk:
    """One look through a code directory."""

    def __init__(self, root: Path, include: Sequence[str]) -> None:
        self._root = root
        self._top = root.resolve()
        self.includes = _Includes(include)
        self.entries: dict[str, Entry] = {}
        self.ignored = _Tally()
        self.skipped = _Tally()

    def run(self) -> None:
        waiting = [(str(self._root), "", _above(self._top))]
        while waiting:
            folder, inside, rules = waiting.pop()
            with os.scandir(folder) as scan:
                children = list(scan)
            if any(child.name == ".gitignore" for child in children) and (
                own := _patterns_in(Path(folder))
            ):
                rules = [*rules, ("", own)]
            for child in children:
                name = inside + child.name
                is_dir = child.is_dir(follow_symlinks=False)
                path = name + "/" if is_dir else name
                if child.name in ALWAYS_SKIPPED:
                    self.skipped.names.add(child.name)
                    self._leave_out(child, path, self.skipped)
                elif not self.includes.match(path) and _is_ignored(child.name, is_dir, rules):
                    self._leave_out(child, path, self.ignored)
                else:
                    self._take(child, name)
                    if is_dir:
                        below = [(f"{prefix}{child.name}/", each) for prefix, each in rules]
                        waiting.append((child.path, path, below))

    def _take(self, child: os.DirEntry[str], name: str) -> None:
        self.entries[name] = _entry(child, name, self._top)

    def _leave_out(self, child: os.DirEntry[str], path: str, tally: _Tally) -> None:
        """Count a file, or all below a folder, but what is included again."""
        include = bool(self.includes) and tally is self.ignored
        for each, name, is_dir in _below(child, path):
            never = include and not ALWAYS_SKIPPED.isdisjoint(name.split("/"))
            if include and not never and self.includes.match(name + "/" if is_dir else name):
                self._take(each, name)
                self._take_folders_of(name)
            elif not is_dir:
                if tally.files >= COUNTED_AT_MOST and not include:
                    tally.all_counted = False
                    return
                tally.add(name, _size(each))

    def _take_folders_of(self, name: str) -> None:
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in self.entries:
                return
            self.entries[name] = Entry(name, str(self._root / name), is_dir=True)


def _below(child: os.DirEntry[str], path: str) -> Iterator[tuple[os.DirEntry[str], str, bool]]:
    """The entry itself, and all below it; a folder that cannot be read counts as empty."""
    waiting = [(child, path.rstrip("/"))]
    while waiting:
        entry, name = waiting.pop()
        is_dir = entry.is_dir(follow_symlinks=False)
        yield entry, name, is_dir
        if not is_dir:
            continue
        try:
            with os.scandir(entry.path) as scan:
                waiting += [(each, f"{name}/{each.name}") for each in scan]
        except OSError:
            continue


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def _entry(child: os.DirEntry[str], name: str, top: Path) -> Entry:
    facts = child.stat(follow_symlinks=False)
    if stat.S_ISLNK(facts.st_mode):
        return Entry(name, child.path, link=_link(child.path, name, top))
    if stat.S_ISDIR(facts.st_mode):
        return Entry(name, child.path, is_dir=True)
    if stat.S_ISREG(facts.st_mode):
        executable = bool(facts.st_mode & stat.S_IXUSR)
        return Entry(name, child.path, facts.st_size, executable=executable)
    raise BundleError(f"{name} is a socket, pipe or device", "remove it, or name it in .gitignore")


def _link(path: str, name: str, top: Path) -> str:
    """The link's target, relative; refuses one outside the directory."""
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(top):
        raise BundleError(
            f"the symlink {name} leads out of the code directory, to {target}",
            "copy the target in, use `data:` for data, or name the link in .gitignore",
        )
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BundleError(
                f"the symlink {name} leads to itself", "remove it, or name it in .gitignore"
            ) from None
    return os.path.relpath(target, (top / name).parent)


def _check_size(found: CodeFiles, limit: int) -> None:
    total = found.bytes
    if total <= limit:
        return
    largest = sorted(found.entries, key=lambda entry: -entry.size)[:LARGEST_SHOWN]
    shown = "".join(
        f"\n  {entry.size / 1e6:9.1f} MB  {on_one_line(entry.name)}" for entry in largest
    )
    raise BundleError(
        f"the code directory has {total / 1e6:.1f} MB, more than {limit / 1e6:.0f} MB; "
        f"the largest entries:{shown}",
        "name what is not code in .gitignore; give data as storage URLs under `data:`",
    )


def on_one_line(name: str) -> str:
    """A file's name for people: one with a line feed, or what a terminal obeys, as Python writes
    it."""
    return name if name.isprintable() else repr(name)


# --- patterns -----------------------------------------------------------------------------------


_Rules = list[tuple[str, Patterns]]
"""Each with the path from its folder to the one that is looked at; the deepest last."""


def _patterns_in(folder: Path) -> Patterns | None:
    file = folder / ".gitignore"
    if not file.is_file():
        return None
    return Patterns.of_text(os.fsdecode(file.read_bytes()))


def _above(top: Path) -> _Rules:
    """Those between the top of the git repository that `top` is in, and `top` itself."""
    if (top / ".git").exists():
        return []
    found: _Rules = []
    for folder in top.parents:
        if own := _patterns_in(folder):
            found.insert(0, (f"{top.relative_to(folder).as_posix()}/", own))
        if (folder / ".git").exists():
            return found
    return []


def _is_ignored(name: str, is_dir: bool, rules: _Rules) -> bool:
    """The deepest file with a matching pattern decides (gitignore(5), "Pattern format")."""
    for prefix, patterns in reversed(rules):
        ignored = patterns.ignores(prefix + name, is_dir=is_dir)
        if ignored is not None:
            return ignored
    return False


class _Includes:
    """`code.include`: what goes in although a `.gitignore` leaves it out."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._patterns = Patterns(lines)
        self._unused = {line: Patterns([line]) for line in lines}
        self._given = bool(lines)

    def __bool__(self) -> bool:
        return self._given

    def match(self, path: str) -> bool:
        if not self._given or not _takes(self._patterns, path):
            return False
        for line in [line for line, one in self._unused.items() if _takes(one, path)]:
            del self._unused[line]
        return True

    def check(self, directory: Path) -> None:
        """Raises `BundleError` for what matched nothing: a misspelled file would be missing only
        when the job runs."""
        for line in self._unused:
            raise BundleError(
                f"code.include: {line!r}: matches nothing in {directory}",
                "write a path below it, or a pattern as in .gitignore; "
                ".git, .venv and __pycache__ never go in",
            )


def _takes(patterns: Patterns, path: str) -> bool:
    """What matches the path itself decides, else what matches the nearest folder above it."""
    is_dir, name = path.endswith("/"), path.removesuffix("/")
    while name:
        taken = patterns.ignores(name, is_dir=is_dir)
        if taken is not None:
            return taken
        is_dir, name = True, name.rpartition("/")[0]
    return False
