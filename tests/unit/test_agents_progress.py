"""Progress of many VMs in one transaction: what it takes, what it leaves, who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import (
    AnyReport,
    Envelope,
    MessageReport,
    MetricsReport,
    StepsReport,
    Wanted,
)
from spothop_master.agents import progress, protocol
from spothop_master.agents.limits import MetricNames
from spothop_master.agents.progress import ProgressWriter, Written
from spothop_master.agents.reading import Fault, FaultyEnvelope
from spothop_master.store import leases
from spothop_master.store.schema import Metric

pytestmark = pytest.mark.databases

PATIENCE_S = 60


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


@pytest.fixture
def rests() -> list[float]:
    return []


@pytest.fixture
def writer(harness: MasterHarness, rests: list[float]) -> Iterator[ProgressWriter]:
    writer = ProgressWriter(harness.db, harness.clock, sleep=rests.append)
    yield writer
    writer.close()


def steps(step: int, *, count: int = 5, step_s: float = 0.5) -> StepsReport:
    return StepsReport(step=step, count=count, step_s=step_s, load_s=0.0)


def metrics(step: int, **values: float) -> MetricsReport:
    return MetricsReport(step=step, values=values or {"loss": 1.0})


def after(agent: ScriptedAgent, *found: AnyReport, age_s: float = 0) -> list[Envelope]:
    """These reports behind all that the agent has sent."""
    first = agent.seq + 1
    return [
        Envelope(seq=first + i, age_s=age_s, attempt=1, report=report)
        for i, report in enumerate(found)
    ]


def faulty(seq: int, report: AnyReport) -> FaultyEnvelope:
    """Something of it made no sense, and is left out."""
    fault = Fault.of_report(report, "because")
    return FaultyEnvelope(seq=seq, age_s=0, attempt=1, report=report, fault=fault)


def told(future: Future[Written | None]) -> Written | None:
    return future.result(timeout=PATIENCE_S)


def state(harness: MasterHarness, agent: ScriptedAgent, job: str) -> tuple[Any, ...]:
    """All that progress changes."""
    attempt = harness.attempt(job_id=job)
    place = attempt.leader
    rows = harness.rows(Metric, Metric.job_id == job)
    return (
        harness.vm(agent.vm).acked_seq,
        harness.vm(agent.vm).join_hash,
        harness.vm(agent.vm).last_contact_at,
        (place.last_step, place.last_step_at, attempt.step_s, attempt.state, attempt.metrics),
        sorted((row.attempt, row.step, row.name, row.value, row.at) for row in rows),
    )


@pytest.mark.parametrize(
    "found",
    [
        [steps(15)],
        [steps(15, step_s=2.0), metrics(12, loss=0.5, lr=1e-4), metrics(15, loss=0.25)],
        [metrics(15)],
        [steps(7), steps(30, count=3, step_s=0.1)],
    ],
    ids=["steps", "both", "metrics", "older steps"],
)
def test_it_writes_what_the_reports_by_themselves_would(
    harness: MasterHarness, found: list[AnyReport]
) -> None:
    one, other = harness.training("job-1"), harness.training("job-2")
    assert one.seq == other.seq
    with harness.db.begin() as session:  # both after the same times since
        session.execute(sa.text("UPDATE places SET last_step_at = NULL"))
        session.execute(sa.text("UPDATE attempts SET step_s = 1.0"))
    harness.clock.advance(3)
    with harness.db.begin() as session:
        protocol.apply(session, one.vm, after(one, *found, age_s=0.5), now=harness.clock())
    with harness.db.begin() as session:
        told = progress.write(
            session,
            {other.vm: after(other, *found, age_s=0.5)},
            now=harness.clock(),
            names=MetricNames(),
        )
    assert told[other.vm].acked_seq == one.seq + len(found)
    assert state(harness, one, "job-1") == state(harness, other, "job-2")


@pytest.mark.databases(only="sqlite")
def test_those_that_wait_together_are_written_together(
    harness: MasterHarness, writer: ProgressWriter, rests: list[float]
) -> None:
    agents = [harness.training(f"job-{n}") for n in range(4)]
    commits: list[object] = []
    sa.event.listen(harness.db.engine, "commit", commits.append)
    with harness.db.begin():  # somebody else writes
        waiting = [writer.write(agent.vm, after(agent, steps(20))) for agent in agents]
        assert not any(future.done() for future in waiting)
    assert [told(future) is not None for future in waiting] == [True] * 4
    assert len(commits) == 1
    assert {harness.attempt(job_id=f"job-{n}").leader.last_step for n in range(4)} == {20}
    told(writer.write(agents[0].vm, []))
    assert len(rests) <= 1  # a lone one waits for nobody


def test_where_one_comes_meanwhile_the_writer_rests_after_a_lone_one(
    harness: MasterHarness, writer: ProgressWriter, rests: list[float]
) -> None:
    one, other = harness.training("job-1"), harness.training("job-2")
    later: list[Future[Written | None]] = []

    def committing(_connection: object) -> None:
        if not later:
            later.append(writer.write(other.vm, after(other, steps(20))))

    sa.event.listen(harness.db.engine, "commit", committing)
    assert told(writer.write(one.vm, after(one, steps(20)))) is not None
    assert told(later[0]) is not None
    writer.close()
    assert rests


def test_none_is_answered_before_its_commit(harness: MasterHarness, writer: ProgressWriter) -> None:
    agent = harness.training()
    seen: list[bool] = []

    def committing(_connection: object) -> None:
        seen.append(future.done())

    with harness.db.begin():
        future = writer.write(agent.vm, after(agent, steps(20)))
        sa.event.listen(harness.db.engine, "commit", committing)
    told(future)
    assert seen[-1] is False


def cancelled(harness: MasterHarness) -> None:
    harness.want("cancelled")
    harness.look()


def shut_out(harness: MasterHarness) -> None:
    with harness.db.begin() as session:
        session.execute(sa.text("UPDATE attempts SET fenced_in = FALSE"))


@pytest.mark.parametrize("change", [cancelled, shut_out])
def test_what_is_not_plain_is_left_to_the_caller(
    harness: MasterHarness, writer: ProgressWriter, change: Callable[[MasterHarness], None]
) -> None:
    agent = harness.training()
    change(harness)
    before = state(harness, agent, "job-1")
    assert told(writer.write(agent.vm, after(agent, steps(20)))) is None
    assert state(harness, agent, "job-1") == before


@pytest.mark.parametrize(
    "envelopes",
    [
        lambda agent: after(agent, steps(20), MessageReport(text="hello")),
        lambda agent: [
            Envelope(seq=agent.seq + 1, age_s=0, attempt=2, report=steps(20)),
        ],
        lambda agent: [*after(agent, metrics(20)), faulty(agent.seq + 2, steps(20))],
    ],
    ids=["another kind", "another attempt", "a faulty one"],
)
def test_reports_that_are_not_plain_are_left_to_the_caller(
    harness: MasterHarness,
    writer: ProgressWriter,
    envelopes: Callable[[ScriptedAgent], list[Envelope]],
) -> None:
    agent = harness.training()
    before = state(harness, agent, "job-1")
    assert told(writer.write(agent.vm, envelopes(agent))) is None
    assert state(harness, agent, "job-1") == before


def test_a_repeated_call_is_answered_and_writes_nothing(
    harness: MasterHarness, writer: ProgressWriter
) -> None:
    agent = harness.training()
    sent = after(agent, metrics(20))
    with harness.db.begin():  # the second one comes while the first one waits
        both = [writer.write(agent.vm, sent) for _ in range(2)]
    assert {told(future) for future in both} == {Written(acked_seq=agent.seq + 1, step_s=0.5)}
    assert len(harness.rows(Metric, Metric.step == 20)) == 1


def test_a_gap_is_not_acknowledged(harness: MasterHarness, writer: ProgressWriter) -> None:
    agent = harness.training()
    sent = after(agent, steps(20), steps(25), steps(30))
    written = told(writer.write(agent.vm, [sent[0], sent[2]]))
    assert written is not None
    assert written.acked_seq == sent[0].seq
    assert harness.attempt().leader.last_step == 20


def test_what_the_database_refuses_hurts_nobody_else(
    harness: MasterHarness, writer: ProgressWriter
) -> None:
    agents = [harness.training(f"job-{n}") for n in range(3)]
    bad = MetricsReport.model_construct(kind="metrics", step=2**70, values={"loss": 1.0})
    sent = [after(agent, steps(20)) for agent in agents]
    sent[1] = [
        Envelope.model_construct(seq=agents[1].seq + 1, age_s=0.0, attempt=1, report=bad),
    ]
    with harness.db.begin():
        waiting = [
            writer.write(agent.vm, envelopes) for agent, envelopes in zip(agents, sent, strict=True)
        ]
    wait(waiting, timeout=PATIENCE_S, return_when=ALL_COMPLETED)
    assert [told(future) is None for future in waiting] == [False, True, False]
    steps_of = [harness.attempt(job_id=f"job-{n}").leader.last_step for n in range(3)]
    assert steps_of == [20, 10, 20]


def test_who_waits_hears_of_a_database_that_is_away(
    harness: MasterHarness, writer: ProgressWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = harness.training()

    def away(*_arguments: object, **_more: object) -> None:
        raise sa.exc.OperationalError("SELECT", {}, Exception("away"))

    with monkeypatch.context() as patched:
        patched.setattr(progress, "write", away)
        with pytest.raises(sa.exc.OperationalError):
            told(writer.write(agent.vm, after(agent, steps(20))))
    assert told(writer.write(agent.vm, after(agent, steps(20)))) is not None


def test_an_attempt_that_a_user_wants_paused_is_not_plain(
    harness: MasterHarness, writer: ProgressWriter
) -> None:
    agent = harness.training()
    harness.want(Wanted.PAUSED.value)
    harness.look()
    assert told(writer.write(agent.vm, after(agent, steps(20)))) is None


@pytest.mark.databases(only="sqlite")
def test_a_call_that_was_given_up_holds_up_nobody(
    harness: MasterHarness, writer: ProgressWriter
) -> None:
    agent = harness.training("job-1")
    with harness.db.begin():  # nothing is written meanwhile
        given_up = writer.write(agent.vm, after(agent, metrics(15)))
        assert given_up.cancel()
    assert told(writer.write(agent.vm, after(agent, metrics(15))))


def test_what_was_written_while_it_waited_for_the_jobs_counts(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that had no answer in time repeats its reports with an urgent one behind them. On
    PostgreSQL the first call may wait for the rows that the second one holds."""
    agent = harness.training("job-1")
    repeated = after(agent, metrics(15), MessageReport(text="urgent"))

    def lock(session: Session, vms: Sequence[str]) -> None:
        protocol.apply(session, agent.vm, repeated, now=harness.clock())

    monkeypatch.setattr(leases, "lock_those_of", lock)
    with harness.db.begin() as session:
        told = progress.write(
            session, {agent.vm: repeated[:1]}, now=harness.clock(), names=MetricNames()
        )
    assert told[agent.vm].acked_seq == agent.seq + 2
    assert harness.vm(agent.vm).acked_seq == agent.seq + 2
    assert len(harness.rows(Metric, Metric.job_id == "job-1", Metric.step == 15)) == 1


def test_no_statement_that_waits_for_a_lock_reads_what_the_lock_is_for() -> None:
    """PostgreSQL goes on with the rows of all other tables as they were before it waited."""
    text = str(progress._FACTS.compile(dialect=postgresql.dialect()))
    assert "FOR UPDATE" not in text
