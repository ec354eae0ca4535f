"""Committed checkpoints of many VMs at once: the same rows as by each report alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import AnyReport, CommittedReport, Envelope, SaveKind, StepsReport
from spothop_master.agents import progress, protocol
from spothop_master.agents.limits import MetricNames
from spothop_master.agents.progress import ProgressWriter, Written
from spothop_master.store.observations import STATED
from spothop_master.store.schema import (
    Base,
    Checkpoint,
    Event,
    Job,
    JobSum,
    Observation,
    Summary,
)
from spothop_master.store.statistics import KeptStatistics
from spothop_master.store.vms import pool_of
from support.queries import counted

pytestmark = pytest.mark.databases

PATIENCE_S = 60


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


@pytest.fixture
def statistics(harness: MasterHarness) -> KeptStatistics:
    return KeptStatistics(STATED, harness.db.read)


def saved(
    n: int, step: int, *, kind: str = "insurance", delta_s: float = 0.5, exact: bool = True
) -> CommittedReport:
    return CommittedReport(
        n=n,
        step=step,
        save=SaveKind(kind),
        bytes=9,
        delta_s=delta_s,
        delta_exact=exact,
        beta_s=1.5,
    )


def steps(step: int) -> StepsReport:
    return StepsReport(step=step, count=5, step_s=0.5, load_s=0.0)


def after(agent: ScriptedAgent, *found: AnyReport) -> list[Envelope]:
    first = agent.seq + 1
    return [
        Envelope(seq=first + i, age_s=0.25, attempt=1, report=report)
        for i, report in enumerate(found)
    ]


def write(
    harness: MasterHarness,
    said: dict[str, list[Envelope]],
    statistics: KeptStatistics,
) -> dict[str, Written]:
    with harness.db.begin() as session:
        return progress.write(
            session, said, now=harness.clock(), names=MetricNames(), statistics=statistics
        )


def values(row: Base, *left_out: str) -> dict[str, Any]:
    names = {column.name for column in row.__table__.columns} - {"id", "job_id", *left_out}
    return {name: getattr(row, name) for name in sorted(names)}


def state(harness: MasterHarness, job: str, vm: str) -> dict[str, Any]:
    """All that a save changes, without the names of job and VM."""
    row = harness.rows(Job, Job.id == job)[0]
    attempt = harness.attempt(job_id=job)
    return {
        "acked": harness.vm(vm).acked_seq,
        "attempt": (attempt.save_s, attempt.backup_s, attempt.step_s, attempt.leader.last_step),
        "job": (row.user_failures, row.infrastructure_failures, row.insurance, row.state),
        "checkpoints": [values(r) for r in harness.rows(Checkpoint, Checkpoint.job_id == job)],
        "observed": sorted(
            str(values(r, "vm_id", "zone", "at"))
            for r in harness.rows(Observation, Observation.job_id == job)
        ),
        "sums": sorted(str(values(r)) for r in harness.rows(JobSum, JobSum.job_id == job)),
        "summary": harness.rows(Summary, Summary.job_id == job)[0].saves,
        "events": [
            (event.kind, event.attempt, event.text, event.data, event.vm_id is not None)
            for event in harness.rows(Event, Event.job_id == job)
            if event.kind in ("committed", "insurance")
        ],
    }


@pytest.mark.parametrize(
    "found",
    [
        [saved(2, 20)],
        [steps(20), saved(2, 20), steps(25)],
        [saved(2, 20, kind="periodic"), saved(3, 30, kind="emergency", delta_s=2.0)],
        [saved(2, 20, exact=False)],
        [saved(2, 20, delta_s=0.0), saved(3, 25, exact=False)],
    ],
    ids=["one", "between steps", "two", "a bound", "no save time"],
)
def test_it_writes_what_the_reports_by_themselves_would(
    harness: MasterHarness, statistics: KeptStatistics, found: Sequence[AnyReport]
) -> None:
    one, other = harness.training("job-1"), harness.training("job-2")
    with harness.db.begin() as session:
        session.execute(sa.text("UPDATE jobs SET user_failures = 2, infrastructure_failures = 1"))
        session.execute(sa.text("UPDATE vms SET running_at = '2030-01-01 00:00:00.000000'"))
        session.execute(sa.text("UPDATE attempts SET step_s = 0.5"))
        session.execute(sa.text("DELETE FROM events WHERE kind = 'insurance'"))
    harness.clock.advance(3)
    now = harness.clock()
    statistics.warm_all({pool_of(vm) for vm in harness.vms()}, now=now)
    with harness.db.begin() as session:
        protocol.apply(session, one.vm, after(one, *found), now=now)
        answer = protocol.answer(session, one.vm, now=now, statistics=statistics, writes=True)
    told = write(harness, {other.vm: after(other, *found)}, statistics)
    assert told[other.vm].answer == answer
    assert state(harness, "job-1", one.vm) == state(harness, "job-2", other.vm)
    assert state(harness, "job-2", other.vm)["checkpoints"]


def test_whoever_waits_for_changes_hears_of_it(
    harness: MasterHarness, statistics: KeptStatistics
) -> None:
    agent = harness.training()
    heard: list[str] = []
    harness.db.on_change(heard.extend)
    rows: list[str] = []
    harness.db.on_news(rows.extend, lambda jobs: None)
    write(harness, {agent.vm: after(agent, saved(2, 20))}, statistics)
    assert (heard, rows) == (["job-1"], ["job-1"])


def test_a_save_that_is_known_is_left_to_the_one_by_one_way_and_hurts_nobody_else(
    harness: MasterHarness, statistics: KeptStatistics
) -> None:
    """An agent that was killed before it had noted that it reported says it again."""
    one, other = harness.training("job-1"), harness.training("job-2")
    first = after(one, saved(2, 20))
    assert write(harness, {one.vm: first}, statistics)[one.vm].acked_seq == first[-1].seq
    one.seq += 1
    writer = ProgressWriter(harness.db, harness.clock, statistics=statistics)
    with harness.db.begin():  # the writer waits, so that both are in one batch
        again = writer.write(one.vm, after(one, saved(2, 20)))
        new = writer.write(other.vm, after(other, saved(2, 20)))
    assert again.result(PATIENCE_S) is None
    found = new.result(PATIENCE_S)
    assert found is not None
    assert found.acked_seq == other.seq + 1
    writer.close()
    protocol_says = after(one, saved(2, 20))
    with harness.db.begin() as session:
        acked = protocol.apply(session, one.vm, protocol_says, now=harness.clock())
    assert acked == one.seq + 1
    assert len(harness.rows(Checkpoint, Checkpoint.job_id == "job-1")) == 1


def test_as_many_statements_for_the_saves_of_two_vms_as_for_one(
    harness: MasterHarness, statistics: KeptStatistics
) -> None:
    agents = [harness.training("job-1"), harness.training("job-2")]
    statistics.warm_all({pool_of(vm) for vm in harness.vms()}, now=harness.clock())
    write(harness, {agent.vm: after(agent, saved(2, 20)) for agent in agents}, statistics)
    counts = []
    for n, some in enumerate((agents[:1], agents), start=3):
        for agent in agents:
            agent.seq = harness.vm(agent.vm).acked_seq
        said = {agent.vm: after(agent, steps(10 * n), saved(n, 10 * n)) for agent in some}
        with counted(harness.db) as statements:
            assert write(harness, said, statistics).keys() == said.keys()
        counts.append(len(statements))
    assert counts[0] == counts[1] < 30
