"""Deletes what `settings.retention` does not keep, so that a year of history slows nothing down.

What it must guarantee: no sync waits for it for longer than one small transaction takes, and it may
be killed anywhere. Three rules:

1. What may go is found in transactions that only read, page by page. What is written deletes `ROWS`
   rows by their primary keys, and then rests for several times as long as that took.
2. Whether something may go depends on the thing and the moment alone (`core.thinning`), never on
   how far another run got. A run that is killed, or two masters at once, come to the same end.
3. What belongs to a job that has not ended is never touched but for its old values, events and
   figures: neither its log, nor a bundle that it needs. That is asked again before a file goes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from spothop.figures import size
from spothop_master.agents.sessions import Sessions
from spothop_master.boot.agent_zip import AgentZips
from spothop_master.bundles import BundleStore
from spothop_master.core import thinning
from spothop_master.core.thinning import FEWEST, Point
from spothop_master.logs import LogStore
from spothop_master.settings import MasterSettings
from spothop_master.store import job_removal, quotas
from spothop_master.store import retention as rows
from spothop_master.store.db import Database
from spothop_master.store.schema import (
    SUMMED_BY_ZONE,
    Base,
    Event,
    Metric,
    Observation,
    Price,
    Refusal,
)
from spothop_master.store.zone_observations import FADED_HALF_LIVES

log = logging.getLogger(__name__)

ROWS = 200
"""Deleted in one transaction."""

REST = 4
"""Times as long as a transaction took, until the next one."""

PAGES = 100
"""Of SQLite's file, given back in one transaction."""

GRACE = timedelta(days=1)
"""A bundle that was uploaded or asked for so lately may belong to a job that is being submitted,
and a log may get its last lines."""


