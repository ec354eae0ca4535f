"""What differs between the databases: how they are opened, and what is told of their errors."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from spothop_master import program
from spothop_master.settings import MasterSettings
from spothop_master.store import dialects
from spothop_master.store.db import Database
from spothop_master.store.migrating import newest_revision
from support import postgres
from support.database import new_database, open_database, url_of

SECRET = "very-secret"


def why(url: str, folder: Path) -> str:
    """What a master says that cannot start."""
    folder.mkdir()
    settings = MasterSettings.model_validate({"home": folder, "database_url": url})
    with pytest.raises(program.CannotStart) as caught:
        program.settle_owner(settings)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"mysql://u:{SECRET}@h/d", "mysql is neither SQLite nor PostgreSQL; write sqlite:"),
        (f"postgresql//u:{SECRET}@h", r"database_url = \*\*\*: it is no URL of a database; write"),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/d", "refused.*; see whether that server runs"),
        (f"postgres://u@127.0.0.1:1/d?password={SECRET}", "refused.*; see whether that server"),
        (f"postgresql+asyncpg://u:{SECRET}@127.0.0.1:1/d", "; see whether that server runs"),
        (f"postgresql://u:{SECRET}@/d?host=/nowhere", "; see whether that server.*has its socket"),
    ],
)
def test_a_database_that_cannot_be_opened_is_told_in_words(
    tmp_path: Path, url: str, told: str
) -> None:
    said = why(url, tmp_path / "home")
    assert re.search(told, said), said


def test_without_its_driver_the_master_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = why(f"postgresql://u:{SECRET}@h/d", tmp_path / "home")
    assert "driver for PostgreSQL is not installed; pip install 'spothop[postgres]'" in said


# --- a server that answers ------------------------------------------------------------------------


@pytest.fixture
def server() -> postgres.Postgres:
    return postgres.server()


def test_a_wrong_password_is_told_and_not_shown(server: postgres.Postgres, tmp_path: Path) -> None:
    server.execute(f"DROP ROLE IF EXISTS {postgres.GUARDED}")
    server.execute(f"CREATE ROLE {postgres.GUARDED} LOGIN PASSWORD 'another'")
    url = sa.make_url(server.url("postgres")).set(username=postgres.GUARDED)
    shown = why(url.set(password=SECRET).render_as_string(hide_password=False), tmp_path / "1")
    assert "password authentication failed for user" in shown
    assert "; correct the user's name and password" in shown
    assert "no password supplied; give a password" in why(str(url), tmp_path / "2")


def test_what_is_not_there_is_told_with_the_way_to_make_it(
    server: postgres.Postgres, tmp_path: Path
) -> None:
    assert re.search(
        'database "nowhere" does not exist; make it with CREATE DATABASE',
        why(server.url("nowhere"), tmp_path / "1"),
    )
    nobody = sa.make_url(server.url("postgres")).set(username="stranger")
    assert re.search(
        'role "stranger" does not exist; make that user with CREATE ROLE',
        why(str(nobody), tmp_path / "2"),
    )


def test_a_server_that_is_too_old_and_an_encoding_that_loses_text_are_refused(
    server: postgres.Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ascii_ = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    server.execute("DROP DATABASE IF EXISTS ascii")
    server.execute(f"CREATE DATABASE ascii {ascii_}")
    said = why(server.url("ascii"), tmp_path / "1")
    assert "its encoding is SQL_ASCII" in said
    assert "ENCODING 'UTF8'" in said
    monkeypatch.setattr(dialects, "OLDEST", 99)
    said = why(server.url("postgres"), tmp_path / "2")
    assert re.search(r"its server is PostgreSQL \d+.*, and 99 is the oldest", said), said


# --- what went wrong ------------------------------------------------------------------------------


@pytest.mark.databases(only="postgresql")
def test_two_transactions_that_wait_for_each_other_are_a_conflict(tmp_path: Path) -> None:
    db = new_database(tmp_path / "m.db")
    both, raised = threading.Barrier(2), []

    def lock(first: int, second: int) -> None:
        try:
            with db.begin() as session:
                session.execute(sa.select(sa.func.pg_advisory_xact_lock(first)))
                both.wait()
                session.execute(sa.select(sa.func.pg_advisory_xact_lock(second)))
        except sa.exc.SQLAlchemyError as error:
            raised.append(error)

    threads = [threading.Thread(target=lock, args=keys) for keys in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(raised) == 1, raised
    error = raised[0]
    assert dialects.is_conflict(error)
    assert not dialects.is_away(error)


@pytest.mark.databases(gate=True)
def test_an_error_of_a_statement_is_neither_a_conflict_nor_an_absence(tmp_path: Path) -> None:
    db = new_database(tmp_path / "m.db")
    for statement in ("SELECT nonsense", "INSERT INTO tokens (id) VALUES (1)"):
        with pytest.raises(sa.exc.SQLAlchemyError) as caught, db.begin() as session:
            session.execute(sa.text(statement))
        assert not dialects.is_conflict(caught.value)
        assert not dialects.is_away(caught.value)


@pytest.mark.databases(only="postgresql")
def test_after_a_restart_of_its_server_a_database_goes_on(tmp_path: Path) -> None:
    """A transaction under way is lost and says so; the next one finds the server again."""
    own = postgres.Postgres.new()
    try:
        db = Database(own.empty())
        one = sa.text("SELECT 1")
        with db.begin() as session, db.begin() as other:  # two connections, which both die
            assert session.scalar(one) == other.scalar(one) == 1

        def lose() -> None:
            with db.begin() as session:
                session.execute(one)
                own.stop()
                session.execute(one)

        with pytest.raises(sa.exc.SQLAlchemyError) as lost:
            lose()
        assert dialects.is_away(lost.value)
        with pytest.raises(sa.exc.SQLAlchemyError) as away, db.begin() as session:
            session.execute(one)
        assert dialects.is_away(away.value)
        own.start()
        with db.begin() as session, db.begin() as other:
            assert session.scalar(one) == other.scalar(one) == 1
        db.close()
    finally:
        own.close()


@pytest.mark.databases(only="postgresql")
def test_three_masters_that_migrate_an_empty_database_at_once_all_live(tmp_path: Path) -> None:
    url = url_of(tmp_path / "m.db")
    program = "import sys; from spothop_master.store.db import Database; "
    program += "Database(sys.argv[1]).migrate()"
    started = [
        subprocess.Popen([sys.executable, "-c", program, url], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [each.communicate(timeout=300)[1] for each in started]
    assert [each.returncode for each in started] == [0, 0, 0], said
    assert open_database(tmp_path / "m.db").revision() == newest_revision()
