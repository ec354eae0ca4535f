"""What a simulation answers: one row for each policy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from spothop.simulator.engine import Trials
from spothop.simulator.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Row:
    """Means over the trials; overhead and saving as fractions of the on-demand run."""

    policy: str
    overhead: float
    overhead_low: float
    """95 % confidence interval of the mean (Student)."""
    overhead_high: float
    saving: float
    """Of the on-demand cost, as clouds bill: from running to the end of each VM."""
    computation_s: float
    """Recomputation included, as in the thesis."""
    recomputation_s: float
    save_s: float
    allocation_s: float
    preparation_s: float
    total_s: float
    """computation + save + allocation + preparation."""
    cost_usd: float
    preemptions: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One policy: its row, and what only the table on screen and the report show."""

    row: Row
    spread: tuple[float, float]
    """Where 90 % of the trials' overheads lie."""
    thesis_cost_usd: float
    """As the thesis bills: allocation time, too."""
    overheads: NDArray[np.float64]

    @property
    def useful_share(self) -> float:
        """Effective training time: useful work over wall time."""
        return (self.row.computation_s - self.row.recomputation_s) / self.row.total_s


@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything that one simulation gave."""

    inputs: Inputs
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    """What to know with the figures: policies that were left out, and whose prices these are."""

    @property
    def rows(self) -> list[dict[str, float | str]]:
        """As `--json` prints them."""
        return [asdict(outcome.row) for outcome in self.outcomes]

    def of(self, policy: str) -> Outcome:
        """Raises KeyError."""
        for outcome in self.outcomes:
            if outcome.row.policy == policy:
                return outcome
        raise KeyError(policy)


def summarise(policy: str, trials: Trials, baseline: Trials, inputs: Inputs) -> Outcome:
    """`baseline` is the on-demand run of the same trials."""
    overheads = trials.total_s / float(baseline.total_s.mean()) - 1
    low, high = confidence(overheads)
    cost = float(trials.cost_usd.mean())
    spot, on_demand = inputs.prices
    hourly = on_demand if policy == "on-demand" else spot
    row = Row(
        policy=policy,
        overhead=float(overheads.mean()),
        overhead_low=low,
        overhead_high=high,
        saving=1 - cost / float(baseline.cost_usd.mean()),
        computation_s=float(trials.computation_s.mean()),
        recomputation_s=float(trials.recomputation_s.mean()),
        save_s=float(trials.save_s.mean()),
        allocation_s=float(trials.allocation_s.mean()),
        preparation_s=float(trials.preparation_s.mean()),
        total_s=float(trials.total_s.mean()),
        cost_usd=cost,
        preemptions=float(trials.preemptions.mean()),
    )
    return Outcome(
        row=row,
        spread=(float(np.quantile(overheads, 0.05)), float(np.quantile(overheads, 0.95))),
        thesis_cost_usd=float(trials.total_s.mean()) * hourly / 3_600,
        overheads=overheads,
    )


def confidence(figures: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean; one figure, or equal ones, give an interval of no width."""
    mean = float(figures.mean())
    if len(figures) < 2:
        return mean, mean
    error = float(figures.std(ddof=1)) / math.sqrt(len(figures))
    from scipy import stats  # takes a second to import

    half = float(stats.t.ppf((1 + level) / 2, len(figures) - 1)) * error
    return mean - half, mean + half
