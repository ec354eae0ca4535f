"""What a transaction tells after its commit: the jobs whose decisions it may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from fakes import sample_rows
from fakes.sample_rows import GPT, NOW
from spothop_master.core.states import AttemptEvent, JobEvent, VmEvent
from spothop_master.store import transitions
from spothop_master.store.db import Database
from spothop_master.store.schema import Attempt, Base, Checkpoint, Job, Place, User, VmRow
from support.database import new_database

pytestmark = pytest.mark.databases

Change = Callable[[Any], None]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    made = new_database(tmp_path / "changes.db")
    with made.begin() as session:
        session.add(User(id=1, name="u", role="user", created_at=NOW))
        session.flush()
        sample_rows.tell(session, owner_id=1)
    return made


@pytest.fixture
def told(db: Database) -> list[frozenset[str]]:
    found: list[frozenset[str]] = []
    db.on_change(found.append)
    return found


def of_the_job(session: Session, model: type[Base]) -> Any:
    found = {
        Job: lambda: session.get_one(Job, GPT),
        VmRow: lambda: session.get_one(VmRow, "vm-3"),
        Attempt: lambda: session.query(Attempt).filter_by(job_id=GPT, number=3).one(),
        Place: lambda: session.query(Place).filter_by(vm_id="vm-3").one(),
    }
    return found[model]()


@pytest.mark.parametrize(
    ("model", "column", "value", "tells"),
    [
        (Job, "wanted", "cancelled", True),
        (Job, "refusals", 3, True),
        (Job, "insurance", None, False),
        (VmRow, "state", "draining", True),
        (VmRow, "acked_seq", 9, False),
        (VmRow, "last_contact_at", NOW, False),
        (Attempt, "stop_wanted", "paused", True),
        (Attempt, "step_s", 2.0, False),
        (Place, "prepared_at", NOW, True),
        (Place, "last_step", 6000, False),
    ],
)
def test_a_row_that_decisions_are_made_from(
    db: Database,
    told: list[frozenset[str]],
    model: type[Base],
    column: str,
    value: object,
    tells: bool,
) -> None:
    with db.begin() as session:
        setattr(of_the_job(session, model), column, value)
    assert told == ([frozenset({GPT})] if tells else [])


def test_every_checkpoint_is_told(db: Database, told: list[frozenset[str]]) -> None:
    """What is not saved yet decides on a last save before the hand-over."""
    with db.begin() as session:
        session.add(sample_rows.checkpoint(GPT, 99, 5060, "insurance", 0))
    assert told == [frozenset({GPT})]


def test_an_assignment_of_the_same_value_is_no_change(
    db: Database, told: list[frozenset[str]]
) -> None:
    with db.begin() as session:
        of_the_job(session, Job).refusals = 0
        of_the_job(session, VmRow).acked_seq = 9
    assert told == []


def test_a_change_of_progress_beside_a_decisive_one(
    db: Database, told: list[frozenset[str]]
) -> None:
    with db.begin() as session:
        place = of_the_job(session, Place)
        place.last_step, place.notice_at = 6000, NOW
    assert told == [frozenset({GPT})]


def test_a_new_job_is_told_and_several_are_told_at_once(
    db: Database, told: list[frozenset[str]]
) -> None:
    with db.begin() as session:
        session.add(sample_rows.job("new-1", "queued", 0, 1))
        session.flush()
        of_the_job(session, Job).refusals = 7
    assert told == [frozenset({"new-1", GPT})]


def test_nothing_is_told_of_what_was_rolled_back(db: Database, told: list[frozenset[str]]) -> None:
    def fail() -> None:
        with db.begin() as session:
            of_the_job(session, Job).refusals = 7
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with db.begin() as session:
        of_the_job(session, VmRow).acked_seq = 9
    assert told == []


def test_what_is_read_tells_nothing(db: Database, told: list[frozenset[str]]) -> None:
    with db.begin() as session:
        assert session.query(Checkpoint).count()
    assert told == []


@pytest.mark.parametrize(
    ("model", "event"),
    [(Job, JobEvent.DRAIN), (VmRow, VmEvent.TERMINATE), (Attempt, AttemptEvent.NOTICE)],
)
def test_a_change_of_a_state_by_its_guarded_statement(
    db: Database,
    told: list[frozenset[str]],
    model: type[Base],
    event: JobEvent | AttemptEvent | VmEvent,
) -> None:
    with db.begin() as session:
        transitions.change(session, of_the_job(session, model), event, now=NOW, text="a test")
    assert told == [frozenset({GPT})]
