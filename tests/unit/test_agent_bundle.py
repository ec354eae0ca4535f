"""Unpacking a bundle never leaves its directory, whatever the archive says."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from spothop.sdk.bundle import pack
from spothop_agent.bundle import BundleError, unpack, verify


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    return info


def test_what_the_client_packs_comes_out_again(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "sub" / "a.py").write_text("print(1)")
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    (code / "link.py").symlink_to("sub/a.py")
    bundle = pack(code, tmp_path / "b.tar.gz")
    verify(bundle.path, bundle.sha256)
    unpack(bundle.path, tmp_path / "work")
    assert (tmp_path / "work/link.py").read_text() == "print(1)"
    assert (tmp_path / "work/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "work/sub/a.py").stat().st_mode & 0o777 == 0o644


def test_another_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(b"x")
    verify(path, hashlib.sha256(b"x").hexdigest())
    with pytest.raises(BundleError, match="arrived with SHA-256"):
        verify(path, "0" * 64)


@pytest.mark.parametrize(
    "members",
    [
        [(member("../evil"), b"x")],
        [(member("/tmp/evil"), b"x")],
        [(member("a/../../evil"), b"x")],
        [(member("out", tarfile.SYMTYPE, ".."), b"")],
        [(member("out", tarfile.SYMTYPE, "/etc"), b"")],
        [(member("d", tarfile.SYMTYPE, "../outside"), b""), (member("d/evil"), b"x")],
        [
            (member("s/s2/a", tarfile.SYMTYPE, "../.."), b""),
            (member("b", tarfile.SYMTYPE, "s/s2/a/.."), b""),
        ],
        [(member("early", tarfile.SYMTYPE, "x/.."), b""), (member("x", tarfile.SYMTYPE, "."), b"")],
        [(member("hard", tarfile.LNKTYPE, "../outside/secret"), b"")],
        [(member("pipe", tarfile.FIFOTYPE), b"")],
        [(member("device", tarfile.CHRTYPE), b"")],
    ],
    ids=lambda members: members[0][0].name,
)
def test_nothing_leaves_the_directory(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    before = sorted(tmp_path.rglob("*"))
    path = archive(tmp_path / "b.tar.gz", *members)
    with pytest.raises(BundleError):
        unpack(path, tmp_path / "work")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path])


def test_a_link_in_the_middle_of_a_path_is_not_followed_out(tmp_path: Path) -> None:
    """Chained links: each looks harmless alone (the pattern of CVE-2025-4330)."""
    path = archive(
        tmp_path / "b.tar.gz",
        (member("a/b/c", tarfile.DIRTYPE), b""),
        (member("a/up", tarfile.SYMTYPE, "b/c/../.."), b""),
        (member("a/up/up2", tarfile.SYMTYPE, ".."), b""),
        (member("a/up2/evil", tarfile.SYMTYPE, "../.."), b""),
    )
    with pytest.raises(BundleError):
        unpack(path, tmp_path / "work")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"not a tar"])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = archive(tmp_path / "b.tar.gz", (member("a"), b"x" * 5000))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BundleError, match="cannot be unpacked"):
        unpack(path, tmp_path / "work")
    assert [p.name for p in tmp_path.iterdir()] == ["b.tar.gz"]


@pytest.mark.parametrize(
    "members",
    [
        [(member("a", tarfile.SYMTYPE, "a"), b"")],
        [(member("a", tarfile.SYMTYPE, "b"), b""), (member("b", tarfile.SYMTYPE, "a"), b"")],
        [(member("a", tarfile.SYMTYPE, "a"), b""), (member("a/b"), b"x")],
        [(member("a", tarfile.LNKTYPE, "a"), b"")],
    ],
)
def test_a_link_to_itself_is_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    path = archive(tmp_path / "b.tar.gz", *members)
    with pytest.raises(BundleError):
        unpack(path, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def headers(kind: bytes, size: int, *, count: int = 1) -> Iterator[bytes]:
    """Extended headers that say that they have so many bytes, and have them."""
    for number in range(count):
        info = tarfile.TarInfo(f"header-{number}")
        info.type, info.size = kind, size
        yield info.tobuf(tarfile.USTAR_FORMAT)
        begin = f"{size} k{number:06d}=".encode()
        yield begin
        left = size - len(begin) - 1
        for at in range(0, left, 1 << 20):
            yield bytes(min(1 << 20, left - at)).replace(b"\0", b"x")
        yield b"\n" + bytes(-size % tarfile.BLOCKSIZE)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize(("size", "count"), [(300_000_000, 1), (1_000_000, 60)])
def test_large_headers_are_refused_before_they_are_read(
    tmp_path: Path, kind: bytes, size: int, count: int
) -> None:
    path = tmp_path / "b.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for block in islice(headers(kind, size, count=count), None if count > 1 else 4):
            file.write(block)
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match="header of the bundle"):
            unpack(path, tmp_path / "work")
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "work").exists()


def test_what_a_pax_header_is_for_still_works(tmp_path: Path) -> None:
    name = "/".join(["\u00e4" * 60] * 5)
    path = archive(tmp_path / "b.tar.gz", (member(name), b"x"), (member("b"), b"y"))
    unpack(path, tmp_path / "work")
    assert (tmp_path / "work" / name).read_bytes() == b"x"
    assert (tmp_path / "work" / "b").read_bytes() == b"y"


@pytest.mark.parametrize("size", [-512, -1024])
def test_a_member_of_negative_size_is_refused_at_once(tmp_path: Path, size: int) -> None:
    """Whoever goes on behind it reads the same header again, a million times."""
    header = bytearray(tarfile.TarInfo("a").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" + (256**11 + size).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(gzip.compress(bytes(header) * 2 + bytes(10_240)))
    with pytest.raises(BundleError, match="negative size"):
        unpack(path, tmp_path / "code")
