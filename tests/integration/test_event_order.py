"""Ids of events are taken in the order of their commits, so that `after=id` never skips one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from spothop_master.store import event_views, transitions
from spothop_master.store.db import Database
from spothop_master.store.schema import Event, Job, User
from support import database
from support.waiting import until

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def by_the_session(session: Session, job: str, kind: str) -> None:
    row = session.get_one(Job, job)
    transitions.record(session, kind, kind, now=NOW, row=row)
    session.flush()


def added_by_itself(session: Session, job: str, kind: str) -> None:
    session.add(Event(at=NOW, job_id=job, kind=kind, text=kind))
    session.flush()


def of_many(session: Session, job: str, kind: str) -> None:
    about = {"vm_id": None, "attempt": None, "data": {}}
    transitions.record_all(
        session, [{"at": NOW, "job_id": job, "kind": kind, "text": kind, **about}]
    )


def of_jobs(session: Session, job: str, kind: str) -> None:
    transitions.record_jobs(session, kind, kind, [job], now=NOW)


@pytest.fixture
def db(tmp_path: Path) -> Database:
    database.use(database.POSTGRESQL)
    db = database.new_database(tmp_path / "events.db")
    with db.begin() as session:
        session.add(User(id=1, name="u", role="user", created_at=NOW))
        session.flush()
        for name in ("a", "b"):
            row = {"name": "n", "owner_id": 1, "submit_token": name, "spec": {}, "bundle": "0"}
            session.add(Job(id=name, state="queued", submitted_at=NOW, **row))
    return db


@pytest.mark.parametrize("write", [by_the_session, added_by_itself, of_many, of_jobs])
def test_a_reader_skips_no_event_that_commits_late(
    db: Database, write: Callable[[Session, str, str], None]
) -> None:
    done = threading.Event()

    def later() -> None:
        with db.begin() as session:
            write(session, "a", "second")
        done.set()

    def waits() -> bool:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with db.read() as session:
            return done.is_set() or bool(session.scalar(query))

    def read(after: int) -> list[tuple[int, str]]:
        with db.read() as session:
            found = event_views.events(session, "a", after=after)
        return [(event.id, event.kind) for event in found]

    thread = threading.Thread(target=later)
    with db.begin() as session:
        write(session, "a", "first")
        thread.start()
        until(waits, what="the second one is written, or waits")
        seen = read(after=0)
        with db.begin() as other:  # of another job: nobody waits
            write(other, "b", "third")
    thread.join()
    cursor = seen[-1][0] if seen else 0
    assert [kind for _, kind in [*seen, *read(after=cursor)]] == ["first", "second"]
