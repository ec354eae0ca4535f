"""What the console of a VM says of a boot that came to nothing. Pure."""

from __future__ import annotations

OURS = "spothop "
"""How the lines of `boot.sh` begin there."""
LINES = 20
LINE = 300
"""Characters of one that are told."""


def last_words(console: str) -> str:
    """The newest lines of our own; where there are none the script did not run, and the newest of
    all say why. "" when there is nothing."""
    lines = [line.strip()[:LINE] for line in console.splitlines() if line.strip()]
    ours = [line[line.index(OURS) :] for line in lines if OURS in line and " boot: " in line]
    return "\n".join((ours or lines)[-LINES:])
