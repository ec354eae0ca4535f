"""How much the zones of a region tell about each other: empirical Bayes.

The rates of the zones are taken as draws from one Gamma law with mean mu and variance v mu^2; the
preemptions d_j of a zone in its exposure E_j are Poisson, given its rate. Then d_j is negative
binomial, and the zones' own figures tell v (gamma-Poisson model: Clayton and Kaldor, "Empirical
Bayes estimates of age-standardized relative risks", 1987). Where v is large the zones say little
about each other, and each is left to its own lives.

v is its posterior mean over a grid, not its likeliest value: with two or three zones the likeliest
one is often the smallest on the grid, and neighbours that happen to look alike would be believed
without end.

What does not work: to weigh neighbours by their exposure (one busy zone speaks for all), and to
weigh them by the preemptions that they happened to have (those with few by luck weigh more, which
biases the mean).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SPREADS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Values of v that are weighed against each other, alike before anything was seen."""
_ROUNDS = 4  # of the mean; it changes by less than a hundredth after three


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Preemptions and the VM time in which they were seen: faded, and counted by events."""

    events: float = 0.0
    exposure_s: float = 0.0


def believed(own: Evidence, others: Sequence[Evidence], prior: Evidence) -> Evidence:
    """What is believed of a zone before its own lives: the stated prior and the other zones.

    1 / shape, which is the variance over the squared mean, is (1 + v n) / (a + n) for others that
    count as n preemptions and a prior of a: 1/a without them, v where they are many, and the sum of
    all where they are alike. The less they are, the weaker a prior they make: for zones that differ
    a lot even weaker than the stated one.
    """
    others = [zone for zone in others if zone.exposure_s > 0]
    if not others:
        return prior
    v = spread([own, *others], prior)
    mean, n = _mean(others, prior, v)
    shape = (prior.events + n) / (1 + v * n)
    return Evidence(events=shape, exposure_s=shape / mean)


def spread(zones: Sequence[Evidence], prior: Evidence) -> float:
    """v: the variance of the zones' rates over the square of their mean."""
    logs = [_log_likelihood(zones, _mean(zones, prior, v)[0], v) for v in SPREADS]
    best = max(logs)
    weights = [math.exp(log - best) for log in logs]
    return sum(v * w for v, w in zip(SPREADS, weights, strict=True)) / sum(weights)


def _mean(zones: Sequence[Evidence], prior: Evidence, v: float) -> tuple[float, float]:
    """The mean rate for this spread, and the number of preemptions that these zones count as.

    A zone that expects mu E preemptions counts as 1 / (v + 1 / (mu E)): never more than 1 / v.
    """
    mean, n = prior.events / prior.exposure_s, 0.0
    for _ in range(_ROUNDS):
        shares = [1 / (1 + v * mean * zone.exposure_s) for zone in zones]
        n = sum(s * mean * zone.exposure_s for s, zone in zip(shares, zones, strict=True))
        events = sum(s * zone.events for s, zone in zip(shares, zones, strict=True))
        exposure_s = sum(s * zone.exposure_s for s, zone in zip(shares, zones, strict=True))
        mean = (prior.events + events) / (prior.exposure_s + exposure_s)
    return mean, n


def _log_likelihood(zones: Sequence[Evidence], mean: float, v: float) -> float:
    """Of the negative binomial, less what does not depend on v or the mean."""
    a = 1 / v
    return sum(
        math.lgamma(zone.events + a)
        - math.lgamma(a)
        + a * math.log(a / mean)
        - (zone.events + a) * math.log(zone.exposure_s + a / mean)
        for zone in zones
    )
