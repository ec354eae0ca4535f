"""How often the 90 % interval of the mean time to preemption holds the true one.

1,000 synthetic histories for each figure. First where all is as the estimator assumes: lives are
exponential and independent; three in ten are cut short by ourselves (a job ended). Then where it is
not: VMs that die in one event, zones that differ, drift, young VMs that die more.
Run: python benchmarks/estimator_coverage.py
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from spothop.policy.estimators import DAY_S, Life, RatePosterior, preemption_rate

HOUR_S = 3_600.0
MTTPS_H = (0.5, 1, 2, 3, 6, 12, 24)
LIVES = (2, 5, 10, 20, 30, 50, 100)
CENSORED = 0.3
SCENES = {
    "steady pool, nothing fades": (1, None),
    "half-life 1 day, 10 VMs at a time": (10, DAY_S),
    "half-life 1 day, 1 VM at a time": (1, DAY_S),
}


Scene = Callable[[random.Random, float], tuple[float, RatePosterior]]


def history(rng: random.Random, mttp_s: float, lives: int, slots: int) -> list[Life]:
    """What a pool has seen by now: at least `lives` ended lives, and those still alive.

    Watched for a fixed time that gives enough lives nineteen times in twenty, else drawn again:
    to stop at the n-th death instead would make every newest life end now, and bias the rate.
    """
    cut_rate = CENSORED / (1 - CENSORED) / mttp_s
    mean_s = 1 / (1 / mttp_s + cut_rate)
    horizon_s = (lives + 2 * math.sqrt(lives)) * mean_s / slots
    while True:
        seen: list[Life] = []
        for _ in range(slots):
            now_s = -horizon_s
            while now_s < 0:
                death, cut = rng.expovariate(1 / mttp_s), rng.expovariate(cut_rate)
                end = min(now_s + min(death, cut), 0.0)
                died = death <= cut and end < 0
                seen.append(Life(duration_s=end - now_s, preempted=died, ended_ago_s=-end))
                now_s = end
        if len(seen) - slots >= lives:
            return seen


Law = Callable[[random.Random, float], float]
"""How long a VM lives that starts at this time (seconds; now is 0)."""


def exponential(mttp_s: float) -> Law:
    return lambda rng, start_s: rng.expovariate(1 / mttp_s)


def watched(
    rng: random.Random, law: Law, horizon_s: float, *, vms: int = 1, shock_s: float = math.inf
) -> list[Life]:
    """Lives of `vms` VMs at a time, each followed by the next; every `shock_s` on average an event
    takes them all within a minute."""
    shocks, now_s = [], -horizon_s
    while now_s < 0:
        now_s += rng.expovariate(1 / shock_s) if shock_s < math.inf else math.inf
        shocks.append(now_s)
    seen = []
    for _ in range(vms):
        now_s = -horizon_s
        while now_s < 0:
            shock_at_s = next((at for at in shocks if at > now_s), math.inf)
            end_s = min(now_s + law(rng, now_s), shock_at_s + rng.uniform(0, 60))
            died, end_s = end_s < 0, min(end_s, 0.0)
            seen.append(Life(duration_s=end_s - now_s, preempted=died, ended_ago_s=-end_s))
            now_s = end_s
    return seen


def alone(law: Law, mttp_s: float = 3 * HOUR_S, **more: float) -> Scene:
    """A zone without neighbours."""

    def scene(rng: random.Random, deaths: float) -> tuple[float, RatePosterior]:
        return mttp_s, preemption_rate(watched(rng, law, deaths * mttp_s, **more))

    return scene


def among(neighbours: Sequence[Law], mttp_s: float) -> Scene:
    """A zone among others, each of which was watched for two days with ten VMs."""

    def scene(rng: random.Random, deaths: float) -> tuple[float, RatePosterior]:
        own = watched(rng, exponential(mttp_s), deaths * mttp_s)
        others = [watched(rng, law, 48 * HOUR_S, vms=10) for law in neighbours]
        return mttp_s, preemption_rate(own, neighbours=others)

    return scene


def spread(factor: float) -> Scene:
    """Zones whose mean lives lie around 3 h, two thirds of them within this factor."""

    def scene(rng: random.Random, deaths: float) -> tuple[float, RatePosterior]:
        own, *others = (3 * HOUR_S * factor ** rng.gauss(0, 1) for _ in range(5))
        return among([exponential(mttp_s) for mttp_s in others], own)(rng, deaths)

    return scene


def fell(from_s: float, to_s: float) -> Scene:
    """So many deaths after the mean life fell; calm for five days before."""

    def scene(rng: random.Random, deaths: float) -> tuple[float, RatePosterior]:
        before = watched(rng, exponential(from_s), 5 * DAY_S)
        ago_s = deaths * to_s
        seen = [replace(life, ended_ago_s=life.ended_ago_s + ago_s) for life in before]
        return to_s, preemption_rate(seen + watched(rng, exponential(to_s), ago_s))

    return scene


def wanders(rng: random.Random, deaths: float) -> tuple[float, RatePosterior]:
    """Each day the mean life, at first 3 h, doubles or halves."""
    days = math.ceil(deaths * 3 * HOUR_S / DAY_S)
    means_s = [3 * HOUR_S]
    for _ in range(days):
        means_s.append(means_s[-1] * rng.choice((0.5, 2)))

    def law(rng: random.Random, start_s: float) -> float:
        left, at_s = rng.expovariate(1), start_s
        for day, mttp_s in enumerate(means_s[:-1]):
            rest_s = max(0.0, (day + 1 - days) * DAY_S - at_s)
            if left * mttp_s < rest_s:
                return at_s + left * mttp_s - start_s
            left, at_s = left - rest_s / mttp_s, at_s + rest_s
        return math.inf

    return means_s[days - 1], preemption_rate(watched(rng, law, deaths * 3 * HOUR_S))


def weibull(shape: float) -> Scene:
    scale_s = 3 * HOUR_S / math.gamma(1 + 1 / shape)
    return alone(lambda rng, start_s: rng.weibullvariate(scale_s, shape))


HARD_SCENES: dict[str, Scene] = {
    "ten VMs that always die together": alone(
        lambda rng, start_s: math.inf, shock_s=3 * HOUR_S, vms=10
    ),
    "ten VMs, half of the deaths in shocks": alone(
        exponential(6 * HOUR_S), shock_s=6 * HOUR_S, vms=10
    ),
    "four other zones, all alike": spread(1.0),
    "four other zones, within a factor 1.6": spread(1.6),
    "four other zones, within a factor 2.7": spread(2.7),
    "1 h among four zones of 12 h": among([exponential(12 * HOUR_S)] * 4, HOUR_S),
    "M fell from 6 h to 2 h": fell(6 * HOUR_S, 2 * HOUR_S),
    "M doubles or halves each day": wanders,
    "Weibull lives, shape 0.8": weibull(0.8),
    "Weibull lives, shape 0.6": weibull(0.6),
}
"""Each gives a true mean life and what is believed of it, when so many deaths of each VM of the
zone were to be expected."""
DEATHS = (0, 3, 12, 50, 145)


def hard_coverage(seed: int, histories: int) -> dict[str, dict[str, dict[str, float]]]:
    """Scene -> deaths to be expected -> `hard_cell`."""
    return {
        scene: {str(deaths): hard_cell(seed, scene, deaths, histories) for deaths in DEATHS}
        for scene in HARD_SCENES
    }


def hard_cell(seed: int, scene: str, deaths: int, histories: int) -> dict[str, float]:
    """The share of intervals that hold the true mean life, and the median of the believed one over
    the true one."""
    rng = random.Random(f"{seed} {scene} {deaths}")
    found = [HARD_SCENES[scene](rng, deaths) for _ in range(histories)]
    return {
        "coverage": sum(covered(p, truth) for truth, p in found) / histories,
        "median": median(p.mttp_s / truth for truth, p in found),
    }


def covered(posterior: RatePosterior, mttp_s: float) -> bool:
    low, high = posterior.interval(0.9)
    return low <= mttp_s <= high


def coverage(seed: int, histories: int) -> dict[str, dict[str, dict[str, float]]]:
    """Scene -> MTTP in hours -> lives -> share of histories whose interval holds the truth."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for scene, (slots, half_life_s) in SCENES.items():
        table[scene] = {}
        for mttp_h in MTTPS_H:
            row = table[scene][f"{mttp_h:g}"] = {}
            for lives in LIVES:
                rng = random.Random(f"{seed} {scene} {mttp_h} {lives}")
                hits = sum(
                    covered(
                        preemption_rate(
                            history(rng, mttp_h * HOUR_S, lives, slots), half_life_s=half_life_s
                        ),
                        mttp_h * HOUR_S,
                    )
                    for _ in range(histories)
                )
                row[str(lives)] = hits / histories
    return table


