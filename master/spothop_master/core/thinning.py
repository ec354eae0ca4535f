"""Which points of a metric's curve stay, by age.

All for a while, then one in ten, then one in a hundred; of each curve the first, the last, the
newest, the lowest and the highest stay for good, and of the old ones `FEWEST` at least, so that a
metric that is logged seldom keeps its shape.

It must not matter how often, when, or how far a run gets that deletes the others. So whether a
point stays never depends on how many others are left: each step has a fixed lot in [0, 1), and a
point stays while its lot is below the share of its age. The ones with the smallest lots are also
the `FEWEST`, and those that stay are the same whoever was deleted before.

What does not work: every tenth of those that are left (a second run takes nine of ten again), every
tenth id (metrics that are logged together have ids in step, so that one keeps all and others none).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

FEWEST = 30
"""Old points of a curve that stay whatever their age."""

_MASK = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`full`: the age up to which all points stay; from `tenth` on one in a hundred does."""

    full: timedelta
    tenth: timedelta

    def share(self, age: timedelta) -> float:
        if age < self.full:
            return 1.0
        return 0.1 if age < self.tenth else 0.01


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a curve."""

    id: int
    step: int
    value: float
    at: datetime


def lot(step: int) -> float:
    """In [0, 1), evenly spread, the same for ever (the mixing of SplitMix64)."""
    z = (step + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 2**64


def kept(points: Iterable[Point], rule: Rule, *, now: datetime) -> frozenset[int]:
    """Ids of those that stay whatever their lot, of all points of one curve: in one pass, and a few
    kilobytes however long it is."""
    marks: dict[str, tuple[tuple[float, int], int]] = {}
    fewest: list[tuple[float, int, int]] = []  # a heap whose first has the largest lot
    for point in points:
        for name, key in (
            ("first", (point.step, point.id)),
            ("last", (-point.step, -point.id)),
            ("newest", (-point.id, 0)),
            ("lowest", (point.value, point.id)),
            ("highest", (-point.value, point.id)),
        ):
            if name not in marks or key < marks[name][0]:
                marks[name] = (key, point.id)
        if now - point.at >= rule.full:
            heapq.heappush(fewest, (-lot(point.step), point.step, point.id))
            if len(fewest) > FEWEST:
                heapq.heappop(fewest)
    marked = {point_id for _, point_id in marks.values()}
    return frozenset(marked | {point_id for *_, point_id in fewest})


def stays(point: Point, kept: frozenset[int], rule: Rule, *, now: datetime) -> bool:
    return point.id in kept or lot(point.step) < rule.share(now - point.at)
