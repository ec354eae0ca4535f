"""The event-driven engine against a plain walk through every step, and its invariants."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.policy import emergency, next_insurance
from spothop.policy.periodic import parts
from spothop.simulator.beliefs import Beliefs
from spothop.simulator.engine import NeverFinishesError, Trials, on_demand, simulate
from spothop.simulator.inputs import Arm, Inputs, make
from spothop.simulator.lives import make_lives
from support.examples import examples

POLICIES = ("none", "static-7", "static-7+emergency", "thesis", "thesis-always", "notice-aware")


@dataclass
class Walk:
    """One trial with fixed latencies and given lives, step by step; the slow truth."""

    inputs: Inputs
    arm: Arm
    lives: list[float]
    noticed: bool
    computation: float = 0.0
    save: float = 0.0
    allocation: float = 0.0
    preparation: float = 0.0
    preemptions: int = 0
    total: float = 0.0
    steps: int = 0
    requested: float = 0.0
    busy: float = 0.0
    out: float = 0.0
    durable: list[tuple[float, int]] = field(default_factory=list)

    def go(self) -> Walk:
        measures = Beliefs(self.inputs, self.arm, make_lives(self.inputs.lives)).measures(0)
        decision = next_insurance(str(self.arm.policy), measures, step=0)
        self.gap = math.inf if decision.at_step is None else decision.at_step
        self.tau_steps = (decision.tau_s or math.inf) / measures.step_s
        self.tries = self.arm.emergency == "always" or (
            self.arm.emergency == "fits" and emergency(measures).fits
        )
        for k in itertools.count():
            life = self.lives[k] if k < len(self.lives) else math.inf
            if self._vm(life):
                return self
            self.preemptions += 1
        raise AssertionError

    def _vm(self, life: float) -> bool:
        i = self.inputs
        run = self.requested + i.allocation_s.mean
        self.kill = run + life
        boot = max(i.allocation_s.mean, i.boot.mean) if i.boot_overlaps else None
        booted = run + i.boot.mean if boot is None else self.requested + boot
        ready = max(booted, self.out) + i.load.mean
        self.allocation += max(run - self.busy, 0)
        self.preparation += max(min(ready, self.kill) - max(run, self.busy), 0)
        warned = self.noticed and math.isfinite(life)
        self.notice = self.kill - i.grace_s.mean if warned and self.tries else math.inf
        if self.notice <= ready:
            self.notice = math.inf
        if ready < self.kill:
            self.clock, self.durable, self.out = ready, [], self.kill
            if self._train():
                self.total = self.clock
                return True
            self.busy = self.clock
        else:
            self.busy = max(self.busy, self.kill)
        early = warned and i.replacement == "notice"
        blind = 0 if warned else i.detection_s.mean
        self.requested = max(self.kill - i.grace_s.mean, run) if early else self.kill + blind
        return False

    def _train(self) -> bool:
        i = self.inputs
        restored = last = self.steps
        stall = (i.stall_s or i.save_s).mean
        every = i.periodic_every or 10**15
        while self.steps < i.steps:
            warned = self.notice < self.clock + i.step_s.mean
            if not self._spend("computation", i.step_s.mean):
                return self._die(restored)
            self.steps += 1
            if warned:
                return self._emergency(restored, i.save_s.mean)
            if self.steps % every == 0 or self._insures(restored, last):
                if self.notice < self.clock + stall:
                    return self._emergency(restored, i.save_s.mean)
                begun = self.clock
                if not self._spend("save", stall):
                    return self._die(restored)
                last = self.steps
                self.durable.append((begun + self._dumped(), last))
        return True

    def _insures(self, restored: int, last: int) -> bool:
        """`notice-aware` spreads its saves between the user's own; the others count on."""
        every = self.inputs.periodic_every
        if self.arm.policy != "notice-aware" or every is None:
            return self.steps - last >= self.gap
        begin = max(restored, self.steps // every * every)
        left = every - begin % every
        n = parts(left / max(self.tau_steps, 1.0))
        lengths = [left // n] * (n - left % n) + [left // n + 1] * (left % n)
        return self.steps - begin in itertools.accumulate(lengths)

    def _spend(self, what: str, seconds: float) -> bool:
        spent = min(seconds, self.kill - self.clock)
        setattr(self, what, getattr(self, what) + spent)
        self.clock += spent
        return spent == seconds

    def _dumped(self) -> float:
        save, backup = self.inputs.save_s.mean, self.inputs.backup_s.mean
        return max(save, backup) if self.inputs.stream else save + backup

    def _emergency(self, restored: int, dump: float) -> bool:
        begun = self.clock
        self._spend("save", dump)
        if begun + self._dumped() > self.kill:
            return self._die(restored)
        self.out = begun + self._dumped()
        if self.steps >= self.inputs.steps:
            return True
        return self.inputs.emergency == "early+late" and self._late(dump)

    def _late(self, dump: float) -> bool:
        """Train on, and save once more at the last step from which that still fits."""
        last = self.kill - self.inputs.margin_s - self._dumped()
        more = 0
        while self.clock + self.inputs.step_s.mean <= last and self.steps < self.inputs.steps:
            self._spend("computation", self.inputs.step_s.mean)
            self.steps += 1
            more += 1
        if more and self.steps < self.inputs.steps:
            self.out = self.clock + self._dumped()
            self._spend("save", dump)
        return self.steps >= self.inputs.steps

    def _die(self, restored: int) -> bool:
        done = [step for at, step in self.durable if at <= self.kill]
        self.steps = max([restored, *done])
        return False


def inputs(**changes: Any) -> Inputs:
    base = {
        "steps": 300,
        "step_s": 4.6,
        "save_s": 2.5,
        "backup_s": 5,
        "allocation_s": 13.5,
        "preparation_s": 16,
        "notices_kept": 1.0,
        "emergency": "once",
        "grace_s": 30,
        "lives": {"kind": "replay", "lives_s": [1_000]},
        "periodic_every": 100,
        "trials": 1,
    }
    return make({**base, **changes})


def one(given: Inputs, policy: str) -> Trials:
    return simulate(given, Arm.of(policy), make_lives(given.lives))


@examples(100)
@given(
    policy=st.sampled_from(POLICIES),
    lives=st.lists(st.floats(1, 900), max_size=8),
    kept=st.booleans(),
    replacement=st.sampled_from(["notice", "kill"]),
    step_s=st.floats(0.5, 40),
    save_s=st.floats(0, 30),
    backup_s=st.floats(0, 60),
    allocation_s=st.floats(0, 100),
    periodic=st.none() | st.integers(1, 60),
    detection_s=st.floats(0, 60),
    load_s=st.floats(0, 100),
    grace_s=st.floats(1, 200),
    ahead=st.fixed_dictionaries(
        {
            "boot_overlaps": st.booleans(),
            "stream": st.booleans(),
            "emergency": st.sampled_from(["once", "early+late"]),
            "margin_s": st.floats(0, 0.9),
        }
    ),
)
def test_the_engine_walks_like_one_who_takes_every_step(
    policy: str,
    lives: list[float],
    kept: bool,
    replacement: str,
    periodic: int | None,
    ahead: dict[str, Any],
    **s: float,
) -> None:
    given_ = inputs(
        lives={"kind": "replay", "lives_s": lives},
        notices_kept=float(kept),
        replacement=replacement,
        periodic_every=periodic,
        steps=120,
        preparation_s=None,
        boot_s=16,
        **ahead,
        **s,
    )
    walk = Walk(given_, Arm.of(policy), lives, kept).go()
    got = one(given_, policy)
    assert got.preemptions[0] == walk.preemptions
    assert got.computation_s[0] == pytest.approx(walk.computation, abs=1e-3)
    assert got.save_s[0] == pytest.approx(walk.save, abs=1e-3)
    assert got.allocation_s[0] == pytest.approx(walk.allocation, abs=1e-3)
    assert got.preparation_s[0] == pytest.approx(walk.preparation, abs=1e-3)
    assert got.total_s[0] == pytest.approx(walk.total, abs=1e-3)


@examples(60)
@given(
    policy=st.sampled_from([*POLICIES, "on-demand"]),
    mttp_s=st.floats(300, 1e5),
    shape=st.sampled_from([0.57, 1.0, 2.0]),
    kept=st.floats(0, 1),
    width=st.floats(0, 2),
    mid_step=st.booleans(),
    knowledge=st.sampled_from(["exact", "learned"]),
    stall=st.none() | st.floats(0, 2),
    stream=st.booleans(),
    boot_overlaps=st.booleans(),
    emergency=st.sampled_from(["once", "early+late"]),
    grace_s=st.sampled_from([10, 30, [30, 200]]),
)
def test_the_parts_add_up_and_nothing_is_nan(
    policy: str, mttp_s: float, shape: float, width: float, stall: float | None, **more: Any
) -> None:
    kept = more.pop("kept")
    given_ = inputs(
        lives={"kind": "weibull", "mttp_s": mttp_s, "shape": shape},
        notices_kept=kept,
        step_s=[4.6, 4.6 * (1 + width)],
        allocation_s=[0, 100 * width],
        stall_s=stall,
        periodic_every=20,
        trials=8,
        **more,
    )
    got = one(given_, policy)
    for part in fields(got):
        assert np.isfinite(getattr(got, part.name)).all()
        assert (getattr(got, part.name) >= 0).all()
    parts = got.computation_s + got.save_s + got.allocation_s + got.preparation_s
    assert parts == pytest.approx(got.total_s, abs=1e-3)
    useful = got.computation_s - got.recomputation_s
    assert (useful >= 299 * 4.6).all()


def test_without_preemption_spot_takes_as_long_as_on_demand_and_costs_less() -> None:
    calm = inputs(lives={"kind": "replay", "lives_s": []})
    spot, baseline = one(calm, "none"), on_demand(calm)
    assert spot.total_s == pytest.approx(baseline.total_s)
    assert spot.cost_usd / baseline.cost_usd == pytest.approx(2.3 / 6.2)


@pytest.mark.parametrize("step_s", [1e-4, 0.01, 4.6])
@pytest.mark.parametrize(
    "lives",
    [
        {"kind": "exponential", "mttp_s": 1e15},
        {"kind": "replay", "lives_s": []},
        {"kind": "replay", "lives_s": [3]},
    ],
)
def test_lives_of_any_length_and_steps_of_any_shortness(
    lives: dict[str, Any], step_s: float
) -> None:
    given_ = inputs(lives=lives, step_s=step_s)
    spot, baseline = one(given_, "notice-aware"), on_demand(given_)
    assert spot.computation_s == pytest.approx(baseline.computation_s)
    assert 0 < spot.cost_usd[0] < baseline.cost_usd[0]
    assert spot.preemptions[0] == len(lives.get("lives_s", []))


def test_a_kept_notice_loses_nothing_and_a_missing_one_all_since_the_last_save() -> None:
    kept = one(inputs(), "thesis")
    missed = one(inputs(notices_kept=0.0), "thesis")
    assert kept.recomputation_s[0] == pytest.approx(0, abs=1e-6)
    # 984 s of training until the kill; the second periodic save was done after 925 of them
    assert missed.recomputation_s[0] == pytest.approx(984 - 925)


def test_the_replacement_at_the_notice_saves_the_grace_period() -> None:
    late = one(inputs(replacement="kill"), "thesis").total_s[0]
    assert late - one(inputs(), "thesis").total_s[0] == pytest.approx(30)


def test_the_kth_life_uses_the_kth_mean_and_the_last_repeats() -> None:
    given_ = inputs(lives={"kind": "exponential", "mttp_s": [600, 1e9]}, trials=400)
    got = one(given_, "thesis")
    assert got.preemptions.max() == 1
    assert got.preemptions.mean() == pytest.approx(1 - math.exp(-1_396 / 600), abs=0.07)


def test_saves_in_the_middle_of_a_step_need_no_waiting() -> None:
    heavy = {"step_s": 20, "save_s": 15, "backup_s": 8}
    between = one(inputs(**heavy, lives={"kind": "replay", "lives_s": [1_016]}), "notice-aware")
    within = one(
        inputs(**heavy, mid_step=True, lives={"kind": "replay", "lives_s": [1_016]}), "notice-aware"
    )
    assert within.recomputation_s[0] < 20
    assert within.total_s[0] < between.total_s[0]


def test_the_same_seed_gives_the_same_figures_and_another_does_not() -> None:
    given_ = inputs(lives={"kind": "exponential", "mttp_s": 600}, trials=5)
    again = one(given_, "thesis").total_s
    assert (one(given_, "thesis").total_s == again).all()
    assert (one(given_.model_copy(update={"seed": 2}), "thesis").total_s != again).any()


def test_policies_meet_the_same_lives() -> None:
    given_ = inputs(lives={"kind": "exponential", "mttp_s": 1_200}, trials=50)
    assert one(given_, "thesis").preemptions == pytest.approx(
        one(given_, "none").preemptions, abs=3
    )


def test_a_job_that_makes_no_way_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spothop.simulator.engine.MAX_LIVES", 200)
    hopeless = inputs(lives={"kind": "exponential", "mttp_s": 1}, trials=2)
    with pytest.raises(NeverFinishesError, match="2 of 2 trials are not done after 200 VMs"):
        one(hopeless, "none")


def test_learned_beliefs_approach_the_exact_ones() -> None:
    long = inputs(lives={"kind": "exponential", "mttp_s": 600}, steps=20_000, trials=20)
    exact = one(long, "notice-aware").total_s.mean()
    learned = one(
        long.model_copy(update={"knowledge": "learned", "prior_mttp_s": 60_000.0}), "notice-aware"
    )
    assert learned.total_s.mean() == pytest.approx(exact, rel=0.02)


def test_a_replacement_loads_once_the_old_image_is_durable_and_not_before() -> None:
    # killed after 1,000 s; the notice 200 s before, the save durable some 10 s after that
    long = {"grace_s": 200, "preparation_s": None, "allocation_s": 0}
    waits = one(inputs(**long, boot_s=1, load_s=50), "thesis")
    booting = one(inputs(**long, boot_s=40, load_s=11), "thesis")
    # boot 1 s waits for the rest of a step, 2.5 s and 5 s; boot 40 s does not
    assert 7.5 - 1 < waits.total_s[0] - booting.total_s[0] < 7.5 + 4.6 - 1
    whole = one(inputs(**{**long, "preparation_s": 51}), "thesis")
    assert booting.total_s == pytest.approx(whole.total_s)


def test_a_boot_that_overlaps_costs_what_the_allocation_does_not() -> None:
    split = {"preparation_s": None, "allocation_s": 60, "load_s": 5}
    after = one(inputs(**split, boot_s=100), "none")
    beside = one(inputs(**split, boot_s=100, boot_overlaps=True), "none")
    assert after.preemptions[0] == beside.preemptions[0] == 1
    assert after.preparation_s - beside.preparation_s == pytest.approx(120)  # of both VMs
    hidden = one(inputs(**split, boot_s=30, boot_overlaps=True), "none")
    assert hidden.preparation_s == pytest.approx([10])


def test_a_second_image_keeps_the_steps_of_the_grace_period() -> None:
    long = {"grace_s": 120, "allocation_s": 200}
    once = one(inputs(**long), "notice-aware")
    late = one(inputs(**long, emergency="early+late"), "notice-aware")
    assert late.recomputation_s[0] == pytest.approx(0, abs=1e-6)
    assert once.total_s[0] - late.total_s[0] > 20 * 4.6
    tight = one(inputs(**long, emergency="early+late", margin_s=60), "notice-aware")
    assert late.total_s[0] < tight.total_s[0] < once.total_s[0]


def test_a_streamed_save_fits_where_one_after_the_other_does_not() -> None:
    heavy = {"step_s": 5, "save_s": 20, "backup_s": 18}
    apart = one(inputs(**heavy), "notice-aware")
    streamed = one(inputs(**heavy, stream=True), "notice-aware")
    assert apart.recomputation_s[0] > 5
    assert streamed.recomputation_s[0] == pytest.approx(0, abs=1e-6)


def test_saves_that_cost_next_to_nothing_are_ten_seconds_apart_but_static_ones() -> None:
    cheap = {
        "steps": 1_000,
        "step_s": 0.1,
        "save_s": 0.01,
        "backup_s": 0.1,
        "lives": {"kind": "replay", "lives_s": []},
        "periodic_every": None,
    }

    def saves(policy: str, **changes: Any) -> float:
        return round(float(one(inputs(**cheap, **changes), policy).save_s[0]) / 0.01)

    prior = {"knowledge": "learned", "prior_mttp_s": 60}
    assert saves("notice-aware", **prior, min_interval_s=0) > 50
    assert saves("notice-aware", **prior) == 10
    assert saves("static-5", **prior) == 200


def test_a_hopeless_job_is_refused_early_with_the_figures() -> None:
    told: list[tuple[str, float]] = []
    hopeless = inputs(
        lives={"kind": "exponential", "mttp_s": 12}, steps=100_000, allocation_s=90, trials=3
    )
    with pytest.raises(NeverFinishesError, match="after 500 VMs") as caught:
        simulate(
            hopeless,
            Arm.of("notice-aware"),
            make_lives(hopeless.lives),
            seen=lambda policy, share: told.append((policy, share)),
        )
    assert "VMs live 12 s on average, and 1 min 46 s pass" in str(caught.value)
    assert len(told) == 10
    assert {policy for policy, _ in told} == {"notice-aware"}
    assert all(0 <= share < 0.025 for _, share in told)


def test_a_slow_job_is_not_refused() -> None:
    slow = inputs(lives={"kind": "exponential", "mttp_s": 30}, steps=2_000, trials=3)
    assert one(slow, "notice-aware").preemptions.mean() > 600
