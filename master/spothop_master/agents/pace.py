"""How long agents are asked to wait until their next sync: longer while the master is behind.

A master that has more to do than it can do answers later and later, until answers come after their
agents have given up and everything is sent twice. So it says at each answer when it wants the next
sync, and that is later while answers are slow, up to `MOST` times the usual. What is urgent (a
notice, a commit, an exit) an agent sends at once all the same, and the wait for silence begins when
the next sync is due (`Heartbeats.expect`).

The level is what an answer takes, smoothed: it rises with slow answers and falls with time, slowly,
because answers are quick as soon as fewer come, and the next moment all of them would come again.
Stretched waits differ from agent to agent, so that those who came together do not stay together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

BOUND_S = 0.25
"""An answer may take so long."""
MOST = 4.0
RISE = 0.05
"""The share of one answer in the level: a single slow one says nothing."""
HALF_LIFE = timedelta(seconds=60)
SPREAD = 0.25
"""Of a stretched wait."""
_GOLDEN = 0.618033988749895
"""Multiples of it, without their whole parts, lie evenly however many there are (Knuth, The Art of
Computer Programming, vol. 3, section 6.4)."""


class Pace:
    """Thread-safe. `silent_after_s`: a wait is a third of it at most, because other masters know
    nothing of it. `random` gives numbers from 0 to 1."""

    def __init__(
        self, now: datetime, random: Callable[[], float], *, every_s: float, silent_after_s: float
    ) -> None:
        self._most = max(1.0, min(MOST, silent_after_s / (3 * every_s)))
        self._random = random
        self._level_s = 0.0
        self._place = 0.0
        self._at = now
        self._lock = threading.Lock()

    def answered(self, took: timedelta, now: datetime) -> None:
        """A sync that needed the database."""
        with self._lock:
            level_s = self._fallen(now)
            slower_s = max(0.0, took.total_seconds() - level_s)
            self._level_s, self._at = level_s + RISE * slower_s, now

    def delay_s(self, usual_s: float, now: datetime) -> float:
        """Until the next sync, in seconds."""
        with self._lock:
            stretch = min(self._most, self._fallen(now) / BOUND_S)
        if stretch <= 1:
            return usual_s
        return usual_s * max(1.0, stretch * (1 - SPREAD * self._random()))

    def first_delay_s(self, usual_s: float) -> float:
        """For an agent that a master hears for the first time after its start, when all of them
        come at once: half an interval to one and a half, spread evenly."""
        with self._lock:
            self._place = (self._place + _GOLDEN) % 1
            return usual_s * (0.5 + self._place)

    def _fallen(self, now: datetime) -> float:
        passed = max(timedelta(), now - self._at)
        return float(self._level_s * 0.5 ** (passed / HALF_LIFE))
