"""How long to wait before trying again. Pure: the randomness is an argument."""

from __future__ import annotations

MAX_DOUBLINGS = 60
"""Keeps the power within what a float can hold, whatever the number of failures."""


def delay_s(
    failures: int, *, base_s: float, max_s: float, jitter: float, growth: float = 2.0
) -> float:
    """Seconds, exponential with equal jitter: between half and all of
    `base_s * growth ** (failures - 1)`, and at most `max_s`.

    `failures` counts from 1; before any there is no wait. `jitter` is uniform in [0, 1). Half is
    kept because a wait of nearly nothing (full jitter) hammers a service that just refused. See
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """
    if failures < 1:
        return 0.0
    whole = min(max_s, base_s * growth ** min(failures - 1, MAX_DOUBLINGS))
    return whole * (0.5 + 0.5 * jitter)
