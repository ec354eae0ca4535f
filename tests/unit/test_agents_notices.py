"""Notices of many VMs at once: the same rows as by each report alone, and before all that waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import AnyReport, CommittedReport, Envelope, NoticeReport, SaveKind, StepsReport
from spothop_master.agents import progress, protocol
from spothop_master.agents.limits import MetricNames
from spothop_master.agents.progress import Written
from spothop_master.store.observations import STATED
from spothop_master.store.schema import Base, Event, Job, Place, Summary, VmRow
from spothop_master.store.statistics import KeptStatistics
from spothop_master.store.vms import pool_of
from support.queries import counted

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


@pytest.fixture
def statistics(harness: MasterHarness) -> KeptStatistics:
    return KeptStatistics(STATED, harness.db.read)


def notice(event: str = "e-1", **more: Any) -> NoticeReport:
    return NoticeReport(event=event, **more)


def steps(step: int) -> StepsReport:
    return StepsReport(step=step, count=5, step_s=0.5, load_s=0.0)


def saved(n: int, step: int) -> CommittedReport:
    return CommittedReport(
        n=n, step=step, save=SaveKind.EMERGENCY, bytes=9, delta_s=0.5, beta_s=1.5
    )


def after(agent: ScriptedAgent, *found: AnyReport) -> list[Envelope]:
    first = agent.seq + 1
    return [
        Envelope(seq=first + i, age_s=0.25 * (len(found) - i), attempt=1, report=report)
        for i, report in enumerate(found)
    ]


def write(
    harness: MasterHarness, said: dict[str, list[Envelope]], statistics: KeptStatistics
) -> dict[str, Written]:
    with harness.db.begin() as session:
        return progress.write(
            session, said, now=harness.clock(), names=MetricNames(), statistics=statistics
        )


def values(row: Base, *left_out: str) -> dict[str, Any]:
    names = {column.name for column in row.__table__.columns} - {"id", *left_out}
    return {name: getattr(row, name) for name in sorted(names)}


LATELY = timedelta(seconds=2)
OWN = {"job_id", "vm_id", "attempt_id", "submit_token", "name", "submitted_at", "at"}
OF_VM = {"token", "cloud_id", "session_hash", "zone", "requested_at", "launched_at", "price"}
OF_VM |= {
    "running_at",
    "joined_at",
    "suspect_at",
    "lease_token",
    "lease_until",
    "region",
    "on_demand_price",
}
OF_PLACE = {"prepared_at", "started_at", "first_step_at", "address"}


def state(harness: MasterHarness, job: str, vm: str) -> dict[str, Any]:
    """All that a notice changes, but for names, and times of before."""
    attempt = harness.attempt(job_id=job)
    zone = harness.vm(vm).zone
    return {
        "job": values(harness.rows(Job, Job.id == job)[0], *OWN, "insurance", "reason"),
        "why": harness.rows(Job, Job.id == job)[0].reason.replace(zone, "ZONE"),
        "attempt": (attempt.state, attempt.notice_at, attempt.step_at_notice, attempt.step_s),
        "vm": values(harness.rows(VmRow, VmRow.id == vm)[0], *OWN, *OF_VM),
        "place": values(harness.rows(Place, Place.vm_id == vm)[0], *OWN, *OF_PLACE),
        "summary": harness.rows(Summary, Summary.job_id == job)[0].preemptions,
        "events": [
            (e.kind, e.attempt, e.text.replace(zone, "ZONE"), e.data, e.vm_id == vm, e.at)
            for e in harness.rows(Event, Event.job_id == job)
            if e.at >= harness.clock() - LATELY
        ],
    }


def _draining(harness: MasterHarness, job: str) -> bool:
    attempt, row = harness.attempt(job_id=job), harness.rows(Job, Job.id == job)[0]
    return (attempt.state, row.state) == ("draining", "draining")


@pytest.mark.parametrize(
    "found",
    [
        [notice()],
        [notice(deadline_in_s=20.0, fits=False, reason="rebalance")],
        [notice(deadline_in_s=-5.0)],
        [steps(20), notice(deadline_in_s=30.0), steps(25)],
        [saved(2, 20), notice(deadline_in_s=30.0)],
        [notice(deadline_in_s=30.0), saved(2, 20)],
    ],
    ids=["promised", "announced", "over", "between steps", "saved before", "saved after"],
)
def test_it_writes_what_the_reports_by_themselves_would(
    harness: MasterHarness, statistics: KeptStatistics, found: Sequence[AnyReport]
) -> None:
    one, other = harness.training("job-1"), harness.training("job-2")
    with harness.db.begin() as session:
        for vm in session.query(VmRow):
            vm.grace_s = 30.0
        for place in session.query(Place):
            place.last_step_at, place.attempt.step_s = None, 0.5
    harness.clock.advance(3)
    now = harness.clock()
    statistics.warm_all({pool_of(vm) for vm in harness.vms()}, now=now)
    with harness.db.begin() as session:
        protocol.apply(session, one.vm, after(one, *found), now=now)
        answer = protocol.answer(session, one.vm, now=now, statistics=statistics, writes=True)
    told = write(harness, {other.vm: after(other, *found)}, statistics)
    assert told[other.vm].answer == answer
    assert answer.draining
    assert _draining(harness, "job-2")
    assert state(harness, "job-1", one.vm) == state(harness, "job-2", other.vm)


def test_a_second_notice_is_left_to_the_one_by_one_way(
    harness: MasterHarness, statistics: KeptStatistics
) -> None:
    agent = harness.training()
    assert write(harness, {agent.vm: after(agent, notice(), notice("e-2"))}, statistics) == {}
    assert write(harness, {agent.vm: after(agent, notice())}, statistics).keys() == {agent.vm}
    agent.seq += 1
    assert write(harness, {agent.vm: after(agent, notice("e-2"))}, statistics) == {}


def test_after_a_notice_progress_and_saves_are_taken_as_before(
    harness: MasterHarness, statistics: KeptStatistics
) -> None:
    one, other = harness.training("job-1"), harness.training("job-2")
    with harness.db.begin() as session:
        for vm in session.query(VmRow):
            vm.grace_s = 30.0
        for place in session.query(Place):
            place.last_step_at, place.attempt.step_s = None, 0.5
    told = write(harness, {a.vm: after(a, notice()) for a in (one, other)}, statistics)
    assert len(told) == 2
    harness.clock.advance(3)
    now = harness.clock()
    one.seq, other.seq = one.seq + 1, other.seq + 1
    found = [steps(40), saved(2, 40), steps(45)]
    with harness.db.begin() as session:
        protocol.apply(session, one.vm, after(one, *found), now=now)
        answer = protocol.answer(session, one.vm, now=now, statistics=statistics, writes=True)
    again = write(harness, {other.vm: after(other, *found)}, statistics)
    assert again[other.vm].answer == answer
    assert state(harness, "job-1", one.vm) == state(harness, "job-2", other.vm)


def test_the_supervise_loop_hears_of_it(harness: MasterHarness, statistics: KeptStatistics) -> None:
    agent = harness.training()
    heard: list[str] = []
    harness.db.on_change(heard.extend)
    write(harness, {agent.vm: after(agent, notice())}, statistics)
    assert heard == ["job-1"]


def test_as_many_statements_for_two_notices_as_for_one(
    harness: MasterHarness, statistics: KeptStatistics
) -> None:
    agents = [harness.training(f"job-{number}") for number in range(1, 4)]
    statistics.warm_all({pool_of(vm) for vm in harness.vms()}, now=harness.clock())
    counts = []
    for some in (agents[:1], agents[1:]):
        said = {agent.vm: after(agent, notice()) for agent in some}
        with counted(harness.db) as statements:
            assert write(harness, said, statistics).keys() == said.keys()
        counts.append(len(statements))
    assert counts[0] == counts[1] < 30
