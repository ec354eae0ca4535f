"""Which jobs to look at now: those that changed, and those whose time has come.

Each job that was looked at left behind what it waits for (`core.due`). It is due again when a row
of it changed, when a moment is reached, when one of its agents is silent for so long, when one that
was silent is heard, when a cloud lists or offers something, or after `RESCAN_S` in any case, for
what nobody told. Silence is asked from memory, so a VM that reports costs no look at its job.
When the clock is set back every job is due: what it waits for may lie hours ahead.

Thread-safe. A change that is told during a look is kept for the next one.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.core.due import Due, Quiet

RESCAN_S = 300.0
"""Seconds after which every job is looked at, whatever it waits for."""

LISTING, OFFERS, SUSPECTS = "listing", "offers", "suspects"
"""What jobs wait for besides time and silence."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    number: int
    """Of the plan: a newer one makes the older ones in the heap void."""
    until: datetime
    """The rescan, or the moment that it waits for."""
    due: Due


@dataclass
class Agenda:
    """`jitter` in [0, 1) spreads the rescans."""

    heartbeats: Heartbeats
    jitter: Callable[[], float]
    _plans: dict[str, _Entry] = field(default_factory=dict)
    _heap: list[tuple[datetime, int, str]] = field(default_factory=list)
    _changed: dict[str, None] = field(default_factory=dict)
    _hurried: dict[str, None] = field(default_factory=dict)
    _waiting: dict[str, set[str]] = field(default_factory=dict)
    """What for -> jobs."""
    _count: int = 0
    _asked_at: datetime | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __bool__(self) -> bool:
        """There is a job."""
        return bool(self._plans or self._changed or self._hurried)

    def changed(self, jobs: Iterable[str]) -> None:
        """Look at them at the next pass."""
        with self._lock:
            self._changed.update(dict.fromkeys(jobs))

    def all_changed(self) -> None:
        """Look at every one."""
        with self._lock:
            self._changed.update(dict.fromkeys(self._plans))

    def hurry(self, jobs: Iterable[str]) -> None:
        """Look at them before all others."""
        with self._lock:
            for job in jobs:
                self._changed.pop(job, None)
                self._hurried[job] = None

    def take_hurried(self) -> list[str]:
        """Those in a hurry, each once."""
        with self._lock:
            found = [*self._hurried]
            self._hurried.clear()
            return found

    def know(self, jobs: Iterable[str]) -> None:
        """Look at those that were never planned."""
        with self._lock:
            self._changed.update(dict.fromkeys(job for job in jobs if job not in self._plans))

    def listed(self) -> bool:
        """A cloud has answered with a listing. True when somebody waited for one."""
        return self._tell(LISTING)

    def offered(self) -> bool:
        """A cloud says what it offers. True when somebody waited for that."""
        return self._tell(OFFERS)

    def plan(self, job: str, due: Due | None, *, now: datetime) -> None:
        """What it waits for now; None: for nothing any more."""
        with self._lock:
            self._drop(job)
            if due is None:
                return
            self._count += 1
            until = now + timedelta(seconds=RESCAN_S * (0.75 + self.jitter() / 2))
            until = until if due.at is None else min(until, due.at)
            entry = self._plans[job] = _Entry(number=self._count, until=until, due=due)
            self._push(job, entry)
            suspects = any(quiet.suspect for quiet in due.quiet.values())
            for what, waits in (
                (LISTING, due.listing),
                (OFFERS, due.offers),
                (SUSPECTS, suspects),
            ):
                if waits:
                    self._waiting.setdefault(what, set()).add(job)

    def due(self, now: datetime) -> list[str]:
        """The jobs to look at, each once; those that changed come first."""
        with self._lock:
            if self._asked_at is not None and now < self._asked_at:
                self._changed.update(dict.fromkeys(self._plans))
            self._asked_at = now
            self._changed.update(dict.fromkeys(self._heard()))
            self._changed.update(dict.fromkeys(self._reached(now)))
            found = [*self._changed]
            self._changed.clear()
            return found

    # -- inside ----------------------------------------------------------------------------------

    def _tell(self, what: str) -> bool:
        with self._lock:
            jobs = self._waiting.get(what, set())
            self._changed.update(dict.fromkeys(sorted(jobs)))
            return bool(jobs)

    def _drop(self, job: str) -> None:
        if self._plans.pop(job, None) is not None:
            for jobs in self._waiting.values():
                jobs.discard(job)

    def _heard(self) -> list[str]:
        """Jobs with a suspect that reports again."""
        return [
            job
            for job in sorted(self._waiting.get(SUSPECTS, ()))
            for vm, quiet in self._plans[job].due.quiet.items()
            if quiet.suspect and self._contact(vm, quiet) > quiet.since
        ]

    def _reached(self, now: datetime) -> list[str]:
        found = []
        while self._heap and self._heap[0][0] <= now:
            _, number, job = heapq.heappop(self._heap)
            entry = self._plans.get(job)
            if entry is None or entry.number != number:
                continue
            if self._next(entry) <= now:
                found.append(job)
            else:  # it was heard meanwhile
                self._push(job, entry)
        return found

    def _push(self, job: str, entry: _Entry) -> None:
        heapq.heappush(self._heap, (self._next(entry), entry.number, job))

    def _next(self, entry: _Entry) -> datetime:
        """The first moment at which it is due by itself, if nothing more is heard."""
        silent = [
            self._contact(vm, quiet) + (quiet.until - quiet.since)
            for vm, quiet in entry.due.quiet.items()
            if quiet.until is not None
        ]
        return min([entry.until, *silent])

    def _contact(self, vm: str, quiet: Quiet) -> datetime:
        """The last one, as far as memory and the facts know."""
        heard = self.heartbeats.last_contact(vm)
        return quiet.since if heard is None else max(heard, quiet.since)
