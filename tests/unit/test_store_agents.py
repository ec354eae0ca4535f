"""Joining, reports in order, replays, stale attempts (I2), directives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.scripted_agent import ScriptedAgent
from fakes.world import World
from spothop.wire import (
    AcknowledgedReport,
    AnyReport,
    CommittedReport,
    Envelope,
    ExitedReport,
    FencedInReport,
    FencedReport,
    InsuranceDirective,
    MessageReport,
    MetricsReport,
    NoticeReport,
    PhaseReport,
    PreparationFailedReport,
    PreparedReport,
    RestoredReport,
    SaveKind,
    SaveRequestedReport,
    StartedReport,
    StepsReport,
)
from spothop_master.core.states import AttemptState, JobState, VmState
from spothop_master.store import agents, attempts, jobs
from spothop_master.store.schema import Attempt, Checkpoint, Event, Job, Metric


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.db.close()


def envelope(seq: int, report: AnyReport, *, attempt: int = 1, age_s: float = 0) -> Envelope:
    return Envelope(seq=seq, age_s=age_s, attempt=attempt, report=report)


def send(world: World, agent: ScriptedAgent, *envelopes: Envelope) -> int:
    with world.db.begin() as session:
        return agents.apply(session, agent.vm, list(envelopes), now=world.clock())


def commit(n: int, step: int, kind: SaveKind = SaveKind.PERIODIC) -> CommittedReport:
    return CommittedReport(n=n, step=step, save=kind, bytes=1, delta_s=1, beta_s=2)


def test_a_replay_changes_nothing_and_a_gap_waits(world: World) -> None:
    agent = world.training()
    seq = agent.seq
    batch = [envelope(seq + 1, commit(50, 10)), envelope(seq + 2, MessageReport(text="hello"))]
    assert send(world, agent, *batch) == seq + 2
    told = len(world.rows(Event))
    assert send(world, agent, *reversed(batch)) == seq + 2
    assert len(world.rows(Event)) == told
    assert len(world.rows(Checkpoint)) == 1
    assert send(world, agent, envelope(seq + 4, MessageReport(text="later"))) == seq + 2
    both = (envelope(seq + 4, MessageReport(text="b")), envelope(seq + 3, MessageReport(text="a")))
    assert send(world, agent, *both) == seq + 4


def test_a_report_is_as_old_as_it_says(world: World) -> None:
    agent = world.training()
    agent.report(commit(50, 10), age_s=2)
    (checkpoint,) = world.rows(Checkpoint)
    assert (world.clock() - checkpoint.committed_at).total_seconds() == 2


def hop(world: World) -> tuple[ScriptedAgent, ScriptedAgent]:
    """Attempt 1 drains, attempt 2 is fenced in; the old agent has not heard of it."""
    old = world.training()
    old.notice()
    old.save(SaveKind.EMERGENCY)
    world.settle(3)
    new = world.join(2)
    new.prepare()
    world.look()
    new.obey()
    assert new.phase == "training"
    return old, new


def test_reports_of_a_fenced_out_attempt_change_nothing_but_facts(world: World) -> None:
    old, new = hop(world)
    new.train(5)
    before = (world.attempt(2).last_step, world.job().state, world.job().user_failures)
    stale: list[AnyReport] = [
        StepsReport(step=900, count=1, step_s=1, load_s=0),
        FencedInReport(n=99),
        ExitedReport(code=1),
        PreparationFailedReport(phase="x", message="y", user=True),
        MetricsReport(step=900, values={"loss": 1.0}),
    ]
    old.report(*stale)
    assert (world.attempt(2).last_step, world.job().state, world.job().user_failures) == before
    assert world.attempt(1).last_step == 10
    assert world.attempt(2).fenced_in
    assert world.rows(Metric) == []
    told = [event.text for event in world.events("late")]
    assert [text.split(" ")[0] for text in told] == ["fenced_in", "exited", "preparation_failed"]


def test_a_late_commit_of_an_older_attempt_is_a_fact_of_the_chain(world: World) -> None:
    old, _ = hop(world)
    world.want("running")
    old.report(commit(70, 12))
    assert 70 in {checkpoint.n for checkpoint in world.rows(Checkpoint)}
    assert world.attempt(1).save_s == 0.2


def test_the_newer_fence_wins_whatever_the_order(world: World) -> None:
    world.training().notice()
    world.look()
    with world.db.begin() as session:
        first = attempts.get(session, "job-1", 1)
        second = attempts.get(session, "job-1", 2)
        assert first is not None
        assert second is not None
        assert attempts.fenced_in(session, second, now=world.clock())
        assert not attempts.fenced_in(session, first, now=world.clock())
    assert [a.fenced_in for a in world.attempts()] == [False, True]


def test_diverged_metrics_do_not_stop_the_reports(world: World) -> None:
    agent = world.training()
    agent.report(MetricsReport(step=1, values={"loss": float("nan"), "lr": 0.1}))
    assert [metric.name for metric in world.rows(Metric)] == ["lr"]


def test_a_report_of_an_attempt_that_the_vm_never_had_is_logged(world: World) -> None:
    agent = world.training()
    send(world, agent, envelope(agent.seq + 1, ExitedReport(code=0), attempt=7))
    assert "attempt 7" in world.events("late")[0].text
    assert world.attempt().state == "running"


def test_a_second_notice_only_moves_the_deadline(world: World) -> None:
    agent = world.training()
    agent.notice(30.0)
    first = world.attempt(1)
    world.tick()
    agent.notice(10.0)
    second = world.attempt(1)
    assert second.notice_at == first.notice_at
    assert first.deadline_at is not None
    assert second.deadline_at is not None
    assert (first.deadline_at - second.deadline_at).total_seconds() == 19


def test_a_notice_without_deadline_promises_the_pools_grace(world: World) -> None:
    agent = world.training()
    agent.notice(None)
    attempt = world.attempt(1)
    assert attempt.deadline_at is not None
    assert attempt.notice_at is not None
    assert (attempt.deadline_at - attempt.notice_at).total_seconds() == world.cloud.grace_s
    assert (attempt.step_at_notice, attempt.notice_fits) == (10, True)


def test_step_times_are_means_over_the_attempt(world: World) -> None:
    agent = world.training()
    agent.train(10, step_s=1.5)
    assert world.attempt().step_s == pytest.approx(1.0)


def test_insurance_is_rearmed_by_a_save_and_told_once_it_changes_much(world: World) -> None:
    agent = world.training()
    agent.train(1)
    first = world.job().insurance
    agent.save()
    second = world.job().insurance
    assert first is not None
    assert second is not None
    assert second["at_step"] != first["at_step"]
    told = len(world.events("insurance"))
    for _ in range(5):
        agent.train(1)
    assert len(world.events("insurance")) == told


def test_a_draining_attempt_gets_no_insurance(world: World) -> None:
    agent = world.training()
    assert any(isinstance(d, InsuranceDirective) for d in agent.report())
    told = agent.notice()
    assert not any(isinstance(d, InsuranceDirective) for d in told)


def test_the_same_submit_token_is_the_same_job(world: World) -> None:
    world.submit("job-1")
    with world.db.begin() as session:
        known = session.get_one(Job, "job-1")
        again = jobs.submit(
            session,
            spec=jobs.spec_of(known),
            bundle="x",
            token=known.submit_token,
            owner_id=1,
            job_id="job-2",
            now=world.clock(),
        )
        assert again.id == "job-1"
    assert len(world.rows(Job)) == 1


def test_wishes_are_checked(world: World) -> None:
    world.submit()
    with world.db.begin() as session:
        with pytest.raises(ValueError, match="it can be running"):
            jobs.want(session, "job-1", "faster", now=world.clock())
        with pytest.raises(LookupError, match="no job 'job-9'"):
            jobs.want(session, "job-9", "cancelled", now=world.clock())
    world.want("cancelled")
    world.want("cancelled")
    world.look()
    with pytest.raises(jobs.JobIsOver, match="submit it again"):
        world.want("running")


REPORTS = st.sampled_from(
    [
        PhaseReport(phase="setup", duration_s=1),
        PreparedReport(),
        FencedInReport(n=1),
        RestoredReport(step=3, n=1, rejected=["entry 2: checksum"]),
        StartedReport(pid=1),
        StepsReport(step=5, count=2, step_s=0.1, load_s=0),
        StepsReport(step=0, count=0, step_s=0, load_s=0),
        MetricsReport(step=5, values={"loss": 1.0}),
        SaveRequestedReport(request="r", save=SaveKind.INSURANCE, reason="due"),
        commit(1, 5),
        commit(2, 6, SaveKind.EMERGENCY),
        NoticeReport(event="e", deadline_in_s=5),
        AcknowledgedReport(event="e"),
        ExitedReport(code=0),
        ExitedReport(code=1),
        PreparationFailedReport(phase="data", message="404"),
        FencedReport(by=2),
        MessageReport(text="x"),
    ]
)


@given(batch=st.lists(st.tuples(REPORTS, st.integers(1, 3), st.booleans()), max_size=12))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_reports_in_any_order_are_taken(
    tmp_path_factory: pytest.TempPathFactory, batch: list[tuple[AnyReport, int, bool]]
) -> None:
    """A report that cannot be taken would be sent again for ever."""
    world = World(tmp_path_factory.mktemp("any"))
    world.submit()
    world.settle(4)
    agent = world.join()
    for seq, (report, attempt, look) in enumerate(batch, start=1):
        assert send(world, agent, envelope(seq, report, attempt=attempt)) == seq
        if look:
            world.tick(0.5)
        JobState(world.job().state)
        for row in world.rows(Attempt):
            AttemptState(row.state)
        for vm in world.vms():
            VmState(vm.state)
    world.db.close()
