"""The supervise loop through whole lives of jobs: fake cloud, scripted agents, fake time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.master_harness import MasterHarness
from spothop.wire import (
    AssignDirective,
    AtRiskReport,
    FenceDirective,
    InsuranceDirective,
    SaveKind,
    StopDirective,
)
from spothop_master.agents import protocol
from spothop_master.clouds.base import (
    Unavailable,
)

pytestmark = pytest.mark.databases(gate=True)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def states(harness: MasterHarness) -> tuple[str, str, str]:
    newest = harness.attempt()
    return harness.job().state, newest.state, harness.vm(newest.leader.vm_id).state


def test_a_cloud_on_this_machine_is_told_the_jobs_folders(harness: MasterHarness) -> None:
    data = {"a": "file:///sets/./b%20c", "b": "s3://bucket/x"}
    first = harness.submit(data=data, checkpoint={"storage": "file:///checkpoints"})
    harness.submit("job-2", checkpoint={"init_from": f"job:{first}"})
    harness.submit("job-3", checkpoint={"storage": "s3://bucket", "init_from": "file:///start"})
    harness.look()
    told = {spec.tags["spothop-job"]: (spec.reads, spec.writes) for spec in harness.cloud.launches}
    assert told == {
        "job-1": (["/sets/b c"], ["/checkpoints/jobs/job-1"]),
        "job-2": (["/checkpoints/jobs/job-1"], ["/bucket/jobs/job-2"]),
        "job-3": (["/start"], []),
    }


def test_a_cloud_is_told_the_image_and_the_disk_of_the_job(harness: MasterHarness) -> None:
    harness.submit(image="ami-1", resources={"disk": "200GB"})
    harness.submit("job-2")
    harness.look()
    told = {spec.tags["spothop-job"]: (spec.image, spec.disk_gb) for spec in harness.cloud.launches}
    assert told == {"job-1": ("ami-1", 200), "job-2": (None, None)}


def test_a_job_runs_from_submit_to_success(harness: MasterHarness) -> None:
    harness.submit()
    assert harness.job().state == "queued"
    harness.look()
    assert states(harness) == ("allocating", "preparing", "booting")
    harness.settle(3)
    agent = harness.join()
    assert agent.assignment.fence_now
    assert agent.assignment.storage.url == "file:///bucket"
    assert states(harness) == ("preparing", "preparing", "ready")
    harness.tick()
    agent.prepare()
    harness.tick()
    agent.train(10)
    assert states(harness) == ("running", "running", "running")
    agent.exit(0)
    harness.look()
    job = harness.job()
    assert (job.state, job.ended_at) == ("succeeded", harness.clock())
    assert states(harness)[1:] == ("ended", "terminating")
    harness.settle(3)
    assert harness.all_over()
    assert harness.vms()[0].reason == "released"


def test_every_figure_is_recorded_from_the_first_run(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.save()
    agent.exit(0)
    harness.settle(4)
    assert [o.value for o in harness.observations("allocation")] == [2.0]
    (preparation,) = harness.observations("preparation")
    assert preparation.value == pytest.approx(2.0)
    assert [o.value for o in harness.observations("save")] == [0.2]
    assert [o.value for o in harness.observations("backup")] == [0.4]
    assert [o.value for o in harness.observations("step")] == [0.5]
    (life,) = harness.observations("life")
    assert (life.censored, life.evidence) == (True, "released")


def test_a_notice_brings_the_replacement_in_the_same_pass_in_another_zone(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    agent.notice()
    assert states(harness) == ("draining", "draining", "draining")
    harness.look()
    old, new = harness.attempts()
    assert (old.state, new.state) == ("draining", "preparing")
    assert harness.vm(new.leader.vm_id).requested_at == harness.clock()
    assert harness.vm(new.leader.vm_id).zone != harness.vm(old.leader.vm_id).zone
    assert harness.job().state == "draining"


def test_a_vm_that_the_cloud_recommends_to_leave_is_replaced_while_it_trains_on(
    harness: MasterHarness,
) -> None:
    """No save is asked for before the replacement is ready, and its zone is tried last."""
    old = harness.training()
    old.report(AtRiskReport(event="AWS recommends to rebalance"))
    old.report(AtRiskReport(event="AWS recommends to rebalance"))
    harness.look()
    assert [attempt.state for attempt in harness.attempts()] == ["running", "preparing"]
    assert harness.vm(harness.attempt(2).leader.vm_id).zone != harness.vm(old.vm).zone
    assert len(harness.events("at_risk")) == 1
    for _ in range(3):
        assert not any(isinstance(told, StopDirective) for told in old.obey())
        harness.tick()
    old.train(5)
    new = harness.join(2)
    new.prepare()
    harness.look()
    (stop,) = [told for told in old.obey() if isinstance(told, StopDirective)]
    assert stop.save
    harness.look()
    new.obey()
    assert (new.phase, new.step) == ("training", old.step)
    first = harness.attempt(1)
    assert (first.state, first.reason) == ("ended", "preempted")
    assert harness.job().infrastructure_failures == 0
    harness.settle(3)
    (life,) = harness.observations("life")
    assert (life.censored, life.evidence) == (True, "released"), "nobody took it"


def test_without_another_place_a_vm_at_risk_trains_on(harness: MasterHarness) -> None:
    harness.cloud.zones = ("a",)
    agent = harness.training()
    agent.report(AtRiskReport(event="AWS recommends to rebalance"))
    for _ in range(5):
        agent.report()
        harness.tick()
    assert [attempt.state for attempt in harness.attempts()] == ["running"]


def test_the_replacement_may_fence_only_after_the_emergency_commit(harness: MasterHarness) -> None:
    old = harness.training()
    old.notice()
    harness.settle(3)
    new = harness.join(2)
    assert not new.assignment.fence_now
    told = new.prepare()
    harness.tick()
    assert not any(isinstance(d, FenceDirective) for d in [*told, *new.obey()])
    old.save(SaveKind.PERIODIC)  # was on its way when the notice came
    harness.tick()
    assert new.phase == "prepared"
    old.save(SaveKind.EMERGENCY)
    harness.look()
    assert any(isinstance(d, FenceDirective) for d in new.obey())
    assert (new.phase, new.step) == ("training", 10)
    new.train(5)
    harness.look()
    assert harness.job().state == "running"
    first = harness.attempt(1)
    assert (first.state, first.reason) == ("ended", "preempted")
    harness.settle(2)
    assert harness.vm(first.leader.vm_id).reason == "preempted"
    assert [o.value for o in harness.observations("emergency")] == [1.0]


def test_the_old_one_trains_on_until_the_replacement_is_ready(harness: MasterHarness) -> None:
    old = harness.training()
    old.notice()
    old.save(SaveKind.EMERGENCY)
    harness.settle(3)
    assert not harness.attempt(2).may_fence
    harness.join(2).prepare()
    harness.look()
    assert harness.attempt(2).may_fence


def test_the_steps_between_the_emergency_save_and_the_hand_over_are_kept(
    harness: MasterHarness,
) -> None:
    old = harness.training()
    old.notice(60.0)
    old.save(SaveKind.EMERGENCY)
    for _ in range(5):
        harness.tick()
        old.train(2)
    new = harness.join(2)
    new.prepare()
    harness.look()
    assert not harness.attempt(2).may_fence
    (stop,) = [told for told in old.obey() if isinstance(told, StopDirective)]
    assert (stop.reason, stop.save) == ("preempted", True)
    harness.look()
    assert harness.attempt(1).reason == "preempted"
    new.obey()
    assert (new.phase, new.step) == ("training", 20)


def test_without_an_emergency_commit_the_fence_waits_for_the_deadline(
    harness: MasterHarness,
) -> None:
    old = harness.training()
    old.notice(10.0)
    harness.look()
    deadline = harness.attempt(1).leader.deadline_at
    harness.settle(3)
    new = harness.join(2)
    new.prepare()
    while not harness.attempt(2).may_fence:
        old.report()
        harness.tick()
        new.obey()
    assert deadline is not None
    margin = timedelta(seconds=harness.settings.fence_margin_s)
    assert deadline + margin <= harness.clock() <= deadline + margin + timedelta(seconds=1)


def test_a_life_released_after_its_notice_lasts_to_the_deadline(harness: MasterHarness) -> None:
    old = harness.training()
    harness.cloud.preempt(old.machine.id)
    old.notice(30.0)
    old.save(SaveKind.EMERGENCY)
    harness.settle(3)
    new = harness.join(2)
    new.prepare()
    harness.tick()
    new.obey()
    harness.settle(3)
    (life,) = harness.observations("life")
    assert old.machine.deadline_at is not None
    lived = (old.machine.deadline_at - old.machine.running_at).total_seconds()
    assert life.value == pytest.approx(lived)
    assert (life.censored, life.evidence) == (False, "notice")


def test_a_preemption_without_notice_is_learnt_from_the_cloud(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.save()
    harness.tick()
    harness.cloud.preempt(agent.machine.id, 0)
    harness.tick()
    old, new = harness.attempts()
    assert (old.reason, new.state) == ("preempted", "preparing")
    (life,) = harness.observations("life")
    assert (life.censored, life.evidence) == (False, "cloud")
    assert [o.value for o in harness.observations("emergency")] == [0.0]
    assert harness.vm(new.leader.vm_id).zone != harness.vm(old.leader.vm_id).zone
    harness.settle(2)
    next_one = harness.join()
    assert next_one.assignment.fence_now
    next_one.prepare()
    assert next_one.step == 10


def test_an_agent_that_never_joins_is_replaced(harness: MasterHarness) -> None:
    harness.submit()
    harness.look()
    harness.settle(70)
    old = harness.attempt(1)
    assert (old.state, old.reason) == ("ended", "infrastructure")
    assert harness.vm(old.leader.vm_id).reason == "never_joined"
    assert harness.job().infrastructure_failures == 1
    assert harness.attempt().number == 2


def test_a_lost_agent_is_suspected_then_replaced_and_its_life_censored(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    last = harness.clock()
    harness.settle(5)
    assert harness.vm(agent.vm).suspect_at is not None
    harness.settle(20)
    old = harness.attempt(1)
    assert old.reason == "infrastructure"
    assert harness.vm(agent.vm).reason == "agent_lost"
    (life,) = harness.observations("life")
    lived = (last - agent.machine.running_at).total_seconds()
    assert life.value == pytest.approx(lived)
    assert (life.censored, life.evidence) == (True, "silence")
    assert harness.attempt().number == 2


def test_a_suspect_that_reports_again_goes_on(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.settle(6)
    assert harness.vm(agent.vm).suspect_at is not None
    agent.report()
    harness.look()
    assert harness.vm(agent.vm).suspect_at is None
    assert harness.attempt().number == 1


def test_user_failures_try_again_on_the_same_vm_until_the_budget_is_spent(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    for attempt in (1, 2, 3):
        agent.exit(1, message="ValueError")
        harness.look()
        assert harness.job().state == "queued"  # waits: back-off
        for _ in range(10):
            agent.report()
            harness.tick()
        assert harness.attempt().number == attempt + 1
        assert harness.attempt().leader.vm_id == agent.vm
        assert any(isinstance(d, AssignDirective) for d in agent.obey())
        agent.prepare()
        agent.train(1)
    agent.exit(1, message="ValueError")
    harness.look()
    assert harness.job().state == "failed"
    assert "4 failures of the script in a row; `retries.user` is 3" in harness.job().reason
    harness.settle(3)
    assert harness.all_over()
    assert len(harness.cloud.launches) == 1


def test_a_new_checkpoint_resets_the_budget(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.exit(1)
    harness.look()
    assert harness.job().user_failures == 1
    for _ in range(4):
        agent.report()
        harness.tick()
    agent.obey()
    agent.prepare()
    agent.train(3)
    agent.save()
    assert harness.job().user_failures == 0


def test_exit_0_after_a_notice_without_done_resumes(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.notice()
    harness.look()
    agent.exit(0)
    harness.look()
    assert harness.attempt(1).reason == "preempted"
    assert harness.job().state == "allocating"
    assert harness.attempt(2).may_fence


def test_exit_0_after_a_notice_with_done_is_success_and_stops_the_replacement(
    harness: MasterHarness,
) -> None:
    agent = harness.training()
    agent.notice()
    harness.look()
    agent.exit(0, done=True)
    harness.settle(4)
    assert harness.job().state == "succeeded"
    assert harness.all_over()


def test_uncommitted_backups_are_no_success(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.exit(0, done=True, uncommitted=1)
    harness.look()
    assert harness.attempt(1).reason == "infrastructure"
    assert harness.job().state == "queued"


def test_the_sweep_leaves_vms_with_living_rows_alone(harness: MasterHarness) -> None:
    agent = harness.training()
    for _ in range(20):
        agent.report()
        harness.sweep.run_once()
        harness.tick()
    assert harness.events("orphan") == []
    assert harness.cloud.machines[agent.machine.id].ends_at is None


@pytest.mark.databases  # long: on PostgreSQL with `--all`
def test_a_cloud_that_is_away_ends_nothing(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.cloud.away = Unavailable("503")
    for _ in range(100):
        agent.report()
        harness.tick()
    assert harness.job().state == "running"
    agent.exit(0)
    harness.settle(5)
    assert harness.vms()[0].state == "terminating"
    harness.cloud.away = None
    harness.settle(40)
    assert harness.all_over()


def test_the_insurance_directive_follows_steps_and_saves(harness: MasterHarness) -> None:
    agent = harness.training()
    told = agent.train(10)
    first = next(d for d in told if isinstance(d, InsuranceDirective)).insurance
    agent.save()
    told = agent.report()
    second = next(d for d in told if isinstance(d, InsuranceDirective)).insurance
    assert first.reason
    assert second.at_step > 20
    assert harness.events("insurance")


def test_a_second_notice_before_the_replacement_is_in_makes_room_for_a_third(
    harness: MasterHarness,
) -> None:
    old = harness.training()
    old.notice(100.0)
    harness.settle(3)
    second = harness.join(2)
    second.notice(100.0)
    harness.look()
    assert [a.state for a in harness.attempts()] == ["draining", "ended", "preparing"]
    assert len([vm for vm in harness.vms() if vm.state not in ("terminating", "terminated")]) == 2


def test_a_used_join_token_is_refused_once_a_report_came(harness: MasterHarness) -> None:
    harness.submit()
    harness.settle(4)
    agent = harness.join()
    again = harness.join()  # the answer got lost: asks again
    assert again.assignment == agent.assignment
    again.prepare()
    with pytest.raises(protocol.BadToken):
        harness.join()


def test_jobs_are_served_in_the_order_in_which_they_came(harness: MasterHarness) -> None:
    """Not in that of their ids, nor as a database happens to store them."""
    for job in ("job-3", "job-1", "job-2"):
        harness.submit(job)
    harness.look()
    launched = [launch.tags["spothop-job"] for launch in harness.cloud.launches]
    assert launched == ["job-3", "job-1", "job-2"]
