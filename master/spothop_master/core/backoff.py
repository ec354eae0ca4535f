"""How long to wait before trying again. Pure: the randomness is an argument."""

from __future__ import annotations


def delay_s(failures: int, *, base_s: float, max_s: float, jitter: float) -> float:
    """Exponential with equal jitter: between half and all of `base * 2 ** (failures - 1)`.

    `failures` counts from 1, `jitter` is uniform in [0, 1). Half is kept because a wait of nearly
    nothing (full jitter) hammers a cloud that just refused. See "Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015.
    """
    if failures < 1:
        return 0.0
    whole = min(max_s, base_s * 2.0 ** min(failures - 1, 60))
    return whole * (0.5 + 0.5 * jitter)
