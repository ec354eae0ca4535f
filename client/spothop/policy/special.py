"""Quantiles of the Gamma and Beta distributions without scipy: a VM's agent has none.

Incomplete functions by series and continued fractions (Press et al., "Numerical Recipes", sections
6.2 and 6.4), quantiles by bisection on them: a tenth of a millisecond each, and nothing to diverge.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_TINY = 1e-300
_ROUNDS = 500
_EPSILON = 3e-14
_HALVINGS = 200  # of a float interval: always enough to meet the tolerance below


def gamma_cdf(x: float, shape: float) -> float:
    """P(X <= x) for a Gamma variable of this shape and rate 1."""
    if x <= 0:
        return 0.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return min(scale * _gamma_series(x, shape), 1.0)
    return max(1 - scale * _gamma_fraction(x, shape), 0.0)


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X <= x) for a Beta(a, b) variable."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    scale = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return min(scale * _beta_fraction(x, a, b) / a, 1.0)
    return max(1 - scale * _beta_fraction(1 - x, b, a) / b, 0.0)


def gamma_quantile(p: float, shape: float) -> float:
    """The x with `gamma_cdf(x, shape) == p`. Raises ValueError unless 0 < p < 1 and shape > 0."""
    _check(p, shape)
    high = shape + 1.0  # pragma: no mutate: any start does
    while gamma_cdf(high, shape) < p:
        high *= 2  # pragma: no mutate: any growth does
    return _bisect(lambda x: gamma_cdf(x, shape), p, high)


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with `beta_cdf(x, a, b) == p`. Raises ValueError unless 0 < p < 1 and a, b > 0."""
    _check(p, a, b)
    return _bisect(lambda x: beta_cdf(x, a, b), p, 1.0)


def _check(p: float, *shapes: float) -> None:
    if not 0 < p < 1:
        raise ValueError(f"a quantile is of a share between 0 and 1, not {p!r}")
    if not all(0 < s < math.inf for s in shapes):
        raise ValueError(f"shapes must be above 0, not {shapes}")


def _bisect(cdf: Callable[[float], float], p: float, high: float) -> float:
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if cdf(middle) < p:
            low = middle
        else:
            high = middle
        if high - low <= 1e-15 * high:  # pragma: no mutate: more halvings change nothing
            break
    return high


def _gamma_series(x: float, shape: float) -> float:
    term = total = 1 / shape
    for n in range(1, _ROUNDS + int(10 * math.sqrt(shape))):  # pragma: no mutate: more than enough
        term *= x / (shape + n)
        total += term
        if term < total * _EPSILON:  # pragma: no mutate: more rounds change nothing
            break
    return total


def _gamma_fraction(x: float, shape: float) -> float:
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    h = d
    for i in range(1, _ROUNDS + int(10 * math.sqrt(shape))):  # pragma: no mutate: more than enough
        an = i * (shape - i)
        b += 2
        d = 1 / _off_zero(an * d + b)
        c = _off_zero(b + an / c)
        h *= d * c
        if abs(d * c - 1) < _EPSILON:  # pragma: no mutate: more rounds change nothing
            break
    return h


def _beta_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, _ROUNDS + int(10 * math.sqrt(max(a, b)))):  # pragma: no mutate: likewise
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + factor * d)
            c = _off_zero(1 + factor / c)
            h *= d * c
        if abs(d * c - 1) < _EPSILON:  # pragma: no mutate: more rounds change nothing
            break
    return h


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
