"""The simulation of one policy: all trials side by side, one VM after the other.

Event-driven: the work is one round of array arithmetic for each preemption, whatever lies between.
Wall time is split without overlap, so that the parts add up to the total: *computation* (steps,
lost ones included), *save* (training stands still for one), *allocation* (no VM, or only one that
has nothing left to do) and *preparation*. The old VM may compute while the next one is allocated.

What is simplified: step and save times of one life are drawn as the mean of so many uniform
draws (right mean and variance), and the policies are given mean latencies, as they measure them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spothop.durations import duration
from spothop.policy import emergency
from spothop.simulator.beliefs import Beliefs
from spothop.simulator.inputs import Arm, Bounds, Inputs
from spothop.simulator.lives import Lives, Placement
from spothop.simulator.schedule import NEVER, Schedule, reach

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_LIVES = 20_000
"""A trial that takes more VMs than this makes no progress."""
FIRST_LOOK = 500
"""After so many VMs of each trial, and each time after twice as many, it is estimated how many the
job would take in all: one that would take too many is not simulated to its bitter end."""
_TELLS_EVERY = 50  # VMs of each trial

Seen = Callable[[str, float], None]
"""Told from time to time: the policy, and the share of the steps that is done."""


class NeverFinishesError(RuntimeError):
    """The job makes no progress under this policy; the message says what would help."""


@dataclass
class Trials:
    """What each trial took; seconds, and USD as clouds bill (from running to the end)."""

    computation_s: Floats
    recomputation_s: Floats
    save_s: Floats
    allocation_s: Floats
    preparation_s: Floats
    total_s: Floats
    cost_usd: Floats
    preemptions: Floats

    @classmethod
    def zeros(cls, trials: int) -> Trials:
        return cls(*(np.zeros(trials) for _ in fields(cls)))


class Draw(NamedTuple):
    """The uniform numbers of one life, the same under every policy."""

    life: Floats
    allocation: Floats
    preparation: Floats
    notice: Floats
    step: Floats
    save: Floats
    backup: Floats
    last_save: Floats
    last_backup: Floats
    grace: Floats
    detection: Floats
    load: Floats

    @classmethod
    def of(cls, seed: int, k: int, trials: int) -> Draw:
        return cls(*np.random.default_rng([seed, k]).random((len(cls._fields), trials)))

    def only(self, trial: Ints) -> Draw:
        return Draw(*(column[trial] for column in self))


@dataclass
class Life:
    """One VM of each unfinished trial."""

    u: Draw
    start: Ints
    """Steps restored."""
    placed: Placement
    ready: Floats
    """Training begins."""
    window: Floats
    """From ready to the kill; 0 or less when it never got that far."""
    grace: Floats
    noticed: Bools
    step_s: Floats
    save_s: Floats
    stall_s: Floats
    schedule: Schedule


@dataclass
class Outcome:
    """What became of one VM of each unfinished trial, all times as wall time of the job."""

    finished: Bools
    saved: Ints
    """The newest durable step."""
    computed_s: Floats
    stalled_s: Floats
    busy_until: Floats
    """It trained or saved until then."""
    out_of_the_way: Floats
    """The next attempt may go on from then."""


def simulate(inputs: Inputs, arm: Arm, lives: Lives, *, seen: Seen | None = None) -> Trials:
    """Raises NeverFinishesError when the job makes no progress."""
    if arm.policy is None:
        return on_demand(inputs)
    run = _Run(inputs, arm, lives)
    k, look = 0, FIRST_LOOK
    while len(run.trial):
        if k == look or k >= MAX_LIVES:
            look *= 2
            _check_progress(run, k)
        if seen is not None and k % _TELLS_EVERY == 0:
            seen(arm.name, run.share_done)
        run.live(k)
        k += 1
    return run.sums


def _check_progress(run: _Run, k: int) -> None:
    """Raises NeverFinishesError where k VMs of each trial brought the job too little of the way."""
    share, inputs = run.share_done, run.inputs
    if k < MAX_LIVES and share * MAX_LIVES >= k:
        return
    takes = f"it would take about {k / share:,.0f}" if share > 0 else "none has kept a step"
    raise NeverFinishesError(
        f"{run.arm.name}: {len(run.trial)} of {inputs.trials} trials are not done after {k} VMs "
        f"({takes}); VMs live {duration(run.lives.mean_s(0))} on average, and "
        f"{duration(inputs.restart_s)} pass from the request for one until it trains. Let it save "
        "more often (periodic_every, another policy), shorten the start (boot_s, load_s), take a "
        "pool whose VMs live longer, or leave this policy out"
    )


def on_demand(inputs: Inputs) -> Trials:
    """The same job on one VM that is never taken away."""
    u = Draw.of(inputs.seed, 0, inputs.trials)
    sums = Trials.zeros(inputs.trials)
    saves = inputs.steps // (inputs.periodic_every or NEVER)
    stall = inputs.stall_s or inputs.save_s
    sums.computation_s += inputs.steps * mean_of(inputs.step_s, u.step, inputs.steps)
    sums.save_s += saves * mean_of(stall, u.save, saves)
    sums.allocation_s += drawn(inputs.allocation_s, u.allocation)
    booted = _boot(inputs, sums.allocation_s, u)
    sums.preparation_s += booted + drawn(inputs.load, u.load)
    billed = sums.computation_s + sums.save_s + sums.preparation_s
    sums.total_s = billed + sums.allocation_s
    sums.cost_usd = billed * (inputs.prices[1] / 3_600)
    return sums


def _boot(inputs: Inputs, allocation_s: Floats, u: Draw) -> Floats:
    """From running to the moment at which a checkpoint could be loaded."""
    boot = drawn(inputs.boot, u.preparation)
    return np.maximum(boot - allocation_s, 0.0) if inputs.boot_overlaps else boot


def drawn(bounds: Bounds, u: Floats) -> Floats:
    """Uniform in [low, high)."""
    return bounds.low + u * bounds.width


def mean_of(bounds: Bounds, u: Floats, n: Floats | Ints | int) -> Floats:
    """The mean of n such draws: exact for one, right in mean and variance for more."""
    spread: Floats = (u - 0.5) * bounds.width / np.sqrt(np.maximum(n, 1))
    return bounds.mean + spread


class _Run:
    """The state between two lives, one figure for each unfinished trial."""

    def __init__(self, inputs: Inputs, arm: Arm, lives: Lives) -> None:
        n = inputs.trials
        self.inputs, self.arm, self.lives = inputs, arm, lives
        self.sums = Trials.zeros(n)
        lives.start(n, inputs.seed, inputs.allocation_s.mean)
        self.beliefs = Beliefs(inputs, arm, lives)
        self.trial = np.arange(n)
        self.steps = np.zeros(n, dtype=np.int64)
        self.requested = np.zeros(n)
        self.busy_until = np.zeros(n)
        self.out_of_the_way = np.zeros(n)
        self.zone = np.full(n, -1, dtype=np.int64)
        self.tries = arm.emergency == "always" or (
            arm.emergency == "fits" and emergency(self.beliefs.measures(0)).fits
        )

    @property
    def share_done(self) -> float:
        """Of the steps of all trials."""
        done = self.inputs.trials - len(self.trial)
        return (done + float(self.steps.sum()) / self.inputs.steps) / self.inputs.trials

    def live(self, k: int) -> None:
        """The k-th VM of every unfinished trial, from its request to its end."""
        life = self._begin(k)
        outcome = self._train(life)
        ends = np.where(outcome.finished, outcome.busy_until, life.placed.killed)
        price = self.inputs.prices[0]
        self._add("cost_usd", self.lives.cost(life.placed, self.trial, ends, price))
        self._add("computation_s", outcome.computed_s)
        self._add("save_s", outcome.stalled_s)
        self._add("preemptions", (~outcome.finished).astype(np.float64))
        kept = (outcome.saved - life.start) * life.step_s
        self._add("recomputation_s", np.maximum(outcome.computed_s - kept, 0.0))
        self.beliefs.learn(self.trial, life.placed, ends, outcome.finished, life.noticed)
        self._next(life, outcome)

    def _begin(self, k: int) -> Life:
        u = Draw.of(self.inputs.seed, k, self.inputs.trials).only(self.trial)
        latency = drawn(self.inputs.allocation_s, u.allocation)
        placed = self.lives.place(k, self.trial, self.requested, latency, u.life, self.zone)
        booted = placed.running + _boot(self.inputs, latency, u)
        ready = np.maximum(booted, self.out_of_the_way) + drawn(self.inputs.load, u.load)
        begun = np.maximum(placed.running, self.busy_until)
        self._add("allocation_s", np.maximum(placed.running - self.busy_until, 0.0))
        self._add("preparation_s", np.maximum(np.minimum(ready, placed.killed) - begun, 0.0))
        window = placed.killed - ready
        schedule = self.beliefs.schedule(k, self.trial, placed.zone)
        left = self.inputs.steps - self.steps
        likely = np.minimum(np.maximum(window, 0.0) / self.inputs.step_s.mean, left)
        saves = schedule.count(self.steps, self.steps + likely.astype(np.int64))
        save_s = mean_of(self.inputs.save_s, u.save, saves)
        return Life(
            u=u,
            start=self.steps,
            placed=placed,
            ready=ready,
            window=window,
            grace=drawn(self.inputs.grace_s, u.grace),
            noticed=u.notice < self.inputs.notices_kept,
            step_s=mean_of(self.inputs.step_s, u.step, likely),
            save_s=save_s,
            stall_s=(
                save_s
                if self.inputs.stall_s is None
                else mean_of(self.inputs.stall_s, u.save, saves)
            ),
            schedule=schedule,
        )

    def _train(self, life: Life) -> Outcome:
        """From ready to the end of the job, the emergency save, or the kill."""
        inputs, schedule, start = self.inputs, life.schedule, life.start
        trains = life.window > 0
        at_notice = life.window - life.grace
        tries = life.noticed & (at_notice > 0) & self.tries
        budget = np.where(tries, at_notice, np.maximum(life.window, 0.0))
        whole = np.full_like(start, inputs.steps)
        need_s = (whole - start) * life.step_s + life.stall_s * schedule.count(start, whole)
        finished = trains & (need_s <= budget)
        step = reach(schedule, start, inputs.steps, life.step_s, life.stall_s, budget)
        saves_s = life.stall_s * schedule.count(start, step)
        steps_s = (step - start) * life.step_s
        rest = np.where(finished, 0.0, np.maximum(budget - steps_s - saves_s, 0.0))
        in_step = np.minimum(rest, life.step_s)
        # a save is durable once it is dumped and backed up: what had too little time is lost
        dumped = self._durable_after(life.save_s, drawn(inputs.backup_s, life.u.backup))
        durable_s = np.minimum(budget, life.window - (dumped - life.stall_s))
        durable = reach(schedule, start, inputs.steps, life.step_s, life.stall_s, durable_s)
        outcome = Outcome(
            finished=finished,
            saved=np.where(finished, inputs.steps, schedule.last(start, durable)),
            computed_s=steps_s + in_step,
            stalled_s=saves_s + rest - in_step,
            busy_until=np.where(trains, life.ready, self.busy_until)
            + np.where(finished, need_s, budget),
            out_of_the_way=np.where(trains, life.placed.killed, self.out_of_the_way),
        )
        if self.tries:
            self._emergency(life, outcome, tries & ~finished, at_notice, step, rest)
        return self._not_started(life, outcome, trains)

    def _emergency(
        self, life: Life, out: Outcome, tries: Bools, notice: Floats, step: Ints, rest: Floats
    ) -> None:
        """After the notice: the step is ended, saved and backed up, if there is time for it.

        A scheduled save that is under way at the notice serves as the emergency save.
        """
        inputs, u = self.inputs, life.u
        saving = rest >= life.step_s
        to_end = np.zeros_like(rest) if inputs.mid_step else np.maximum(life.step_s - rest, 0.0)
        whole = np.where(saving, life.save_s, drawn(inputs.save_s, u.last_save))
        dump = np.where(saving, np.maximum(life.step_s + life.save_s - rest, 0.0), whole)
        until_saved = to_end + dump
        dumped = self._durable_after(whole, drawn(inputs.backup_s, u.last_backup))
        until_durable = np.maximum(to_end + dumped - (whole - dump), until_saved)
        made = tries & (until_durable <= life.grace)
        at = np.where(saving | (not inputs.mid_step), step + 1, step)
        out.saved = np.where(made, np.maximum(at, out.saved), out.saved)
        out.computed_s += tries * np.minimum(to_end, life.grace)
        out.stalled_s += tries * np.clip(life.grace - to_end, 0.0, dump)
        begun = life.ready + notice
        out.busy_until = np.where(
            tries, begun + np.minimum(until_saved, life.grace), out.busy_until
        )
        out.out_of_the_way = np.where(made, begun + until_durable, out.out_of_the_way)
        out.finished |= made & (out.saved >= inputs.steps)
        if inputs.emergency == "early+late":
            stall = dump if inputs.stall_s is None else np.minimum(life.stall_s, dump)
            ahead = np.where(saving, 0.0, rest) if inputs.mid_step else np.zeros_like(rest)
            self._late_image(life, out, made & ~out.finished, begun, to_end, dump, stall, ahead)

    def _late_image(
        self,
        life: Life,
        out: Outcome,
        early: Bools,
        begun: Floats,
        to_end: Floats,
        dump: Floats,
        stall: Floats,
        ahead: Floats,
    ) -> None:
        """Training goes on after the early image, `ahead` of its step, and a second one is begun
        as late as it is expected to fit. Without time for a step there is none."""
        inputs, u = self.inputs, life.u
        means = self._durable_after(np.array(inputs.save_s.mean), np.array(inputs.backup_s.mean))
        resumed = to_end + stall
        trains = np.maximum(life.grace - inputs.margin_s - means - resumed, 0.0)
        more = np.floor((ahead + trains) / life.step_s)
        left = inputs.steps - out.saved
        ends = early & (more >= left)
        more = np.clip(more, 0, left)
        to_last = np.maximum(more * life.step_s - ahead, 0.0)
        trains = np.where(ends | (not inputs.mid_step), to_last, trains)
        again = drawn(inputs.save_s, u.save)
        durable = resumed + trains + self._durable_after(again, drawn(inputs.backup_s, u.backup))
        made = early & ~ends & (more > 0) & (durable <= life.grace)
        goes_on = early & (more > 0)
        idle = np.where(ends, 0.0, np.clip(life.grace - resumed - trains, 0.0, again))
        out.computed_s += goes_on * trains
        out.stalled_s += goes_on * (stall - dump + idle)
        until = begun + resumed + trains + idle
        out.busy_until = np.where(goes_on, until, out.busy_until)
        out.saved += np.where(made | ends, more, 0.0).astype(np.int64)
        out.out_of_the_way = np.where(made, begun + durable, out.out_of_the_way)
        out.finished |= ends

    def _durable_after(self, save_s: Floats, backup_s: Floats) -> Floats:
        """From the begin of a save to its commit."""
        return np.maximum(save_s, backup_s) if self.inputs.stream else save_s + backup_s

    def _not_started(self, life: Life, out: Outcome, trains: Bools) -> Outcome:
        """VMs that were killed while they prepared did nothing but that."""
        out.computed_s = np.where(trains, out.computed_s, 0.0)
        out.stalled_s = np.where(trains, out.stalled_s, 0.0)
        out.saved = np.where(trains, out.saved, life.start)
        waited = np.maximum(self.busy_until, life.placed.killed)
        out.busy_until = np.where(trains, out.busy_until, waited)
        return out

    def _next(self, life: Life, out: Outcome) -> None:
        """Ask for the next VM where one is needed."""
        finished = out.finished
        self.sums.total_s[self.trial[finished]] = out.busy_until[finished]
        killed = life.placed.killed
        blind = killed + drawn(self.inputs.detection_s, life.u.detection)
        if self.inputs.replacement == "notice":
            warned = np.maximum(killed - life.grace, life.placed.running)
        else:
            warned = killed
        requested = np.where(life.noticed, warned, blind)
        go = ~finished
        self.trial, self.steps = self.trial[go], out.saved[go]
        self.requested, self.zone = requested[go], life.placed.zone[go]
        self.busy_until, self.out_of_the_way = out.busy_until[go], out.out_of_the_way[go]

    def _add(self, name: str, figures: Floats) -> None:
        getattr(self.sums, name)[self.trial] += figures
