"""Migrations with rows in the tables: nothing is lost on the way up or down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes.old_database import at, contents, fill, release_1, revision
from spothop_master.store import observations, summaries
from spothop_master.store.db import Database
from spothop_master.store.migrating import MigrationRefused, known_revisions
from spothop_master.store.schema import Attempt, Base, Job, VmRow
from support.database import on_postgresql, open_database, write_migrated
from support.lists import assert_light_is_full

pytestmark = pytest.mark.databases(gate=True)


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return open_database(tmp_path / "new.db")


@pytest.fixture
def old(tmp_path: Path) -> Database:
    """As the first release left it."""
    write_migrated(tmp_path / "old.db", "0002")
    db = open_database(tmp_path / "old.db")
    fill(db, release_1())
    return db


def checks(engine: sa.Engine) -> dict[str, set[tuple[str, str]]]:
    inspector = sa.inspect(engine)
    return {
        table: {(str(c["name"]), c["sqltext"]) for c in inspector.get_check_constraints(table)}
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


_SCHEMA = """
SELECT table_name, column_name, data_type, is_nullable, column_default,
  character_maximum_length::text
FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', ''
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT tablename, indexname, indexdef, '', '', '' FROM pg_indexes WHERE schemaname = 'public'
"""


def schema_of(db: Database) -> set[tuple[str, ...]]:
    """Tables, constraints and indexes, whatever the order in which they were made."""
    with db.engine.connect() as connection:
        if on_postgresql():
            return set(map(tuple, connection.exec_driver_sql(_SCHEMA)))
        rows = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        texts = [str(row[0]).replace('"', "") for row in rows]
    return {tuple(sorted(line.strip(" ,\t") for line in text.splitlines())) for text in texts}


def test_migrations_make_the_same_checks_as_the_models(db: Database, tmp_path: Path) -> None:
    db.migrate()
    modelled = open_database(tmp_path / "models.db").engine
    Base.metadata.create_all(modelled)
    assert checks(db.engine) == checks(modelled)


def test_every_column_of_states_reasons_and_kinds_is_checked() -> None:
    """`events.kind` is open on purpose, `jobs.reason` is prose."""
    checked = {
        (table.name, str(constraint.name))
        for table in Base.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, sa.CheckConstraint)
    }
    words = {"state", "reason", "wanted", "stop_wanted", "kind", "evidence", "dialect", "role"}
    for table in Base.metadata.tables.values():
        for column in table.columns:
            where = (table.name, column.name)
            if column.name in words and where not in {("events", "kind"), ("jobs", "reason")}:
                if table.name == "injections":
                    continue  # its reason is prose, too
                assert (table.name, f"ck_{table.name}_{column.name}") in checked, where


def test_the_checks_lose_no_row_on_the_way_up_and_down(old: Database) -> None:
    before, shape = contents(old), schema_of(old)
    old.migrate("0003")
    assert contents(old) == before
    old.downgrade("0002")
    assert contents(old) == before
    assert schema_of(old) == shape


WRONG = [
    "UPDATE users SET role = 'root'",
    "UPDATE jobs SET state = 'sleeping'",
    "UPDATE jobs SET wanted = 'faster'",
    "UPDATE attempts SET reason = 'bad luck'",
    "UPDATE attempts SET stop_wanted = 'bored'",
    "UPDATE vms SET dialect = 'gopher'",
    "UPDATE vms SET state = 'hovering'",
    "UPDATE vms SET refusal = 'NotToday'",
    "UPDATE checkpoints SET kind = 'lucky'",
    "UPDATE observations SET kind = 'mood'",
    "UPDATE observations SET evidence = 'hearsay'",
]


def test_the_database_refuses_what_no_life_cycle_has(old: Database) -> None:
    old.migrate("0003")
    for change in WRONG:
        with pytest.raises(sa.exc.IntegrityError, match=r"(?i)check"), old.begin() as session:
            session.execute(sa.text(change))


def test_a_row_with_an_unknown_value_stops_the_migration_and_stays(old: Database) -> None:
    with old.begin() as session:
        session.execute(sa.text("UPDATE jobs SET state = 'sleeping' WHERE id = 'done'"))
        session.execute(sa.text("UPDATE vms SET reason = 'bored' WHERE id IN ('vm-3', 'vm-4')"))
    before, shape = contents(old), schema_of(old)
    with pytest.raises(MigrationRefused) as caught:
        old.migrate()
    assert "1 rows of jobs.state = 'sleeping'" in str(caught.value)
    assert "2 rows of vms.reason = 'bored'" in str(caught.value)
    assert (contents(old), schema_of(old), revision(old)) == (before, shape, "0002")


def test_foreign_keys_are_guarded_after_a_migration(old: Database) -> None:
    old.migrate()
    orphan: Any = sa.text("UPDATE events SET job_id = 'nobody'")
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)foreign key"), old.begin() as session:
        session.execute(orphan)


@pytest.mark.databases(only="sqlite")  # PostgreSQL's guards stay on
def test_a_migration_that_breaks_a_reference_is_undone(old: Database) -> None:
    with old.engine.connect() as connection:
        connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
        with connection.begin():
            connection.exec_driver_sql("UPDATE events SET job_id = 'nobody'")
        connection.connection.cursor().execute("PRAGMA foreign_keys=ON")
    with pytest.raises(
        MigrationRefused, match="1 rows refer to rows that are not there, in events"
    ):
        old.migrate()
    assert revision(old) == "0002"


# --- places -------------------------------------------------------------------------------------


def test_every_attempt_becomes_a_gang_of_one(old: Database) -> None:
    before = contents(old)
    old.migrate("0004")
    after = contents(old)
    moved = ("prepared_at", "started_at", "first_step_at", "notice_at", "deadline_at",
             "notice_fits", "step_at_notice", "last_step", "last_step_at", "exit_code",
             "exit_signal")  # fmt: skip
    assert len(after["places"]) == len(before["attempts"]) == 4
    for attempt, place in zip(before["attempts"], after["places"], strict=True):
        assert (place["attempt_id"], place["node"]) == (attempt["id"], 0)
        assert (place["vm_id"], place["living"]) == (attempt["vm_id"], attempt["state"] != "ended")
        assert {name: place[name] for name in moved} == {name: attempt[name] for name in moved}
        assert (place["address"], place["reason"]) == (None, None)
    kept = [{k: v for k, v in a.items() if k not in (*moved, "vm_id")} for a in before["attempts"]]
    assert after["attempts"] == kept
    for name in set(before) - {"attempts"}:
        assert after[name] == before[name]


def test_the_way_back_from_places_loses_nothing(old: Database) -> None:
    old.migrate("0003")
    before, shape = contents(old), schema_of(old)
    old.migrate("0004")
    old.downgrade("0003")
    after = contents(old)
    in_order = [{name: row[name] for name in before["attempts"][0]} for row in after["attempts"]]
    assert {**after, "attempts": in_order} == before
    assert schema_of(old) == shape


def test_the_way_back_refuses_attempts_of_several_nodes(old: Database) -> None:
    old.migrate("0004")
    fill(old, {"places": [{"id": 9, "attempt_id": 4, "node": 1, "vm_id": "vm-4"}]})
    before = contents(old)
    with pytest.raises(MigrationRefused, match="several nodes"):
        old.downgrade("0003")
    assert (contents(old), revision(old)) == (before, "0004")


@pytest.mark.parametrize(
    ("place", "living"),
    [
        ({"attempt_id": 4, "node": 0, "vm_id": "vm-4"}, False),
        ({"attempt_id": 1, "node": 1, "vm_id": "vm-2"}, True),
    ],
)
def test_a_node_has_one_place_and_a_vm_one_in_a_living_attempt(
    old: Database, place: dict[str, Any], living: bool
) -> None:
    old.migrate("0004")
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)unique"):
        fill(old, {"places": [{"id": 9, "living": living, **place}]})


def test_one_fenced_in_attempt_a_job_is_guarded_after_the_copying(old: Database) -> None:
    old.migrate("0004")
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)unique"), old.begin() as session:
        session.execute(sa.text("UPDATE attempts SET fenced_in = true WHERE id = 2"))


def test_the_models_read_what_the_migration_made(old: Database) -> None:
    old.migrate()
    with old.read() as session:
        first = session.get_one(Attempt, 1)
        assert (first.leader.vm_id, first.last_step, first.step_at_notice) == ("vm-1", 700, 690)
        assert (first.notice_at, first.leader.deadline_at) == (at(50), at(80))
        assert session.get_one(Attempt, 3).leader.exit_signal == 9


# --- refusals -----------------------------------------------------------------------------------


def test_rows_of_refused_launches_become_counts(old: Database) -> None:
    old.migrate("0006")
    refused = {"state": "terminated", "reason": "launch_failed", "job_id": "hops", "dialect": "aws"}
    where = {"cloud": "x", "region": "r", "zone": "b", "vm_type": "v", "spot": True}
    more = [
        {"id": f"vm-{n}", "token": f"t-{n}", "requested_at": at(n), "ended_at": at(n + 1)}
        | refused | where | {"refusal": error, "detail": f"answer {n}"}
        for n, error in ((10, "NoCapacity"), (20, "Throttled"), (30, "Ambiguous"))
    ]  # fmt: skip
    told = {"id": 9, "job_id": "hops", "vm_id": "vm-10", "kind": "vm"}
    fill(old, {"vms": more, "places": [{"id": 9, "attempt_id": 4, "node": 1, "vm_id": "vm-20"}]})
    fill(old, {"events": [told]})
    before = contents(old)
    old.migrate("0007")
    after = contents(old)
    counted = {row["zone"]: row for row in after["refusals"]}
    row = counted["b"]
    assert (row["job_id"], row["count"], row["in_row"]) == ("hops", 3, 0)
    naive = [at(s).replace(tzinfo=None) for s in (11, 31)]  # as SQLite keeps them
    assert [row["first_at"], row["last_at"]] == naive
    assert (row["error"], row["detail"]) == ("Ambiguous", "answer 30")
    assert counted[""]["count"] == 1, "that of the first release"
    gone = {row["id"] for row in before["vms"]} - {row["id"] for row in after["vms"]}
    assert gone == {"vm-4", "vm-10"}, "one fills a place, of one a VM may come yet"
    assert [event["vm_id"] for event in after["events"]] == ["vm-1", None]
    for name in set(before) - {"vms", "events"}:
        assert after[name] == before[name]


# --- sums ---------------------------------------------------------------------------------------


def test_what_was_observed_before_is_in_the_sums(old: Database) -> None:
    zone = {"cloud": "aws", "region": "us", "zone": "us-a", "vm_type": "gpu", "spot": True}
    life = {**zone, "kind": "life", "evidence": "notice"}
    save = {"kind": "save", "job_id": "hops", "vm_id": "vm-1"}
    fill(old, {
        "observations": [
            {"id": 11, **life, "value": 2.0, "vm_id": "vm-11", "at": at(7)},
            {"id": 12, **life, "value": 3.5, "vm_id": "vm-12", "at": at(5)},
            {"id": 13, **life, "value": 8.0, "vm_id": "vm-13", "censored": True, "at": at(9)},
            {"id": 14, **save, "value": 0.5, "n": 2},
            {"id": 15, **save, "value": 1.5, "n": 3},
            {"id": 16, **save, "value": 9.0, "n": 3, "censored": True, "attempt": 2},
            {"id": 17, "kind": "save", "value": 9.0, "vm_id": "vm-9"},
        ]
    })  # fmt: skip
    before, shape = contents(old), schema_of(old)
    old.migrate("0012")
    after = contents(old)
    of_zone = [row for row in after["zone_sums"] if row["zone"] == "us-a"]
    newest = [row.pop("newest_at") for row in of_zone]
    assert of_zone == [
        {**life, "censored": False, "count": 2, "total": 5.5},
        {**life, "censored": True, "count": 1, "total": 8.0},
    ]
    assert newest == [at(7).replace(tzinfo=None), at(9).replace(tzinfo=None)]
    assert after["job_sums"] == [
        {"job_id": "hops", "kind": "save", "censored": False, "count": 2, "total": 2.0},
        {"job_id": "hops", "kind": "save", "censored": True, "count": 1, "total": 9.0},
    ]
    assert after["observations"] == before["observations"]
    old.downgrade("0002")
    assert schema_of(old) == shape


def test_each_observation_is_added_to_its_sums_once(db: Database) -> None:
    db.migrate()
    job = {"id": "j", "owner_id": 1, "submit_token": "t", "state": "running"}
    vm_1 = {"id": "vm-1", "job_id": "j", "dialect": "aws", "state": "running"}
    fill(db, {"users": [{"id": 1, "name": "u", "role": "user"}], "jobs": [job], "vms": [vm_1]})
    for value in (2.0, 2.0, 4.0):
        with db.begin() as session:
            vm = session.get_one(VmRow, "vm-1")
            observations.add(session, vm, "save", value, n=int(value), now=at(1))
            observations.add(session, vm, "life", value, attempt=int(value), now=at(9 - value))
    rows = contents(db)
    assert [(row["count"], row["total"]) for row in rows["job_sums"]] == [(2, 6.0)]
    (zone,) = rows["zone_sums"]
    assert (zone["count"], zone["total"]) == (2, 6.0)
    assert zone["newest_at"] == at(7).replace(tzinfo=None)


def test_lists_of_an_old_database_say_what_its_rows_say(old: Database) -> None:
    old.migrate()
    with old.begin() as session:
        assert summaries.fill(session) > 0
    with old.read() as session:
        for job_id in session.scalars(sa.select(Job.id)):
            assert_light_is_full(session, job_id, now=at(10_000))


# --- masters of the release before, beside one that has migrated ---------------------------------


@pytest.mark.parametrize("to", [name for name in known_revisions() if name >= "0020"])
def test_a_migration_only_adds(tmp_path: Path, to: str) -> None:
    """Or masters that still run would fail: what goes, goes a release later (expand, contract)."""
    before, after = tables_at(tmp_path, known_revisions()[int(to) - 2]), tables_at(tmp_path, to)
    for table, columns in before.items():
        gone = sorted(columns.keys() - after.get(table, {}).keys())
        assert (table, gone) == (table, [])
        for name, column in after[table].items():
            if name not in columns:
                by_itself = column["nullable"] or column["default"] is not None
                assert by_itself, f"an older master writes no {table}.{name}"


def tables_at(folder: Path, revision: str) -> dict[str, dict[str, Any]]:
    write_migrated(folder / f"{revision}.db", revision)
    engine = sa.create_engine(f"sqlite:///{folder}/{revision}.db")
    inspector = sa.inspect(engine)
    found = {
        table: {column["name"]: column for column in inspector.get_columns(table)}
        for table in inspector.get_table_names()
    }
    engine.dispose()
    return found
