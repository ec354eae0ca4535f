"""Whose database it is: the name that VMs are tagged with, and the key that all masters share."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.old_database import NOW, fill, release_1
from spothop_master import home, program, rekeying
from spothop_master.first_start import encrypt_with_newest, keys_in_use, open_keys
from spothop_master.keys import KeyFileError, Keys
from spothop_master.settings import MasterSettings
from spothop_master.store.db import Database
from spothop_master.store.schema import Installation
from support.database import write_migrated


def master(tmp_path: Path, name: str, **more: object) -> MasterSettings:
    """One of several on the same database."""
    (tmp_path / name).mkdir(exist_ok=True)
    url = f"sqlite:///{tmp_path}/shared.db"
    return MasterSettings.model_validate({"home": tmp_path / name, "database_url": url, **more})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    write_migrated(tmp_path / "shared.db")
    return tmp_path / "shared.db"


def row(path: Path) -> Installation:
    db = Database(f"sqlite:///{path}")
    with db.read() as session:
        found = session.get_one(Installation, 1)
    db.close()
    return found


def test_the_name_is_made_once_and_every_home_takes_it_over(tmp_path: Path, database: Path) -> None:
    first = program.settle_owner(master(tmp_path, "a"))
    assert first.startswith("spothop-")
    assert program.settle_owner(master(tmp_path, "a")) == first
    assert program.settle_owner(master(tmp_path, "b")) == first
    assert home.known_owner(tmp_path / "b") == first
    assert row(database).name == first


def test_the_name_of_an_older_releases_home_is_taken_over(tmp_path: Path) -> None:
    write_migrated(tmp_path / "shared.db", "0002")
    db = Database(f"sqlite:///{tmp_path}/shared.db")
    fill(db, release_1())
    db.close()
    with pytest.raises(program.CannotStart, match="start the master whose home they were made"):
        program.settle_owner(master(tmp_path, "b"))
    home.keep_owner(master(tmp_path, "a").home, "spothop-old")
    assert program.settle_owner(master(tmp_path, "a")) == "spothop-old"
    assert program.settle_owner(master(tmp_path, "b")) == "spothop-old"
    assert row(tmp_path / "shared.db").created_at == NOW  # of its first user


def test_a_home_of_another_installation_is_refused_and_nothing_changes(
    tmp_path: Path, database: Path
) -> None:
    name = program.settle_owner(master(tmp_path, "a"))
    home.keep_owner(master(tmp_path, "b").home, "spothop-other")
    with pytest.raises(program.CannotStart) as caught:
        program.settle_owner(master(tmp_path, "b"))
    for part in (f"home = {tmp_path}/b", "'spothop-other'", repr(name), "an empty home"):
        assert part in str(caught.value)
    assert (row(database).name, home.known_owner(tmp_path / "b")) == (name, "spothop-other")


def test_a_setting_that_names_another_installation_is_refused(
    tmp_path: Path, database: Path
) -> None:
    program.settle_owner(master(tmp_path, "a", owner="spothop-set"))
    assert program.settle_owner(master(tmp_path, "b", owner="spothop-set")) == "spothop-set"
    with pytest.raises(program.CannotStart, match="remove SPOTHOP_MASTER_OWNER"):
        program.settle_owner(master(tmp_path, "a", owner="spothop-else"))


def open_as(settings: MasterSettings) -> Keys:
    keys = Keys(settings.key_file)
    db = Database(settings.database_url, keys)
    try:
        open_keys(db, keys)
    finally:
        db.close()
    return keys


def test_a_master_without_the_installations_key_is_refused(tmp_path: Path, database: Path) -> None:
    """Although nothing is encrypted yet: VMs that one launches could not join the other."""
    a, b = master(tmp_path, "a"), master(tmp_path, "b")
    program.settle_owner(a)
    first = open_as(a)
    with pytest.raises(KeyFileError, match="one more master needs a copy of the first one's"):
        open_as(b)
    assert not b.key_file.exists()
    b.key_file.write_bytes(a.key_file.read_bytes())
    b.key_file.chmod(0o600)
    assert open_as(b).join_token("vm-1") == first.join_token("vm-1")


def test_a_new_key_is_the_installations_and_a_lost_one_is_given_up(
    tmp_path: Path, database: Path
) -> None:
    a = master(tmp_path, "a")
    program.settle_owner(a)
    [old] = open_as(a).ids
    rekeying.rotate(a)
    [new] = open_as(a).ids
    assert (row(database).key_id, old != new) == (new, True)
    a.key_file.unlink()
    with pytest.raises(KeyFileError, match=f"--forget-key {new}"):
        open_as(a)
    rekeying.forget(a, new)
    assert open_as(a).ids == [row(database).key_id]


def test_a_database_without_an_installation_needs_no_key(tmp_path: Path, database: Path) -> None:
    keys = Keys.of(bytes(32))
    db = Database(f"sqlite:///{database}", keys)
    encrypt_with_newest(db)
    assert keys_in_use(db) == []
    db.close()
