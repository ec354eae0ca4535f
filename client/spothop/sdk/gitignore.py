"""The patterns of a `.gitignore` as git reads them (gitignore(5), git's wildmatch.c).

Whoever walks a tree asks of each entry, from the top down, and does not enter a folder that is
ignored; so a pattern need only speak of the entry itself. What was tried and does not work is an
engine that is asked of whole paths (pathspec): it has to guess which part of a path a pattern
meant, and `**`, `!*/`, `!*.py` or `data/**`, `!data/keep.txt` leave out what git takes in.

All patterns of a file are one expression for a first quick look; only where that says yes are they
asked one by one, the last first. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Pattern(NamedTuple):
    regex: re.Pattern[str]
    """Of the whole path, from the folder of the file that holds the pattern."""
    ignores: bool
    """False: it begins with `!`."""
    of_folders: bool


class Patterns:
    """The patterns of one file."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._patterns: Sequence[Pattern] = [
            pattern for line in lines if (pattern := parse(line)) is not None
        ]
        texts = [f"(?:{pattern.regex.pattern})" for pattern in self._patterns]
        self._any = re.compile("|".join(texts) or r"(?!)", re.DOTALL)

    @classmethod
    def of_text(cls, text: str) -> Patterns:
        """Git ends a line at a line feed and nowhere else, and skips a byte order mark."""
        return cls(line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n"))

    def ignores(self, path: str, *, is_dir: bool) -> bool | None:
        """What the last pattern that matches says; None where none does."""
        return self._ask(path, is_dir) if self._any.fullmatch(path) else None

    def _ask(self, path: str, is_dir: bool) -> bool | None:
        for pattern in reversed(self._patterns):
            if (is_dir or not pattern.of_folders) and pattern.regex.fullmatch(path):
                return pattern.ignores
        return None


def parse(line: str) -> Pattern | None:
    """None for an empty line, a comment, and what matches nothing."""
    text = _without_trailing_blanks(line)
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text if ignores else text[1:]
    of_folders = text.endswith("/")
    text = text.removesuffix("/")
    anywhere = "/" not in text
    expression = _expression(text.removeprefix("/"))
    if expression is None:
        return None
    whole = ("(?:.*/)?" if anywhere else "") + expression
    return Pattern(re.compile(whole, re.DOTALL), ignores, of_folders)


def _without_trailing_blanks(line: str) -> str:
    """Blanks at the end do not count, unless a backslash stands before."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return f"{text} " if backslashes % 2 and len(text) < len(line) else text


def _expression(glob: str) -> str | None:
    """A glob as a regular expression; None where it can match nothing."""
    if not glob:
        return None
    out, i = "", 0
    while i < len(glob):
        char = glob[i]
        if char == "*":
            stars = re.compile(r"\*+").match(glob, i)
            assert stars is not None
            begins, end = i == 0 or glob[i - 1] == "/", stars.end()
            whole = len(stars[0]) > 1 and begins and (end == len(glob) or glob[end] == "/")
            i = end
            if not whole:
                out += "[^/]*"
            elif end == len(glob):
                out += ".*"
            else:
                out, i = out + "(?:.*/)?", end + 1
        elif char == "?":
            out, i = out + "[^/]", i + 1
        elif char == "[":
            found = _class(glob, i + 1)
            if found is None:
                return None
            out, i = out + found[0], found[1]
        elif char == "\\":
            if i + 1 == len(glob):
                return None
            out, i = out + re.escape(glob[i + 1]), i + 2
        else:
            out, i = out + re.escape(char), i + 1
    return out


_NAMED = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


def _class(glob: str, i: int) -> tuple[str, int] | None:
    """The class that begins behind a `[`, and where it ends; None where it does not, or names an
    unknown one. A `]` that stands first is one of its characters."""
    negated = glob[i : i + 1] in ("!", "^")
    i += negated
    inside, first = "", True
    while first or glob[i : i + 1] != "]":
        first = False
        if named := re.compile(r"\[:(\w*):\]").match(glob, i):
            if named[1] not in _NAMED:
                return None
            inside, i = inside + _NAMED[named[1]], named.end()
            continue
        low, i = _character(glob, i)
        high = low
        if glob[i : i + 1] == "-" and glob[i + 1 : i + 2] not in ("", "]"):
            high, i = _character(glob, i + 1)
        if not low or not high:
            return None
        if low <= high:
            inside += f"{re.escape(low)}-{re.escape(high)}"
    if not inside:  # only ranges from high to low
        return ("[^/]" if negated else r"(?!)"), i + 1
    return (f"[^/{inside}]" if negated else f"(?!/)[{inside}]"), i + 1


def _character(glob: str, i: int) -> tuple[str, int]:
    """One of a class, behind a backslash or not, and where the next begins; "" at the end."""
    i += glob[i : i + 1] == "\\"
    return glob[i : i + 1], i + 1
