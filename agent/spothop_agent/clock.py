"""The two clocks of a VM. Neither steps when the wall clock is set."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Read only in the tasks; decisions get the time as an argument."""

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC in seconds: the clock of deadlines, shared with the training process."""

    def boottime(self) -> float:
        """CLOCK_BOOTTIME in seconds: goes on while the VM is suspended; the clock of ages."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
