"""Progress of many VMs, written in one transaction.

Most syncs carry nothing but steps and metrics, and now and then a committed checkpoint (`saves`).
One transaction each would cost a commit with its wait for the disk, a dozen statements, and a place
in the queue of writers, of whom SQLite lets in one. So those that wait at the same
time are written together: one statement reads what all of them need, one a table writes it. What it
guarantees:

1. A sync is answered after the commit that holds its reports, never before.
2. Only the plain case is taken (`answers.is_plain`), where every report follows the last one
   without a gap and makes sense, and no metric is too many. All else is told to the caller (None),
   who applies it by the rules of `protocol` and `reports`. Nothing is decided here.
3. What the database refuses hurts nobody else: the batch is halved until the one is found, and that
   one is left to the caller.
4. A lone sync waits for nobody. After a batch of several, or when one came meanwhile, the writer
   rests for `rest_s`: where so many come, the next batch is worth a moment's wait. (A hundred
   notices a second, each written at once by itself, took a whole core.)

Notices are written by the same rules (`notices`), by a writer of their own that comes first to the
write lock, so they wait for one batch of progress at most: the one under way. On PostgreSQL
the rows of the jobs are locked first, as everywhere (`leases.lock`), in the order of their ids, and
VMs are written in the order of theirs, so that no two masters wait for each other. They are locked
by a statement of their own: one that waits for a lock goes on with the other tables' rows as they
were before it waited, and an acknowledged number would fall back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import Session

from spothop.wire import CommittedReport, Envelope, MetricsReport, NoticeReport, StepsReport
from spothop_master.agents import answers, notices, protocol, reports, saves
from spothop_master.agents.limits import MetricNames, metric_names
from spothop_master.agents.notices import Notice
from spothop_master.agents.reading import FaultyEnvelope
from spothop_master.agents.saves import Save
from spothop_master.store import changes, leases
from spothop_master.store.db import Database
from spothop_master.store.schema import Attempt, Metric, Place, VmRow
from spothop_master.store.statistics import FRESH, Statistics

KINDS = frozenset({"steps", "metrics", "committed"})
"""Reports that most syncs carry, and that change no state."""

URGENT = KINDS | {"notice"}
"""What is taken of a sync that waits for no batch of others' progress."""

MOST = 200
"""VMs in one transaction: a notice waits for it."""
REST_S = 0.05

_FACTS = (
    select(
        VmRow.id.label("vm"),
        VmRow.state,
        VmRow.acked_seq,
        VmRow.joined_at,
        VmRow.job_id,
        VmRow.cloud,
        VmRow.region,
        VmRow.zone,
        VmRow.vm_type,
        VmRow.spot,
        VmRow.grace_s,
        VmRow.notice_at,
        Place.node,
        Place.id.label("place"),
        Place.last_step,
        Place.first_step_at,
        Attempt.id.label("attempt"),
        Attempt.number,
        Attempt.state.label("attempt_state"),
        Attempt.fenced_in,
        Attempt.stop_wanted,
        Attempt.restored_step,
        Attempt.step_s,
        Attempt.metrics,
    )
    .join(Place, Place.vm_id == VmRow.id)
    .join(Attempt, Attempt.id == Place.attempt_id)
    .where(Place.living, VmRow.id.in_(bindparam("vms", expanding=True)))
    .order_by(VmRow.job_id, VmRow.id)
)
_VMS = (
    update(VmRow)
    .where(VmRow.id == bindparam("vm"))
    .values(acked_seq=bindparam("acked"), join_hash=None, last_contact_at=bindparam("now"))
)
_PLACES = (
    update(Place)
    .where(Place.id == bindparam("place"))
    .values(last_step=bindparam("step"), last_step_at=bindparam("at"))
)
_ATTEMPTS = (
    update(Attempt)
    .where(Attempt.id == bindparam("attempt"))
    .values(step_s=bindparam("mean_s"), metrics=bindparam("newest"))
)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Of one sync, in the database."""

    acked_seq: int
    step_s: float | None
    """What a step of its attempt takes."""
    answer: protocol.Answer | None = None
    """After a save, which moves the insurance on: what holds now."""


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    vm: str
    envelopes: Sequence[Envelope]
    written: Future[Written | None] = field(default_factory=Future)


@dataclass(kw_only=True)
class _Rows:
    """What one transaction writes."""

    vms: list[dict[str, Any]] = field(default_factory=list)
    places: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)


class ProgressWriter:
    """One per master; a thread of its own while there is something to write."""

    def __init__(
        self,
        db: Database,
        clock: Callable[[], datetime],
        *,
        names: MetricNames | None = None,
        statistics: Statistics = FRESH,
        name: str = "agents-progress",
        urgent: bool = False,
        rest_s: float = REST_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._db = db
        self._clock = clock
        self._names = names or MetricNames()
        self._statistics = statistics
        self._rest_s = rest_s
        self._sleep = sleep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._urgent = urgent
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._busy = False

    def write(self, vm_id: str, envelopes: Sequence[Envelope]) -> Future[Written | None]:
        """Reports of `URGENT` alone. None: not the plain case, nothing of it is written."""
        waiting = _Waiting(vm=vm_id, envelopes=envelopes)
        with self._lock:
            self._waiting.append(waiting)
            begin, self._busy = not self._busy, True
        if begin:
            self._thread.submit(self._work)
        return waiting.written

    def close(self) -> None:
        """What waits is written first."""
        self._thread.shutdown(wait=True)

    def _work(self) -> None:
        while self._goes_on():
            if self._write(None) > 1 or self._waiting:
                self._sleep(self._rest_s)

    def _goes_on(self) -> bool:
        with self._lock:
            self._busy = bool(self._waiting)
            return self._busy

    def _next(self) -> list[_Waiting]:
        """Each VM once: a call that is repeated while the first one waits comes after it."""
        with self._lock:
            found: dict[str, _Waiting] = {}
            for each in self._waiting[:MOST]:
                found.setdefault(each.vm, each)
            self._waiting = [each for each in self._waiting if found.get(each.vm) is not each]
        # a call that was given up is not told: its agent repeats it
        return [each for each in found.values() if each.written.set_running_or_notify_cancel()]

    def _write(self, batch: Sequence[_Waiting] | None) -> int:
        """How many were written or told why not; all that wait when it is this thread's turn to
        write, if no `batch` is named."""
        try:
            with self._db.begin(urgent=self._urgent) as session:
                batch = self._next() if batch is None else batch
                progress = {waiting.vm: waiting.envelopes for waiting in batch}
                written = write(
                    session,
                    progress,
                    now=self._clock(),
                    names=self._names,
                    statistics=self._statistics,
                )
        except Exception as error:  # whatever it is, those who wait must not wait for ever
            batch = batch or self._next()
            if protocol.passes(error):
                for waiting in batch:
                    waiting.written.set_exception(error)
            elif len(batch) == 1:
                batch[0].written.set_result(None)
            else:
                middle = len(batch) // 2
                self._write(batch[:middle])
                self._write(batch[middle:])
        else:
            for waiting in batch:
                waiting.written.set_result(written.get(waiting.vm))
        return len(batch)


def write(
    session: Session,
    progress: Mapping[str, Sequence[Envelope]],
    *,
    now: datetime,
    names: MetricNames,
    statistics: Statistics = FRESH,
) -> dict[str, Written]:
    """The progress of these VMs, of those in the plain case. What they were told already is told
    again and written once. `names` are those of the jobs' metrics."""
    rows, written = _Rows(), {}
    leases.lock_those_of(session, sorted(progress))  # what is read before it may be out of date
    known = session.execute(_FACTS, {"vms": sorted(progress)}).all()
    names.learn(session, [facts.job_id for facts in known])
    for facts in known:
        said = progress[facts.vm]
        if facts.vm not in written and answers.is_plain(facts):
            if names.surplus(session, facts.job_id, metric_names(said)):
                continue
            taken = _take(rows, facts, said, now)
            if taken is not None:
                written[facts.vm] = taken
    changes.tell_progress(session, rows.jobs)
    connection = session.connection()
    for statement, values in (
        (_VMS, sorted(rows.vms, key=lambda row: str(row["vm"]))),
        (_PLACES, rows.places),
        (_ATTEMPTS, rows.attempts),
        (insert(Metric), rows.metrics),
    ):
        if values:
            connection.execute(statement, values)
    if rows.saves:
        saves.write(session, rows.saves)
    if rows.notices:
        notices.write(session, rows.notices)
        for notice in rows.notices:
            vm = notice.facts.vm
            written[vm] = replace(written[vm], answer=answers.drained(written[vm].step_s))
    if rows.saves:
        saved = [save.facts.vm for save in rows.saves]
        for vm, found in answers.read(session, saved, statistics, now=now, writes=True).items():
            written[vm] = replace(written[vm], answer=found.answer)
    return written


