"""The database itself: migrations against models, transactions, guarded changes, leases."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fakes import sample_rows
from spothop.statemachine import IllegalTransition
from spothop.wire import JobState, VmReason
from spothop_master.core.states import JobEvent, VmEvent
from spothop_master.store import leases, transitions
from spothop_master.store.db import Database
from spothop_master.store.migrating import MIGRATIONS, newest_revision
from spothop_master.store.schema import Base, Event, Job, User, VmRow
from support.database import new_database, on_postgresql, open_database, url_of, write_migrated
from support.examples import examples

pytestmark = pytest.mark.databases(gate=True)

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = new_database(tmp_path / "master.db")
    with db.begin() as session:
        session.add(User(id=1, name="u", role="user", created_at=NOW))
        session.flush()
        session.add(new_job("j1"))
    yield db
    db.close()


def new_job(job_id: str) -> Job:
    return Job(
        id=job_id,
        name="j",
        owner_id=1,
        submit_token=f"t-{job_id}",
        spec={},
        bundle="",
        state="queued",
        submitted_at=NOW,
    )


def test_models_and_migrations_agree(db: Database) -> None:
    from alembic.autogenerate import compare_metadata  # a second, which most tests do not need
    from alembic.migration import MigrationContext

    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrations_make_the_same_indexes_and_guards_as_the_models(
    db: Database, tmp_path: Path
) -> None:
    other = open_database(tmp_path / "models.db")
    Base.metadata.create_all(other.engine)
    names = sa.text("SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' AND sql != ''")
    if on_postgresql():
        names = sa.text("SELECT indexdef FROM pg_indexes WHERE tablename != 'alembic_version'")
    with db.engine.connect() as migrated, other.engine.connect() as modelled:
        found = set(map(tuple, migrated.execute(names)))
        assert found == set(map(tuple, modelled.execute(names)))


def test_migrating_again_is_harmless_and_there_is_one_head(db: Database) -> None:
    db.migrate()
    from alembic.script import ScriptDirectory

    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [newest_revision()]
    assert db.revision() == newest_revision()
    with db.read() as session:
        assert session.get(Job, "j1") is not None


def test_a_master_with_nothing_to_migrate_starts_without_alembic(tmp_path: Path) -> None:
    path = tmp_path / "migrated.db"
    write_migrated(path)
    program = (
        "import sys, spothop_master.program; from spothop_master.store.db import Database; "
        f"Database({url_of(path)!r}).migrate(); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_a_failed_transaction_leaves_nothing(db: Database) -> None:
    def half() -> None:
        with db.begin() as session:
            session.get_one(Job, "j1").reason = "half"
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    with db.read() as session:
        assert session.get_one(Job, "j1").reason == ""


def test_reading_goes_on_beside_a_writer(db: Database) -> None:
    with db.begin() as writer:
        writer.get_one(Job, "j1").reason = "new"
        writer.flush()
        with db.read() as reader:
            assert reader.get_one(Job, "j1").reason == ""


def test_two_writers_do_not_lose_each_others_work(db: Database) -> None:
    def add() -> None:
        for _ in range(20):
            with db.begin() as session:
                leases.lock(session, "j1").refusals += 1

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with db.read() as session:
        assert session.get_one(Job, "j1").refusals == 60


def test_times_come_back_aware_and_naive_ones_are_refused(db: Database) -> None:
    with db.read() as session:
        assert session.get_one(Job, "j1").submitted_at == NOW
    with pytest.raises(sa.exc.StatementError, match="naive"), db.begin() as session:
        session.get_one(Job, "j1").not_before = datetime(2030, 1, 1)  # noqa: DTZ001  on purpose


def test_a_change_and_its_event_are_one(db: Database) -> None:
    with db.begin() as session:
        job = session.get_one(Job, "j1")
        transitions.change(session, job, JobEvent.ALLOCATE, now=NOW, text="why", reason="r")
        assert (job.state, job.reason) == ("allocating", "r")
    with db.read() as session:
        (event,) = session.scalars(sa.select(Event))
    assert (event.kind, event.text, event.job_id) == ("job", "why", "j1")
    assert event.data == {"from": "queued", "to": "allocating", "event": "allocate"}


def test_the_event_of_an_end_says_why(db: Database) -> None:
    with db.begin() as session:
        vm = VmRow(
            id="vm-1",
            job_id="j1",
            token="t",
            cloud="x",
            region="r",
            zone="a",
            vm_type="gpu",
            spot=True,
            dialect="aws",
            grace_s=120,
            price=1,
            on_demand_price=3,
            state="running",
            requested_at=NOW,
        )
        session.add(vm)
        transitions.change(
            session, vm, VmEvent.TERMINATE, now=NOW, text="", reason=VmReason.AGENT_LOST
        )
    with db.read() as session:
        (event,) = session.scalars(sa.select(Event))
    assert (event.vm_id, event.data["to"]) == ("vm-1", "terminating")
    assert event.data["reason"] == "agent_lost"


def test_a_job_without_attempts_stays_until_it_is_said_that_it_waits(db: Database) -> None:
    with db.begin() as session:
        job = session.get_one(Job, "j1")
        job.state = "running"
        transitions.follow(session, job, now=NOW, text="its attempt ended")
        assert job.state == "running"
        transitions.follow(session, job, now=NOW, text="the next try is later", waits=True)
        assert (job.state, job.reason) == ("queued", "the next try is later")


def test_a_change_of_a_row_that_somebody_else_changed_is_stale(db: Database) -> None:
    with db.begin() as session:
        job = session.get_one(Job, "j1")
        other = sa.update(Job).values(state="running")
        session.execute(other.execution_options(synchronize_session=False))
        with pytest.raises(transitions.StaleState):
            transitions.change(session, job, JobEvent.ALLOCATE, now=NOW, text="")
    with db.read() as session:
        assert session.get_one(Job, "j1").state == "running"
        assert session.scalars(sa.select(Event)).all() == []


@given(events=st.lists(st.sampled_from(list(JobEvent)), max_size=12))
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_refused_events_change_nothing(db: Database, events: list[JobEvent]) -> None:
    with db.begin() as session:
        session.execute(sa.delete(Event))
        job = session.get_one(Job, "j1")
        job.state = "queued"
        taken = 0
        for event in events:
            before = job.state
            try:
                transitions.change(session, job, event, now=NOW, text="")
                taken += 1
            except IllegalTransition:
                assert job.state == before
            JobState(job.state)
        session.flush()
        assert session.scalar(sa.select(sa.func.count()).select_from(Event)) == taken


def a_vm(db: Database) -> None:
    with db.begin() as session:
        row = sample_rows.vm(1, "j1", 0, 0, None, None)
        row.id = "v1"
        session.add(row)


def lease_of(db: Database) -> tuple[str | None, datetime | None]:
    with db.read() as session:
        row = session.get_one(VmRow, "v1")
        return row.lease_token, row.lease_until


def test_a_lease_is_taken_once_and_given_back_by_its_holder(db: Database) -> None:
    a_vm(db)
    with db.begin() as session:
        leases.take(session, "v1", token="a", now=NOW)
        with pytest.raises(leases.StaleLease):
            leases.take(session, "v1", token="b", now=NOW)
        with pytest.raises(leases.StaleLease):
            leases.drop(session, "v1", token="b", now=NOW)
    assert lease_of(db) == ("a", NOW + leases.TTL)
    assert leases.held(*lease_of(db), now=NOW)
    later = NOW + timedelta(seconds=3)
    with db.begin() as session:
        leases.drop(session, "v1", token="a", now=later)
    assert lease_of(db) == (None, later), "until then a call was under way"
    assert not leases.held(*lease_of(db), now=NOW)


def test_a_lease_that_is_over_can_be_taken_and_the_first_holder_finds_out(db: Database) -> None:
    a_vm(db)
    over = NOW + leases.TTL
    with db.begin() as session:
        leases.take(session, "v1", token="a", now=NOW)
    assert not leases.held(*lease_of(db), now=over)
    with db.begin() as session:
        leases.take(session, "v1", token="b", now=over)

    def write_late() -> None:
        with db.begin() as session:
            session.get_one(Job, "j1").reason = "must not stay"
            leases.drop(session, "v1", token="a", now=over)

    with pytest.raises(leases.StaleLease):
        write_late()
    with db.begin() as session:
        assert session.get_one(Job, "j1").reason == ""
        leases.break_all(session, now=over)
    assert lease_of(db) == (None, over)
    with db.begin() as session:
        leases.take(session, "v1", token="c", now=over)


def test_a_lease_is_renewed_while_it_is_held(db: Database) -> None:
    a_vm(db)
    later = NOW + leases.TTL / 2
    with db.begin() as session:
        leases.take(session, "v1", token="a", now=NOW)
        leases.renew(session, {"v1": "another's"}, now=later)
    assert lease_of(db) == ("a", NOW + leases.TTL)
    with db.begin() as session:
        leases.renew(session, {"v1": "a", "gone": "a"}, now=later)
    assert lease_of(db) == ("a", later + leases.TTL)
    with db.begin() as session:
        leases.void(session, "v1")
        with pytest.raises(leases.StaleLease):
            leases.drop(session, "v1", token="a", now=later)


def test_an_error_of_the_database_shows_no_value(db: Database) -> None:
    """It goes to the log with its statement, and a job's spec holds the secrets of its storage."""
    spec = {"checkpoint": {"storage": {"options": {"secret_access_key": "very-secret-value"}}}}
    with pytest.raises(sa.exc.IntegrityError) as raised, db.begin() as session:
        session.execute(sa.insert(Job).values(id="j1", spec=spec))
    assert "very-secret-value" not in "".join(traceback.format_exception(raised.value))


def test_nobody_waits_for_a_connection_that_somebody_slow_holds(db: Database) -> None:
    with ExitStack() as slow:
        for _ in range(60):
            session = slow.enter_context(db.read())
            session.execute(sa.select(Job.id))
        with db.begin() as session:
            assert session.get(Job, "j1") is not None
