"""The directives for each VM, kept in memory: a heartbeat asks no database.

What it guarantees: no answer is older than the last change of its job or of its VM that this master
knows of. Two rules give that:

1. Each job and each VM has a number. A change takes the number away; the next reader gets a new one
   that was never used before. Numbers of one job say nothing of another, so a change of one job
   leaves the answers of all others where they are.
2. A reader takes the numbers before it reads the database, and its answer is used only while both
   numbers are still the current ones. An answer that was read before a change and arrives after it
   is therefore never used.

The job's own steps change its step time: when that drifts, the answer goes (`steps_take`). Other
masters change jobs, too; that is told within a second or so (`loops.news_of_others`), and while
this master cannot hear of it, a plain heartbeat takes no answer older than `MAX_AGE`. Other jobs
change the statistics that an insurance directive is made from, which nobody announces: so an answer
is used for `max_age` at most. A sync with progress, which has a transaction anyway, finds out in it
whether its attempt still trains on (`progress`).

One version for all jobs was tried first: with many jobs some job changes all the time, and no
answer was ever used twice.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count

from pydantic import TypeAdapter

from spothop.wire import AnyDirective

MAX_AGE = timedelta(seconds=2)

DRIFT = 0.1
"""An insurance save comes at a step, which is a moment only as well as the step time is known."""

_DIRECTIVES: TypeAdapter[tuple[AnyDirective, ...]] = TypeAdapter(tuple[AnyDirective, ...])


def encode(directives: Sequence[AnyDirective]) -> bytes:
    """As JSON."""
    return _DIRECTIVES.dump_json(tuple(directives))


@dataclass(frozen=True)
class Version:
    """Of what a reader is about to read."""

    vm: str
    job: str
    vm_number: int
    job_number: int


@dataclass(frozen=True)
class _Answer:
    version: Version
    read_at: datetime
    directives: tuple[AnyDirective, ...]
    step_s: float | None

    @cached_property
    def encoded(self) -> bytes:
        return encode(self.directives)


class DirectiveCache:
    """Thread-safe. `max_age` is how long a change that nobody announced may go unseen."""

    def __init__(self, max_age: timedelta = MAX_AGE) -> None:
        self._max_age = max_age
        self._numbers = count(1)
        self._of_job: dict[str, int] = {}
        self._of_vm: dict[str, int] = {}
        self._answers: dict[str, _Answer] = {}
        self._lock = threading.Lock()

    def version(self, vm_id: str, job_id: str) -> Version:
        """Ask for it before the directives are read, and hand it to `keep` with them."""
        with self._lock:
            return self._current(vm_id, job_id)

    def keep(
        self,
        version: Version,
        directives: Sequence[AnyDirective],
        *,
        now: datetime,
        step_s: float | None = None,
    ) -> None:
        """Read at `now`, after `version` was asked for, when a step took `step_s`. Without effect
        after a change."""
        with self._lock:
            if self._holds(version):
                self._answers[version.vm] = _Answer(version, now, tuple(directives), step_s)

    def steps_take(self, vm_id: str, step_s: float) -> None:
        """An answer that was made from quite another step time is of no use any more."""
        with self._lock:
            known = self._answers.get(vm_id)
            if known is None or known.step_s is None:
                return
            if abs(step_s - known.step_s) > DRIFT * known.step_s:
                del self._answers[vm_id]

    def get(
        self, vm_id: str, *, now: datetime, max_age: timedelta | None = None
    ) -> list[AnyDirective] | None:
        """None: read them from the database. `max_age` only shortens the cache's own."""
        known = self._known(vm_id, now, max_age)
        return None if known is None else list(known.directives)

    def encoded(
        self, vm_id: str, *, now: datetime, max_age: timedelta | None = None
    ) -> bytes | None:
        """The same as JSON; one that is asked for again is not encoded again."""
        known = self._known(vm_id, now, max_age)
        return None if known is None else known.encoded

    def _known(self, vm_id: str, now: datetime, max_age: timedelta | None) -> _Answer | None:
        most = self._max_age if max_age is None else min(max_age, self._max_age)
        with self._lock:
            known = self._answers.get(vm_id)
            if (
                known is None
                or not self._holds(known.version)
                or not timedelta() <= now - known.read_at <= most  # the clock may go back
            ):
                return None
            return known

    def job_changed(self, job_id: str) -> None:
        """Something was written that may change the directives of this job's VMs. Call it after the
        commit."""
        with self._lock:
            self._of_job.pop(job_id, None)

    def clear(self) -> None:
        """Any job may have changed."""
        with self._lock:
            self._of_job.clear()

    def forget(self, vm_id: str) -> None:
        """The VM is over, or has a new session: nothing that was read for it counts any more."""
        with self._lock:
            self._of_vm.pop(vm_id, None)
            self._answers.pop(vm_id, None)

    def _current(self, vm_id: str, job_id: str) -> Version:
        for numbers, name in ((self._of_vm, vm_id), (self._of_job, job_id)):
            if name not in numbers:
                numbers[name] = next(self._numbers)
        return Version(vm_id, job_id, self._of_vm[vm_id], self._of_job[job_id])

    def _holds(self, version: Version) -> bool:
        return (
            self._of_vm.get(version.vm) == version.vm_number
            and self._of_job.get(version.job) == version.job_number
        )
