"""The supervise loop through whole lives of jobs: fake cloud, scripted agents, fake time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.fake_cloud import AmbiguousAfter
from fakes.master_harness import MasterHarness
from spothop.wire import (
    AssignDirective,
    AtRiskReport,
    FenceDirective,
    InsuranceDirective,
    ReleaseDirective,
    SaveKind,
    StopDirective,
    Wanted,
)
from spothop_master.agents import protocol
from spothop_master.clouds.base import (
    BadRequest,
    CloudError,
    LaunchSpec,
    NoCapacity,
    Unavailable,
    Vm,
)
from spothop_master.store import job_views, jobs
from spothop_master.store.schema import Job

pytestmark = pytest.mark.databases(gate=True)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def states(harness: MasterHarness) -> tuple[str, str, str]:
    newest = harness.attempt()
    return harness.job().state, newest.state, harness.vm(newest.leader.vm_id).state


def all_over(harness: MasterHarness) -> bool:
    return all(vm.state == "terminated" for vm in harness.vms()) and not harness.cloud.alive()


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
    assert all_over(harness)
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
    assert all_over(harness)
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
    assert all_over(harness)


def test_uncommitted_backups_are_no_success(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.exit(0, done=True, uncommitted=1)
    harness.look()
    assert harness.attempt(1).reason == "infrastructure"
    assert harness.job().state == "queued"


@pytest.mark.parametrize("wanted", ["cancelled", "paused"])
@pytest.mark.parametrize("moment", ["queued", "allocating", "preparing", "running", "draining"])
def test_stopping_in_every_state(harness: MasterHarness, moment: str, wanted: str) -> None:
    agent = None
    if moment in ("running", "draining"):
        agent = harness.training()
    else:
        harness.submit()
        if moment != "queued":
            harness.look()
        if moment == "preparing":
            harness.settle(3)
            agent = harness.join()
    if moment == "draining" and agent is not None:
        agent.notice()
        harness.look()
    assert harness.job().state == moment
    harness.want(wanted)
    harness.look()
    if agent is not None:
        stop = next(d for d in agent.obey() if isinstance(d, StopDirective))
        assert (stop.reason, stop.save) == (wanted, True)
    harness.settle(8)
    assert harness.job().state == wanted
    assert all_over(harness)


def test_a_stop_that_is_not_obeyed_ends_with_the_vm(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.want("cancelled", at_once=True)
    harness.look()
    for _ in range(int(harness.settings.stop_timeout_s) + 4):
        assert [told.save for told in agent.report() if isinstance(told, StopDirective)] in (
            [False],
            [],
        )
        harness.tick()
    assert harness.job().state == "cancelled"
    assert all_over(harness)
    assert agent.report() == [ReleaseDirective()]


def test_a_paused_job_resumes_from_its_newest_checkpoint(harness: MasterHarness) -> None:
    agent = harness.training()
    agent.save()
    harness.want("paused")
    harness.look()
    agent.obey()
    harness.settle(4)
    harness.want("running")
    harness.settle(4)
    next_one = harness.join()
    next_one.prepare()
    assert next_one.step == 10
    assert (next_one.attempt, harness.attempt(1).reason) == (2, "paused")


def test_a_cancel_saves_the_newest_state_first(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.want("cancelled")
    harness.look()
    agent.obey()
    harness.settle(4)
    assert (harness.job().state, harness.chains["job-1"].newest()) == ("cancelled", 10)
    assert all_over(harness)


def test_a_pause_takes_no_time_from_the_job(harness: MasterHarness) -> None:
    harness.submit(max_duration="1m")
    harness.want("paused")
    harness.look()
    since = harness.clock()
    assert (harness.job().state, harness.job().paused_at) == ("paused", since)
    harness.settle(100)
    harness.want("running")
    harness.look()
    assert (harness.job().paused_at, harness.job().paused_s) == (None, 100.0)
    with harness.db.read() as session:
        detail = job_views.job_detail(
            session, session.get_one(Job, "job-1"), now=harness.clock(), storage_url=""
        )
    assert detail.ends_at == detail.submitted_at + timedelta(seconds=160)
    harness.settle(50)
    agent = harness.join()
    assert agent.assignment.ends_in_s == pytest.approx(10.0)
    harness.settle(11)
    assert harness.job().wanted == "running"
    assert "max_duration" in harness.events("stop")[-1].text
    assert agent.obey() == [StopDirective(attempt=1, reason="cancelled", save=True)]
    harness.settle(4)
    assert harness.job().state == "failed"


def test_a_pause_says_who_and_why(harness: MasterHarness) -> None:
    harness.training()
    with harness.db.begin() as session:
        jobs.want(session, "job-1", Wanted.PAUSED, now=harness.clock(), why="paused by ann: prices")
    harness.look()
    assert "paused by ann: prices" in harness.events("stop")[-1].text


def test_max_duration_fails_the_job(harness: MasterHarness) -> None:
    harness.submit(max_duration="30s")
    harness.settle(31)
    assert harness.job().state == "failed"
    assert "max_duration" in harness.job().reason
    harness.settle(5)
    assert all_over(harness)


def test_a_refusal_of_a_drivers_own_kind_is_written_down_too(harness: MasterHarness) -> None:
    class Weekend(CloudError):
        """Known to one driver only."""

    harness.submit()
    harness.cloud.refusing["a"] = Weekend("closed")
    harness.look()
    harness.tick()
    assert [row.error for row in harness.refusals()] == ["CloudError"]
    assert len(harness.cloud.launches) == 2, "the next zone is tried"


def test_a_driver_that_raises_what_nobody_expected_gives_the_lease_back(
    harness: MasterHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the launch would count as under way for ever: leases are renewed."""

    class Broken:
        def launch(self, spec: LaunchSpec, token: str) -> Vm:
            raise ZeroDivisionError("a bug in a driver")

    harness.submit()
    harness.watcher.ask_offers()
    launch = harness.cloud.launch
    harness.cloud.launch = Broken().launch  # type: ignore[method-assign]
    harness.look()
    harness.cloud.launch = launch  # type: ignore[method-assign]
    assert "a bug in a driver" in caplog.text
    (vm,) = harness.vms()
    assert vm.lease_token is None
    assert vm.state == "requested"
    harness.settle(60)  # far less than a lease: the listing says that there is no such VM
    assert [vm.state for vm in harness.vms()] == ["terminated", "booting"]


