"""How long one save takes, from samples of which some are bounds only. Pure; seconds.

A sample is exact where the script said when the save began: by `check_save()`, so that emergency
and insurance saves are, or by `saving()`. A periodic save without that mark began at some moment
after the last step; an evaluation of 8 s before a file of some kilobytes lies in between. It took
*at most* that, and so did the shortest of the last few. Rules:

1. One exact sample counts more than any number of bounds.
2. A bound can only lower what is assumed, never raise it: a save is not believed to be slow, and an
   emergency save not to be too slow, because of what the script did before another one.
"""

from __future__ import annotations

from collections.abc import Iterable

RECENT = 5
"""So many of the newest bounds count: the size of a checkpoint may change."""


def estimate(exact_s: float | None, bounds_s: Iterable[float], *, assumed_s: float) -> float:
    """Delta: what was measured, else what is assumed where no recent bound lies below it."""
    if exact_s is not None:
        return exact_s
    return min([assumed_s, *bounds_s])