def main() -> int:
    """1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results" / "estimator_coverage.json",
    )
    options = parser.parse_args()
    table = coverage(options.seed, options.histories)
    for scene, rows in table.items():
        print(f"\n{scene}; coverage in % with at least so many lives (30 % censored)")
        print("MTTP h  " + "".join(f"{n:>7}" for n in LIVES))
        for mttp, row in rows.items():
            print(f"{mttp:>6}  " + "".join(f"{100 * row[str(n)]:>7.1f}" for n in LIVES))
    hard = hard_coverage(options.seed, options.histories)
    print("\ncoverage in % (believed over true mean life, median), by the deaths to be expected")
    print(f"{'':45}" + "".join(f"{n:>14}" for n in DEATHS))
    for scene, cells in hard.items():
        shown = (f"{100 * c['coverage']:.0f} ({c['median']:.2f})" for c in cells.values())
        print(f"{scene:45}" + "".join(f"{cell:>14}" for cell in shown))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps(
            {"histories": options.histories, "seed": options.seed, "coverage": table, "hard": hard}
        )
        + "\n"
    )
    print(f"\nwritten to {options.out}")
    goal = [
        share
        for rows in table.values()
        for mttp, row in rows.items()
        for lives, share in row.items()
        if float(mttp) >= 1 and int(lives) >= 30
    ]
    print(f"goal 85-95 % from 1 h and 30 lives on: {100 * min(goal):.1f} to {100 * max(goal):.1f}")
    return int(min(goal) < 0.85 or max(goal) > 0.95)


if __name__ == "__main__":
    sys.exit(main())
