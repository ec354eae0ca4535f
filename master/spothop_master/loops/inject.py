"""Preempts VMs of jobs under test, when their injection says so, by the cloud's own eviction test.

Claim, act, apply: a master killed between the call and its record makes the call once more, which
the cloud answers like the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from spothop_master.clouds.base import Cloud, CloudError
from spothop_master.store import injections
from spothop_master.store.db import Database

log = logging.getLogger(__name__)


class Injector:
    """One pass at a time."""

    def __init__(
        self,
        db: Database,
        clouds: Mapping[str, Cloud],
        clock: Callable[[], datetime],
        *,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._db = db
        self._clouds = clouds
        self._clock = clock
        self._wake = wake

    def run_once(self) -> None:
        """Most passes find no injection, and take no write lock."""
        with self._db.read() as session:
            if not injections.any_under_way(session):
                return
        with self._db.begin() as session:
            claimed = injections.claim_due(session, now=self._clock())
        for due in claimed:
            self._take(due)

    def _take(self, due: injections.Due) -> None:
        error = self._call(due)
        with self._db.begin() as session:
            if error is None:
                injections.happened(session, due, now=self._clock())
            else:
                injections.failed(session, due, error, now=self._clock())
        self._wake()

    def _call(self, due: injections.Due) -> str | None:
        """What went wrong. Outside any session (I4)."""
        cloud = self._clouds.get(due.cloud)
        if cloud is None:
            return f"this master has no cloud {due.cloud!r}"
        try:
            cloud.preempt(due.cloud_id, None if due.notice else 0.0)
        except CloudError as error:
            log.warning("injection into %s: %s", due.vm, error)
            return str(error)
        return None
