"""How long VMs live: laws, measured lives, and zones that come and go.

Each law turns a uniform number into a life, so that every policy meets the same lives: the k-th VM
of a trial has the same number under each. All arrays hold one figure for each trial asked about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spothop.policy.estimators import Life, RatePrior, kaplan_meier
from spothop.policy.hazard import Hazard, fit_by_age, weighed
from spothop.simulator.inputs import (
    LIFE_MAX_S,
    BathtubSpec,
    CsvSpec,
    ExponentialSpec,
    InputError,
    LivesSpec,
    ReplaySpec,
    WeibullSpec,
    ZonesSpec,
)
from spothop.simulator.traces import TraceError, read_lives, read_zones

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIT_SAMPLES = 20_000
_SEEN = 1_000
"""Lives from which the hazard by age is fitted, as the master does it."""


@dataclass(frozen=True)
class Placement:
    """One VM for each trial: where it runs, from when, and when it is killed."""

    running: Floats
    killed: Floats
    zone: Ints


class Lives(Protocol):
    """Where the next VM comes from."""

    @property
    def zones(self) -> int:
        """How many zones it has, each with statistics of its own."""

    def mean_s(self, k: int, zone: int = 0) -> float:
        """The true mean life of the k-th VM, from running to kill."""

    def hazard(self, zone: int = 0) -> Hazard | None:
        """How hazard depends on age; None where it does not, or is unknown."""

    def start(self, trials: int, seed: int, latency_s: float) -> None:
        """Called once before a run; `latency_s` is the mean allocation time."""

    def place(
        self, k: int, trial: Ints, requested: Floats, latency: Floats, u: Floats, last: Ints
    ) -> Placement:
        """The k-th VM of these trials, asked for at `requested` after one in zone `last`."""

    def cost(self, placed: Placement, trial: Ints, until: Floats, price: float) -> Floats:
        """USD from running to `until`."""


@dataclass(frozen=True)
class Drawn:
    """Independent lives from a law: `draw(k, u)` is its inverse distribution."""

    means_s: tuple[float, ...]
    draw: Callable[[int, Floats], Floats]
    law: Hazard | None = None
    zones: int = 1

    def mean_s(self, k: int, zone: int = 0) -> float:
        return self.means_s[min(k, len(self.means_s) - 1)]

    def hazard(self, zone: int = 0) -> Hazard | None:
        return self.law

    def start(self, trials: int, seed: int, latency_s: float) -> None:
        """Nothing to prepare."""

    def place(
        self, k: int, trial: Ints, requested: Floats, latency: Floats, u: Floats, last: Ints
    ) -> Placement:
        running = requested + latency
        return Placement(running, running + self.draw(k, u), np.zeros_like(trial))

    def cost(self, placed: Placement, trial: Ints, until: Floats, price: float) -> Floats:
        return (until - placed.running) * (price / 3_600)


def make_lives(spec: LivesSpec) -> Lives:
    """The lives that an input names. Raises InputError."""
    try:
        if isinstance(spec, (ExponentialSpec, WeibullSpec)):
            return _parametric(spec)
        if isinstance(spec, BathtubSpec):
            return _bathtub(spec)
        if isinstance(spec, ReplaySpec):
            return _replay(spec)
        if isinstance(spec, CsvSpec):
            return empirical(read_lives(spec.path))
        return Zones.of(spec)
    except TraceError as error:
        raise InputError(f"lives: {error}") from error


def _parametric(spec: ExponentialSpec | WeibullSpec) -> Drawn:
    shape = spec.shape if isinstance(spec, WeibullSpec) else 1.0
    means = tuple(spec.mttp_s)
    scale = math.gamma(1 + 1 / shape)

    def draw(k: int, u: Floats) -> Floats:
        lives: Floats = (-np.log1p(-u)) ** (1 / shape) * (means[min(k, len(means) - 1)] / scale)
        return lives

    # one shape of hazard for all VMs only where they have one mean
    law = _by_age(draw, means[0]) if shape != 1 and len(means) == 1 else None
    return Drawn(means, draw, law)


def _by_age(draw: Callable[[int, Floats], Floats], mean_s: float) -> Hazard | None:
    """What the master would have found in so many lives, evenly spread over the law."""
    sample = draw(0, (np.arange(_SEEN) + 0.5) / _SEEN)
    return fit_by_age([[(float(s), True, 1.0) for s in sample]], mttp_s=mean_s)


def _bathtub(spec: BathtubSpec) -> Drawn:
    """Kadupitiya, Jadhao, Sharma (2020), equation 1; the law ends where it reaches 1."""

    def share(hours: Floats) -> Floats:
        rise = 1 - np.exp(-hours / spec.t1_h)
        died: Floats = spec.a * (rise + np.exp(np.minimum((hours - spec.b_h) / spec.t2_h, 50.0)))
        return died

    hours = np.linspace(0, 4 * spec.b_h, 40_001)
    died = np.clip(share(hours) - share(np.zeros(1))[0], 0, None)
    if died[-1] < 1:
        raise InputError(
            f"lives: a bathtub with a {spec.a:g} and t2_h {spec.t2_h:g} never kills some VMs; "
            "raise a, or lower t2_h"
        )
    upto = int(np.argmax(died >= 1)) + 1
    hours, died = hours[:upto], np.minimum(np.maximum.accumulate(died[:upto]), 1.0)

    def draw(k: int, u: Floats) -> Floats:
        lives: Floats = np.interp(u, died, hours) * 3_600
        return np.maximum(lives, 1.0, out=lives)

    return _fitted(draw)


def empirical(lives: list[Life]) -> Drawn:
    """Drawn from the Kaplan-Meier curve, evenly between two ages of death (lives are polled, so
    they come in steps); what outlives the last death dies at the longest age seen (Efron 1967)."""
    curve = kaplan_meier(lives)
    longest = max(life.duration_s for life in lives)
    ages = np.array([0.0, *(point.age_s for point in curve)])
    died = np.array([0.0, *(1 - point.share for point in curve)])

    def draw(k: int, u: Floats) -> Floats:
        drawn: Floats = np.interp(u, died, ages, right=longest)
        return np.maximum(drawn, 1.0, out=drawn)

    return _fitted(draw)


def _fitted(draw: Callable[[int, Floats], Floats]) -> Drawn:
    """Mean and hazard of a law that has no formula for them, from evenly spread draws."""
    mean_s = float(draw(0, (np.arange(_FIT_SAMPLES) + 0.5) / _FIT_SAMPLES).mean())
    return Drawn((mean_s,), draw, _by_age(draw, mean_s))


def _replay(spec: ReplaySpec) -> Drawn:
    """A mean over what there is: the policies know no more of one run than that."""
    lives = spec.lives_s

    def draw(k: int, u: Floats) -> Floats:
        return np.full(u.shape, lives[k] if k < len(lives) else LIFE_MAX_S)

    return Drawn((sum(lives) / len(lives) if lives else LIFE_MAX_S,), draw)


@dataclass
class Zones:
    """VMs in zones whose availability is known tick by tick; the window repeats for ever.

    The next VM comes from the cheapest zone that is available, another one than the last if there
    is one; when none is, the job waits. A zone that goes away during the allocation refuses it.
    It goes somewhere in its last tick: a trace was sampled, and an even grid of ends would favour
    whichever interval happens to fit it.
    """

    tick_s: float
    up: NDArray[np.bool_]
    """One row for each zone."""
    price: Floats | None
    """USD an hour; None: the trace has none."""
    offset: Floats = field(default_factory=lambda: np.zeros(1))
    """Where in the window each trial starts, in seconds."""

    @classmethod
    def of(cls, spec: ZonesSpec) -> Zones:
        trace = read_zones(spec.path, names=spec.zones)
        made = cls(
            trace.tick_s,
            np.array([zone.available for zone in trace.zones]),
            np.array([zone.price for zone in trace.zones]) if trace.zones[0].price else None,
        )
        if not made._open.any():
            raise TraceError(
                f"{spec.path}: no zone stays available for two ticks in a row ({trace.tick_s:g} s "
                "each), so no VM can be had; choose other zones, or a trace with shorter ticks"
            )
        return made

    def __post_init__(self) -> None:
        self.zones, ticks = self.up.shape
        self._window_s = ticks * self.tick_s
        left = np.array([_until(row, False) for row in self.up]) * self.tick_s
        self._left = np.minimum(left, LIFE_MAX_S)
        self._open = self.up & np.roll(self.up, -1, axis=1)  # a last tick takes no new VM
        self._wait = np.array([_until(row, True) for row in self._open]) * self.tick_s
        self._price = np.zeros(self.up.shape) if self.price is None else self.price
        spent = np.cumsum(self._price, axis=1) * (self.tick_s / 3_600)
        self._spent = np.concatenate([np.zeros((self.zones, 1)), spent], axis=1)
        self._seen: list[list[Life]] = [[] for _ in range(self.zones)]
        self._ends: list[list[int]] = [[] for _ in range(self.zones)]

    def mean_s(self, k: int, zone: int = 0) -> float:
        """As the product would have measured it: all exposure over all preemptions.

        Of a zone in which nothing was seen a master knows the prior and the other zones
        (`estimators.preemption_rate` without lives of its own).
        """
        seen = self._seen[zone]
        if not seen:
            exposure_s, deaths = _evidence(life for lives in self._seen for life in lives)
            prior = RatePrior()
            return (prior.exposure_s + exposure_s) / (prior.events + deaths)
        exposure_s, deaths = _evidence(seen)
        return max(exposure_s, self.tick_s) / max(deaths, 1)

    def hazard(self, zone: int = 0) -> Hazard | None:
        """The shape of all zones at the level of this one, as the master fits it."""
        lives = [
            weighed(
                (life.duration_s, life.preempted, end) for life, end in zip(seen, ends, strict=True)
            )
            for seen, ends in zip(self._seen, self._ends, strict=True)
        ]
        return fit_by_age(lives, mttp_s=self.mean_s(0, zone))

    def start(self, trials: int, seed: int, latency_s: float) -> None:
        """Hold VMs without a job for a while: their lives are the statistics of each zone."""
        rng = np.random.default_rng([seed, _OFFSETS])
        self.offset = rng.random(_SCOUTS) * self._window_s
        self._seen = [[] for _ in range(self.zones)]
        self._ends = [[] for _ in range(self.zones)]
        scout = np.arange(_SCOUTS)
        requested, zone = np.zeros(_SCOUTS), np.full(_SCOUTS, -1)
        for k in range(_SCOUTED):
            latency = np.full(_SCOUTS, latency_s)
            placed = self.place(k, scout, requested, latency, rng.random(_SCOUTS), zone)
            ends = self._in_window(np.floor((placed.killed + self.offset) / self.tick_s))
            lasted = placed.killed - placed.running
            for where, life, end in zip(placed.zone, lasted, ends, strict=True):
                ended = bool(life < _LONGEST_WINDOWS * self._window_s)
                cut = min(float(life), _LONGEST_WINDOWS * self._window_s)
                self._seen[where].append(Life(duration_s=cut, preempted=ended))
                self._ends[where].append(int(end))
            requested, zone = placed.killed, placed.zone
        self.offset = rng.random(trials) * self._window_s

    def place(
        self, k: int, trial: Ints, requested: Floats, latency: Floats, u: Floats, last: Ints
    ) -> Placement:
        at = requested + self.offset[trial]
        zone = np.zeros_like(trial)
        ends = np.zeros_like(at)
        todo = np.arange(len(at))
        for attempt in range(_MAX_REFUSALS):
            at[todo], zone[todo], ends[todo] = self._next(
                at[todo], last[todo] if attempt == 0 else np.full(len(todo), -1)
            )
            gone = ends[todo] - u[todo] * self.tick_s
            todo = todo[gone <= at[todo] + latency[todo]]
            if len(todo) == 0:
                break
            at[todo] = ends[todo]
        else:
            raise InputError(
                "lives: no zone stays available for as long as an allocation takes "
                f"({float(latency[todo].max()):g} s); lower allocation_s, or choose other zones"
            )
        shift = self.offset[trial]
        return Placement(at + latency - shift, ends - u * self.tick_s - shift, zone)

    def _next(self, at: Floats, last: Ints) -> tuple[Floats, Ints, Floats]:
        """When and in which zone a VM can be asked for, and when that zone goes away."""
        tick = np.floor(at / self.tick_s)
        into = at - tick * self.tick_s
        here = self._in_window(tick)
        wait = np.where(self._open[:, here], 0.0, self._wait[:, here] - into)
        order = wait * 1e3 + self._price[:, here] * (wait == 0)
        order[last[last >= 0], np.flatnonzero(last >= 0)] += 500.0  # another zone, if one is there
        zone = np.argmin(order, axis=0)
        waited = wait[zone, np.arange(len(at))]
        asked = at + waited
        tick = np.floor(asked / self.tick_s + 1e-9)
        return asked, zone, tick * self.tick_s + self._left[zone, self._in_window(tick)]

    def _in_window(self, tick: Floats) -> Ints:
        """Taken before they are integers: a job that waits for ever counts 10^20 of them."""
        return np.mod(tick, self.up.shape[1]).astype(np.int64)

    def cost(self, placed: Placement, trial: Ints, until: Floats, price: float) -> Floats:
        """By the trace's prices, or by this one where it has none."""
        if self.price is None:
            return (until - placed.running) * (price / 3_600)
        return self._upto(placed.zone, until + self.offset[trial]) - self._upto(
            placed.zone, placed.running + self.offset[trial]
        )

    def _upto(self, zone: Ints, at: Floats) -> Floats:
        whole, rest = np.divmod(at, self._window_s)
        tick = np.minimum((rest / self.tick_s).astype(np.int64), self.up.shape[1] - 1)
        part = (rest - tick * self.tick_s) * self._price[zone, tick] / 3_600
        spent: Floats = whole * self._spent[zone, -1] + self._spent[zone, tick] + part
        return spent


def _evidence(lives: Iterable[Life]) -> tuple[float, int]:
    """Exposure in seconds, and preemptions."""
    known = list(lives)
    return sum(life.duration_s for life in known), sum(life.preempted for life in known)


_MAX_REFUSALS = 10_000
_SCOUTS = 40
_SCOUTED = 25
"""VMs that each scout holds, one after the other."""
_LONGEST_WINDOWS = 10
_OFFSETS = 0x7A
"""Keeps the stream of offsets apart from the lives of the first VM."""


def _until(row: NDArray[np.bool_], value: bool) -> Floats:
    """Ticks from each tick to the next one with this value, going round; inf: there is none."""
    found = np.flatnonzero(row == value)
    if len(found) == 0:
        return np.full(len(row), np.inf)
    twice = np.concatenate([found, found + len(row)])
    ticks = np.arange(len(row))
    return (twice[np.searchsorted(twice, ticks)] - ticks).astype(np.float64)
