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
from datetime import datetime

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


class Contacts:
    """One pass at a time."""

    def __init__(self, db: Database, heartbeats: Heartbeats, clock: Callable[[], datetime]) -> None:
        self._db = db
        self._heartbeats = heartbeats
        self._clock = clock

    def run_once(self) -> None:
        """A pass that fails is made up for by the next one: it has newer contacts."""
        now = self._clock()
        heard = self._heartbeats.take_new()
        rows = [{"vm": vm_id, "at": at} for vm_id, at in sorted(heard.items())]
        if rows:
            with self._db.begin() as session:
                session.connection().execute(_NEWER, rows)
        if not self._db.single_master:
            self._read()
        self._heartbeats.exchanged(now)

    def _read(self) -> None:
        """Of all VMs that are not over; others end in transactions of other masters, of which
        nobody tells this one."""
        query = select(VmRow.id, VmRow.last_contact_at).where(VmRow.ended_at.is_(None))
        before = self._heartbeats.known()
        with self._db.read() as session:
            found = {row.id: row.last_contact_at for row in session.execute(query)}
        heard = {vm_id: at for vm_id, at in found.items() if at is not None}
        self._heartbeats.heard_elsewhere(heard)
        for vm_id in before - found.keys():
            self._heartbeats.forget(vm_id)
