"""The agent as one file, which a VM fetches by its hash: no pip, no venv, no registry there.

Two files come of one installation. The *native* one holds everything that the agent imports, as it
is installed here, and so fits VMs of the same Python and architecture only; its name says which
(`native_tag`). The *portable* one holds our own packages, which are plain Python, and a list of
hashes by which a VM of another kind fetches the rest from a registry (`setup_portable`).

Rules:

1. The same installation gives the same bytes: names sorted, no times, no owners. So several
   masters agree on the hash, and so does one that is started again.
2. A file that was named to a VM stays: VMs that were asked for before an upgrade fetch theirs after
   it. `remove_unused` drops what no living VM was told of.
3. They are built when the first VM needs them (3 s), outside any transaction, and found again by
   the digest of what they are built from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import sysconfig
import threading
import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spothop_master.boot import packages

if TYPE_CHECKING:
    from spothop.storage import ObjectStore

log = logging.getLogger(__name__)

PORTABLE = "any"
SHA256 = re.compile(r"[0-9a-f]{64}")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say
_HERE = Path(__file__).parent

MAIN = b'''"""The agent of one VM: `python3 -I <this folder> --config FILE`."""
import pathlib
import sys

_rest = pathlib.Path(__file__).resolve().parent / "site"
if _rest.is_dir():
    sys.path.insert(1, str(_rest))

from spothop_agent.__main__ import main

main()
'''


def native_tag() -> str:
    """Python, architecture and C library of this interpreter, by its name for extension modules:
    `cpython-312-x86_64-linux-gnu`. What has the same one can import what is installed here."""
    return str(sysconfig.get_config_var("SOABI"))


def write_zip(target: Path, files: Mapping[str, Path | bytes]) -> None:
    """The same files give the same bytes."""
    with zipfile.ZipFile(target, "x") as archive:
        for name in sorted(files):
            source = files[name]
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, or the mode means nothing
            info.external_attr = 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            content = source if isinstance(source, bytes) else source.read_bytes()
            archive.writestr(info, content)


@dataclass(frozen=True)
class Zips:
    """The files of one installation: tag of the VMs that they fit -> SHA-256."""

    by_tag: Mapping[str, str]


class AgentZips:
    """`agents/<sha256>.zip`, and `<digest of the sources>.json` which says what was built of
    them. Thread-safe."""

    def __init__(self, folder: Path, *, bucket: ObjectStore | None = None) -> None:
        """`bucket`: where masters without a common folder find each other's. What is there stays:
        one file of some MB for each release."""
        self._folder = folder
        self._bucket = bucket
        self._lock = threading.Lock()
        self._current: Zips | None = None

    def current(self) -> Zips:
        """Of this installation; built once. Raises `PackageError`, and OSError when the folder
        cannot be written."""
        with self._lock:
            # another master of another release may have removed what it does not need itself
            if self._current is None or not self._is_whole(self._current):
                self._current = self._find_or_build()
            return self._current

    def path(self, sha256: str) -> Path | None:
        """The file of this name; None where there is none, and for what is no name."""
        if not SHA256.fullmatch(sha256):
            return None
        path = self._file(sha256)
        return path if path.is_file() or self._fetch(sha256, path) else None

    def _file(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.zip"

    def _fetch(self, sha256: str, path: Path) -> bool:
        """What another master has built."""
        if self._bucket is None:
            return False
        from spothop.storage import StorageError

        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = self._folder / f".{secrets.token_hex(4)}"
        key = f"agents/{sha256}.zip"
        try:
            size = self._bucket.size(key)
            got = self._bucket.fetch(key, aside, size=size, on_bytes=lambda count: None)
            if got.sha256 == sha256:
                aside.replace(path)
            return got.sha256 == sha256
        except StorageError as error:
            log.warning("the agent's file %s: %s", sha256[:12], error)
            return False
        finally:
            aside.unlink(missing_ok=True)

    def remove_unused(self, named: Collection[str]) -> list[str]:
        """Drop what neither this installation nor one of these names needs; what was dropped.
        Nothing, as long as nobody has asked this master for a zip."""
        with self._lock:
            if self._current is None:
                return []
            kept = {*named, *self._current.by_tag.values()}
        dropped = []
        for path in self._folder.glob("*.zip"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)
                dropped.append(path.stem)
        return dropped

    def _find_or_build(self) -> Zips:
        contents = {native_tag(): _native(), PORTABLE: _portable()}
        index = self._folder / f"{_digest(contents)}.json"
        if index.exists():
            known = Zips(json.loads(index.read_text("utf-8")))
            if self._is_whole(known):
                self._share(known)
                return known
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        built = Zips({tag: self._build(files) for tag, files in contents.items()})
        aside = index.with_suffix(f".{secrets.token_hex(4)}")
        aside.write_text(json.dumps(built.by_tag), "utf-8")
        aside.replace(index)
        self._share(built)
        return built

    def _share(self, zips: Zips) -> None:
        """Before a VM is told of them: it may ask another master. Raises OSError."""
        bucket = self._bucket
        if bucket is None:
            return
        from spothop.storage import ObjectMissing, StorageError

        for sha256 in zips.by_tag.values():
            path, key = self._file(sha256), f"agents/{sha256}.zip"
            try:
                with suppress(ObjectMissing):
                    if bucket.size(key) == path.stat().st_size:
                        continue
                bucket.send(key, path, size=path.stat().st_size, on_bytes=lambda count: None)
            except StorageError as error:
                raise OSError(f"{key} in the master's bucket: {error}") from None

    def _is_whole(self, zips: Zips) -> bool:
        return all(self._file(sha256).is_file() for sha256 in zips.by_tag.values())

    def _build(self, files: Mapping[str, Path | bytes]) -> str:
        aside = self._folder / f".{secrets.token_hex(4)}"
        try:
            write_zip(aside, files)
            with aside.open("rb") as file:
                digest = hashlib.sha256()
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            aside.replace(self._folder / f"{digest.hexdigest()}.zip")
        finally:
            aside.unlink(missing_ok=True)
        return digest.hexdigest()


def _native() -> dict[str, Path | bytes]:
    return {**packages.dependency_files(), **packages.own_files(), "__main__.py": MAIN}


def _portable() -> dict[str, Path | bytes]:
    names = ("setup_portable.py", "agent.txt", "uv.txt")
    beside: dict[str, Path | bytes] = {name: _HERE / name for name in names}
    return {**packages.own_files(), "__main__.py": MAIN, **beside}


def _digest(contents: Mapping[str, Mapping[str, Path | bytes]]) -> str:
    """Of what the files would be built from: without compressing it, which is what takes time."""
    digest = hashlib.sha256()
    for tag in sorted(contents):
        for name, source in sorted(contents[tag].items()):
            content = source if isinstance(source, bytes) else source.read_bytes()
            each = hashlib.sha256(content).hexdigest()
            digest.update(f"{tag} {name} {each}\n".encode())
    return digest.hexdigest()
