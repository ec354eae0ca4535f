"""A migration adds, and changes nothing that masters of the release before rely on.

While masters are upgraded one after the other, those of both releases work on the new tables. So
each migration since masters can run side by side (0022) may do what the older release does not
notice: new tables, new columns that may be empty or have a default in the database, indexes that
refuse nothing, a CHECK that admits more. What is not used any more is removed one release later:
such a revision stands in `CONTRACTS`, with the release that used it last.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.operations import ops
from alembic.operations.base import AbstractOperations

from spothop_master.store.migrating import known_revisions
from support.database import open_database

SIDE_BY_SIDE = "0022"
"""From this revision on masters of two releases may run on one database."""

CONTRACTS: dict[str, str] = {}
"""Revision -> what it removes, and since which revision nothing uses that."""


class Rules:
    """Those of one revision: what was made in it may be shaped at will."""

    def __init__(self, checks: dict[str, str]) -> None:
        """`checks`: the CHECKs that there are before it, by name."""
        self._checks = checks
        self._new: set[str] = set()

    def refuses(self, operation: object) -> str | None:
        """Why a master of the release before might not go on; None: it does not notice."""
        match operation:
            case ops.CreateTableOp():
                self._new.add(operation.table_name)
            case ops.AddColumnOp() if operation.table_name not in self._new:
                column = operation.column
                if not column.nullable and column.server_default is None:
                    where = f"{operation.table_name}.{column.name}"
                    return f"{where} is new, must have a value, and an older master gives none"
            case ops.CreateIndexOp() if operation.table_name not in self._new:
                if operation.unique:
                    return f"{operation.index_name} refuses rows that an older master may write"
            case ops.CreateCheckConstraintOp() if operation.table_name not in self._new:
                return self._narrows(operation)
            case ops.DropConstraintOp() if operation.constraint_type == "check":
                return None  # admits more
            case ops.ExecuteSQLOp():
                return _refused_sql(str(operation.sqltext))
            case ops.AlterColumnOp():
                if operation.modify_nullable is False or operation.modify_name:
                    where = f"{operation.table_name}.{operation.column_name}"
                    return f"{where} is renamed, or must have a value"
            case ops.BulkInsertOp() | ops.DropIndexOp():
                return None
            case ops.MigrateOperation() if getattr(operation, "table_name", "") not in self._new:
                return f"{type(operation).__name__}: it removes or renames what there is"
        return None

    def _narrows(self, operation: ops.CreateCheckConstraintOp) -> str | None:
        name = str(operation.constraint_name)
        before, now = _words(self._checks.get(name, "")), _words(str(operation.condition))
        if before and before <= now:
            return None
        return f"{name} admits less than before: {', '.join(sorted(before - now)) or 'it is new'}"


def _words(check: str) -> set[str]:
    return set(re.findall(r"'([^']*)'", check))


def _refused_sql(text: str) -> str | None:
    word = text.split(maxsplit=1)[0].upper()
    return None if word in {"INSERT", "UPDATE", "SELECT"} else f"{word}: {text[:60]}"


def checks_of(engine: sa.Engine) -> dict[str, str]:
    inspector = sa.inspect(engine)
    return {
        str(check["name"]): check["sqltext"]
        for table in inspector.get_table_names()
        for check in inspector.get_check_constraints(table)
    }


def test_no_migration_takes_anything_from_the_release_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, seen = open_database(tmp_path / "m.db"), list[Any]()
    invoke = AbstractOperations.invoke

    def recorded(self: AbstractOperations, operation: Any) -> Any:
        seen.append(operation)
        return invoke(self, operation)

    monkeypatch.setattr(AbstractOperations, "invoke", recorded)
    db.migrate(SIDE_BY_SIDE)
    found: dict[str, list[str]] = {}
    for revision in (each for each in known_revisions() if each > SIDE_BY_SIDE):
        rules, _ = Rules(checks_of(db.engine)), seen.clear()
        db.migrate(revision)
        assert seen, f"{revision} does nothing that was seen"
        why = [text for operation in seen if (text := rules.refuses(operation))]
        if why and revision not in CONTRACTS:
            found[revision] = why
    assert found == {}, "expand now, contract one release later (migrations/README.md)"


TABLE = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
WORD = sa.Column("word", sa.String(8), nullable=False)


@pytest.mark.parametrize(
    "operation",
    [
        ops.DropColumnOp("jobs", "name"),
        ops.DropTableOp("jobs"),
        ops.RenameTableOp("jobs", "work"),
        ops.AddColumnOp("jobs", sa.Column("word", sa.String(8), nullable=False)),
        ops.CreateIndexOp("uq_jobs_name", "jobs", ["name"], unique=True),
        ops.AlterColumnOp("jobs", "name", modify_nullable=False),
        ops.AlterColumnOp("jobs", "name", modify_name="title"),
        ops.CreateCheckConstraintOp("ck_jobs_state", "jobs", "state IN ('queued')"),
        ops.CreateCheckConstraintOp("ck_jobs_new", "jobs", "step > 0"),
        ops.ExecuteSQLOp("DELETE FROM jobs"),
        ops.CreateForeignKeyOp("fk", "jobs", "users", ["x"], ["id"]),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_what_takes_something_away_is_found(operation: object) -> None:
    assert Rules({"ck_jobs_state": "state IN ('queued', 'running')"}).refuses(operation)


@pytest.mark.parametrize(
    "operation",
    [
        ops.AddColumnOp("jobs", sa.Column("word", sa.String(8), nullable=True)),
        ops.AddColumnOp("jobs", sa.Column("n", sa.Integer, nullable=False, server_default="0")),
        ops.CreateIndexOp("ix_jobs_name", "jobs", ["name"]),
        ops.CreateCheckConstraintOp("ck_jobs_state", "jobs", "state IN ('queued', 'new')"),
        ops.DropConstraintOp("ck_jobs_state", "jobs", "check"),
        ops.ExecuteSQLOp("UPDATE jobs SET word = 'x'"),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_what_only_adds_is_let_through(operation: object) -> None:
    assert Rules({"ck_jobs_state": "state IN ('queued')"}).refuses(operation) is None


def test_a_new_table_may_have_what_it_likes() -> None:
    rules = Rules({})
    for operation in (
        ops.CreateTableOp.from_table(TABLE),
        ops.AddColumnOp("t", WORD),
        ops.CreateIndexOp("uq_t", "t", ["word"], unique=True),
        ops.CreateCheckConstraintOp("ck_t", "t", "id > 0"),
    ):
        assert rules.refuses(operation) is None
