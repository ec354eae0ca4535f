"""How often an address may try to log in with a wrong token: a token bucket each, in memory."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta

BURST = 10
"""Failures at once."""
EVERY_S = 30.0
"""One more may fail after so long."""
ADDRESSES = 10_000
"""Remembered; the one that failed longest ago is forgotten first."""


class FailedLogins:
    """For one thread: the event loop's."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, datetime] = OrderedDict()
        """When the bucket of an address that failed is full again. Each failure takes one out."""

    def wait_s(self, address: str, now: datetime) -> float:
        """How long this address has to wait (seconds); 0: it may try."""
        missing_s = (self._full_at.get(address, now) - now).total_seconds()
        return max(0.0, missing_s - (BURST - 1) * EVERY_S)

    def failed(self, address: str, now: datetime) -> None:
        """A token from this address was wrong."""
        begins = max(self._full_at.pop(address, now), now)
        self._full_at[address] = begins + timedelta(seconds=EVERY_S)
        if len(self._full_at) > ADDRESSES:
            self._full_at.popitem(last=False)
