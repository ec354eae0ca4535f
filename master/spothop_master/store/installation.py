"""Whose database this is: the installation's name, since when, and the id of its master key.

The name stands in the tags of its VMs, so a master that uses another one sees none of them and
takes all for gone. What it guarantees: all masters of one database use the same name and the same
master key, or do not start. Rules:

1. The first start writes the name: that of the settings, or of the master's home, which is where
   releases before this one kept it, or a new one. After that the database's counts, and a home or a
   setting that says otherwise is refused. A home without a name takes it over.
2. A database with VMs and without a name is an older release's. Its name is in the home of the
   master that made them, so no other home may give it a new one.
3. The key itself stays in its file: it must not lie beside what it encrypts. Its id is here, so
   that a master that was not given the file is told so at once, and not when a secret of a job
   cannot be read, or a VM that another master launched cannot join.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from spothop_master.store.master_rows import ONLY, Installation
from spothop_master.store.schema import User, VmRow


class WrongInstallation(Exception):
    """This master is not of the installation of this database; nothing was changed. The message
    says which is which, and the way out."""


def settle(
    session: Session,
    *,
    setting: str,
    of_home: str | None,
    new_name: Callable[[], str],
    home: str,
    now: datetime,
) -> Installation:
    """The installation, written down at its first start. `setting` and `of_home` are the names that
    the settings ("" is none) and the folder `home` have. Raises WrongInstallation."""
    row = session.get(Installation, ONLY) or _made(session, setting, of_home, new_name, home, now)
    told = f"the database is of installation {row.name!r}, made on {row.created_at:%Y-%m-%d}"
    if setting and setting != row.name:
        raise WrongInstallation(
            f"owner = {setting}: {told}; its VMs have that name in their tags: remove "
            "SPOTHOP_MASTER_OWNER, or give this master the database of its own installation"
        )
    if not setting and of_home is not None and of_home != row.name:
        raise WrongInstallation(
            f"home = {home}: its file `owner` names installation {of_home!r}, and {told}; give "
            "this master the database of its own installation, or, if it is to be one more master "
            "of that one, an empty home"
        )
    return row


def key_in_use(session: Session) -> str | None:
    """The id of the key that every master needs; None where there is none yet."""
    return session.scalar(select(Installation.key_id))


def use_key(session: Session, key_id: str | None) -> None:
    """From now on every master needs this one. Without effect before the first start."""
    session.execute(update(Installation).values(key_id=key_id))


def forget_authority(session: Session, key_id: str) -> None:
    """The masters' certificate authority, where this key, which is lost, has encrypted its key: a
    master that has it in its home writes it down anew."""
    lost = Installation.ca_key.like(f"1.{key_id}.%")
    session.execute(update(Installation).where(lost).values(ca_pem=None, ca_key=None))


def _made(
    session: Session,
    setting: str,
    of_home: str | None,
    new_name: Callable[[], str],
    home: str,
    now: datetime,
) -> Installation:
    if not setting and of_home is None and session.scalar(select(VmRow.id).limit(1)) is not None:
        raise WrongInstallation(
            f"home = {home}: the database has VMs and does not know the name that is in their "
            "tags; start the master whose home they were made from first, or name it with "
            "SPOTHOP_MASTER_OWNER"
        )
    first_user = session.scalar(select(func.min(User.created_at)))
    row = Installation(
        id=ONLY,
        name=setting or of_home or new_name(),
        created_at=first_user or now,
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:  # another master that starts at this moment was faster
        return session.get_one(Installation, ONLY)
    return row
