"""Packs a code directory into one tar.gz whose SHA-256 is a content hash.

Equal content gives equal bytes: entries are sorted, times and owners are zero, of the mode only the
executable bit stays. `spothop.sdk.codefiles` says which files go in.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spothop.sdk.codefiles import DEFAULT_LIMIT_BYTES, BundleError, CodeFiles, Entry, survey

__all__ = ["Bundle", "BundleError", "pack", "pack_files"]


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A packed code directory."""

    path: Path
    """The tar.gz."""
    sha256: str
    size: int
    """Bytes of the tar.gz."""
    files: int


def pack(
    directory: Path,
    target: Path,
    *,
    include: Sequence[str] = (),
    limit: int = DEFAULT_LIMIT_BYTES,
) -> Bundle:
    """Pack `directory` into the file `target`.

    `include` and `limit` as in `spothop.sdk.codefiles.survey`. Raises `BundleError` as that does,
    and for files that cannot be read.
    """
    return pack_files(survey(directory, include=include, limit=limit), directory, target)


def pack_files(found: CodeFiles, directory: Path, target: Path) -> Bundle:
    """Pack what was found in `directory`. Raises `BundleError` for files that cannot be read."""
    try:
        with (
            target.open("wb") as file,
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0, compresslevel=6) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for entry in found.entries:
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
        path=target, sha256=digest.hexdigest(), size=target.stat().st_size, files=found.files
    )


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
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
        with open(entry.path, "rb") as file:
            tar.addfile(info, file)
