"""Masters of one PostgreSQL with TLS of their own have one certificate authority."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from fakes.old_database import NOW
from spothop_master import rekeying, tls
from spothop_master.first_start import encrypt_with_newest
from spothop_master.keys import Keys, key_id
from spothop_master.settings import MasterSettings
from spothop_master.shared_authority import share
from spothop_master.store import installation
from spothop_master.store.db import Database
from spothop_master.store.schema import Installation
from support.database import new_database, open_database, url_of

pytestmark = pytest.mark.databases

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


@pytest.fixture
def db(tmp_path: Path) -> Database:
    new_database(tmp_path / "master.db")
    db = open_database(tmp_path / "master.db", Keys.of(ONE))
    with db.begin() as session:
        session.add(Installation(id=1, name="i", created_at=NOW))
    return db


def authority(folder: Path) -> str:
    return (folder / "ca.pem").read_text()


def test_the_first_one_makes_it_and_the_others_take_it_over(db: Database, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    tls.ensure(third, ["three"], now=NOW)
    own = authority(third)
    for folder in (first, second, third, first):
        share(db, folder, now=NOW)
    assert authority(first) == authority(second) == authority(third) != own
    leaves = [tls.ensure(folder, ["m"], now=NOW) for folder in (first, second, third)]
    assert {leaf.ca_pem for leaf in leaves} == {authority(first)}
    assert all(leaf.ca_pem in leaf.chain.read_text() for leaf in leaves)


def test_its_key_is_not_readable_in_the_database(db: Database, tmp_path: Path) -> None:
    share(db, tmp_path / "tls", now=NOW)
    with db.read() as session:
        sealed = session.scalars(select(Installation.ca_key)).one()
    assert sealed is not None
    assert "PRIVATE KEY" not in sealed


def test_a_new_master_key_encrypts_it_anew_and_a_lost_one_gives_it_up(
    db: Database, tmp_path: Path
) -> None:
    share(db, tmp_path / "first", now=NOW)
    rotated = open_database(tmp_path / "master.db", Keys.of(TWO, ONE))
    encrypt_with_newest(rotated)
    share(open_database(tmp_path / "master.db", Keys.of(TWO)), tmp_path / "second", now=NOW)
    assert authority(tmp_path / "first") == authority(tmp_path / "second")
    with pytest.raises(tls.TlsError, match="not in the master's key file"):
        share(db, tmp_path / "third", now=NOW)
    url = url_of(tmp_path / "master.db")
    settings = MasterSettings.model_validate({"home": tmp_path, "database_url": url})
    rekeying.forget(settings, key_id(TWO))
    with db.read() as session:
        assert installation.key_in_use(session) is None
    share(db, tmp_path / "second", now=NOW)  # it writes its own down again
    share(db, tmp_path / "third", now=NOW)
    assert authority(tmp_path / "third") == authority(tmp_path / "first")
