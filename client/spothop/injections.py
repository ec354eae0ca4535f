"""An injection in words: the master's events and the command line say the same."""

from __future__ import annotations

from spothop.durations import duration
from spothop.wire import InjectionView

MAX_SHOWN = 5
"""Mean lives that are listed."""


def plan_text(found: InjectionView) -> str:
    """What is planned: which lives, from which seed, how many without notice."""
    if found.lives:
        what = f"{found.lives} lives of a trace"
    else:
        shown = ", ".join(duration(s) for s in found.mttp_s[:MAX_SHOWN])
        more = ", ..." if len(found.mttp_s) > MAX_SHOWN else ""
        what = f"exponential lives, MTTP {shown}{more}"
    text = f"{what}, seed {found.seed}"
    return f"{text}, {found.no_notice:.0%} without notice" if found.no_notice else text
