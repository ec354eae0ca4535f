"""How long to work between two saves: the formulas, each with its source.

Every function answers a finite number that is not negative, for any finite arguments: negative ones
count as 0.
"""

from __future__ import annotations

import math

TINY_S = 1e-9
"""Stands for a mean time of 0, so that nothing is divided by 0."""
LONGEST_S = 1e12
"""No interval is longer (30,000 years): keeps the arithmetic finite for a mean time of 1e300."""

_NEAR_BRANCH = 1e-3  # below it 1 + W0 loses digits to cancellation and its series is better
_HALLEY_ROUNDS = 50  # it takes 3 to 6


def lambert_w0(z: float) -> float:
    """W0: the principal solution w of w e^w = z, by Halley's iteration.

    Source: Corless et al., "On the Lambert W function" (1996), equation 5.9. Raises ValueError
    below the branch point -1/e.
    """
    if z < -1 / math.e - 1e-15:
        raise ValueError(f"W0 is real from -1/e = {-1 / math.e:.6f} on, not at {z!r}")
    branch = 2 * (1 + math.e * z)
    if branch <= 0:
        return -1.0
    w = _near_branch(math.sqrt(branch)) - 1 if z < 0 else math.log1p(z)  # pragma: no mutate: start
    for _ in range(_HALLEY_ROUNDS):
        e = math.exp(w)
        error = w * e - z
        slope = e * (w + 1)
        if error == 0 or slope == 0:
            break
        move = error / (slope - (w + 2) * error / (2 * w + 2))  # pragma: no mutate: speed only
        w -= move
        if abs(move) <= 1e-15 * (1 + abs(w)):  # pragma: no mutate: more rounds change nothing
            break
    return w


def _near_branch(p: float) -> float:
    """1 + W0(z) for z near -1/e, in p = sqrt(2 (1 + e z)) (Corless et al., equation 4.22)."""
    return p * (1 - p * (1 / 3 - p * (11 / 72 - p * (43 / 540 - p * 769 / 17280))))


def exact(stall_s: float, mean_s: float) -> float:
    """The work between saves that wastes least when losses come at random, `mean_s` apart.

    tau = M (1 + W0(-exp(-(1 + s / M)))): the minimum of (e^((tau + s) / M) - 1) / tau, which is
    the expected time per unit of work (Daly 2006, equation 13). Allocation and preparation only
    multiply it, so they do not move the minimum.
    """
    mean_s = _within(mean_s)
    x = max(stall_s, 0.0) / mean_s
    if x < _NEAR_BRANCH:
        return min(mean_s * _near_branch(math.sqrt(-2 * math.expm1(-x))), LONGEST_S)
    return mean_s * (1 + lambert_w0(-math.exp(-(1 + min(x, 700.0)))))


def thesis(save_s: float, mttp_s: float, restart_s: float) -> float:
    """tau = sqrt(2 delta (MTTP + R)): equation 4.5 of the thesis that docs/checkpointing.md names,
    after Daly (2006)."""
    total = min(max(mttp_s, 0.0), LONGEST_S) + min(max(restart_s, 0.0), LONGEST_S)
    return min(math.sqrt(2 * min(max(save_s, 0.0), LONGEST_S) * total), LONGEST_S)


def _within(mean_s: float) -> float:
    return min(max(mean_s, TINY_S), LONGEST_S)