class Retention:
    """One pass at a time. `rest` waits for so many seconds; True when the master ends."""

    def __init__(
        self,
        db: Database,
        settings: MasterSettings,
        *,
        logs: LogStore,
        bundles: BundleStore,
        sessions: Sessions,
        clock: Callable[[], datetime],
        rest: Callable[[float], bool],
        agent_zips: AgentZips | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._settings = settings.retention
        self._quota = settings.quota
        self._clouds = settings.clouds
        self._half_life_s = settings.mttp_half_life_s
        self._logs = logs
        self._bundles = bundles
        self._sessions = sessions
        self._agent_zips = agent_zips
        self._clock = clock
        self._rest = rest
        self._monotonic = monotonic
        self._done: set[str] = set()
        """Jobs that ended so long ago that nothing more of them will go."""
        self._stopped = False
        self._deleted = 0
        self._going: dict[type[Base], list[int]] = {}
        """Ids that are to be deleted in the next transaction."""
        self.longest_write_s = 0.0
        """Of one transaction; nobody else writes into SQLite meanwhile."""

    def run_once(self) -> None:
        """Whatever is left at the end of the master goes in the next run."""
        now = self._clock()
        self._deleted, self._going = 0, {}
        self._of_jobs(now)
        self._of_regions(now)
        self._of_clouds(now)
        for model in [*self._going]:
            self._delete(model)
        if self._deleted:
            log.info("retention: %d rows deleted", self._deleted)
            self._shrink()
        self._logs.settle()
        self._files_of_logs(now)
        self._files_of_bundles(now)
        self._whole_jobs(now)
        with self._db.read() as session:
            living, zips = rows.living_vms(session), rows.zips_of_living_vms(session)
        self._sessions.keep(living)
        if self._agent_zips is not None:
            self._agent_zips.remove_unused(zips)

    # -- rows ------------------------------------------------------------------------------------

    def _of_jobs(self, now: datetime) -> None:
        chatter = now - timedelta(seconds=self._settings.events_s)
        figures = now - timedelta(seconds=self._settings.observations_s)
        oldest = min(chatter, figures, now - timedelta(seconds=self._settings.metrics_tenth_s))
        self._pages(Event, rows.old_chatter, None, before=chatter)
        for job_id, ended_at in self._jobs():
            if job_id in self._done:
                continue
            self._thin(job_id, now)
            self._pages(Event, rows.old_chatter, job_id, before=chatter)
            self._pages(Observation, rows.old_observations, job_id, before=figures)
            if ended_at is not None and ended_at < oldest:
                self._done.add(job_id)

    def _jobs(self) -> Iterator[tuple[str, datetime | None]]:
        page: list[tuple[str, datetime | None]] = []
        while not self._stopped:
            with self._db.read() as session:
                page = rows.jobs_after(session, page[-1][0] if page else "")
            if not page:
                return
            yield from page

    def _thin(self, job_id: str, now: datetime) -> None:
        rule = thinning.Rule(
            full=timedelta(seconds=self._settings.metrics_full_s),
            tenth=timedelta(seconds=self._settings.metrics_tenth_s),
        )
        with self._db.read() as session:
            names = rows.curves(session, job_id, longer_than=FEWEST)
        for name in names:
            kept = thinning.kept(self._points(job_id, name), rule, now=now)
            for point in self._points(job_id, name):
                if not thinning.stays(point, kept, rule, now=now):
                    self._drop(Metric, [point.id])

    def _points(self, job_id: str, name: str) -> Iterator[Point]:
        page: list[Point] = []
        while not self._stopped:
            with self._db.read() as session:
                page = rows.points_after(session, job_id, name, page[-1] if page else None)
            if not page:
                return
            yield from page

    def _of_regions(self, now: datetime) -> None:
        """Figures that the statistics do not read any more."""
        age_s = max(self._settings.observations_s, FADED_HALF_LIVES * self._half_life_s)
        before = now - timedelta(seconds=age_s)
        with self._db.read() as session:
            regions = rows.regions(session)
        for region in regions:
            for kind in SUMMED_BY_ZONE:
                self._pages(Observation, rows.old_figures, region, kind, before=before)

    def _of_clouds(self, now: datetime) -> None:
        keep = self._settings
        refused = now - timedelta(seconds=keep.refusals_s)
        self._pages(Refusal, rows.old_refusals, before=refused)
        self._pages(Price, rows.old_prices, before=now - timedelta(seconds=keep.prices_s))
        with self._db.begin() as session:
            self._deleted += rows.forget_strays(session, self._clouds, before=refused)

    def _whole_jobs(self, now: datetime) -> None:
        if self._settings.jobs_s is None:
            return
        before, job_ids = now - timedelta(seconds=self._settings.jobs_s), [""]
        while not self._stopped:
            with self._db.read() as session:
                job_ids = job_removal.removable(session, before=before, after=job_ids[-1])
            if not job_ids:
                return
            for job_id in job_ids:
                self._whole_job(job_id)

    def _whole_job(self, job_id: str) -> None:
        gone = False
        while not (gone or self._stopped):
            with self._db.begin() as session:
                began = self._monotonic()
                gone = job_removal.remove(session, job_id, most=ROWS)
            self._pause(self._monotonic() - began)
        if gone:
            self._logs.forget(job_id)
            log.info("retention: job %s and all that was known of it deleted", job_id)

    def _pages(
        self,
        model: type[Base],
        find: Callable[..., list[int]],
        *of: object,
        before: datetime,
    ) -> None:
        """All ids that `find` has, page by page."""
        after = 0
        while not self._stopped:
            with self._db.read() as session:
                ids = find(session, *of, before=before, after=after)
            if not ids:
                return
            self._drop(model, ids)
            after = ids[-1]

    def _drop(self, model: type[Base], ids: list[int]) -> None:
        """As soon as there are enough for a transaction."""
        self._going.setdefault(model, []).extend(ids)
        if len(self._going[model]) >= ROWS:
            self._delete(model)

    def _delete(self, model: type[Base]) -> None:
        ids = self._going.pop(model)
        for first in range(0, len(ids), ROWS):
            if self._stopped:
                break
            some = ids[first : first + ROWS]
            with self._db.begin() as session:
                began = self._monotonic()  # after the wait for the lock
                rows.remove(session, model, some)
            self._pause(self._monotonic() - began)
            self._deleted += len(some)

    def _pause(self, took_s: float) -> None:
        self.longest_write_s = max(self.longest_write_s, took_s)
        self._stopped = self._rest(REST * took_s)

    def _shrink(self) -> None:
        """Give SQLite's free pages back to the disk, a few at a time."""
        while not self._stopped and self._db.can_shrink():
            began = self._monotonic()
            self._db.shrink(PAGES)
            self._pause(self._monotonic() - began)

    # -- files -----------------------------------------------------------------------------------

    def _files_of_logs(self, now: datetime) -> None:
        kept = self._logs.folders()
        with self._db.read() as session:
            ended = rows.ends_of_all(session, list(kept))
            owners = quotas.owners_of(session, kept)
            limits = quotas.log_limits(session, self._quota)
        total = sum(kept.values())
        of_owner: Counter[int] = Counter()
        for job_id, owner in owners.items():
            of_owner[owner] += kept[job_id]
        age = timedelta(seconds=self._settings.logs_s)
        for job_id, ended_at in sorted(ended.items(), key=lambda each: each[1]):
            old, full = now - ended_at >= age, total > self._settings.logs_bytes
            owner = owners.get(job_id, 0)
            over = owner in limits and of_owner[owner] > limits[owner]
            if not kept[job_id] or not (old or ((full or over) and now - ended_at >= GRACE)):
                continue
            if old:
                days = self._settings.logs_s / 86_400
                why = f"logs stay for {days:g} days after the end of a job"
            elif full:
                why = f"all logs together had more than {size(self._settings.logs_bytes)}"
            else:
                why = f"the logs of its user had more than {size(limits[owner])}, their quota"
            text = f"this log ({size(kept[job_id])}) was deleted on {now:%Y-%m-%d}: {why}"
            self._logs.remove(job_id, text)
            total -= kept[job_id]
            of_owner[owner] -= kept[job_id]
            log.info("retention: job %s: %s", job_id, text)

    def _files_of_bundles(self, now: datetime) -> None:
        kept = self._bundles.files()
        with self._db.read() as session:
            used = rows.bundles_of_jobs(session)
        with self._db.begin() as session:
            rows.forget_uploads(session, kept, before=now - GRACE)
        idle = {
            name: max(file.used_at, used.get(name) or file.used_at)
            for name, file in kept.items()
            if name not in used or used[name] is not None
        }
        total = sum(file.bytes for file in kept.values())
        age = timedelta(seconds=self._settings.bundles_s)
        for name, last in sorted(idle.items(), key=lambda each: each[1]):
            old, full = now - last >= age, total > self._settings.bundles_bytes
            if not (old or full) or now - kept[name].used_at < GRACE:
                continue
            with self._db.begin() as session:  # so that no job that needs it is submitted meanwhile
                if rows.is_needed(session, name):
                    continue
                gone = self._bundles.remove(session, name, kept[name])
            if not gone:
                continue
            total -= kept[name].bytes
            log.info("retention: code bundle %s deleted (%s)", name, size(kept[name].bytes))
        self._bundles.tidy()
