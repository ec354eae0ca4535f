"""When each VM was last heard of, in memory: a heartbeat costs no write.

After a restart of the master every VM counts as just heard of, because nobody listened before.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta

from spothop.wire import AnyDirective

DIRECTIVES_LIVE = timedelta(seconds=2)
"""Cached directives are read again after this: another master may have changed something."""


class Presence:
    """Thread-safe. `now` is when the master began to listen."""

    def __init__(self, now: datetime) -> None:
        self._began = now
        self._heard: dict[str, datetime] = {}
        self._version = 0
        self._directives: dict[str, tuple[int, datetime, tuple[AnyDirective, ...]]] = {}
        self._lock = threading.Lock()

    def touch(self, vm_id: str, now: datetime) -> None:
        with self._lock:
            self._heard[vm_id] = now

    def last_contact(self, vm_id: str) -> datetime | None:
        """None: not since this master began."""
        with self._lock:
            return self._heard.get(vm_id)

    def silent_for(self, vm_id: str, now: datetime) -> timedelta:
        return max(timedelta(), now - (self.last_contact(vm_id) or self._began))

    def forget(self, vm_id: str) -> None:
        """It is over."""
        with self._lock:
            self._heard.pop(vm_id, None)
            self._directives.pop(vm_id, None)

    # -- directives that were read from the database, until anything changes ---------------------

    @property
    def version(self) -> int:
        """Read it before the directives are, and hand it to `keep`."""
        return self._version

    def changed(self) -> None:
        """Something was written that may change directives; call it after the commit."""
        with self._lock:
            self._version += 1

    def keep(
        self, vm_id: str, directives: Sequence[AnyDirective], *, version: int, now: datetime
    ) -> None:
        with self._lock:
            self._directives[vm_id] = (version, now, tuple(directives))

    def kept(self, vm_id: str, *, now: datetime) -> list[AnyDirective] | None:
        """None: read them from the database."""
        with self._lock:
            known = self._directives.get(vm_id)
            if known is None or known[0] != self._version or now - known[1] > DIRECTIVES_LIVE:
                return None
            return list(known[2])
