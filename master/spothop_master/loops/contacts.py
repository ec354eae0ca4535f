"""Writes down when the VMs were last heard, for all of them at once.

A heartbeat is answered from memory and writes nothing. Some seconds later one transaction has the
newest contact of every VM that was heard: so a master that starts again, or another one beside it,
knows who talked, and a life that ends in silence is censored at the right moment (I7). Where there
may be other masters, what these have heard is read after that. A pass that fails exchanged nothing:
after some time nobody counts as silent here (`Heartbeats`), so a master that does not reach the
database ends no VM, and neither does the first one that reaches it again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import bindparam, or_, select, update

from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.store.db import Database
from spothop_master.store.schema import VmRow

_NEWER = (
    update(VmRow)
    .where(VmRow.id == bindparam("vm"))
    .where(or_(VmRow.last_contact_at.is_(None), VmRow.last_contact_at < bindparam("at")))
    .values(last_contact_at=bindparam("at"))
)

LATE = timedelta(seconds=30)
"""So much later than it happened another master may write down a contact, or its clock be behind,
and it is still read."""


class Contacts:
    """One pass at a time."""

    def __init__(self, db: Database, heartbeats: Heartbeats, clock: Callable[[], datetime]) -> None:
        self._db = db
        self._heartbeats = heartbeats
        self._clock = clock
        self._read_to: datetime | None = None

    def run_once(self) -> None:
        """A pass that fails is made up for by the next one: it has newer contacts."""
        now = self._clock()
        heard = self._heartbeats.take_new()
        rows = [{"vm": vm_id, "at": at} for vm_id, at in sorted(heard.items())]
        if rows:
            with self._db.begin() as session:
                session.connection().execute(_NEWER, rows)
        if not self._db.single_master:
            self._read(now)
        self._heartbeats.exchanged(now)

    def _read(self, now: datetime) -> None:
        query = select(VmRow.id, VmRow.last_contact_at).where(VmRow.ended_at.is_(None))
        if self._read_to is None:
            query = query.where(VmRow.last_contact_at.is_not(None))
        else:
            query = query.where(VmRow.last_contact_at > self._read_to)
        with self._db.read() as session:
            found = {row.id: row.last_contact_at for row in session.execute(query)}
        self._heartbeats.heard_elsewhere(found)
        self._read_to = now - LATE
