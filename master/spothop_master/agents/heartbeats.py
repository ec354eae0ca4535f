"""When each VM was last heard, in memory: a heartbeat costs no write.

`loops/contacts` writes what is new into the database every few seconds, and reads when other
masters have heard VMs. After a restart of the master every VM counts as just heard, because nobody
listened before. The same holds for every other gap in the listening: while the process was stopped,
or did not reach the database, nobody is silent (`pause`), and after it, as at the moment at which
it becomes this master's turn to judge, all have been heard just now.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta

COUNTED_FOR = timedelta(seconds=1)


class Heartbeats:
    """Thread-safe. `now` is when the master began to listen. `pause`: after so long without
    `exchanged`, if that was ever called, nobody counts as silent."""

    def __init__(self, now: datetime, *, pause: timedelta = timedelta(seconds=10)) -> None:
        self._began = now
        self._pause = pause
        self._exchanged_at: datetime | None = None
        self._elsewhere: dict[str, datetime] = {}
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

    def heard_elsewhere(self, contacts: Mapping[str, datetime]) -> None:
        """By other masters, as the database says."""
        with self._lock:
            for vm_id, at in contacts.items():
                self._elsewhere[vm_id] = max(at, self._elsewhere.get(vm_id, at))

    def known(self) -> set[str]:
        """VMs of which something is remembered."""
        with self._lock:
            return {*self._heard, *self._elsewhere, *self._awaited, *self._due}

    def exchanged(self, now: datetime) -> None:
        """What is heard by all masters up to now is known here."""
        with self._lock:
            if self._paused(now):
                self._began = now
            self._exchanged_at = now

    def listen_anew(self, now: datetime) -> None:
        """It is this master's turn to judge who is silent: all have been heard just now."""
        with self._lock:
            self._began = now

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
                known = self._awaited | self._heard.keys() | self._elsewhere.keys()
                silent = sum(self._silent_for(vm_id, now) >= after for vm_id in known)
                self._counted_at, self._counted = now, (silent, len(known))
            return self._counted

    def last_contact(self, vm_id: str) -> datetime | None:
        """By any master, as far as this one knows; None: not since this one began."""
        with self._lock:
            return self._newest(vm_id)

    def silent_for(self, vm_id: str, now: datetime) -> timedelta:
        """Longer than it was asked to be."""
        with self._lock:
            return self._silent_for(vm_id, now)

    def _silent_for(self, vm_id: str, now: datetime) -> timedelta:
        if self._paused(now):
            return timedelta()
        since = max(self._newest(vm_id) or self._began, self._began)
        return max(timedelta(), now - max(since, self._due.get(vm_id, since)))

    def _newest(self, vm_id: str) -> datetime | None:
        heard = (self._heard.get(vm_id), self._elsewhere.get(vm_id))
        return max((at for at in heard if at is not None), default=None)

    def _paused(self, now: datetime) -> bool:
        at = self._exchanged_at
        return at is not None and now - at > self._pause

    def take_new(self) -> dict[str, datetime]:
        """The newest contact of each VM that was heard since this was last asked."""
        with self._lock:
            found, self._new = self._new, {}
            return found

    def forget(self, vm_id: str) -> None:
        """The VM is over."""
        with self._lock:
            self._heard.pop(vm_id, None)
            self._elsewhere.pop(vm_id, None)
            self._awaited.discard(vm_id)
            self._new.pop(vm_id, None)
            self._due.pop(vm_id, None)
