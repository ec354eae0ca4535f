"""`spothop master migrate-database`, `backup` and `restore` as commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fakes.old_database import contents
from spothop_master import home as homes
from spothop_master import operations
from spothop_master.clock import utc_now
from spothop_master.security import Role
from spothop_master.store import users
from spothop_master.store.db import Database
from support import database, postgres

SECRET = "very-secret"


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        (["backup", "f.zip"], ["backup", "f.zip"]),
        (["--home", "h", "backup", "f.zip"], ["backup", "f.zip", "--home", "h"]),
        (["--home", "h", "restore", "f", "--home", "g"], ["restore", "f", "--home", "g"]),
        (["--home", "h", "migrate-database", "--to", "u"],
         ["migrate-database", "--to", "u", "--home", "h"]),
        (["--home", "h"], None),
        (["--home", "backup"], None),
        (["--port", "1"], None),
        ([], None),
    ],
)  # fmt: skip
def test_a_word_names_an_operation_and_options_alone_the_master(
    arguments: list[str], taken: list[str] | None
) -> None:
    assert operations.asked_for(arguments) == taken


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a master that is stopped, with two users."""
    made = tmp_path / "home"
    made.mkdir()
    database.write_migrated(made / "master.db")
    db = database.open_database(made / "master.db")
    with db.begin() as session:
        for name in ("ada", "bob"):
            users.add_user(session, name=name, role=Role.USER, now=utc_now())
    return made


def run(*arguments: object, target: str = "") -> Result:
    before = os.umask(0o022)
    environment = {"SPOTHOP_TARGET_DATABASE_URL": target} if target else {}
    try:
        return CliRunner().invoke(
            operations.app, [str(each) for each in arguments], env=environment
        )
    finally:
        os.umask(before)


def test_a_stopped_masters_database_moves(home: Path) -> None:
    target = postgres.server().empty()
    done = run("migrate-database", "--home", home, target=target)
    assert done.exit_code == 0, done.output
    assert "2 rows copied to postgresql" in done.output
    db = Database(target)
    assert [row["name"] for row in contents(db)["users"]] == ["ada", "bob"]
    db.close()
    again = run("migrate-database", "--home", home, "--to", target)
    assert again.exit_code == 2
    assert "error: the target is not empty" in again.output
    postgres.server().drop(target)


def test_one_that_runs_or_cannot_be_reached_does_not(home: Path) -> None:
    with homes.prepare(home):
        told = run("migrate-database", "--home", home, "--to", "sqlite:////x.db").output
        assert "another master (process" in told
    away = f"postgresql://u:{SECRET}@127.0.0.1:1/d"
    done = run("migrate-database", "--home", home, "--to", away)
    assert done.exit_code == 2
    assert "refused; see whether that server runs" in done.output.replace("\n", " ")
    assert SECRET not in done.output


def test_a_back_up_goes_to_a_file_and_comes_back(home: Path, tmp_path: Path) -> None:
    file, there = tmp_path / "b.zip", tmp_path / "there"
    done = run("backup", file, "--home", home)
    assert done.exit_code == 0, done.output
    assert "the master key is in it" in done.output
    assert run("backup", file, "--home", home).exit_code == 2
    done = run("restore", file, "--home", there)
    assert done.exit_code == 0, done.output
    restored = database.open_database(there / "master.db")
    assert len(contents(restored)["users"]) == 2
