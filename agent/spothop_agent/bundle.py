"""The code bundle: a tar.gz, named by its SHA-256, unpacked without leaving its directory."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MAX_BYTES = 20 * 2**30
"""Most bytes after unpacking; a small archive may hold very much."""
MAX_MEMBERS = 1_000_000
MAX_HEADER = 1 << 20
"""Bytes of one extended header. `tarfile` reads it whole, and one may say that it has any size."""
MAX_HEADERS = 32 << 20
"""Bytes of all extended headers: the global ones among them are kept."""


class BundleError(Exception):
    """The bundle is not what was asked for, or not safe to unpack; the message says why."""


def verify(path: Path, sha256: str) -> None:
    """Raises BundleError when the content is another one."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        found = digest.hexdigest()
        raise BundleError(
            f"bundle {sha256[:12]} arrived with SHA-256 {found[:12]}; submit the job again"
        )


def unpack(archive: Path, target: Path) -> None:
    """Unpack into `target`, which appears only when it is complete.

    Regular files, folders, and symbolic links that stay inside; anything else raises BundleError.
    Owners, set-id bits and times of the archive are left out. `tarfile`'s own `data` filter does
    the same, but older patch releases of Python 3.10 and 3.11 lack it, and it let some links pass
    (CVE-2025-4330): the checks here do not depend on the running version.
    """
    aside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        with (
            gzip.open(archive) as unzipped,
            tarfile.open(fileobj=(reader := _Reader(unzipped)), mode="r:") as tar,
        ):
            links = [_extract(tar, member, aside) for member in _bounded(tar, reader)]
        # Only now: a later member may change where an earlier link leads.
        for link in filter(None, links):
            _check_link(link, aside)
    except (tarfile.TarError, EOFError, OSError, zlib.error, RuntimeError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise BundleError(f"the bundle cannot be unpacked: {error}") from error
    except BundleError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    os.replace(aside, target)


class _Reader(io.RawIOBase):
    """The unpacked archive, as `tarfile` reads it: what it reads of headers is bounded."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source = source
        self._headers = 0
        self.of_headers = True
        """Whether headers are read now, and not what a member holds."""

    def read(self, size: int = -1) -> bytes:
        if self.of_headers and size != tarfile.BLOCKSIZE:
            self._headers += size
            if not 0 <= size <= MAX_HEADER or self._headers > MAX_HEADERS:
                raise BundleError(
                    f"a header of the bundle has more than {MAX_HEADER} bytes, "
                    f"or all of them more than {MAX_HEADERS}"
                )
        return self._source.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()


def _check_link(link: Path, root: Path) -> None:
    """It may lead to what is not there yet, but not out, and not in a circle."""
    if not Path(os.path.realpath(link)).is_relative_to(root.resolve()):
        raise BundleError(f"the bundle's link {link.name!r} leads out of it")
    try:
        link.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise BundleError(
            f"the bundle's link {link.name!r} leads nowhere: {error.strerror}"
        ) from None


def _bounded(tar: tarfile.TarFile, reader: _Reader) -> Iterator[tarfile.TarInfo]:
    total = count = 0
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # all of a million are too many to keep
        if member.size < 0:  # the next header would be one from before (CVE-2025-8194)
            raise BundleError(f"bundle member {member.name!r} has a negative size")
        count += 1
        total += member.size
        if count > MAX_MEMBERS or total > MAX_BYTES:
            raise BundleError(
                f"the bundle unpacks to more than {MAX_BYTES} bytes or {MAX_MEMBERS} files"
            )
        reader.of_headers = False
        yield member
        reader.of_headers = True


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> Path | None:
    """Returns where a symbolic link was made."""
    path = root / _inside(member.name)
    if path == root:
        return None
    # A link made by an earlier member must not lead a later one out.
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise BundleError(f"bundle member {member.name!r} lies behind a link out of the bundle")
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        path.unlink()
    if member.isreg():
        source = tar.extractfile(member)
        assert source is not None
        with open(path, "xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    elif member.issym():
        if os.path.isabs(member.linkname):
            raise BundleError(f"bundle member {member.name!r} links out of the bundle")
        path.symlink_to(member.linkname)
        return path
    else:
        raise BundleError(
            f"bundle member {member.name!r} is neither file, folder nor symbolic link"
        )
    return None


def _inside(name: str) -> PurePosixPath:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "\0" in name:
        raise BundleError(f"bundle member {name!r} lies outside of the bundle")
    return parts
