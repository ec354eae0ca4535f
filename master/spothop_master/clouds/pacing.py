"""How fast one cloud takes launches: a token bucket, in which the next free places are given out.

Who asks is told how long to wait for a place that is theirs then, in the order of asking. So no
caller has to ask again, and a thousand at once are spread over the time that they need.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

LONGEST = timedelta(hours=1)
"""A place that is later was given out by a clock that was set back since."""


class Pacing:
    """Thread-safe. `per_s` launches a second, `burst` of them at once after a rest."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._apart = timedelta(seconds=1 / per_s)
        self._burst = (burst - 1) * self._apart
        self._next: datetime | None = None
        """Where the next place is, if nothing is saved up."""
        self._lock = threading.Lock()

    def wait_s(self, now: datetime) -> float:
        """Seconds until the place that is taken by this call."""
        with self._lock:
            free = now - self._burst
            if self._next is not None and self._next < now + LONGEST:
                free = max(free, self._next)
            self._next = free + self._apart
            return max(0.0, (free - now).total_seconds())
