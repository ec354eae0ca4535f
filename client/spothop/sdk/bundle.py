"""Packs a code directory into one tar.gz whose SHA-256 is a content hash.

Equal content gives equal bytes: entries are sorted, times and owners are zero, of the mode only the
executable bit stays. `.gitignore` files count as git counts them: nested ones, and those above the
directory up to the top of its git repository. `.git`, `__pycache__` and `.venv` never go in.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

DEFAULT_LIMIT_BYTES = 200_000_000
ALWAYS_SKIPPED = frozenset({".git", "__pycache__", ".venv"})
LARGEST_SHOWN = 5


class BundleError(Exception):
    """The directory cannot be packed; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A packed code directory."""

    path: Path
    """The tar.gz."""
    sha256: str
    size: int
    """Bytes of the tar.gz."""
    files: int


def pack(directory: Path, target: Path, *, limit: int = DEFAULT_LIMIT_BYTES) -> Bundle:
    """Pack `directory` into the file `target`.

    `limit` bounds the bytes before compression: a bundle is code, data have their own key. Raises
    `BundleError` for a missing directory, one over the limit, symlinks that lead out of it, sockets
    and devices, and files that cannot be read.
    """
    if not directory.is_dir():
        raise BundleError(
            f"no code directory {directory}", "`code:` is relative to the folder of the job file"
        )
    entries = sorted(_walk(directory), key=lambda entry: entry.name)
    _check_size(entries, limit)
    try:
        with (
            target.open("wb") as file,
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0, compresslevel=6) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for entry in entries:
                _add(tar, entry)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise BundleError(
            f"cannot pack {directory}: {error.strerror or error}{where}",
            "make the file readable and leave it alone while it is packed, or .gitignore it",
        ) from None
    digest = hashlib.sha256()
    with target.open("rb") as packed:
        while block := packed.read(1 << 20):
            digest.update(block)
    return Bundle(
        path=target,
        sha256=digest.hexdigest(),
        size=target.stat().st_size,
        files=sum(1 for entry in entries if not entry.is_dir),
    )


@dataclass(frozen=True)
class _Entry:
    name: str
    """Path inside the bundle."""
    path: Path
    size: int = 0
    executable: bool = False
    is_dir: bool = False
    link: str | None = None


def _add(tar: tarfile.TarFile, entry: _Entry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mode = 0o755 if entry.executable or entry.is_dir else 0o644
    if entry.link is not None:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
        tar.addfile(info)
    elif entry.is_dir:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = entry.size
        with entry.path.open("rb") as file:
            tar.addfile(info, file)


def _walk(root: Path) -> Iterator[_Entry]:
    top = root.resolve()
    waiting = [(root, PurePosixPath(), _specs_above(top))]
    while waiting:
        folder, inside, specs = waiting.pop()
        specs = [*specs, *_spec_of(folder, len(top.parts) + len(inside.parts))]
        with os.scandir(folder) as scan:
            children = list(scan)
        for child in children:
            name = inside / child.name
            is_dir = child.is_dir(follow_symlinks=False)
            if child.name in ALWAYS_SKIPPED or _ignored(top / name, is_dir, specs):
                continue
            yield _entry(child, str(name), top)
            if is_dir:
                waiting.append((Path(child.path), name, specs))


def _entry(child: os.DirEntry[str], name: str, top: Path) -> _Entry:
    facts = child.stat(follow_symlinks=False)
    path = Path(child.path)
    if stat.S_ISLNK(facts.st_mode):
        return _Entry(name, path, link=_link(path, name, top))
    if stat.S_ISDIR(facts.st_mode):
        return _Entry(name, path, is_dir=True)
    if stat.S_ISREG(facts.st_mode):
        return _Entry(name, path, facts.st_size, executable=bool(facts.st_mode & stat.S_IXUSR))
    raise BundleError(f"{name} is a socket, pipe or device", "remove it, or name it in .gitignore")


def _link(path: Path, name: str, top: Path) -> str:
    """The link's target, relative; refuses one outside the directory."""
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(top):
        raise BundleError(
            f"the symlink {name} leads out of the code directory, to {target}",
            "copy the target in, use `data:` for data, or name the link in .gitignore",
        )
    return os.path.relpath(target, (top / name).parent)


def _check_size(entries: list[_Entry], limit: int) -> None:
    total = sum(entry.size for entry in entries)
    if total <= limit:
        return
    largest = sorted(entries, key=lambda entry: -entry.size)[:LARGEST_SHOWN]
    shown = "".join(f"\n  {entry.size / 1e6:9.1f} MB  {entry.name}" for entry in largest)
    raise BundleError(
        f"the code directory has {total / 1e6:.1f} MB, more than {limit / 1e6:.0f} MB; "
        f"the largest entries:{shown}",
        "name what is not code in .gitignore; give data as storage URLs under `data:`",
    )


# --- .gitignore ---------------------------------------------------------------------------------

_Specs = list[tuple[int, GitIgnoreSpec]]
"""Each with the number of path parts of its folder; the deepest last."""


def _spec_of(folder: Path, depth: int) -> _Specs:
    file = folder / ".gitignore"
    if not file.is_file():
        return []
    lines = file.read_text("utf-8", errors="surrogateescape").splitlines()
    return [(depth, GitIgnoreSpec.from_lines(lines))]


def _specs_above(top: Path) -> _Specs:
    """Those between the top of the git repository that `top` is in, and `top` itself."""
    if (top / ".git").exists():
        return []
    above: list[Path] = []
    for folder in top.parents:
        above.insert(0, folder)
        if (folder / ".git").exists():
            return [spec for f in above for spec in _spec_of(f, len(f.parts))]
    return []


def _ignored(path: Path, is_dir: bool, specs: _Specs) -> bool:
    """The deepest file with a matching pattern decides (gitignore(5), "Pattern format")."""
    for depth, spec in reversed(specs):
        relative = "/".join(path.parts[depth:]) + ("/" if is_dir else "")
        include = spec.check_file(relative).include
        if include is not None:
            return include
    return False
