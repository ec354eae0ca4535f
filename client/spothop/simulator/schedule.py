"""At which steps a VM saves, counted without walking through them.

A life costs no more than its one preemption: how many saves lie between two steps, and which is the
last, is arithmetic on the interval; how far a budget of time reaches is found by bisection over a
range that is never wider than the saves in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spothop.policy import Measures, next_insurance
from spothop.policy.decide import least_steps
from spothop.policy.hazard import Hazard

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEVER = 10**15
"""An interval of steps that no job reaches."""

_MAX_ENTRIES = 4_000
_ROUNDED = 1e-6  # steps: an interval that ends there by a hair less ends there
_LONGEST_TABLE = 1_000_000  # steps of a life whose periodic saves are counted one by one


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
class Spread:
    """Insurance saves every `gap` steps, spread evenly between the periodic ones.

    As `policy.periodic` does it save by save, but that of the n parts of r steps, which are whole
    steps, the last r mod n are the longer ones.
    """

    gap: Floats | float
    every: int
    least: int = 1
    """Steps between two saves, at least."""

    def count(self, start: Ints, step: Ints) -> Ints:
        left, done, whole, rest = _periods(self.every, start, step)
        first, _ = self._within(left, done)
        current, _ = self._within(np.int64(self.every), rest)
        return first + whole * self._each + current

    def last(self, start: Ints, step: Ints) -> Ints:
        left, done, whole, rest = _periods(self.every, start, step)
        _, first = self._within(left, done)
        _, current = self._within(np.int64(self.every), rest)
        newest: Ints = start + first + whole * self.every + current
        return newest

    @cached_property
    def _each(self) -> Ints:
        """Saves in a whole period."""
        return self._parts(np.int64(self.every))

    def _parts(self, length: Ints | np.int64) -> Ints:
        most: Ints = np.maximum(length // self.least, 1)
        return np.minimum(parts(np.asarray(length / self.gap)), most)

    def _within(self, length: Ints | np.int64, done: Ints) -> tuple[Ints, Ints]:
        """In the first `done` of so many steps up to a periodic save: how many saves, and how far
        the newest of them."""
        n = self._each if np.ndim(length) == 0 else self._parts(length)
        short, longer = np.divmod(length, n)
        even = (n - longer) * short
        beyond = np.maximum(done - even, 0) // (short + 1)
        before = np.minimum(done, even) // short
        return before + beyond, before * short + beyond * (short + 1)


@dataclass(frozen=True)
class ByAge:
    """Insurance saves after these many steps of a life, then evenly by the last gap.

    For intervals that depend on the age of the VM. Up to each periodic save they are spread: the
    intervals that would lie there become the nearest number of whole ones (`policy.periodic`).
    """

    after: Ints
    gap: int
    every: int = NEVER
    least: int = 1
    """Steps between two saves, at least."""

    def count(self, start: Ints, step: Ints) -> Ints:
        done = step - start
        if self.every == NEVER:
            listed = np.searchsorted(self.after, done, side="right")
            beyond: Ints = np.maximum(done - self.after[-1], 0) // self.gap
            return listed + beyond
        left, within, whole, rest = _periods(self.every, start, step)
        first, _ = self._within(np.zeros_like(left), left, within)
        current, _ = self._within(left + whole * self.every, np.full_like(left, self.every), rest)
        return first + self._in_whole(left, whole) + current

    def last(self, start: Ints, step: Ints) -> Ints:
        done = step - start
        if self.every == NEVER:
            listed = np.searchsorted(self.after, done, side="right")
            beyond = np.maximum(done - self.after[-1], 0) // self.gap * self.gap
            insured = np.where(listed > 0, self.after[np.maximum(listed, 1) - 1] + beyond, 0)
            newest: Ints = start + insured
            return newest
        left, within, whole, rest = _periods(self.every, start, step)
        _, first = self._within(np.zeros_like(left), left, within)
        begin = left + whole * self.every
        _, current = self._within(begin, np.full_like(left, self.every), rest)
        return start + np.where(within < left, first, begin + current)

    def _within(self, begin: Ints, length: Ints, done: Ints) -> tuple[Ints, Ints]:
        """In the first `done` steps of a period that begins with this step of the life: how many
        saves, and how far the newest of them."""
        x0 = self._intervals(begin)
        x = self._intervals(begin + length) - x0
        n = np.minimum(parts(x), np.maximum(length // self.least, 1))
        upto = self._intervals(begin + (done + 1 - _ROUNDED)) - x0
        made = np.ceil(upto * n / np.maximum(x, 1e-300)).astype(np.int64) - 1
        made = np.where(done >= length, n, np.clip(made, 0, n - 1))
        at = np.floor(self._steps(x0 + made * x / n) + _ROUNDED).astype(np.int64) - begin
        newest = np.where(made == n, length, np.where(made > 0, np.minimum(at, done), 0))
        return made, newest

    def _intervals(self, done: Ints | Floats) -> Floats:
        """How many intervals so many steps of a life are, if no periodic save came."""
        known = np.interp(done, self._knots, np.arange(len(self._knots), dtype=np.float64))
        more: Floats = known + np.maximum(done - self.after[-1], 0) / self.gap
        return more

    def _steps(self, intervals: Floats) -> Floats:
        """The other way round."""
        n = len(self.after)
        known = np.interp(intervals, np.arange(n + 1, dtype=np.float64), self._knots)
        more: Floats = known + np.maximum(intervals - n, 0) * self.gap
        return more

    @cached_property
    def _knots(self) -> Floats:
        return np.concatenate([[0.0], self.after.astype(np.float64)])

    def _in_whole(self, begin: Ints, whole: Ints) -> Ints:
        """Saves in so many whole periods from this step of the life on."""
        table = self._table
        rows = np.clip(-((begin - len(table)) // self.every), 0, whole)  # the others are all alike
        newest = begin + (rows - 1) * self.every
        listed = np.zeros_like(begin)
        if len(table):
            before = np.where(begin == self.every, table[0], 0)  # the one at 0 was the first
            listed = np.where(rows > 0, table[np.maximum(newest, 0)] - before, 0)
        most = max(self.every // self.least, 1)
        alike = min(int(parts(np.array([self.every / self.gap]))[0]), most)
        counted: Ints = listed + (whole - rows) * alike
        return counted

    @cached_property
    def _table(self) -> Ints:
        """At [s]: saves in the period from step s of a life, and in all those before it that begin
        a multiple of `every` earlier. Empty where periods are too long to look at each step."""
        covered = min(int(self.after[-1]), _LONGEST_TABLE)
        rows = -(-covered // self.every) if self.every <= _LONGEST_TABLE else 0
        begin = np.arange(rows * self.every, dtype=np.int64)
        x = self._intervals(begin + self.every) - self._intervals(begin)
        saves = np.minimum(parts(x), max(self.every // self.least, 1)).reshape(rows, self.every)
        return np.cumsum(saves, axis=0).reshape(-1)


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
    return ByAge(np.array(after, dtype=np.int64), gap, every, least_steps(m))


def parts(x: Floats) -> Ints:
    """`policy.periodic.parts`, for many at once."""
    most = np.minimum(x, float(NEVER))
    n: Ints = np.maximum(np.ceil((np.sqrt(1 + 4 * most**2) - 1) / 2), 1).astype(np.int64)
    return n


def _periods(every: int, start: Ints, step: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Steps from `start` to the next periodic save and how many of them are done; then whole
    periods, and the steps after them."""
    left = every - start % every
    done = step - start
    whole, rest = np.divmod(np.maximum(done - left, 0), every)
    return left, np.minimum(done, left), whole, rest


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
