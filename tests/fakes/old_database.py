"""Databases as earlier releases left them, with rows in every table that matters."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

from spothop_master.store import dialects
from spothop_master.store.db import Database

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
Rows = dict[str, list[dict[str, Any]]]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def fill(db: Database, rows: Rows) -> None:
    """Insert these rows, in this order, whatever the tables look like now; what a row leaves out
    and its table needs is made up."""
    with db.engine.begin() as connection:
        tables = _tables(connection)
        for name, several in rows.items():
            for row in several:
                made = {c.name: _made_up(c) for c in tables[name].columns if not c.nullable}
                connection.execute(tables[name].insert().values({**made, **row}))
        dialects.count_on(connection, [tables[name] for name in rows])


def contents(db: Database) -> Rows:
    """Every row of every table but Alembic's own, with times as SQLite keeps them."""
    with db.engine.connect() as connection:
        tables = _tables(connection)
        return {
            name: [
                {column: _naive(value) for column, value in row._mapping.items()}
                for row in connection.execute(table.select().order_by(*table.primary_key))
            ]
            for name, table in sorted(tables.items())
            if name != "alembic_version"
        }


def _naive(value: object) -> object:
    aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(timezone.utc).replace(tzinfo=None) if aware else value  # type: ignore[attr-defined]


def revision(db: Database) -> str:
    with db.engine.connect() as connection:
        return str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar())


def release_1() -> Rows:
    """At revision 0002: a job that hopped once, one that succeeded, one VM that was refused."""
    return {
        "users": [{"id": 1, "name": "ada", "role": "admin"}],
        "tokens": [{"id": 1, "user_id": 1, "hash": "h"}],
        "jobs": [
            {"id": "hops", "submit_token": "t1", "owner_id": 1, "state": "draining"},
            {"id": "done", "submit_token": "t2", "owner_id": 1, "state": "succeeded"},
        ],
        "vms": [
            _vm("vm-1", "hops", "draining", notice_at=at(50), deadline_at=at(80)),
            _vm("vm-2", "hops", "ready", joined_at=at(60)),
            _vm("vm-3", "done", "terminated", reason="released"),
            _vm("vm-4", "hops", "terminated", reason="launch_failed", refusal="NoCapacity"),
        ],
        "attempts": [
            _attempt(
                1, "hops", 1, "vm-1", "draining", fenced_in=True, fenced_at=at(5), last_step=700,
                prepared_at=at(4), first_step_at=at(9), notice_at=at(50), deadline_at=at(80),
                notice_fits=True, step_at_notice=690, last_step_at=at(51), step_s=0.5,
            ),
            _attempt(2, "hops", 2, "vm-2", "preparing", prepared_at=at(61)),
            _attempt(
                3, "done", 1, "vm-3", "ended", reason="user_failure", exit_signal=9, ended_at=at(20)
            ),
            _attempt(
                4, "done", 2, "vm-3", "ended", reason="succeeded", exit_code=0, ended_at=at(40),
                last_step=1000, first_step_at=at(25), stop_wanted="cancelled", stop_at=at(39),
            ),
        ],
        "checkpoints": [{"id": 1, "job_id": "hops", "attempt": 1, "n": 2, "kind": "insurance"}],
        "events": [{"id": 1, "job_id": "hops", "vm_id": "vm-1", "kind": "of any name"}],
        "metrics": [{"id": 1, "job_id": "hops", "attempt": 1}],
        "observations": [
            {"id": 1, "kind": "life", "evidence": "notice", "vm_id": "vm-0"},
            {"id": 2, "kind": "step", "evidence": "", "vm_id": "vm-3"},
        ],
        "injections": [{"id": 1, "job_id": "hops", "vm_id": "vm-1"}],
        "prices": [{"id": 1}],
    }  # fmt: skip


def _vm(id_: str, job: str, state: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "token": f"launch-{id_}", "job_id": job, "dialect": "aws", "state": state,
            "running_at": at(2), **more}  # fmt: skip


def _attempt(
    id_: int, job: str, number: int, vm: str, state: str, *, fenced_in: bool = False, **more: Any
) -> dict[str, Any]:
    return {"id": id_, "job_id": job, "number": number, "vm_id": vm, "state": state,
            "fenced_in": fenced_in, **more}  # fmt: skip


def _tables(connection: sa.Connection) -> dict[str, sa.Table]:
    metadata = sa.MetaData()
    metadata.reflect(connection)
    return dict(metadata.tables)


def _made_up(column: sa.Column[Any]) -> object:
    kind = column.type
    if column.name == "wanted":
        return "running"
    if isinstance(kind, sa.DateTime):
        return NOW
    if isinstance(kind, sa.Boolean):
        return False
    if isinstance(kind, sa.JSON):
        return {}
    return 0 if isinstance(kind, (sa.Integer, sa.Float)) else ""
