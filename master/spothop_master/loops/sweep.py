"""Ends what no row owns: each cloud's listing by owner tag against our rows.

Rows that are `terminating` are the supervise loop's: it asks until the listing says they are over.
When a VM without a living row may be ended is decided in `core.orphans`; what was found is in
`strays`, where users see it, and where an admin says that those that are held may go.

Each cloud is swept by itself (`sweep`), so that one that hangs delays no other one, and each VM has
its own back-off: one that its cloud does not end keeps no other one alive.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import select

from spothop.backoff import delay_s
from spothop.wire import VmState
from spothop_master.clouds.base import Cloud, CloudError, CloudVmState, Vm
from spothop_master.clouds.watcher import ADAPTER_FAULT, CloudWatcher, Listing
from spothop_master.core import orphans
from spothop_master.core.orphans import HoldLimits, Listed, Orphan
from spothop_master.settings import MasterSettings
from spothop_master.store import strays
from spothop_master.store.db import Database
from spothop_master.store.schema import Event, VmRow

log = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)

WAIT_S = 30.0
"""For one cloud's listing; a later answer is for the next pass."""

BACKOFF_BASE_S, BACKOFF_MAX_S = 15.0, 600.0
"""After a cloud has refused to end a VM."""


def hold_limits(settings: MasterSettings) -> HoldLimits:
    return HoldLimits(share=settings.stray_share, at_least=settings.strays_at_least)


