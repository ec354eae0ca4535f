"""One certificate authority for all masters that share a database.

Users and VMs trust an authority, not a master; where each master made one of its own, a VM that was
launched by one could speak with none of the others. So the first master that starts with `tls =
auto` writes its authority into the database, the key encrypted with the master key, and the others
take that over, in place of one that their home may have. Each makes its own leaf from it.
"""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

from sqlalchemy import select, update

from spothop_master import tls
from spothop_master.home import publish
from spothop_master.store import sealing
from spothop_master.store.db import Database
from spothop_master.store.master_rows import Installation

log = logging.getLogger(__name__)


def share(db: Database, folder: Path, *, now: datetime) -> None:
    """Have the authority in this folder be that of the database, or the other way round. Raises
    `TlsError`."""
    found = _known(db)
    if found is None:
        tls.ensure(folder, ["localhost"], now=now)
        _offer(db, (folder / "ca.pem").read_text("ascii"), (folder / "ca.key").read_text("ascii"))
        found = _known(db)
    assert found is not None
    pem, key = found
    path = folder / "ca.pem"
    if path.exists() and path.read_text("ascii") == pem:
        return
    if path.exists():
        log.warning("%s: the authority of the other masters takes the place of this one", path)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    publish(folder / "ca.key", key, mode=0o600)
    publish(path, pem, mode=0o644)


def _known(db: Database) -> tuple[str, str] | None:
    with db.read() as session:
        row = session.scalars(select(Installation)).one()
        if row.ca_pem is None or row.ca_key is None:
            return None
        what = "the keys of the masters' certificate authority"
        try:
            return row.ca_pem, sealing.unseal_text(session, row.ca_key, sealing.AUTHORITY, what)
        except sealing.Unreadable as error:
            raise tls.TlsError(str(error)) from None


def _offer(db: Database, pem: str, key: str) -> None:
    """Unless another master was faster."""
    with db.begin() as session:
        sealed = sealing.seal_text(session, key, sealing.AUTHORITY)
        free = update(Installation).where(Installation.ca_pem.is_(None))
        session.execute(free.values(ca_pem=pem, ca_key=sealed))
