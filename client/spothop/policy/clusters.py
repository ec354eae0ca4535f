"""Which preemptions were one event: a zone that runs out of capacity takes many VMs at once.

Ten VMs that die in the same minute say as much about the rate as one that dies alone. Counted as
ten independent deaths they would make the interval of the rate three times too narrow.

Two deaths are of one event where both hold:

1. They are close in time: within `TOGETHER_S`, and within a twentieth of the zone's mean life, so
   that VMs which live for seconds (the local cloud) do not melt into one event.
2. Both VMs were running when the event began. A VM and its replacement never die of one event.

With many VMs, independent deaths come close to each other by chance. That share is reckoned with
and taken off (`dispersion`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

TOGETHER_S = 120.0
"""Preemptions in one zone within this time are one event."""
_OF_A_MEAN_LIFE = 0.05

Death = tuple[float, float]
"""Of a preempted VM: how long ago it ended, how long it had lived; seconds."""


def event_of(deaths: Sequence[Death], *, exposure_s: float) -> list[int]:
    """The number of the event of each death, in a zone whose VMs ran `exposure_s` in all."""
    together_s = _window_s(len(deaths), exposure_s)
    numbers, newest, began_ago = [0] * len(deaths), -1, math.inf
    for i in sorted(range(len(deaths)), key=lambda i: -deaths[i][0]):
        ago, lived = deaths[i]
        if newest < 0 or began_ago - ago > together_s or ago + lived <= began_ago:
            newest, began_ago = newest + 1, ago
        numbers[i] = newest
    return numbers


def _window_s(deaths: int, exposure_s: float) -> float:
    return min(TOGETHER_S, _OF_A_MEAN_LIFE * exposure_s / max(deaths, 1))


def dispersion(
    deaths: Sequence[Death], weights: Sequence[float], *, exposure_s: float, watched_s: float
) -> float:
    """How many deaths count as one: the variance of their number over its mean; at least 1.

    For events of m deaths that come at random it is (sum of w m^2) / (sum of w m), the compound
    Poisson's (a quasi-likelihood's dispersion: Wedderburn 1974). Deaths that are independent give
    groups of 1 + Poisson(c), which are large by chance; what they exceed 1 by is taken off.
    `watched_s` is the time over which the zone was watched.
    """
    if len(deaths) < 2:
        return 1.0
    sizes: dict[int, int] = defaultdict(int)
    weighed: dict[int, float] = defaultdict(float)
    for number, weight in zip(event_of(deaths, exposure_s=exposure_s), weights, strict=True):
        sizes[number] += 1
        weighed[number] += weight
    if (total := sum(weighed.values())) <= 0:
        return 1.0
    squares = sum(weight * sizes[number] for number, weight in weighed.items())
    c = _by_chance(len(sizes) * _window_s(len(deaths), exposure_s), watched_s)
    return max(1.0, squares / total - (2 * c + c * c) / (1 + c))


def _by_chance(covered_s: float, watched_s: float) -> float:
    """c: how many independent deaths fall into a window after another one.

    From the number of windows, which shocks do not inflate: a window and the wait for the next
    death follow each other, so that windows cover c / (1 + c) of the time.
    """
    return min(covered_s / max(watched_s - covered_s, 1e-9), 1e9)
