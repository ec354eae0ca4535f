"""What the simulated policies know, and the saves that follow from it.

The decisions are those of `spothop.policy`, unchanged. With `knowledge: exact` they are given the
true mean life and share of notices; with `learned` each trial starts from the prior and sees only
its own lives, one after the other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from spothop.policy import Measures, next_insurance
from spothop.policy.decide import least_steps
from spothop.policy.estimators import RatePrior
from spothop.policy.hazard import Hazard
from spothop.simulator.inputs import Arm, Inputs
from spothop.simulator.lives import Lives, Placement
from spothop.simulator.schedule import NEVER, ByZone, Even, Schedule, Spread, by_age

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_AGES = 40  # mean lives that a schedule by age covers one by one


class Beliefs:
    """Measures for the policies of one arm, and what they decide."""

    def __init__(self, inputs: Inputs, arm: Arm, lives: Lives) -> None:
        self.inputs, self.arm, self.lives = inputs, arm, lives
        self.every = inputs.periodic_every or NEVER
        self.learns = inputs.knowledge == "learned"
        prior = RatePrior(exposure_s=inputs.prior_mttp_s)
        plain = (arm.policy or "").startswith("thesis")  # the thesis takes the mean of ended lives
        self._no_lives = (0.0, 0.0) if plain else (prior.events, prior.exposure_s)
        n = inputs.trials
        self._events = np.full(n, self._no_lives[0])
        self._exposure_s = np.full(n, self._no_lives[1])
        self._kept, self._seen = np.zeros(n), np.zeros(n)
        self._schedules: dict[tuple[int, float], Schedule] = {}

    def measures(self, k: int, zone: int = 0) -> Measures:
        """With exact knowledge, at the k-th life."""
        return self._measures(self.lives.mean_s(k, zone), self.inputs.notices_kept)

    def schedule(self, k: int, trial: Ints, zone: Ints) -> Schedule:
        """The saves of the k-th VMs of these trials, in these zones."""
        if self.learns:
            gaps = np.array([self._gap(self._learned(int(i))) for i in trial])
            return self._even(gaps)
        if self.lives.zones == 1:
            return self._exact(k, 0)
        return ByZone(zone, [self._exact(k, z) for z in range(self.lives.zones)])

    def _exact(self, k: int, zone: int) -> Schedule:
        key = (zone, self.lives.mean_s(k, zone))
        if key not in self._schedules:
            self._schedules[key] = self._make(self.measures(k, zone), self.lives.hazard(zone))
        return self._schedules[key]

    def learn(
        self,
        trial: Ints,
        placed: Placement,
        ends: NDArray[np.float64],
        finished: NDArray[np.bool_],
        noticed: NDArray[np.bool_],
    ) -> None:
        """One more life of each of these trials; a job's end censors it."""
        if not self.learns:
            return
        died = ~finished
        self._events[trial] += died
        self._exposure_s[trial] += np.where(
            died | (self._no_lives[0] > 0), ends - placed.running, 0.0
        )
        self._seen[trial] += died
        self._kept[trial] += died & noticed

    def _learned(self, i: int) -> Measures:
        if self._events[i] == 0:
            mean_s = self.inputs.prior_mttp_s
        else:
            mean_s = float(self._exposure_s[i] / self._events[i])
        kept = (2 + self._kept[i]) / (3 + self._seen[i])  # Beta(2, 1), as estimators.notice_share
        return self._measures(mean_s, float(kept))

    def _measures(self, mean_s: float, kept: float) -> Measures:
        inputs = self.inputs
        return Measures(
            step_s=inputs.step_s.mean,
            save_s=inputs.save_s.mean,
            backup_s=inputs.backup_s.mean,
            mttp_s=mean_s,
            restart_s=inputs.restart_s,
            grace_s=inputs.grace_s.mean,
            notice_kept=kept,
            wait_s=0.0 if inputs.mid_step else None,
            stall_s=None if inputs.stall_s is None else inputs.stall_s.mean,
            margin_s=inputs.margin_s,
            stream=inputs.stream,
            min_interval_s=inputs.min_interval_s,
        )

    def _gap(self, m: Measures) -> float:
        """Steps between two saves; whole ones but for `notice-aware`."""
        decision = next_insurance(self.arm.policy or "none", m, step=0)
        if decision.at_step is None or decision.tau_s is None:
            return NEVER
        if self._spreads:
            return min(max(decision.tau_s / m.step_s, 1.0), NEVER)
        return min(decision.at_step, NEVER)

    @property
    def _spreads(self) -> bool:
        return self.arm.policy == "notice-aware" and self.every < NEVER

    def _even(self, gap: Floats) -> Schedule:
        if self._spreads:
            return Spread(gap, self.every, least_steps(self.measures(0)))
        return Even(np.minimum(gap, self.every).astype(np.int64), self.every)

    def _make(self, m: Measures, law: Hazard | None) -> Schedule:
        if self.arm.policy != "notice-aware" or law is None or not self.inputs.hazard:
            return self._even(np.array(self._gap(m)))
        covered = math.ceil(_AGES * m.mttp_s / m.step_s)
        return by_age(
            "notice-aware",
            m,
            law,
            first_age_s=self.inputs.prepares_s,
            steps=min(self.inputs.steps, covered),
            every=self.every,
        )
