"""Packing a code directory: what goes in, and that equal content gives equal bytes."""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spothop.sdk import codefiles
from spothop.sdk.bundle import Bundle, BundleError, pack
from spothop.sdk.codefiles import LeftOut, Rule, survey
from spothop.sdk.gitignore import Patterns
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


def test_a_symlink_to_itself_is_refused(code: Path) -> None:
    (code / "a").symlink_to("b")
    (code / "b").symlink_to("a")
    with pytest.raises(BundleError, match=r"the symlink [ab] leads to itself") as caught:
        survey(code)
    assert ".gitignore" in caught.value.hint


def test_an_ignored_symlink_may_lead_anywhere(code: Path) -> None:
    (code / "data").symlink_to("/etc")
    write(code / ".gitignore", "data\n")
    assert names(code) == {".gitignore"}


def test_a_line_feed_in_a_name_breaks_no_line_of_the_error(code: Path) -> None:
    (code / "two\nlines").write_bytes(b"x" * 20_000)
    with pytest.raises(BundleError) as caught:
        packed(code, limit=10_000)
    assert "MB  'two\\nlines'" in caught.value.message


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


# --- what is left out ---------------------------------------------------------------------------


def left_out(code: Path, *include: str) -> dict[Rule, LeftOut]:
    return {left.rule: left for left in survey(code, include=include).left_out}


def test_what_is_left_out_is_counted_by_rule(code: Path) -> None:
    write(code / ".gitignore", "data/\n*.log\n")
    write(code / "data/train.bin", "x" * 3000)
    write(code / "data/deep/val.bin", "x" * 100)
    write(code / "a.log", "x" * 50)
    write(code / "train.py")
    write(code / ".git/HEAD", "x" * 7)
    write(code / "pkg/__pycache__/a.pyc", "x" * 70)
    write(code / "pkg/__pycache__/a.log", "x")  # the rule that is seen first counts
    found = left_out(code)
    ignored, always = found[Rule.GITIGNORE], found[Rule.ALWAYS]
    assert (ignored.files, ignored.bytes, ignored.largest) == (3, 3150, "data/train.bin")
    assert (always.files, always.bytes, always.largest) == (3, 78, "pkg/__pycache__/a.pyc")
    assert always.names == (".git", "__pycache__")
    assert ignored.all_counted


def test_nothing_left_out_is_nothing_to_say(code: Path) -> None:
    write(code / ".gitignore", "data/\n")
    (code / "data").mkdir()
    write(code / "train.py")
    assert left_out(code) == {}


def test_the_counting_ends_where_a_data_set_is_too_large(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codefiles, "COUNTED_AT_MOST", 5)
    write(code / ".gitignore", "data/\n")
    for i in range(9):
        write(code / f"data/{i}")
    ignored = left_out(code)[Rule.GITIGNORE]
    assert (ignored.files, ignored.all_counted) == (5, False)
    assert left_out(code, "data/3")[Rule.GITIGNORE].files == 8  # it has to be looked for


def test_what_cannot_be_read_is_named_with_what_to_do(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the rights of a file, which do not bind a test that runs as root."""
    write(code / "locked/a.py")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(codefiles.os, "scandir", refuse)
    with pytest.raises(BundleError) as caught:
        survey(code)
    assert caught.value.message == f"cannot read {code / 'locked'}: Permission denied"
    assert "name it in .gitignore" in caught.value.hint


def test_what_cannot_be_read_and_is_left_out_hinders_nothing(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(code / ".gitignore", "data/\n")
    write(code / "data/a")
    scan = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("data"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(codefiles.os, "scandir", refusing)
    assert names(code) == {".gitignore"}


def test_include_brings_back_what_is_ignored(code: Path) -> None:
    write(code / ".gitignore", "data/\n*.pt\n")
    for name in ("data/train.bin", "data/meta/vocab.json", "data/meta/x.json", "a.pt", "sub/b.pt"):
        write(code / name)
    bundle = pack(code, code.parent / "b.tar.gz", include=["data/meta/vocab.json", "/a.pt"])
    with tarfile.open(bundle.path) as tar:
        assert [(m.name, m.isdir()) for m in tar] == [
            (".gitignore", False),
            ("a.pt", False),
            ("data", True),
            ("data/meta", True),
            ("data/meta/vocab.json", False),
            ("sub", True),
        ]
    assert bundle.files == 3
    assert left_out(code, "data/meta/vocab.json", "/a.pt")[Rule.GITIGNORE].files == 3


@pytest.mark.parametrize("pattern", ["data", "data/", "/data", "data/**", "*.bin"])
def test_include_takes_folders_and_wildcards(code: Path, pattern: str) -> None:
    write(code / ".gitignore", "data\n")
    write(code / "data/.gitignore", "*\n")  # an include is stronger than any of them
    write(code / "data/deep/a.bin")
    write(code / "data/__pycache__/b.bin")
    assert names(code) == {".gitignore"}
    with tarfile.open(pack(code, code.parent / "b.tar.gz", include=[pattern]).path) as tar:
        assert "data/deep/a.bin" in tar.getnames()
        assert "data/__pycache__/b.bin" not in tar.getnames()


@pytest.mark.parametrize("pattern", ["data/tokens.bin", "x[", "a\\", ".git/HEAD"])
def test_an_include_that_matches_nothing_is_refused(code: Path, pattern: str) -> None:
    write(code / ".gitignore", "data/\n")
    write(code / "data/token.bin")
    write(code / ".git/HEAD")
    with pytest.raises(BundleError) as caught:
        survey(code, include=["data/token.bin", pattern])
    assert caught.value.message.startswith(f"code.include: {pattern!r}: matches nothing")
    assert ".git, .venv and __pycache__ never go in" in caught.value.hint


def test_an_include_of_what_goes_in_anyway_is_fine(code: Path) -> None:
    write(code / "train.py")
    assert survey(code, include=["train.py"]).files == 1


def test_a_line_of_gitignore_that_is_no_pattern_matches_nothing(code: Path) -> None:
    write(code / ".gitignore", "!\n*.log\nx\\\n")
    write(code / "a.log")
    assert names(code) == {".gitignore"}


def test_a_path_is_matched_against_the_patterns_one_by_one_only_where_one_matches(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps a folder of 100,000 files quick."""
    asked: list[str] = []
    ask = Patterns._ask
    monkeypatch.setattr(
        Patterns,
        "_ask",
        lambda self, path, is_dir: asked.append(path) or ask(self, path, is_dir),
    )
    write(code / ".gitignore", "*.log\n!keep.log\n/build/\n")
    for i in range(50):
        write(code / f"deep/{i}.py")
        write(code / f"build/{i}.py")
    write(code / "a.log")
    assert names(code) == {".gitignore", *(f"deep/{i}.py" for i in range(50))}
    assert sorted(asked) == ["a.log", "build"]
