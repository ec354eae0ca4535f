"""Ends what no row owns: each cloud's listing by owner tag against our rows.

Rows that are `terminating` are the supervise loop's: it asks until the listing says they are over.
When a VM without a living row may be ended is decided in `core.orphans`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from sqlalchemy import select

from spothop.wire import VmState
from spothop_master.clouds.base import Cloud, CloudError, CloudVmState
from spothop_master.clouds.watcher import CloudWatcher, Listing
from spothop_master.core import orphans
from spothop_master.core.orphans import Orphan
from spothop_master.store.db import Database
from spothop_master.store.schema import Event, VmRow

log = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)

WAIT_S = 30.0
"""For one cloud's listing; a later answer is for the next pass."""


class Sweep:
    """Remembers between passes what it saw; one pass at a time."""

    def __init__(
        self,
        db: Database,
        clouds: Mapping[str, Cloud],
        watcher: CloudWatcher,
        clock: Callable[[], datetime],
        *,
        grace: timedelta = GRACE,
    ) -> None:
        self._db = db
        self._clouds = clouds
        self._watcher = watcher
        self._clock = clock
        self._grace = grace
        self._orphans: dict[str, dict[str, Orphan]] = {}
        self._looked_at: dict[str, datetime] = {}
        """When the listing that was looked at last began, by cloud."""
        self._noted: set[tuple[str, str]] = set()

    def run_once(self) -> None:
        """Every cloud; one that is away delays only itself."""
        for name in self._clouds:
            self._watcher.ask_listing(name)
        for name, cloud in self._clouds.items():
            listing = self._watcher.fresh_listing(name, wait_s=WAIT_S)
            if listing is None or listing.began_at == self._looked_at.get(name):
                continue  # no new answer; looking twice at one listing proves nothing more
            self._looked_at[name] = listing.began_at
            self._sweep(name, cloud, listing)

    def _sweep(self, name: str, cloud: Cloud, listing: Listing) -> None:
        living = {vm.id: vm.token for vm in listing.vms if vm.state is not CloudVmState.TERMINATED}
        found = orphans.look(
            living,
            self._rows(set(living.values())),
            self._orphans.get(name, {}),
            listed_at=listing.began_at,
        )
        self._orphans[name] = found
        for orphan in orphans.to_terminate(found, grace=self._grace):
            self._terminate(name, cloud, orphan)

    def _terminate(self, name: str, cloud: Cloud, orphan: Orphan) -> None:
        """One that the cloud refuses to end keeps no other one alive."""
        try:
            cloud.terminate(orphan.cloud_id)
        except CloudError as error:
            log.warning("cloud %s: orphan %s: %s; asking again", name, orphan.cloud_id, error)
        except Exception:  # nor does a fault of the adapter
            log.exception("cloud %s: orphan %s: asking again", name, orphan.cloud_id)
        else:
            self._note(name, orphan)

    def _rows(self, tokens: set[str]) -> dict[str, VmState]:
        with self._db.read() as session:
            found = session.execute(
                select(VmRow.token, VmRow.state).where(VmRow.token.in_(tokens))
            ).all()
        return {row[0]: VmState(row[1]) for row in found}

    def _note(self, cloud: str, orphan: Orphan) -> None:
        """Once a VM; the termination itself is asked for again until the listing agrees."""
        if (cloud, orphan.cloud_id) in self._noted:
            return
        self._noted.add((cloud, orphan.cloud_id))
        with self._db.begin() as session:
            row = session.scalar(select(VmRow).where(VmRow.token == orphan.token))
            why = "its row is over" if row else "no row has its token"
            session.add(
                Event(
                    at=self._clock(),
                    job_id=row.job_id if row else None,
                    vm_id=row.id if row else None,
                    kind="orphan",
                    text=f"terminating {cloud} VM {orphan.cloud_id}: {why}",
                    data={"cloud": cloud, "cloud_id": orphan.cloud_id},
                )
            )
