"""What a look costs, in queries and rows: it grows neither with the jobs nor with their history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes import sample_rows
from fakes.master_harness import MasterHarness
from spothop_master.loops import snapshot, supervise
from spothop_master.loops.snapshot import snapshots_of
from spothop_master.store.schema import Attempt, Place, VmRow

pytestmark = pytest.mark.databases

A_LOOK = 3
"""Queries: jobs, attempts with their places, VMs."""
WITH_NOTICES = 6
"""And the saves since the notices, the refusals of pools, the back-offs."""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    yield made
    made.db.close()


@contextmanager
def queries(harness: MasterHarness) -> Iterator[list[str]]:
    """The statements that are executed meanwhile, without the beginnings of transactions."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            found.append(statement)

    sa.event.listen(harness.db.engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(harness.db.engine, "before_cursor_execute", note)


def at_rest(harness: MasterHarness, jobs: int) -> list[str]:
    names = [f"job-{number}" for number in range(1, jobs + 1)]
    for name in names:
        harness.training(name)
    harness.look_at_what_is_due()
    return names


def rows_read(harness: MasterHarness, jobs: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Of all queries for the facts of these jobs."""
    read = 0
    execute = sa.orm.Session.execute

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal read
        result = execute(self, *args, **options).freeze()
        read += len(result.data)
        return result()

    supervisor = harness.supervisor
    with harness.db.read() as session, monkeypatch.context() as patch:
        patch.setattr(sa.orm.Session, "execute", counting)
        supervisor._facts(session, jobs)
    return read


def add_history(harness: MasterHarness, job_id: str, numbers: Iterable[int]) -> None:
    """Attempts that were preempted, each with a checkpoint and a VM of its own."""
    with harness.db.begin() as session:
        vm = session.query(VmRow).filter_by(job_id=job_id).first()
        columns = {c.name: getattr(vm, c.name) for c in VmRow.__table__.columns}
        then = harness.clock() - timedelta(days=1)
        for number in numbers:
            vm_id = f"vm-of-{number}"
            past = {"id": vm_id, "token": vm_id, "ended_at": then, "session_hash": None}
            session.add(VmRow(**{**columns, **past, "state": "terminated", "reason": "preempted"}))
            session.flush()
            place = Place(vm_id=vm_id, living=False, notice_at=then)
            session.add(sample_rows.checkpoint(job_id, 1000 + number, number, "emergency", 0))
            session.add(
                Attempt(
                    job_id=job_id,
                    number=number,
                    state="ended",
                    reason="preempted",
                    created_at=then,
                    ended_at=then,
                    places=[place],
                )
            )


def test_a_look_that_finds_nothing_is_three_queries_however_many_jobs(
    harness: MasterHarness,
) -> None:
    names = at_rest(harness, 4)
    for some in (names[:1], names):
        harness.supervisor._agenda.changed(some)
        with queries(harness) as found:
            harness.supervisor.run_due()
        assert len(found) == A_LOOK, found


def test_more_jobs_than_are_read_together_are_read_in_parts(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = at_rest(harness, 4)
    monkeypatch.setattr(supervise, "TOGETHER", 3)
    harness.supervisor._agenda.changed(names)
    with queries(harness) as found:
        harness.supervisor.run_due()
    assert len(found) == 2 * A_LOOK


def test_notices_of_many_jobs_are_read_together(harness: MasterHarness) -> None:
    names = at_rest(harness, 3)
    for name in names:
        harness.agents[harness.machine(job_id=name).id].notice()
    with queries(harness) as found, harness.db.read() as session:
        facts = harness.supervisor._facts(session, names)
    assert len(found) == WITH_NOTICES
    assert all(facts[name].attempts[-1].notice_at for name in names)


def test_the_rows_of_jobs_that_are_written_together_are_read_together(
    harness: MasterHarness,
) -> None:
    names = at_rest(harness, 3)
    for name in names:
        harness.agents[harness.machine(job_id=name).id].notice()
    with queries(harness) as found:
        plan = harness.supervisor._plan(names, urgent=True)
    assert len(plan.effects) == len(names)
    whole = [each for each in found if each.startswith("SELECT jobs.id, jobs.name")]
    assert len(whole) == 1


def test_launches_of_many_jobs_cost_as_many_statements_as_one(harness: MasterHarness) -> None:
    names = at_rest(harness, 4)
    agents = [harness.agents[harness.machine(job_id=name).id] for name in names]
    for agent in agents:
        agent.train(20)  # so that none is silent
    harness.look_at_what_is_due()
    for agent in agents:
        agent.notice()
    counts = []
    for some in (names[:1], names[1:]):
        with queries(harness) as found:
            plan = harness.supervisor._plan(some, urgent=True)
        assert len(plan.effects) == len(some)
        counts.append(len(found))
    assert counts[0] == counts[1]


def test_the_history_of_a_job_costs_nothing(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = at_rest(harness, 1)
    harness.agents[harness.machine().id].notice()
    with harness.db.begin() as session:
        session.query(Attempt).one().number = 1000
    add_history(harness, name, range(997, 1000))
    few = rows_read(harness, [name], monkeypatch)
    add_history(harness, name, range(1, 201))
    assert rows_read(harness, [name], monkeypatch) == few


def test_what_the_file_asks_for_is_read_once(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = at_rest(harness, 2)
    monkeypatch.setattr(snapshot, "requirements_of", None)  # would raise
    harness.look()
    assert harness.supervisor._observed.requirements.keys() == set(names)
    harness.want("cancelled", names[0])
    harness.settle(40)
    assert harness.job(names[0]).state == "cancelled"
    assert harness.supervisor._observed.requirements.keys() == {names[1]}


def test_a_job_whose_facts_cannot_be_read_keeps_no_other_from_being_looked_at(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = at_rest(harness, 3)

    def broken(session: Any, job_ids: Any, *args: Any, **options: Any) -> Any:
        if names[1] in job_ids:
            raise ZeroDivisionError("a bug that one job shows")
        return snapshots_of(session, job_ids, *args, **options)

    monkeypatch.setattr(supervise, "snapshots_of", broken)
    for name in names:
        harness.want("cancelled", name)
    harness.look()
    stopped = [harness.attempt(job_id=name).stop_wanted for name in names]
    assert stopped == ["cancelled", None, "cancelled"]
    assert "a bug that one job shows" in caplog.text
    monkeypatch.undo()
    harness.look_at_what_is_due()
    assert harness.attempt(job_id=names[1]).stop_wanted == "cancelled"


def test_jobs_with_a_notice_come_first(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = at_rest(harness, 3)
    monkeypatch.setattr(supervise, "TOGETHER", 1)
    acted = acted_by(harness, monkeypatch)
    for name in names[:2]:
        harness.want("paused", name)
    harness.agents[harness.machine(job_id=names[2]).id].notice()
    harness.supervisor.wake.clear()
    harness.supervisor.run_due()
    assert len(harness.attempts(names[2])) == 2
    assert (acted[0], len(acted)) == (names[2], 2)
    assert harness.supervisor.wake.is_set(), "and the others follow at once"
    harness.look_at_what_is_due()
    assert [harness.attempt(job_id=name).stop_wanted for name in names[:2]] == ["paused"] * 2


def acted_by(
    harness: MasterHarness,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """The jobs that are written about, in their order; filled from now on."""
    act, acted = harness.supervisor._act, list[str]()

    def acting(job_ids: Any, **options: Any) -> None:
        acted.extend(job_ids)
        meanwhile(len(acted))
        act(job_ids, **options)

    monkeypatch.setattr(harness.supervisor, "_act", acting)
    return acted


def test_a_notice_that_comes_meanwhile_waits_for_one_other_job_at_most(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = at_rest(harness, 4)
    agent = harness.agents[harness.machine(job_id=names[3]).id]
    acted = acted_by(harness, monkeypatch, lambda count: agent.notice() if count == 1 else None)
    for name in names[:3]:
        harness.want("paused", name)
    harness.supervisor.run_due()
    assert (len(acted), acted[1]) == (4, names[3])
    assert len(harness.attempts(names[3])) == 2


def test_a_write_that_fails_is_undone_for_its_job_alone(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = at_rest(harness, 3)
    for name in names:
        harness.want("cancelled", name)
    apply = supervise.apply

    def broken(session: Any, facts: Any, *args: Any, **options: Any) -> Any:
        found = apply(session, facts, *args, **options)
        if facts.job.id == names[1]:
            raise ZeroDivisionError("after its write")
        return found

    monkeypatch.setattr(supervise, "apply", broken)
    harness.supervisor.run_due()
    stopped = [harness.attempt(job_id=name).stop_wanted for name in names]
    assert stopped == ["cancelled", None, "cancelled"]
    assert "after its write" in caplog.text
