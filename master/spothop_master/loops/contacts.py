"""Writes down when the VMs were last heard, for all of them at once.

A heartbeat is answered from memory and writes nothing. Some seconds later one transaction has the
newest contact of every VM that was heard: so a master that starts again, or another one beside it,
knows who talked, and a life that ends in silence is censored at the right moment (I7).
"""

from __future__ import annotations

from sqlalchemy import bindparam, or_, update

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

    def __init__(self, db: Database, heartbeats: Heartbeats) -> None:
        self._db = db
        self._heartbeats = heartbeats

    def run_once(self) -> None:
        """A pass that fails is made up for by the next one: it has newer contacts."""
        heard = self._heartbeats.take_new()
        if not heard:
            return
        rows = [{"vm": vm_id, "at": at} for vm_id, at in sorted(heard.items())]
        with self._db.begin() as session:
            session.connection().execute(_NEWER, rows)
