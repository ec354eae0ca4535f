"""Answers for many VMs at once: the same as for each by itself, in a fixed number of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa

from fakes.master_harness import MasterHarness
from spothop_master.agents import answers, protocol
from spothop_master.agents.pace import Pace
from spothop_master.core.insurance import MATERIAL
from spothop_master.store.observations import STATED
from spothop_master.store.schema import Checkpoint, Event, Job
from spothop_master.store.statistics import FRESH, KeptStatistics
from spothop_master.store.vms import pool_of
from support.queries import counted

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def change(harness: MasterHarness, text: str) -> None:
    with harness.db.begin() as session:
        session.execute(sa.text(text))


def follow(harness: MasterHarness, **policy: object) -> None:
    with harness.db.begin() as session:
        for job in session.scalars(sa.select(Job)):
            job.spec = {**job.spec, "checkpoint": {**job.spec["checkpoint"], **policy}}


def committed(harness: MasterHarness, job: str, *, n: int, step: int, kind: str) -> None:
    with harness.db.begin() as session:
        session.add(
            Checkpoint(
                job_id=job,
                attempt=1,
                n=n,
                step=step,
                kind=kind,
                bytes=9,
                delta_s=0.5,
                beta_s=1.5,
                committed_at=harness.clock(),
            )
        )


CASES: dict[str, Callable[[MasterHarness], None]] = {
    "as it began": lambda harness: None,
    "saved": lambda harness: committed(harness, "job-1", n=5, step=40, kind="insurance"),
    "saves of its own": lambda harness: (
        [committed(harness, "job-1", n=n, step=10 * n, kind="periodic") for n in range(2, 14)]
        and None
    ),
    "restored": lambda harness: change(harness, "UPDATE attempts SET restored_step = 30"),
    "a step time": lambda harness: change(harness, "UPDATE attempts SET step_s = 0.25"),
    "a notice": lambda harness: change(harness, "UPDATE attempts SET state = 'draining'"),
    "no step time yet": lambda harness: change(harness, "UPDATE attempts SET step_s = NULL"),
    "another policy": lambda harness: follow(harness, policy="static", static_every=7),
    "no insurance": lambda harness: follow(harness, policy="none"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_the_protocol_says_of_each(harness: MasterHarness, case: str) -> None:
    agents = [harness.training("job-1"), harness.training("job-2")]
    CASES[case](harness)
    harness.clock.advance(7)
    now = harness.clock()
    with harness.db.read() as session:
        found = answers.read(session, [agent.vm for agent in agents], FRESH, now=now)
        for agent in agents:
            assert found[agent.vm].acked_seq == agent.seq
            alone = protocol.answer(session, agent.vm, now=now, statistics=FRESH)
            assert found[agent.vm].answer == alone


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE attempts SET stop_wanted = 'cancelled'",
        "UPDATE attempts SET fenced_in = false",
        "UPDATE vms SET state = 'terminated'",
        "UPDATE vms SET state = 'terminating'",
        "UPDATE places SET living = false",
        "UPDATE places SET first_step_at = NULL",
    ],
)
def test_of_a_vm_that_is_not_in_the_plain_case_it_says_nothing(
    harness: MasterHarness, text: str
) -> None:
    agent = harness.training()
    change(harness, text)
    with harness.db.read() as session:
        assert answers.read(session, [agent.vm, "none"], FRESH, now=harness.clock()) == {}


def test_what_is_quite_another_insurance_than_was_noted_is_told(harness: MasterHarness) -> None:
    agent = harness.training()

    def noted(tau: float) -> bool:
        with harness.db.begin() as session:
            now = harness.clock()
            due = protocol.insurance_in(
                protocol.answer(session, agent.vm, now=now, statistics=FRESH).directives
            )
            assert due is not None
            told = due.model_dump(mode="json") | {"tau_s": due.tau_s * tau}
            session.get_one(Job, "job-1").insurance = told
            session.flush()
            return answers.read(session, [agent.vm], FRESH, now=now)[agent.vm].answer.noted

    assert noted(1.0)
    assert not noted(1.0 + 2 * MATERIAL)


def test_what_is_noted_for_many_is_what_is_noted_for_each(harness: MasterHarness) -> None:
    agents = [harness.training("job-1"), harness.training("job-2")]
    change(harness, "UPDATE jobs SET insurance = NULL")
    change(harness, "DELETE FROM events WHERE kind = 'insurance'")
    change(harness, "UPDATE vms SET running_at = '2030-01-01 00:00:00.000000'")
    now = harness.clock()
    with harness.db.begin() as session:
        vms = [agents[1].vm]
        found = answers.read(session, vms, FRESH, now=now, writes=True)[agents[1].vm].answer
        alone = protocol.answer(session, agents[0].vm, now=now, statistics=FRESH, writes=True)
    assert found == alone
    rows = {row.id: row.insurance for row in harness.rows(Job)}
    assert rows["job-1"] == rows["job-2"] is not None
    events = [(e.text, e.data, e.attempt) for e in harness.rows(Event, Event.kind == "insurance")]
    assert len(events) == 2
    assert events[0] == events[1]


def test_as_many_statements_for_many_as_for_one(harness: MasterHarness) -> None:
    agents = [harness.training("job-1"), harness.training("job-2")]
    statistics = KeptStatistics(STATED, harness.db.read)
    statistics.warm_all({pool_of(vm) for vm in harness.vms()}, now=harness.clock())
    counts = []
    for some in (agents[:1], agents):
        vms = [agent.vm for agent in some]
        with counted(harness.db) as statements, harness.db.read() as session:
            found = answers.read(session, vms, statistics, now=harness.clock())
        assert found.keys() == {*vms}
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 8


def test_first_answers_of_a_fleet_ask_for_the_next_syncs_evenly(harness: MasterHarness) -> None:
    pace = Pace(harness.clock(), lambda: 0.5, every_s=5.0, silent_after_s=60.0)
    asked = sorted(pace.first_delay_s(5.0) for _ in range(100))
    assert 2.5 <= asked[0] < 2.65
    assert 7.35 < asked[-1] < 7.5
    assert max(later - sooner for sooner, later in pairwise(asked)) < 0.15  # of 0.05 on average
