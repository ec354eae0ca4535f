"""The master's time: UTC that never jumps.

Everything that the master decides by is a difference: how long a VM has been silent, whether a
deadline is over. When the machine's clock is set back or forth (an administrator, NTP after a long
time without network), such differences are wrong by the step: a step forwards would make every VM
silent at once, and one backwards would stretch every wait. So the wall clock is read once, at the
start, and CLOCK_MONOTONIC goes on from there; NTP's slow corrections act on that one too
(clock_gettime(2)). The next start of the master follows a step. The price: after a step, or after
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

    def __call__(self) -> datetime:
        return self._wall + timedelta(seconds=self._monotonic() - self._began)
