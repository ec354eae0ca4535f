"""When each VM was last heard, in memory: a heartbeat costs no write.

`loops/contacts` writes what is new into the database every few seconds. After a restart of the
master every VM counts as just heard, because nobody listened before.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

COUNTED_FOR = timedelta(seconds=1)


class Heartbeats:
    """Thread-safe. `now` is when the master began to listen."""

    def __init__(self, now: datetime) -> None:
        self._began = now
        self._heard: dict[str, datetime] = {}
        self._new: dict[str, datetime] = {}
        self._due: dict[str, datetime] = {}
        self._awaited: set[str] = set()
        self._counted_at: datetime | None = None
        self._counted = (0, 0)
        self._lock = threading.Lock()

    def heard(self, vm_id: str, now: datetime) -> bool:
        """Whether it is the first time since this master began."""
        with self._lock:
            first = vm_id not in self._heard
            self._heard[vm_id] = self._new[vm_id] = now
        return first

    def expect(self, vm_id: str, due: datetime | None) -> None:
        """It was asked to be silent until then; None: no longer than usual."""
        with self._lock:
            if due is not None:
                self._due[vm_id] = due
            else:
                self._due.pop(vm_id, None)

    def await_word(self, vm_id: str) -> None:
        """It trains, as far as the database knows; it may not have been heard yet."""
        with self._lock:
            self._awaited.add(vm_id)

    def count(self, now: datetime, after: timedelta) -> tuple[int, int]:
        """How many are silent for so long or longer, of how many; counted once a second."""
        with self._lock:
            at = self._counted_at
            if at is None or not timedelta() <= now - at < COUNTED_FOR:
                known = self._awaited | self._heard.keys()
                silent = sum(self._silent_for(vm_id, now) >= after for vm_id in known)
                self._counted_at, self._counted = now, (silent, len(known))
            return self._counted

    def last_contact(self, vm_id: str) -> datetime | None:
        """None: not since this master began."""
        with self._lock:
            return self._heard.get(vm_id)

    def silent_for(self, vm_id: str, now: datetime) -> timedelta:
        """Longer than it was asked to be."""
        with self._lock:
            return self._silent_for(vm_id, now)

    def _silent_for(self, vm_id: str, now: datetime) -> timedelta:
        since = self._heard.get(vm_id) or self._began
        return max(timedelta(), now - max(since, self._due.get(vm_id, since)))

    def take_new(self) -> dict[str, datetime]:
        """The newest contact of each VM that was heard since this was last asked."""
        with self._lock:
            found, self._new = self._new, {}
            return found

    def forget(self, vm_id: str) -> None:
        """The VM is over."""
        with self._lock:
            self._heard.pop(vm_id, None)
            self._awaited.discard(vm_id)
            self._new.pop(vm_id, None)
            self._due.pop(vm_id, None)
