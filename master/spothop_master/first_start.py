"""What a master does before it serves: tables, keys, what earlier releases wrote, user `admin`."""

from __future__ import annotations

import logging

from spothop_master import home
from spothop_master.clock import SteadyClock
from spothop_master.keys import Keys
from spothop_master.security import new_api_token
from spothop_master.services import Services
from spothop_master.store import installation, sealing, summaries, users
from spothop_master.store import vms as vm_rows
from spothop_master.store.db import Database

log = logging.getLogger(__name__)


def first_start(services: Services) -> None:
    """Migrate, read or make the master key, tell of VMs whose cloud is not configured any more, and
    make user `admin` where there is none. Raises `MigrationRefused`, `KeyFileError`.

    The token's file comes before its user: a master killed in between makes both anew.
    """
    services.db.migrate()
    _set_clock(services)
    open_keys(services.db, services.keys)
    _fill_summaries(services)
    now = services.clock()
    regions = {name: cloud.limits.regions for name, cloud in services.clouds.items()}
    with services.db.begin() as session:
        vm_rows.note_clouds(session, regions, now=now)
    with services.db.read() as session:
        if users.has_admin(session):
            return
    token = new_api_token()
    home.publish(services.settings.home / home.ADMIN_TOKEN, f"{token}\n", mode=0o600)
    with services.db.begin() as session:
        users.ensure_admin(session, token=token, now=now)


def open_keys(db: Database, keys: Keys) -> None:
    """Read or make the key file, and encrypt what an earlier release, or an older key, has written.
    A rotation that was interrupted is finished. Raises `KeyFileError`."""
    keys.open(keys_in_use(db))
    encrypt_with_newest(db)
    if keys.rotating and {*keys_in_use(db)} <= {keys.newest_id}:
        keys.keep_newest()
        log.info("the rotation of the master key is finished: the older keys are gone")


def _set_clock(services: Services) -> None:
    """After that of the database's server, which all masters share."""
    if isinstance(services.clock, SteadyClock) and services.db.clock is None:
        with services.db.read() as session:
            services.clock.follow(services.db.now(session))


def keys_in_use(db: Database) -> list[str]:
    """Ids of those that every master of this database needs."""
    with db.read() as session:
        own = installation.key_in_use(session)
        return sorted({*sealing.keys_in_use(session), *([own] if own else [])})


def encrypt_with_newest(db: Database) -> int:
    """Jobs whose secrets an earlier release, or an older key, has written; how many it were."""
    count, after = 0, ""
    while True:
        with db.begin() as session:
            more, last = sealing.renew(session, after)
        count += more
        if last is None:
            break
        after = last
    with db.read() as session:
        newest, known = sealing.newest_key(session), installation.key_in_use(session)
    if newest != known:
        with db.begin() as session:
            installation.use_key(session, newest)
    if count:
        db.forget_log()
        log.info("encrypted the secrets of %d jobs with the newest key", count)
        if copies := db.copies():
            log.warning(
                "copies of the database from before may hold them readable; delete these when you "
                "need no way back: %s",
                ", ".join(map(str, copies)),
            )
    return count


def _fill_summaries(services: Services) -> None:
    """Of the jobs of a release that had none; a portion in each transaction."""
    while True:
        with services.db.begin() as session:
            if not summaries.fill(session):
                return
