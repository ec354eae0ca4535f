"""Insurance saves between those that the script makes by itself.

A periodic save is as good as an insurance save, so the interval begins anew at it. A policy that
takes its interval after each save regardless of that saves shortly before a periodic save, in vain:
an interval of 43 steps with periodic saves every 1,000 makes 23 full ones and one of 11 steps.
So the steps up to the next periodic save are divided into equal parts, as many as cost least.

With x = (steps up to the periodic save) / (best interval), n parts cost n / x for saves and x / n
for recomputation, in the same unit; n and n + 1 cost the same where n (n + 1) = x^2. No part is
longer than sqrt(2) intervals, so a periodic save that does not come where it was expected does
little harm: an insurance save takes its place a quarter of an interval later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

FARTHEST = 10**15
"""Steps; keeps every answer within 64 bits."""

_LATE = 0.25  # of an interval
KEPT = 8
"""So many of the newest periodic saves tell how far apart they are."""
MISSED = 3
"""So many that did not come are waited for no more."""


def next_save(saved: Iterable[int], step: int) -> int | None:
    """When the script saves by itself after `step`, from the steps at which it did so before.

    None with fewer than two of them, when they keep no regular distance, or when the last `MISSED`
    that were due did not come: the script saves at other steps by now, or no more. One may be
    missing: a periodic save that answers a request is none.
    """
    steps = sorted(set(saved))
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    if not gaps or any(gap % min(gaps) for gap in gaps):
        return None
    every = min(gaps)
    passed = (step - steps[-1]) // every
    return None if passed >= MISSED else steps[-1] + (passed + 1) * every


def parts(x: float) -> int:
    """Into how many parts to divide `x` best intervals: the least n with n (n + 1) >= x^2."""
    if not x > 0:
        return 1
    return max(1, math.ceil((math.sqrt(1 + 4 * min(x, float(FARTHEST)) ** 2) - 1) / 2))


def due(step: int, gap: float, periodic: int | None, *, least: int = 1) -> int:
    """The step of the next insurance save: `gap` steps after `step`, or spread evenly up to
    `periodic`, and no two closer than `least`. Where none is due before that one, it is due a while
    later, if the script has not handed over its own by then: one that is written in a thread comes
    some steps late.
    """
    gap = min(max(gap, 1.0), float(FARTHEST))
    if periodic is None or periodic <= step:
        return step + max(math.floor(gap), least)
    left = periodic - step
    n = min(parts(left / gap), max(left // least, 1))
    if n > 1:
        return step + max(1, round(left / n))
    return max(periodic + max(1, round(_LATE * gap)), step + least)
