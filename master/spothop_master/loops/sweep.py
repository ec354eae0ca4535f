"""Ends what no row owns: each cloud's listing by owner tag against our rows.

Rows that are `terminating` are the supervise loop's: it asks until the listing says they are over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from sqlalchemy import select

from spothop.wire import VmState
from spothop_master.clouds.base import Cloud, CloudError, CloudVmState
from spothop_master.core import orphans
from spothop_master.store.db import Database
from spothop_master.store.schema import Event, VmRow

log = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)


class Sweep:
    """Remembers between passes what it saw; one pass at a time."""

    def __init__(
        self,
        db: Database,
        clouds: Mapping[str, Cloud],
        owner: str,
        clock: Callable[[], datetime],
        *,
        grace: timedelta = GRACE,
    ) -> None:
        self._db = db
        self._clouds = clouds
        self._owner = owner
        self._clock = clock
        self._grace = grace
        self._strays: dict[str, dict[str, orphans.Orphan]] = {}
        self._told: set[tuple[str, str]] = set()

    def run_once(self) -> None:
        """Every cloud; one that is away delays only itself."""
        for name, cloud in self._clouds.items():
            try:
                self._sweep(name, cloud)
            except CloudError as error:
                log.warning("cloud %s: sweep: %s; again at the next one", name, error)

    def _sweep(self, name: str, cloud: Cloud) -> None:
        listed = cloud.list(self._owner)
        living = {vm.id: vm.token for vm in listed if vm.state is not CloudVmState.TERMINATED}
        now = self._clock()
        strays = orphans.look(
            living, self._rows(set(living.values())), self._strays.get(name, {}), now=now
        )
        self._strays[name] = strays
        for stray in orphans.to_terminate(strays, grace=self._grace, now=now):
            cloud.terminate(stray.cloud_id)
            self._tell(name, stray, now)

    def _rows(self, tokens: set[str]) -> dict[str, VmState]:
        with self._db.read() as session:
            found = session.execute(
                select(VmRow.token, VmRow.state).where(VmRow.token.in_(tokens))
            ).all()
        return {row[0]: VmState(row[1]) for row in found}

    def _tell(self, cloud: str, stray: orphans.Orphan, now: datetime) -> None:
        """Once a VM; the termination itself is asked for again until the listing agrees."""
        if (cloud, stray.cloud_id) in self._told:
            return
        self._told.add((cloud, stray.cloud_id))
        with self._db.begin() as session:
            row = session.scalar(select(VmRow).where(VmRow.token == stray.token))
            why = "its row is over" if row else "no row has its token"
            session.add(
                Event(
                    at=now,
                    job_id=row.job_id if row else None,
                    vm_id=row.id if row else None,
                    kind="orphan",
                    text=f"terminating {cloud} VM {stray.cloud_id}: {why}",
                    data={"cloud": cloud, "cloud_id": stray.cloud_id},
                )
            )