@pytest.mark.databases  # long: on PostgreSQL with `--all`
def test_refused_everywhere_waits_and_tries_on_for_ever(harness: MasterHarness) -> None:
    for zone in harness.cloud.zones:
        harness.cloud.refusing[zone] = NoCapacity(f"none in {zone}")
    harness.submit()
    harness.look()
    assert [spec.pool.zone for spec in harness.cloud.launches] == ["a", "b", "c"]
    job = harness.job()
    assert (job.state, job.refusals) == ("allocating", 3)
    assert job.not_before is not None
    assert job.not_before > harness.clock()
    harness.settle(100)  # five of the longest back-offs
    assert 12 < len(harness.cloud.launches) < 60
    assert harness.attempt().number == 1
    harness.cloud.refusing.clear()
    harness.settle(25)
    assert harness.job().refusals == 0
    assert harness.join().assignment.attempt == 1


def test_the_next_zone_is_tried_at_once(harness: MasterHarness) -> None:
    harness.cloud.refusing["a"] = NoCapacity("none")
    harness.submit()
    harness.look()
    assert harness.machine().pool.zone == "b"
    assert [vm.zone for vm in harness.vms()] == ["b"], "the refused one had no VM"
    assert [(row.zone, row.count) for row in harness.refusals()] == [("a", 1)]


def test_a_bad_request_is_never_repeated(harness: MasterHarness) -> None:
    for zone in harness.cloud.zones:
        harness.cloud.refusing[zone] = BadRequest("no such image")
    harness.submit()
    harness.settle(30)
    assert len(harness.cloud.launches) == 3
    assert harness.job().state == "failed"
    assert "BadRequest" in harness.job().reason
    assert harness.attempt().state == "ended"


@pytest.mark.databases  # long: on PostgreSQL with `--all`
def test_without_a_pool_for_a_replacement_the_attempt_with_the_notice_goes_on(
    harness: MasterHarness,
) -> None:
    """It may still come to its end; the job fails once nothing of it is left."""
    agent = harness.training()
    for zone in harness.cloud.zones:
        harness.cloud.refusing[zone] = BadRequest("no such image")
    harness.cloud.preempt(harness.machine().id)
    agent.notice()
    harness.settle(2)
    assert harness.job().state not in {"failed", "succeeded"}
    assert harness.attempt(1).state == "draining"
    harness.settle(400)
    assert harness.job().state == "failed"
    assert "BadRequest" in harness.job().reason
    assert [a.state for a in harness.attempts()] == ["ended"] * len(harness.attempts())
    assert all_over(harness)


def test_an_unclear_launch_that_happened_is_found_by_its_token(harness: MasterHarness) -> None:
    harness.cloud.script.append(AmbiguousAfter())
    harness.cloud.hidden_s = 1
    harness.submit()
    harness.look()
    assert harness.vms()[0].state == "requested"
    harness.settle(3)
    assert harness.vms()[0].state == "booting"
    assert len(harness.cloud.launches) == 1
    assert harness.join().attempt == 1


def test_an_unclear_launch_that_did_not_happen_is_tried_again(harness: MasterHarness) -> None:
    harness.cloud.script.append(AmbiguousAfter())
    harness.cloud.hidden_s = 3600
    harness.submit()
    harness.look()
    harness.cloud.hidden_s = 0
    harness.settle(10)
    first, second = harness.vms()
    assert (first.reason, second.state) == ("launch_failed", "booting")
    ghost = harness.cloud.machines["i-1"]
    ghost.seen_from = harness.clock()  # it was there after all: nobody owns it
    for _ in range(10):
        harness.sweep.run_once()
        harness.tick()
    assert ghost.ends_at is not None
    assert len(harness.events("orphan")) == 1
    assert len(harness.cloud.alive()) == 1


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
    assert all_over(harness)


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
