"""Joining, reports in order, replays, stale attempts (I2), directives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.figures import shown_state
from spothop.wire import (
    VM_LEAVING,
    AcknowledgedReport,
    AnyReport,
    AttemptState,
    CommittedReport,
    Envelope,
    ExitedReport,
    FencedInReport,
    FencedReport,
    InsuranceDirective,
    JobState,
    JobView,
    MessageReport,
    MetricsReport,
    NoticeReport,
    PhaseReport,
    PreparationFailedReport,
    PreparedReport,
    ProtectionReport,
    RestoredReport,
    SaveKind,
    SaveRequestedReport,
    StartedReport,
    StepsReport,
    Unprotected,
    VmState,
    Wanted,
)
from spothop_master.agents import protocol
from spothop_master.store import attempts, job_lists, job_views, jobs, policy_inputs
from spothop_master.store.observations import StatedPriors
from spothop_master.store.schema import Attempt, Checkpoint, Event, Job, Metric, Observation, VmRow
from spothop_master.store.statistics import Statistics
from spothop_master.store.vms import pool_of
from support.examples import examples
from support.lists import assert_light_is_full

pytestmark = pytest.mark.databases(gate=True)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def envelope(seq: int, report: AnyReport, *, attempt: int = 1, age_s: float = 0) -> Envelope:
    return Envelope(seq=seq, age_s=age_s, attempt=attempt, report=report)


def send(harness: MasterHarness, agent: ScriptedAgent, *envelopes: Envelope) -> int:
    with harness.db.begin() as session:
        return protocol.apply(session, agent.vm, list(envelopes), now=harness.clock())


def commit(n: int, step: int, kind: SaveKind = SaveKind.PERIODIC) -> CommittedReport:
    return CommittedReport(n=n, step=step, save=kind, bytes=1, delta_s=1, beta_s=2)


@pytest.mark.parametrize("state", sorted(VM_LEAVING))
def test_a_vm_that_is_over_or_on_its_way_out_does_not_join(
    harness: MasterHarness, state: VmState
) -> None:
    """Its attempt may still live: the loop has not looked yet. It must not be handed out twice."""
    harness.submit()
    harness.settle(4)
    with harness.db.begin() as session:
        vm = session.get_one(VmRow, harness.vms()[0].id)
        vm.state = state.value
    assert harness.attempt().state == "preparing"
    with pytest.raises(protocol.BadToken, match="not wanted any more"):
        harness.join()
    (row,) = harness.vms()
    assert (row.state, row.session_hash, row.joined_at) == (state.value, None, None)


def test_a_replay_changes_nothing_and_a_gap_waits(harness: MasterHarness) -> None:
    agent = harness.training()
    seq = agent.seq
    batch = [envelope(seq + 1, commit(50, 10)), envelope(seq + 2, MessageReport(text="hello"))]
    assert send(harness, agent, *batch) == seq + 2
    told = len(harness.rows(Event))
    assert send(harness, agent, *reversed(batch)) == seq + 2
    assert len(harness.rows(Event)) == told
    assert len(harness.rows(Checkpoint)) == 1
    assert send(harness, agent, envelope(seq + 4, MessageReport(text="later"))) == seq + 2
    both = (envelope(seq + 4, MessageReport(text="b")), envelope(seq + 3, MessageReport(text="a")))
    assert send(harness, agent, *both) == seq + 4


def test_a_save_time_that_is_not_known_is_no_measurement(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.report(commit(50, 10))
    measured = len([row for row in harness.rows(Observation) if row.kind == "save"])
    (attempt,) = harness.rows(Attempt)
    known = attempt.save_s
    agent.report(commit(60, 11).model_copy(update={"delta_s": 0.0}))
    assert len([row for row in harness.rows(Observation) if row.kind == "save"]) == measured == 1
    (attempt,) = harness.rows(Attempt)
    assert attempt.save_s == known
    assert any("save time not known" in event.text for event in harness.rows(Event))


def test_from_the_start_of_the_process_to_its_first_step_a_job_is_starting(
    harness: MasterHarness,
) -> None:
    def shown() -> tuple[str, str]:
        with harness.db.read() as session:
            job = job_lists.job_view(session, "job-1", now=harness.clock(), storage_url="file:///s")
            detail = job_views.job_detail(
                session, session.get_one(Job, job.id), now=harness.clock(), storage_url="file:///s"
            )
        return shown_state(job), shown_state(detail.attempts[-1])

    harness.submit()
    harness.settle(4)
    agent = harness.join()
    assert shown() == ("preparing", "preparing")
    agent.prepare()  # first attempt: fences and starts at once
    assert shown() == ("starting", "starting")
    assert any("is starting" in event.text for event in harness.rows(Event))
    agent.train(1)
    assert shown() == ("running", "running")


def test_a_save_time_that_is_only_a_bound_is_not_taken_for_one(harness: MasterHarness) -> None:
    def delta_s() -> tuple[float, bool]:
        with harness.db.read() as session:
            vm = session.get_one(VmRow, harness.vms()[0].id)
            found = policy_inputs.read(
                *(session, pool_of(vm), vm.job_id, Statistics(StatedPriors(prior_save_s=1.0))),
                policy="notice-aware",
                now=harness.clock(),
            )
        return found.measures.save_s, found.saves_measured

    def unmarked(n: int, delta_s: float) -> CommittedReport:
        return commit(n, n).model_copy(update={"delta_s": delta_s, "delta_exact": False})

    agent = harness.training()
    agent.report(unmarked(50, 8.0))
    assert delta_s() == (1.0, False)  # as assumed: not the 8 s of an evaluation before it
    (attempt,) = harness.rows(Attempt)
    (checkpoint,) = harness.rows(Checkpoint)
    assert (attempt.save_s, checkpoint.delta_s) == (None, 0.0)
    assert any("(save at most 8.00 s, backup" in event.text for event in harness.rows(Event))
    agent.report(unmarked(51, 0.25))
    assert delta_s() == (0.25, False)
    for n in range(52, 57):
        agent.report(unmarked(n, 8.0))
    assert delta_s() == (1.0, False)  # the shortest of the last few
    agent.report(commit(60, 60, SaveKind.INSURANCE).model_copy(update={"delta_s": 0.5}))
    agent.report(unmarked(61, 8.0))
    assert delta_s() == (0.5, True)


def test_a_report_is_as_old_as_it_says(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.report(commit(50, 10), age_s=2)
    (checkpoint,) = harness.rows(Checkpoint)
    assert (harness.clock() - checkpoint.committed_at).total_seconds() == 2


def hop(harness: MasterHarness) -> tuple[ScriptedAgent, ScriptedAgent]:
    """Attempt 1 drains, attempt 2 is fenced in; the old agent has not heard of it."""
    old = harness.training()
    old.notice()
    old.save(SaveKind.EMERGENCY)
    harness.settle(3)
    new = harness.join(2)
    new.prepare()
    harness.look()
    new.obey()
    assert new.phase == "training"
    return old, new


def test_reports_of_a_fenced_out_attempt_change_nothing_but_facts(harness: MasterHarness) -> None:
    old, new = hop(harness)
    new.train(5)
    before = (harness.attempt(2).last_step, harness.job().state, harness.job().user_failures)
    stale: list[AnyReport] = [
        StepsReport(step=900, count=1, step_s=1, load_s=0),
        FencedInReport(n=99),
        ExitedReport(code=1),
        PreparationFailedReport(phase="x", message="y", user=True),
        MetricsReport(step=900, values={"loss": 1.0}),
    ]
    old.report(*stale)
    assert (
        harness.attempt(2).last_step,
        harness.job().state,
        harness.job().user_failures,
    ) == before
    assert harness.attempt(1).last_step == 10
    assert harness.attempt(2).fenced_in
    assert harness.rows(Metric) == []
    told = [event.text for event in harness.events("late")]
    assert [text.split(" ")[0] for text in told] == ["fenced_in", "exited", "preparation_failed"]


def test_a_late_commit_of_an_older_attempt_is_a_fact_of_the_chain(harness: MasterHarness) -> None:
    old, _ = hop(harness)
    harness.want("running")
    old.report(commit(70, 12))
    assert 70 in {checkpoint.n for checkpoint in harness.rows(Checkpoint)}
    assert harness.attempt(1).save_s == 0.2


def test_the_newer_fence_wins_whatever_the_order(harness: MasterHarness) -> None:
    harness.training().notice()
    harness.look()
    with harness.db.begin() as session:
        first = attempts.get(session, "job-1", 1)
        second = attempts.get(session, "job-1", 2)
        assert first is not None
        assert second is not None
        assert attempts.fenced_in(session, second, now=harness.clock())
        assert not attempts.fenced_in(session, first, now=harness.clock())
    assert [a.fenced_in for a in harness.attempts()] == [False, True]


def test_a_report_of_an_attempt_that_the_vm_never_had_is_logged(harness: MasterHarness) -> None:
    agent = harness.training()
    send(harness, agent, envelope(agent.seq + 1, ExitedReport(code=0), attempt=7))
    assert "attempt 7" in harness.events("late")[0].text
    assert harness.attempt().state == "running"


def test_a_second_notice_only_moves_the_deadline(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.notice(30.0)
    first = harness.attempt(1)
    harness.tick()
    agent.notice(10.0)
    second = harness.attempt(1)
    assert second.notice_at == first.notice_at
    assert first.leader.deadline_at is not None
    assert second.leader.deadline_at is not None
    assert (first.leader.deadline_at - second.leader.deadline_at).total_seconds() == 19


def test_a_notice_without_deadline_promises_the_pools_grace(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.notice(None)
    attempt = harness.attempt(1)
    assert attempt.leader.deadline_at is not None
    assert attempt.notice_at is not None
    assert (attempt.leader.deadline_at - attempt.notice_at).total_seconds() == harness.cloud.grace_s
    assert (attempt.step_at_notice, attempt.notice_fits) == (10, True)


def test_step_times_are_means_over_the_attempt(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.train(10, step_s=1.5)
    assert harness.attempt().step_s == pytest.approx(1.0)


def test_insurance_is_rearmed_by_a_save_and_told_once_it_changes_much(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    agent.train(1)
    first = harness.job().insurance
    agent.save()
    second = harness.job().insurance
    assert first is not None
    assert second is not None
    assert second["at_step"] != first["at_step"]
    told = len(harness.events("insurance"))
    for _ in range(5):
        agent.train(1)
    assert len(harness.events("insurance")) == told


def test_a_draining_attempt_gets_no_insurance(harness: MasterHarness) -> None:
    agent = harness.training()
    assert any(isinstance(d, InsuranceDirective) for d in agent.report())
    told = agent.notice()
    assert not any(isinstance(d, InsuranceDirective) for d in told)


def test_the_same_submit_token_is_the_same_job(harness: MasterHarness) -> None:
    harness.submit("job-1")
    with harness.db.begin() as session:
        known = session.get_one(Job, "job-1")
        again = jobs.submit(
            session,
            spec=jobs.spec_of(known),
            bundle="x",
            token=known.submit_token,
            owner_id=1,
            job_id="job-2",
            now=harness.clock(),
        )
        assert again.id == "job-1"
    assert len(harness.rows(Job)) == 1


def test_what_a_user_wants_is_checked(harness: MasterHarness) -> None:
    harness.submit()
    with harness.db.begin() as session, pytest.raises(LookupError, match="no job 'job-9'"):
        jobs.want(session, "job-9", Wanted.CANCELLED, now=harness.clock())
    harness.want("cancelled")
    harness.want("cancelled")
    harness.look()
    with pytest.raises(jobs.JobIsOver, match="submit it again"):
        harness.want("running")


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
@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_reports_in_any_order_are_taken(
    tmp_path_factory: pytest.TempPathFactory, batch: list[tuple[AnyReport, int, bool]]
) -> None:
    """A report that cannot be taken would be sent again for ever."""
    harness = MasterHarness(tmp_path_factory.mktemp("any"))
    harness.submit()
    harness.settle(4)
    agent = harness.join()
    for seq, (report, attempt, look) in enumerate(batch, start=1):
        assert send(harness, agent, envelope(seq, report, attempt=attempt)) == seq
        if look:
            harness.tick(0.5)
        JobState(harness.job().state)
        for row in harness.rows(Attempt):
            AttemptState(row.state)
        for vm in harness.vms():
            VmState(vm.state)
    harness.db.close()


def test_a_job_that_nothing_protects_says_so_and_no_more_when_it_is_mended(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    assert view(harness).unprotected is None
    reason = "the script has trained for 5 min and more without calling check_save()"
    agent.report(ProtectionReport(cause=Unprotected.NO_CHECK, reason=reason))
    found = view(harness).unprotected
    assert found is not None
    assert (found.cause, found.reason) == (Unprotected.NO_CHECK, reason)
    assert found.add[0].startswith("if sp.check_save():")
    (event,) = harness.events("unprotected")
    assert reason in event.text
    assert all(line in event.text for line in found.add)
    agent.report(ProtectionReport())
    assert view(harness).unprotected is None
    assert [event.text for event in harness.events("protected")] == [
        "no longer unprotected: the script calls check_save() now"
    ]


def test_what_protected_no_attempt_is_not_said_of_the_next_one(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.report(ProtectionReport(cause=Unprotected.STORAGE, reason="denied"))
    agent.exit(1)
    assert view(harness).unprotected is None
    for _ in range(4):
        harness.tick()
        agent.obey()
    assert agent.attempt == 2
    assert view(harness).unprotected is None


def view(harness: MasterHarness) -> JobView:
    with harness.db.read() as session:
        assert_light_is_full(session, "job-1", now=harness.clock())
        return job_lists.job_view(session, "job-1", now=harness.clock(), storage_url="file:///x")
