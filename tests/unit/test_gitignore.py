"""`.gitignore` files count exactly as git counts them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from spothop.sdk.codefiles import survey
from spothop.sdk.gitignore import Patterns

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")

CASES: dict[str, tuple[str, list[str]]] = {
    "only-some-kinds": ("**\n!*/\n!*.py\n", ["a.py", "d/b.py", "d/x.txt"]),
    "all-but-one-file": ("data/**\n!data/keep.txt\n", ["data/keep.txt", "data/x", "data/s/y"]),
    "all-but-one-folder": ("*\n!.gitignore\n!src/\n!src/**\n", ["a", "src/x", "src/y/z"]),
    "below-an-ignored-folder": ("data/\n!data/keep.txt\n", ["data/keep.txt", "data/x"]),
    "byte-order-mark": ("\ufeff*.log\nfoo\n", ["a.log", "foo", "b"]),
    "line-ends": ("*.log\r\nfo\x0bo\nx\x0cy\nu\u2028v", ["a.log", "fo\x0bo", "x", "u\u2028v", "v"]),
    "named-classes": ("[[:digit:]]*.csv\n[[:nope:]]\n", ["1.csv", "a.csv", "n"]),
    "classes": (
        "[a\\-z].t\n[]x].u\n[!a].v\n[z-a].w\n[!z-a].x\n[[].y\n[^]-].z\n[\n[z\n",
        ["a.t", "-.t", "m.t", "].u", "a.v", "b.v", "m.w", "m.x", "[.y", "a.z", "].z", "[", "[z"],
    ),
    "blanks": ("trail  \nesc\\ \n\\#hash\n\\!bang\ntab\t\n#c\n", [
        "trail", "trail ", "esc ", "esc", "#hash", "!bang", "tab", "tab\t", "#c",
    ]),
    "no-patterns": ("!\n/\n//\n\\\nfoo\\\n*.o\n", ["a.o", "b", "foo", "\\"]),
    "line-feeds-in-names": ("*.log\nx\n", ["a\nb.log", "x\ny", "x"]),
    "stars": ("foo**bar\na/**/b\n**/q/z\nd/*.txt\n", [
        "foo-bar", "foo/bar", "a/b", "a/c/b", "q/z", "m/q/z", "d/a.txt", "d/e/a.txt", "x/d/a.txt",
    ]),
}  # fmt: skip


def compare(code: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=code,
        capture_output=True,
        check=True,
    ).stdout
    of_git = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    assert {entry.name for entry in survey(code).entries if not entry.is_dir} == of_git


def lay_out(code: Path, patterns: dict[str, str], names: list[str]) -> None:
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    for name, content in {**dict.fromkeys(names, "x"), **patterns}.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes(content.encode())


@needs_git
@pytest.mark.parametrize("case", CASES)
def test_a_file_goes_in_where_git_takes_it(tmp_path: Path, case: str) -> None:
    patterns, names = CASES[case]
    lay_out(tmp_path / "code", {".gitignore": patterns}, names)
    compare(tmp_path / "code")


@needs_git
@pytest.mark.parametrize("seed", range(25))
def test_patterns_at_random_in_nested_files(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)

    def lines(count: int) -> str:
        parts = ["a", "b", "c", "*", "?", "**", "[ab]", "a*", "*b", ".x", "\\a"]
        return "".join(
            draw.choice(["", "!"])
            + draw.choice(["", "/"])
            + "/".join(draw.choices(parts, k=draw.randint(1, 3)))
            + draw.choice(["", "/"])
            + "\n"
            for _ in range(draw.randint(1, count))
        )

    folders, files = {"a"}, set[str]()
    for _ in range(14):
        parts = draw.choices(["a", "b", "c", "ab", "a.x", "b.x"], k=draw.randint(1, 4))
        above = {"/".join(parts[:k]) for k in range(1, len(parts))}
        if "/".join(parts) not in folders and not above & files:
            files.add("/".join(parts))
            folders |= above
    lay_out(tmp_path, {".gitignore": lines(4), "a/.gitignore": lines(3)}, sorted(files))
    compare(tmp_path)


def test_names_are_read_as_the_system_writes_them(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"\xfc*\n\xc3\xbc*\n")
    for name in (b"\xfcber", "\u00fcber".encode(), b"uber"):
        (tmp_path / os.fsdecode(name)).write_text("x")
    assert {entry.name for entry in survey(tmp_path).entries} == {".gitignore", "uber"}


def test_the_last_pattern_that_matches_speaks() -> None:
    patterns = Patterns(["*.log", "!keep.log", "deep/"])
    assert patterns.ignores("x/a.log", is_dir=False) is True
    assert patterns.ignores("x/keep.log", is_dir=False) is False
    assert patterns.ignores("deep", is_dir=False) is None
    assert patterns.ignores("deep", is_dir=True) is True
