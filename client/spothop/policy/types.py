"""Inputs and answers of every policy. Pure: all figures are arguments, all answers carry a reason.

An answer keeps the numbers it was made from; its `reason` is formatted only when somebody reads it,
because the simulator asks for millions of answers and shows none.
"""

from __future__ import annotations

from dataclasses import dataclass

from spothop.durations import duration


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What is known when a decision is made. All durations in seconds."""

    step_s: float
    """T: mean step time of the job; 0 while none was measured."""
    save_s: float
    """Delta: synchronous time of one save."""
    backup_s: float
    """Beta: from the end of the save to its commit."""
    mttp_s: float
    """M: mean time to preemption of the pool."""
    restart_s: float
    """R: mean allocation plus preparation time."""
    grace_s: float
    """G: promised by the pool before a notice, time left at one."""
    notice_kept: float = 1.0
    """q: share of preemptions whose emergency save became durable, where it was to fit."""
    lives: int = 0
    """Preemptions ever seen in the region."""
    weight: float | None = None
    """What those count for in `mttp_s`: faded, by events, other zones less. None: all in full."""
    stall_s: float | None = None
    """s: how long a save stops training; None where saves are synchronous (s = delta)."""
    failure_s: float | None = None
    """M_f: mean time between failures without notice; None when none is known."""
    wait_s: float | None = None
    """Longest wait of an emergency save for the end of its step; None is a whole step."""
    margin_s: float = 0.0
    """Kept free before a deadline; 0 is the thesis's rule."""
    min_interval_s: float = 0.0
    """Least time between two saves where the policy computes it: so that saves that cost nearly
    nothing do not bury everything else."""
    stream: bool = False
    """A save is uploaded while it is written: durable after the longer of both, not their sum."""

    @property
    def stall(self) -> float:
        """s: the stall of an asynchronous save, delta of a synchronous one."""
        return self.save_s if self.stall_s is None else self.stall_s

    @property
    def wait(self) -> float:
        """What an emergency save may have to wait before it begins."""
        return self.step_s if self.wait_s is None else self.wait_s


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What `notice-aware` insures against: losses that no notice prevents."""

    mean_s: float
    """1 / lambda: mean time between two of them."""
    trusted: float
    """Share of notices that is believed to be kept: never all."""
    fits: float
    """Share of emergency saves that fit the grace period."""
    age_s: float | None = None
    """Of the VM, where its age counted."""
    hazard_ratio: float | None = None
    """Mean hazard over the interval at this age, in units of 1 / MTTP."""

    @property
    def q(self) -> float:
        """Share of preemptions that a notice makes harmless."""
        return self.trusted * self.fits


@dataclass(frozen=True, kw_only=True)
class InsuranceDecision:
    """The next insurance save: at this step, or never (`at_step` None)."""

    at_step: int | None
    tau_s: float | None
    """Work between two saves; also given while `at_step` waits for a first step time."""
    policy: str
    measures: Measures
    because: str = ""
    """Why there is no interval, or what else moved it."""
    losses: Losses | None = None
    """Under `notice-aware`."""
    periodic: int | None = None
    """The script's own save up to which the insurance saves are spread evenly."""

    @property
    def reason(self) -> str:
        """For people: the interval and the figures from which it can be computed again."""
        if self.tau_s is None:
            return self.because
        m = self.measures
        mttp = f"MTTP {duration(m.mttp_s)} ({_lives(m)})"
        tau = f"tau {duration(self.tau_s)} from stall {duration(m.stall)}"
        if self.losses is not None:
            mean = f"1/lambda {duration(self.losses.mean_s)}"
            parts = [f"{tau} and {mean}: {mttp}", *_losses(m, self.losses)]
        else:
            parts = [tau, mttp]
        if self.policy.startswith("thesis"):
            parts.append(f"restart {duration(m.restart_s)}")
        if self.periodic is not None:
            parts.append(f"spread evenly up to your own save at step {self.periodic}")
        if self.because:
            parts.append(self.because)
        return ", ".join(parts)


def _lives(m: Measures) -> str:
    """How many preemptions of what, and whether they have faded."""
    if not m.lives:
        return "no preemption seen yet"
    seen = f"{m.lives} preemption{'s' if m.lives > 1 else ''} in the region"
    return f"{seen}, not faded" if m.weight is None else f"{seen}, faded to {m.weight:.1f}"


def _losses(m: Measures, losses: Losses) -> list[str]:
    why = []
    if losses.q != m.notice_kept:
        why = [f"{100 * m.notice_kept:.1f} % of notices kept"]
    if losses.trusted < m.notice_kept:
        why.append(f"trusted to {100 * losses.trusted:.0f} %")
    if losses.fits < 1:
        why.append(f"{100 * losses.fits:.1f} % of saves fit")
    parts = [f"q {100 * losses.q:.1f} %" + (f" ({', '.join(why)})" if why else "")]
    if losses.age_s is not None and losses.hazard_ratio is not None:
        age = duration(losses.age_s)
        parts.append(f"hazard {losses.hazard_ratio:.3g} times the mean at the VM's age of {age}")
    if m.failure_s is not None:
        parts.append(f"a failure each {duration(m.failure_s)}")
    return parts


@dataclass(frozen=True, kw_only=True)
class EmergencyDecision:
    """Does an emergency save fit the time left?"""

    fits: bool
    measures: Measures

    @property
    def reason(self) -> str:
        """For people: the sum that was compared."""
        m = self.measures
        margin = f" + margin {duration(m.margin_s)}" if m.margin_s else ""
        dump = f"save {duration(m.save_s)} + backup {duration(m.backup_s)}"
        if m.stream:
            dump = f"save and backup together {duration(max(m.save_s, m.backup_s))}"
        return (
            f"an emergency save {'fits' if self.fits else 'does not fit'}: "
            f"step {duration(m.wait)} + {dump}{margin} {'<' if self.fits else '>='} "
            f"grace {duration(m.grace_s)}"
        )
