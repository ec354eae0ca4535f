"""`spothop master --rotate-key` and `--forget-key`: what is done to the master key while no master
runs in this home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spothop_master import home
from spothop_master.first_start import encrypt_with_newest, keys_in_use
from spothop_master.keys import KeyFileError, Keys
from spothop_master.settings import MasterSettings
from spothop_master.store import installation, sealing
from spothop_master.store.db import Database

_NAMED = 20


def rotate(settings: MasterSettings) -> str:
    """Make a new key, and encrypt everything with it; what to tell. Killed in between, the next
    start of the master does the rest. Raises `HomeError`, `KeyFileError`, `MigrationRefused`."""
    with _opened(settings) as (db, keys):
        keys.open(keys_in_use(db))
        new = keys.add()
        count = encrypt_with_newest(db)
        keys.keep_newest()
    return (
        f"new master key {new} in {keys.path}; the secrets of {count} jobs were encrypted with it. "
        "Keep a copy of that file, and give masters that share the database the same one"
    )


def forget(settings: MasterSettings, key_id: str) -> str:
    """Give up what a lost key has encrypted; what to tell. Raises as `rotate` does."""
    with _opened(settings) as (db, _):
        if key_id not in (known := keys_in_use(db)):
            text = ", ".join(known) or "none"
            raise KeyFileError(f"no key {key_id!r} has encrypted anything; those that have: {text}")
        with db.begin() as session:
            jobs = sealing.forget(session, key_id)
            if installation.key_in_use(session) == key_id:
                installation.use_key(session, None)
            installation.forget_authority(session, key_id)
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    return (
        f"key {key_id} is given up, and with it the secrets of {len(jobs)} jobs: "
        f"{', '.join(jobs[:_NAMED]) or 'none'}{more}. Cancel those that have not ended, and submit "
        "them again; with the key back in the key file they are read again"
    )


@contextmanager
def _opened(settings: MasterSettings) -> Iterator[tuple[Database, Keys]]:
    keys = Keys(settings.key_file)
    with home.prepare(settings.home):
        db = Database(settings.database_url, keys)
        try:
            db.migrate()
            yield db, keys
        finally:
            db.close()
