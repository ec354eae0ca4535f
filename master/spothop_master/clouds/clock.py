"""How far our clock is ahead of a provider's, so that its moments can be told in our time.

A life begins at a moment of one clock and must end at one of the same: else it is too short, or
too long, by what lies between the two, and so is its price. Rows have our time (requests,
contacts, bills that run on), so a driver adds `ahead` to what its provider says. The provider's
time is in the Date of every HTTP answer (RFC 9110, section 6.6.1), in whole seconds. It was made
somewhere between asking and hearing, so each answer gives bounds, and a slow one wide bounds. What
we believe changes only where it is out of them: else moments would move with every listing, and a
VM that differs from the listing before counts as news.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

from spothop.wire import Verdict
from spothop_master.clouds.base import Check

TOLERANCE = timedelta(seconds=2)
"""Beyond the bounds: a clock is set in small steps all the time."""

WORTH_A_WORD = timedelta(seconds=10)
"""Prices are by the second; signatures are refused from 5 minutes on (AWS) or 15 (Azure)."""


class CloudClock:
    """Thread-safe."""

    def __init__(self) -> None:
        self._ahead = timedelta()
        self._lock = threading.Lock()

    @property
    def ahead(self) -> timedelta:
        """Our clock less the provider's, as of its newest answer; negative when ours is late."""
        return self._ahead

    def heard(self, date: str | None, *, asked_at: datetime, now: datetime) -> None:
        """An answer came with this header; both moments are ours."""
        theirs = _moment(date)
        if theirs is None or now < asked_at:
            return
        low, high = asked_at - theirs - timedelta(seconds=1), now - theirs
        with self._lock:
            if low - TOLERANCE <= self._ahead <= high + TOLERANCE:
                return
            agrees = low - TOLERANCE <= timedelta() <= high + TOLERANCE
            self._ahead = timedelta() if agrees else (low + high) / 2


def check(clock: CloudClock, provider: str) -> Check:
    """Of `spothop doctor`."""
    ahead = clock.ahead
    if abs(ahead) < WORTH_A_WORD:
        told = f"agrees with {provider}'s within {WORTH_A_WORD.total_seconds():.0f} s"
        return Check(subject="clock", verdict=Verdict.OK, fact=told)
    how = "ahead of" if ahead > timedelta() else "behind"
    return Check(
        subject="clock",
        verdict=Verdict.LOOK,
        fact=f"this machine's is {abs(ahead).total_seconds():.0f} s {how} {provider}'s",
        hint="set it by NTP (timedatectl set-ntp true); 5 minutes apart, requests are refused",
    )


def _moment(date: str | None) -> datetime | None:
    if not date:
        return None
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)
