"""Text of others on a terminal: shown, never obeyed. Pure.

A log, a name or a reason may hold what moves the cursor, sets the title, answers in our place, or
turns the direction of writing, so that a line reads as what it is not. On a terminal each such
character is shown as a picture of itself; of a log's own escapes colours alone stay.
"""

from __future__ import annotations

import re
import unicodedata

_UNSAFE = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, halves of pairs, and separators of lines and paragraphs."""
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""UAX 9: these change the order in which characters are shown."""
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,64}m)")
_BEGUN = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z|\r\Z")
"""At the end of a piece: what may become a colour, or the end of a line."""
_FIRST_PICTURE, _DELETE_PICTURE, _OTHER = 0x2400, "\u2421", "\ufffd"


def harmless(text: str) -> str:
    """As many characters, each of which only shows something; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


class HarmlessLog:
    """Pieces of a log, which may end anywhere, with their colours alone."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        begun = _BEGUN.search(text)
        self._held = begun[0] if begun is not None else ""
        return _lines(text[: len(text) - len(self._held)])

    def end(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return _lines(held)


def _lines(text: str) -> str:
    """A carriage return alone would let a line be written over: it begins a new one."""
    parts = _COLOUR.split(text.replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(part if i % 2 else harmless(part) for i, part in enumerate(parts))


def _shown(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    if unicodedata.category(character) not in _UNSAFE and character not in _DIRECTIONS:
        return character
    if ord(character) < 0x20:
        return chr(_FIRST_PICTURE + ord(character))
    return _DELETE_PICTURE if character == "\x7f" else _OTHER