def _take(rows: _Rows, facts: Any, envelopes: Sequence[Envelope], now: datetime) -> Written | None:
    """Add what these reports change. None: one of them is not plain, and nothing is added."""
    new = protocol.without_gaps(envelopes, facts.acked_seq)
    if not all(_fits(envelope, facts.number) for envelope in new):
        return None
    if not new:
        return Written(acked_seq=facts.acked_seq, step_s=facts.step_s)
    step, mean_s, at = facts.last_step or 0, facts.step_s, None
    logged: list[dict[str, Any]] = []
    saved: list[Save] = []
    noticed: list[Notice] = []
    for envelope in new:
        report, made = envelope.report, protocol.made_at(envelope, facts.joined_at, now)
        if isinstance(report, StepsReport):
            mean_s = reports.mean_step_s(mean_s, facts.restored_step, report)
            step, at = max(step, report.step), made
        elif isinstance(report, MetricsReport):
            logged += reports.metric_rows(facts.job_id, facts.number, report, at=made)
        elif isinstance(report, CommittedReport):
            saved.append(Save(facts=facts, report=report, at=made))
        elif isinstance(report, NoticeReport):
            last = facts.last_step if at is None else step
            noticed.append(Notice(facts=facts, report=report, at=made, step=last))
    if noticed and (len(noticed) > 1 or not notices.is_first(facts)):
        return None
    rows.metrics += logged
    rows.saves += saved
    rows.notices += noticed
    rows.jobs.add(facts.job_id)
    rows.vms.append({"vm": facts.vm, "acked": new[-1].seq, "now": now})
    if at is not None:
        rows.places.append({"place": facts.place, "step": step, "at": at})
    if at is not None or logged:
        newest = {**(facts.metrics or {}), **reports.newest_values(logged)}
        values = {"attempt": facts.attempt, "mean_s": mean_s, "newest": newest or None}
        rows.attempts.append(values)
    return Written(acked_seq=new[-1].seq, step_s=mean_s)


def _fits(envelope: Envelope, number: int) -> bool:
    return (
        envelope.attempt == number
        and envelope.report.kind in URGENT
        and not isinstance(envelope, FaultyEnvelope)
    )


def is_progress(envelopes: Iterable[Envelope], kinds: Collection[str] = KINDS) -> bool:
    """Nothing but reports of these kinds, that make sense."""
    return all(
        envelope.report.kind in kinds and not isinstance(envelope, FaultyEnvelope)
        for envelope in envelopes
    )
