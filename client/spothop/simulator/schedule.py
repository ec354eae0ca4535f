"""At which steps a VM saves, counted without walking through them.

A life costs no more than its one preemption: how many saves lie between two steps, and which is the
last, is arithmetic on the interval; how far a budget of time reaches is found by bisection over a
range that is never wider than the saves in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spothop.policy import Measures, next_insurance
from spothop.policy.hazard import Hazard

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEVER = 10**15
"""An interval of steps that no job reaches."""

_MAX_ENTRIES = 4_000


class Schedule(Protocol):
    """Saves of a life that began after step `start`; a save comes right after its step."""

    def count(self, start: Ints, step: Ints) -> Ints:
        """How many saves in (start, step]."""

    def last(self, start: Ints, step: Ints) -> Ints:
        """The newest saved step in [start, step]; `start` itself was restored."""


@dataclass(frozen=True)
class Even:
    """An insurance save every `gap` steps, re-armed by the periodic ones (multiples of `every`)."""

    gap: Ints | int
    every: int = NEVER

    def count(self, start: Ints, step: Ints) -> Ints:
        periodic = (start // self.every + 1) * self.every
        before: Ints = (step - start) // self.gap
        if self.every == NEVER:
            return before
        first = -((start - periodic) // self.gap)  # rounded up: the periodic save is one of them
        whole, rest = np.divmod(step - periodic, self.every)
        after = first + whole * -(-self.every // self.gap) + rest // self.gap
        counted: Ints = np.where(step < periodic, before, after)
        return counted

    def last(self, start: Ints, step: Ints) -> Ints:
        base = np.maximum(start, step // self.every * self.every)
        newest: Ints = base + (step - base) // self.gap * self.gap
        return newest


@dataclass(frozen=True)
class ByAge:
    """Insurance saves after these many steps of a life, then evenly by the last gap.

    For intervals that depend on the age of the VM. Periodic saves come on top and do not re-arm
    it: at most one insurance save too many for each of them.
    """

    after: Ints
    gap: int
    every: int = NEVER

    def count(self, start: Ints, step: Ints) -> Ints:
        done = step - start
        listed = np.searchsorted(self.after, done, side="right")
        beyond = np.maximum(done - self.after[-1], 0) // self.gap
        counted: Ints = listed + beyond + step // self.every - start // self.every
        return counted

    def last(self, start: Ints, step: Ints) -> Ints:
        done = step - start
        listed = np.searchsorted(self.after, done, side="right")
        beyond = np.maximum(done - self.after[-1], 0) // self.gap * self.gap
        insured = np.where(listed > 0, self.after[np.maximum(listed, 1) - 1] + beyond, 0)
        newest: Ints = np.maximum(start + insured, step // self.every * self.every)
        return newest


@dataclass(frozen=True)
class ByZone:
    """Each VM has the schedule of its zone."""

    zone: Ints
    schedules: Sequence[Schedule]

    def count(self, start: Ints, step: Ints) -> Ints:
        return self._each(lambda schedule, at: schedule.count(start[at], step[at]))

    def last(self, start: Ints, step: Ints) -> Ints:
        return self._each(lambda schedule, at: schedule.last(start[at], step[at]))

    def _each(self, ask: Callable[[Schedule, Ints], Ints]) -> Ints:
        answer = np.zeros_like(self.zone)
        for zone in np.unique(self.zone):
            at = np.flatnonzero(self.zone == zone)
            answer[at] = ask(self.schedules[zone], at)
        return answer


def by_age(
    policy: str, m: Measures, hazard: Hazard, *, first_age_s: float, steps: int, every: int
) -> ByAge:
    """Asks the policy save by save, as the master does, at the ages that mean latencies give."""
    after: list[int] = []
    done, age_s, gap = 0, first_age_s, 1
    while done < steps and len(after) < _MAX_ENTRIES:
        decision = next_insurance(policy, m, step=done, age_s=age_s, hazard=hazard)
        if decision.at_step is None:
            return ByAge(np.array([NEVER]), NEVER, every)
        gap = decision.at_step - done
        done = decision.at_step
        age_s += gap * m.step_s + m.stall
        after.append(done)
    return ByAge(np.array(after, dtype=np.int64), gap, every)


def reach(
    schedule: Schedule, start: Ints, end: int, step_s: Floats, stall_s: Floats, budget_s: Floats
) -> Ints:
    """The last step in [start, end] that is done, with the save it may need, within the budget."""
    high = start + _whole(budget_s / step_s, end - start)
    saves_s = stall_s * schedule.count(start, high)
    low = start + _whole((budget_s - saves_s) / step_s, high - start)
    while np.any(low < high):
        middle = (low + high + 1) // 2
        spent = (middle - start) * step_s + stall_s * schedule.count(start, middle)
        fits = spent <= budget_s
        low = np.where(fits, middle, low)
        high = np.where(fits, high, np.maximum(middle - 1, low))
    return low


def _whole(steps: Floats, most: Ints) -> Ints:
    """Whole steps in [0, most]; cut before they are integers: a life may hold 10^20 of them."""
    return np.clip(np.floor(steps), 0.0, most).astype(np.int64)
