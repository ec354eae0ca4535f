"""The master's time: UTC that never jumps.

Everything that the master decides by is a difference: how long a VM has been silent, whether a
deadline is over. When the machine's clock is set back or forth (an administrator, NTP after a long
time without network), such differences are wrong by the step: a step forwards would make every VM
silent at once, and one backwards would stretch every wait. So the wall clock is read once, at the
start, and CLOCK_MONOTONIC goes on from there; NTP's slow corrections act on that one too
(clock_gettime(2)). The next start of the master follows a step. Where several masters share a
database, all of them follow its server's clock in place of their own machine's: at the start at
once, and after that a little at a time (`follow`). The price: after a step, or after
the machine has slept, what we write down is late or early by as much until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class SteadyClock:
    """Called, it gives the present moment, aware, in UTC. `monotonic` is in seconds."""

    def __init__(
        self,
        *,
        wall: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._wall, self._began = wall(), monotonic()

    def follow(self, truth: datetime, *, at_most_s: float | None = None) -> None:
        """It is `truth` now. No more than `at_most_s` are made up for at a time: a step forwards
        would make every VM silent."""
        error_s = (truth - self()).total_seconds()
        if at_most_s is not None:
            error_s = max(-at_most_s, min(at_most_s, error_s))
        self._wall += timedelta(seconds=error_s)

    def __call__(self) -> datetime:
        return self._wall + timedelta(seconds=self._monotonic() - self._began)
