"""What one VM may send: limits that are wide for every training job, and bound a VM that floods.

Each VM has a bucket for the values that it reports, one for the bytes of its log, and one for its
syncs and their size. They fill at a rate, up to a burst; what is sent is taken out (token bucket).
Three rules:

1. A VM that has used up its bucket waits, and nobody else does: it is answered from memory.
2. What a job's fate depends on never waits: a notice, a commit, an exit. It may empty a bucket
   below zero; then what comes after it waits the longer.
3. Nothing is lost that the agent can thin by itself: it keeps the newest step, every other metric,
   and the newest part of the log.

Names of metrics are bounded per job, because every list of jobs shows them: those that came first
stay. All of this is in memory, and each master's own.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

from sqlalchemy.orm import Session

from spothop.wire import Envelope, MetricsReport
from spothop_master.agents.quarantine import Quarantine
from spothop_master.agents.reading import Fault, FaultyEnvelope
from spothop_master.store import metrics

BURST_S = 30.0
"""A full bucket holds what comes in so long a time at the permitted rate."""
FORGET_AFTER_S = 10 * BURST_S
"""A bucket that nobody has used for so long is full."""
MOST_JOBS = 10_000
"""Whose names are remembered."""

THINNABLE = frozenset({"steps", "metrics", "message", "phase"})
"""Reports that may wait: nothing is decided by them."""

OPEN = float("inf")

SYNC_BYTES = 16 * 1024
"""A sync counts as many as it has of these, begun ones included."""


@dataclass
class _Level:
    left: float
    at: datetime


class Buckets:
    """One for each VM; `rate` units a second. Thread-safe."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._burst = rate * BURST_S
        self._levels: dict[str, _Level] = {}
        self._lock = threading.Lock()

    def take(self, vm_id: str, units: float, *, now: datetime, owed: bool = False) -> float:
        """Seconds to wait before this much may be sent; 0 where it was taken. Where the bucket is
        full, more than it holds may be taken at once; what is `owed` may always."""
        if self._rate == OPEN:
            return 0.0
        with self._lock:
            level = self._level(vm_id, now)
            if not owed and level.left < min(units, self._burst):
                return (min(units, self._burst) - level.left) / self._rate
            level.left = max(level.left - units, -self._burst)
            return 0.0

    def _level(self, vm_id: str, now: datetime) -> _Level:
        level = self._levels.get(vm_id)
        if level is None:
            self._levels = {
                vm: known
                for vm, known in self._levels.items()
                if (now - known.at).total_seconds() < FORGET_AFTER_S
            }
            level = self._levels[vm_id] = _Level(self._burst, now)
        past_s = max((now - level.at).total_seconds(), 0.0)  # the clock may go back
        level.left, level.at = min(level.left + past_s * self._rate, self._burst), now
        return level


class MetricNames:
    """The names of each job's metrics, at most `metrics.MAX_NAMES`. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def surplus(self, session: Session, job_id: str, names: Collection[str]) -> list[str]:
        """Those among `names` that are too many; the others are the job's from now on."""
        self.learn(session, [job_id])
        with self._lock:
            known = self._known.setdefault(job_id, set())
            new = [name for name in names if name not in known]
            room = max(metrics.MAX_NAMES - len(known), 0)
            known.update(new[:room])
            return new[room:]

    def learn(self, session: Session, job_ids: Collection[str]) -> None:
        """Read those of the jobs that are not in memory, in one query."""
        with self._lock:
            unknown = sorted({job_id for job_id in job_ids if job_id not in self._known})
        if not unknown:
            return
        found = metrics.names(session, unknown)
        with self._lock:
            for job_id, names in found.items():
                if job_id not in self._known and len(self._known) >= MOST_JOBS:
                    oldest = next(iter(self._known))
                    del self._known[oldest]
                    self._told.discard(oldest)
                self._known.setdefault(job_id, set(names))

    def tell(self, job_id: str) -> bool:
        """True once for a job."""
        with self._lock:
            before = len(self._told)
            self._told.add(job_id)
            return len(self._told) > before


@dataclass(frozen=True)
class VmLimits:
    """What `protocol.apply` and the routes of agents keep to."""

    reports: Buckets = field(default_factory=lambda: Buckets(OPEN))
    logs: Buckets = field(default_factory=lambda: Buckets(OPEN))
    syncs: Buckets = field(default_factory=lambda: Buckets(OPEN))
    names: MetricNames = field(default_factory=MetricNames)
    quarantine: Quarantine = field(default_factory=Quarantine)


def units(envelopes: Sequence[Envelope]) -> int:
    """A report counts one, and each value of metrics one more: so many rows are written."""
    values = (e.report.values for e in envelopes if isinstance(e.report, MetricsReport))
    return len(envelopes) + sum(map(len, values))


def metric_names(envelopes: Sequence[Envelope]) -> dict[str, None]:
    """Each once, in the order in which they were logged."""
    values = (e.report.values for e in envelopes if isinstance(e.report, MetricsReport))
    return dict.fromkeys(chain.from_iterable(values))


def waits(envelopes: Sequence[Envelope]) -> bool:
    """All of them may wait."""
    return all(envelope.report.kind in THINNABLE for envelope in envelopes)


def thinned(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Those that may not wait as they are; in the place of the others that they are left out."""
    why = "this VM reports more than the master's max_reports_per_s"
    return [
        envelope
        if envelope.report.kind not in THINNABLE
        else FaultyEnvelope(
            **{name: getattr(envelope, name) for name in Envelope.model_fields},
            fault=Fault.of_report(envelope.report, why),
        )
        for envelope in envelopes
    ]
