"""Who migrates a database, and which ones are refused; what the revisions do is in
`test_migrations`."""

from __future__ import annotations

import fcntl
import logging
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fakes.old_database import contents, fill, release_1, revision
from spothop_master.store import migrating
from spothop_master.store.db import Database
from spothop_master.store.migrating import MigrationRefused, newest_revision
from support.database import new_database, write_migrated


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "master.db"


@pytest.fixture
def old(path: Path) -> Iterator[Database]:
    write_migrated(path, "0002")
    db = Database(f"sqlite:///{path}")
    fill(db, release_1())
    yield db
    db.close()


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


# --- one at a time ------------------------------------------------------------------------------


def test_of_two_masters_one_migrates_and_the_other_says_that_it_waits(
    old: Database, path: Path
) -> None:
    """Both are shut out by the test until both have said so, and then go at once."""
    program = (
        "import logging, sys; from spothop_master.store.db import Database; "
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s'); "
        "Database(sys.argv[1]).migrate()"
    )
    order = [sys.executable, "-uc", program, f"sqlite:///{path}"]
    with path.with_name("master.db.migrating").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        masters = [
            subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for _ in range(2)
        ]
        for master in masters:
            assert master.stdout is not None
            assert "another master is migrating this database; waiting" in master.stdout.readline()
        assert revision(old) == "0002"
    said = [master.communicate(timeout=60)[0] for master in masters]
    assert [master.returncode for master in masters] == [0, 0], said
    assert sum("kept a copy" in each for each in said) == 1
    assert revision(old) == newest_revision()


def test_one_that_waits_for_too_long_gives_up(old: Database, path: Path) -> None:
    with path.with_name("master.db.migrating").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(MigrationRefused, match="another master has been migrating it"):
            migrating.migrate(old.engine, newest_revision(), patience_s=0)
    assert revision(old) == "0002"


# --- what is refused ----------------------------------------------------------------------------


def test_a_database_of_a_newer_program_is_refused_in_words(path: Path) -> None:
    db = new_database(path)
    execute(path, "UPDATE alembic_version SET version_num = '9000'")
    before = contents(db)
    with pytest.raises(MigrationRefused) as caught:
        db.migrate()
    said = str(caught.value)
    assert f"it is at revision 9000, of a newer spothop: this one ({version()}) knows" in said
    assert f"up to {newest_revision()}" in said
    assert "install the newer one again" in said
    assert "put the copy" not in said
    path.with_name("master.db.before-9000").touch()
    path.with_name("master.db.before-0001").touch()
    with pytest.raises(MigrationRefused, match=r"in its place: .*master\.db\.before-9000$"):
        db.migrate()
    assert (contents(db), revision(db)) == (before, "9000")


def version() -> str:
    from importlib.metadata import version

    return version("spothop")


@pytest.mark.parametrize(
    "made",
    [
        ["CREATE TABLE recipes (id INTEGER)"],
        ["CREATE TABLE recipes (id INTEGER)",
         "CREATE TABLE alembic_version (version_num TEXT)",
         "INSERT INTO alembic_version VALUES ('0002')"],
        ["CREATE TABLE recipes (id INTEGER)",
         "CREATE TABLE alembic_version (version_num TEXT)",
         "INSERT INTO alembic_version VALUES ('9f3a77c1d2e4')"],
    ],
)  # fmt: skip
def test_a_database_of_another_program_is_refused(path: Path, made: list[str]) -> None:
    for statement in made:
        execute(path, statement)
    db = Database(f"sqlite:///{path}")
    before = contents(db)
    with pytest.raises(MigrationRefused, match=r"not a database of spothop \(its tables: recipes"):
        db.migrate()
    assert contents(db) == before
    db.close()


def test_tables_of_ours_without_a_revision_are_not_migrated(path: Path) -> None:
    db = new_database(path)
    execute(path, "DELETE FROM alembic_version")
    with pytest.raises(MigrationRefused, match="its revision: none"):
        db.migrate()


# --- the copy from before -----------------------------------------------------------------------


def test_a_copy_from_before_is_kept_beside_it(
    old: Database, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = contents(old)
    with caplog.at_level(logging.INFO, "spothop_master"):
        old.migrate()
    copy = path.with_name(f"master.db.before-{newest_revision()}")
    assert f"{copy} (" in caplog.text
    assert "kB)" in caplog.text
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    shutil.copy(copy, path.with_name("restored.db"))
    restored = Database(f"sqlite:///{path.with_name('restored.db')}")
    assert (contents(restored), revision(restored)) == (before, "0002")
    restored.close()


def test_an_empty_database_has_no_copy_and_only_the_newest_two_stay(path: Path) -> None:
    db = Database(f"sqlite:///{path}")
    db.migrate("0002")
    assert migrating.copies_of(path) == []
    for number in ("0003", "0004", "0005"):
        db.migrate(number)
    names = [copy.name for copy in migrating.copies_of(path)]
    assert names == ["master.db.before-0005", "master.db.before-0004"]
    db.close()


def test_a_database_that_is_too_large_for_a_copy_is_migrated_without(
    old: Database, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full: Any = lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000)  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", full)
    old.migrate()
    assert "no copy of" in caplog.text
    assert "its disk 1 kB left" in caplog.text
    assert (migrating.copies_of(path), revision(old)) == ([], newest_revision())


def test_a_copy_that_cannot_be_made_stops_the_migration(
    old: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(MigrationRefused, match="No space left on device"):
        old.migrate()
    assert revision(old) == "0002"
    assert [each.name for each in path.parent.glob("*before*")] == []
