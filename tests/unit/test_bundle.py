"""Packing a code directory: what goes in, and that equal content gives equal bytes."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spothop.sdk.bundle import Bundle, BundleError, pack
from support.examples import examples


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def put(folder: Path, **files: str) -> None:
    for name, content in files.items():
        write(folder / name.replace("__", "/"), content)


def write(file: Path, content: str = "x") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def packed(code: Path, *, limit: int = 1_000_000) -> Bundle:
    return pack(code, code.parent / "bundle.tar.gz", limit=limit)


def names(code: Path) -> set[str]:
    with tarfile.open(packed(code).path) as tar:
        return {member.name for member in tar if not member.isdir()}


def test_files_come_back_with_content_and_executable_bit(code: Path) -> None:
    write(code / "train.py", "print(1)")
    write(code / "pkg/tool.sh", "#!/bin/sh")
    (code / "pkg/tool.sh").chmod(0o775)
    (code / "empty").mkdir()
    bundle = packed(code)
    assert bundle.files == 2
    assert bundle.size == bundle.path.stat().st_size
    with tarfile.open(bundle.path) as tar:
        assert [m.name for m in tar] == ["empty", "pkg", "pkg/tool.sh", "train.py"]
        file = tar.extractfile("train.py")
        assert file is not None
        assert file.read() == b"print(1)"
        modes = {m.name: m.mode for m in tar}
    assert (modes["pkg/tool.sh"], modes["train.py"]) == (0o755, 0o644)


def test_equal_content_has_an_equal_hash_whatever_times_and_order(tmp_path: Path) -> None:
    hashes = set()
    for i, order in enumerate((["a.py", "b/c.py"], ["b/c.py", "a.py"])):
        folder = tmp_path / str(i)
        for name in order:
            write(folder / name, name)
            os.utime(folder / name, (i * 1000, i * 1000))
        hashes.add(pack(folder, tmp_path / f"{i}.tar.gz").sha256)
    assert len(hashes) == 1


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=50), st.binary(max_size=50))
def test_the_hash_is_equal_exactly_when_the_content_is(
    tmp_path: Path, one: bytes, two: bytes
) -> None:
    hashes = []
    for content in (one, two):
        write(tmp_path / "code/f")
        (tmp_path / "code/f").write_bytes(content)
        hashes.append(packed(tmp_path / "code").sha256)
    assert (hashes[0] == hashes[1]) == (one == two)


def test_git_caches_and_environments_never_go_in(code: Path) -> None:
    for skipped in (".git/config", "__pycache__/a.pyc", "deep/__pycache__/b.pyc", ".venv/bin/x"):
        write(code / skipped)
    write(code / ".gitignore", "!.git\n!__pycache__\n")
    assert names(code) == {".gitignore"}


def test_gitignore_counts_as_git_counts_it(code: Path) -> None:
    write(code / ".gitignore", "*.log\n/build/\n!keep.log\ndata\n")
    write(code / "sub/.gitignore", "!special.log\n/only-here\n")
    for name in (
        "a.log", "keep.log", "build/x", "sub/build/y", "sub/special.log", "sub/b.log",
        "sub/only-here", "only-here", "sub/data/d", "train.py",
    ):  # fmt: skip
        write(code / name)
    assert names(code) == {
        ".gitignore",
        "sub/.gitignore",
        "keep.log",
        "sub/build/y",
        "sub/special.log",
        "only-here",
        "train.py",
    }


def test_gitignore_files_above_count_up_to_the_top_of_the_repository(tmp_path: Path) -> None:
    write(tmp_path / ".gitignore", "train.py\n")  # outside the repository
    write(tmp_path / "repo/.git/HEAD")
    write(tmp_path / "repo/.gitignore", "*.pt\njobs/mnist/local\n")
    for name in ("train.py", "model.pt", "local"):
        write(tmp_path / "repo/jobs/mnist" / name)
    assert names(tmp_path / "repo/jobs/mnist") == {"train.py"}


def test_symlinks_inside_stay_and_become_relative(code: Path) -> None:
    write(code / "real/a.py")
    (code / "real/link").symlink_to("a.py")
    (code / "absolute").symlink_to(code / "real")
    (code / "dangling").symlink_to("not-there")
    with tarfile.open(packed(code).path) as tar:
        links = {m.name: m.linkname for m in tar if m.issym()}
    assert links == {"real/link": "a.py", "absolute": "real", "dangling": "not-there"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "real/../../outside"])
def test_symlinks_that_lead_out_are_refused(code: Path, target: str) -> None:
    (code / "real").mkdir()
    (code / "link").symlink_to(target)
    with pytest.raises(BundleError, match="the symlink link leads out") as caught:
        packed(code)
    assert ".gitignore" in caught.value.hint


def test_an_ignored_symlink_may_lead_anywhere(code: Path) -> None:
    (code / "data").symlink_to("/etc")
    write(code / ".gitignore", "data\n")
    assert names(code) == {".gitignore"}


def test_a_directory_over_the_limit_names_its_largest_entries(code: Path) -> None:
    for i in range(8):
        write(code / f"f{i}.bin", "x" * (1000 * (i + 1)))
    with pytest.raises(BundleError) as caught:
        packed(code, limit=10_000)
    assert "0.0 MB, more than 0 MB" in caught.value.message
    shown = [line.split()[-1] for line in caught.value.message.splitlines()[1:]]
    assert shown == ["f7.bin", "f6.bin", "f5.bin", "f4.bin", "f3.bin"]


def test_pipes_are_refused_instead_of_read(code: Path) -> None:
    os.mkfifo(code / "pipe")
    with pytest.raises(BundleError, match="pipe is a socket, pipe or device"):
        packed(code)


def test_a_directory_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no code directory"):
        pack(tmp_path / "nothing", tmp_path / "b.tar.gz")


def test_names_in_any_script_survive(code: Path) -> None:
    long = "d" * 120 + "/" + "e" * 120
    for name in ("caf\u00e9.py", long):
        write(code / name)
    assert names(code) == {"caf\u00e9.py", long}
