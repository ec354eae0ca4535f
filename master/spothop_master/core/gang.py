"""What an attempt is, from its places: which facts need all of them, and which need one. Pure.

An attempt runs on one VM for each of its nodes, and no step is complete without all of them. Hence
two rules. What an attempt *reaches* (its agents joined, it is prepared, it trains) it has reached
when the last place has. What *happens* to it (a notice, the end of a VM, a process that fails)
happens with the first place. A job of one VM is a gang of one, where the two are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from spothop.wire import EndReason

MEANT = frozenset({EndReason.SUCCEEDED, EndReason.CANCELLED, EndReason.PAUSED})
"""Ends that somebody wanted: the other places come to theirs by themselves."""


def reached(moments: Iterable[datetime | None]) -> datetime | None:
    """When the last place got there; None while one has not."""
    known = list(moments)
    times = [moment for moment in known if moment is not None]
    return max(times) if known and len(times) == len(known) else None


def happened(moments: Iterable[datetime | None]) -> datetime | None:
    """When the first place had it; None while none has."""
    return min((moment for moment in moments if moment is not None), default=None)


def newest(steps: Iterable[int | None]) -> int | None:
    """The highest step that any place told of."""
    return max((step for step in steps if step is not None), default=None)


def end_of(reasons: Sequence[EndReason | None]) -> EndReason | None:
    """Why the attempt is over, from why the process of each place is; None: not yet.

    The first place that broke ends it. An end that was meant is the attempt's when every place has
    come to one; success is everybody's or nobody's.
    """
    broken = next((why for why in reasons if why is not None and why not in MEANT), None)
    if broken is not None:
        return broken
    if not reasons or None in reasons:
        return None
    return next((why for why in reasons if why is not EndReason.SUCCEEDED), EndReason.SUCCEEDED)