class Sweep:
    """Remembers between passes what it saw. Clouds may be swept side by side; of one cloud, one
    pass at a time. Make it before the loops begin to write: what is older tells whose database this
    is.
    """

    def __init__(
        self,
        db: Database,
        clouds: Mapping[str, Cloud],
        watcher: CloudWatcher,
        clock: Callable[[], datetime],
        *,
        limits: HoldLimits,
        attention: MutableMapping[str, str] | None = None,
        grace: timedelta = GRACE,
        rng: random.Random | None = None,
    ) -> None:
        self._db = db
        self._clouds = clouds
        self._watcher = watcher
        self._clock = clock
        self._limits = limits
        self._attention = {} if attention is None else attention
        self._grace = grace
        self._rng = rng or random.Random()  # only for jitter
        self._orphans: dict[str, dict[str, Orphan]] = {}
        self._looked_at: dict[tuple[str, str | None], datetime] = {}
        """When the listing that was looked at last began, by cloud and region."""
        self._asked: set[tuple[str, str]] = set()
        """Whose end the cloud has accepted: by cloud and id."""
        self._clean: set[str] = set()
        """Clouds of which no stray is known, and none written down."""
        with db.read() as session:
            self._written = strays.written(session, started_at=clock())

    def run_once(self) -> None:
        """Every cloud, one after the other."""
        for name in self._clouds:
            self.sweep(name)

    def sweep(self, name: str) -> None:
        """One cloud; waits for its listings, `WAIT_S` at most. Of a region that gave no new one
        nothing is judged, and nothing ended: looking twice at one listing proves nothing more."""
        known = self._watcher.fresh_listings(name, wait_s=WAIT_S)
        fresh = [
            listing
            for listing in known
            if listing.began_at != self._looked_at.get((name, listing.region))
        ]
        for listing in fresh:
            self._looked_at[name, listing.region] = listing.began_at
            self._orphans[name] = self._look(self._orphans.get(name, {}), listing)
        if fresh:
            self._sweep(name, self._clouds[name], known, fresh)

    def _look(self, before: Mapping[str, Orphan], listing: Listing) -> dict[str, Orphan]:
        """The orphans of its cloud after this listing; elsewhere they are those of before."""
        living = {
            vm.id: Listed(token=vm.token, pool=vm.pool, launched_at=vm.requested_at)
            for vm in _living(listing)
        }
        rows = self._rows({vm.token for vm in living.values()})
        found = orphans.look(living, rows, before, listed_at=listing.began_at)
        elsewhere = {
            vm_id: orphan
            for vm_id, orphan in before.items()
            if not listing.covers(orphan.pool.region)
        }
        return {**elsewhere, **found}

    def _sweep(
        self, name: str, cloud: Cloud, known: Sequence[Listing], fresh: Sequence[Listing]
    ) -> None:
        """`fresh`: of those that are known, the ones that were looked at now."""
        found = self._orphans[name]
        if not found and name in self._clean:
            return
        proven = orphans.to_terminate(found, grace=self._grace)
        for orphan in self._to_end(name, known, proven):
            if any(listing.covers(orphan.pool.region) for listing in fresh):
                self._terminate(name, cloud, orphan)

    def _to_end(
        self, name: str, known: Sequence[Listing], proven: Sequence[Orphan]
    ) -> list[Orphan]:
        """Write down what was found; those that may be ended now."""
        now, found = self._clock(), self._orphans[name]
        listed = sum(len(_living(listing)) for listing in known)
        limits = self._watcher.limits(name)
        fresh = [orphan for orphan in proven if (name, orphan.cloud_id) not in self._asked]
        why = orphans.hold(fresh, listed=listed, limits=self._limits, written=self._written)
        with self._db.begin() as session:
            held_before = strays.held(session, name)
            strays.keep_only(
                session,
                name,
                found.keys(),
                judged=lambda region: (
                    not limits.covers(region) or any(listing.covers(region) for listing in known)
                ),
            )
            rows = [
                strays.note(session, name, orphan, held=why if orphan in fresh else None, now=now)
                for orphan in proven
            ]
            held = strays.held(session, name)
            if held and not held_before:
                text = f"{name}: {_many(len(held))} not ended: {held[0].held}; {HINT}"
                log.warning("%s", text)
                session.add(Event(at=now, kind="strays", text=text, data={"cloud": name}))
            ready = {row.cloud_id for row in rows if row.may_end(now)}
            is_clean = not found and not strays.any_of(session, name)
        if is_clean:
            self._clean.add(name)
        else:
            self._clean.discard(name)
        subject = f"strays in {name}"
        if held:
            self._attention[subject] = held[0].held
        else:
            self._attention.pop(subject, None)
        return [orphan for orphan in proven if orphan.cloud_id in ready]

    def _terminate(self, name: str, cloud: Cloud, orphan: Orphan) -> None:
        try:
            cloud.terminate(orphan.cloud_id)
        except CloudError as error:
            self._failed(name, orphan, str(error))
        except Exception:  # a fault of the adapter
            log.exception("cloud %s: orphan %s", name, orphan.cloud_id)
            self._failed(name, orphan, ADAPTER_FAULT)
        else:
            self._ended(name, orphan)

    def _failed(self, name: str, orphan: Orphan, error: str) -> None:
        now = self._clock()
        with self._db.begin() as session:
            row = strays.get(session, name, orphan.cloud_id)
            if row is None:  # another master saw it end
                return
            wait_s = delay_s(
                row.failures + 1,
                base_s=BACKOFF_BASE_S,
                max_s=BACKOFF_MAX_S,
                jitter=self._rng.random(),
            )
            text = f"{name} does not end VM {orphan.cloud_id}: {error}"
            log.warning("%s; asking again in %.0f s", text, wait_s)
            if row.error != error:
                session.add(_event(orphan, text, cloud=name, now=now))
            row.failures, row.error = row.failures + 1, error
            row.next_at = now + timedelta(seconds=wait_s)

    def _ended(self, name: str, orphan: Orphan) -> None:
        """The cloud accepted it; it is asked for again until the listing agrees. Told once a VM."""
        if (name, orphan.cloud_id) in self._asked:
            return
        self._asked.add((name, orphan.cloud_id))
        with self._db.begin() as session:
            if (stray := strays.get(session, name, orphan.cloud_id)) is not None:
                stray.failures, stray.error, stray.next_at = 0, "", None
            row = session.scalar(select(VmRow).where(VmRow.token == orphan.token))
            why = "its row is over" if row else "no row has its token"
            text = f"terminating {name} VM {orphan.cloud_id}: {why}"
            event = _event(orphan, text, cloud=name, now=self._clock())
            if row is not None:
                event.job_id, event.vm_id = row.job_id, row.id
            session.add(event)

    def _rows(self, tokens: set[str]) -> dict[str, VmState]:
        with self._db.read() as session:
            found = session.execute(
                select(VmRow.token, VmRow.state).where(VmRow.token.in_(tokens))
            ).all()
        return {row[0]: VmState(row[1]) for row in found}


def _living(listing: Listing) -> list[Vm]:
    return [vm for vm in listing.vms if vm.state is not CloudVmState.TERMINATED]


HINT = "`spothop vms --strays` lists them, `spothop vms --end-strays` ends them"


def _many(count: int) -> str:
    return (
        "1 VM that no row owns is held,"
        if count == 1
        else f"{count} VMs that no row owns are held,"
    )


def _event(orphan: Orphan, text: str, *, cloud: str, now: datetime) -> Event:
    return Event(
        at=now, kind="orphan", text=text, data={"cloud": cloud, "cloud_id": orphan.cloud_id}
    )
