"""The supervise loop through whole lives of jobs: fake cloud, scripted agents, fake time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.fake_cloud import AmbiguousAfter
from fakes.world import World
from spothop.wire import (
    AssignDirective,
    FenceDirective,
    InsuranceDirective,
    PreparationFailedReport,
    ReleaseDirective,
    SaveKind,
    StopDirective,
)
from spothop_master.clouds.base import AuthFailed, BadRequest, NoCapacity, Unavailable
from spothop_master.store import agents


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.db.close()


def states(world: World) -> tuple[str, str, str]:
    newest = world.attempt()
    return world.job().state, newest.state, world.vm(newest.vm_id).state


def all_over(world: World) -> bool:
    return all(vm.state == "terminated" for vm in world.vms()) and not world.cloud.alive()


def test_a_job_runs_from_submit_to_success(world: World) -> None:
    world.submit()
    assert world.job().state == "queued"
    world.look()
    assert states(world) == ("allocating", "preparing", "booting")
    world.settle(3)
    agent = world.join()
    assert agent.assignment.fence_now
    assert agent.assignment.storage.url == "file:///bucket"
    assert states(world) == ("preparing", "preparing", "ready")
    world.tick()
    agent.prepare()
    world.tick()
    agent.train(10)
    assert states(world) == ("running", "running", "running")
    agent.exit(0)
    world.look()
    job = world.job()
    assert (job.state, job.ended_at) == ("succeeded", world.clock())
    assert states(world)[1:] == ("ended", "terminating")
    world.settle(3)
    assert all_over(world)
    assert world.vms()[0].reason == "released"


def test_every_figure_is_recorded_from_the_first_run(world: World) -> None:
    agent = world.training()
    agent.save()
    agent.exit(0)
    world.settle(4)
    assert [o.value for o in world.observations("allocation")] == [2.0]
    (preparation,) = world.observations("preparation")
    assert preparation.value == pytest.approx(2.0)
    assert [o.value for o in world.observations("save")] == [0.2]
    assert [o.value for o in world.observations("backup")] == [0.4]
    assert [o.value for o in world.observations("step")] == [0.5]
    (life,) = world.observations("life")
    assert (life.censored, life.evidence) == (True, "released")


def test_a_notice_brings_the_replacement_in_the_same_pass_in_another_zone(world: World) -> None:
    agent = world.training()
    agent.notice()
    assert states(world) == ("draining", "draining", "draining")
    world.look()
    old, new = world.attempts()
    assert (old.state, new.state) == ("draining", "preparing")
    assert world.vm(new.vm_id).requested_at == world.clock()
    assert world.vm(new.vm_id).zone != world.vm(old.vm_id).zone
    assert world.job().state == "draining"


def test_the_replacement_may_fence_only_after_the_emergency_commit(world: World) -> None:
    old = world.training()
    old.notice()
    world.settle(3)
    new = world.join(2)
    assert not new.assignment.fence_now
    told = new.prepare()
    world.tick()
    assert not any(isinstance(d, FenceDirective) for d in [*told, *new.obey()])
    old.save(SaveKind.PERIODIC)  # was on its way when the notice came
    world.tick()
    assert new.phase == "prepared"
    old.save(SaveKind.EMERGENCY)
    world.look()
    assert any(isinstance(d, FenceDirective) for d in new.obey())
    assert (new.phase, new.step) == ("training", 10)
    new.train(5)
    world.look()
    assert world.job().state == "running"
    first = world.attempt(1)
    assert (first.state, first.reason) == ("ended", "preempted")
    world.settle(2)
    assert world.vm(first.vm_id).reason == "preempted"
    assert [o.value for o in world.observations("emergency")] == [1.0]


def test_the_old_one_trains_on_until_the_replacement_is_ready(world: World) -> None:
    old = world.training()
    old.notice()
    old.save(SaveKind.EMERGENCY)
    world.settle(3)
    assert not world.attempt(2).may_fence
    world.join(2).prepare()
    world.look()
    assert world.attempt(2).may_fence


def test_without_an_emergency_commit_the_fence_waits_for_the_deadline(world: World) -> None:
    old = world.training()
    old.notice(10.0)
    world.look()
    deadline = world.attempt(1).deadline_at
    world.settle(3)
    new = world.join(2)
    new.prepare()
    while not world.attempt(2).may_fence:
        old.report()
        world.tick()
        new.obey()
    assert deadline is not None
    margin = timedelta(seconds=world.settings.fence_margin_s)
    assert deadline + margin <= world.clock() <= deadline + margin + timedelta(seconds=1)


def test_a_life_released_after_its_notice_lasts_to_the_deadline(world: World) -> None:
    old = world.training()
    world.cloud.preempt(old.machine.id)
    old.notice(30.0)
    old.save(SaveKind.EMERGENCY)
    world.settle(3)
    new = world.join(2)
    new.prepare()
    world.tick()
    new.obey()
    world.settle(3)
    (life,) = world.observations("life")
    assert old.machine.deadline_at is not None
    lived = (old.machine.deadline_at - old.machine.running_at).total_seconds()
    assert life.value == pytest.approx(lived)
    assert (life.censored, life.evidence) == (False, "notice")


def test_a_preemption_without_notice_is_learnt_from_the_cloud(world: World) -> None:
    agent = world.training()
    agent.save()
    world.tick()
    world.cloud.preempt(agent.machine.id, 0)
    world.tick()
    old, new = world.attempts()
    assert (old.reason, new.state) == ("preempted", "preparing")
    (life,) = world.observations("life")
    assert (life.censored, life.evidence) == (False, "cloud")
    assert [o.value for o in world.observations("emergency")] == [0.0]
    assert world.vm(new.vm_id).zone != world.vm(old.vm_id).zone
    world.settle(2)
    next_one = world.join()
    assert next_one.assignment.fence_now
    next_one.prepare()
    assert next_one.step == 10


def test_an_agent_that_never_joins_is_replaced(world: World) -> None:
    world.submit()
    world.look()
    world.settle(70)
    old = world.attempt(1)
    assert (old.state, old.reason) == ("ended", "infrastructure")
    assert world.vm(old.vm_id).reason == "never_joined"
    assert world.job().infrastructure_failures == 1
    assert world.attempt().number == 2


def test_a_lost_agent_is_suspected_then_replaced_and_its_life_censored(world: World) -> None:
    agent = world.training()
    last = world.clock()
    world.settle(5)
    assert world.vm(agent.vm).suspect_at is not None
    world.settle(20)
    old = world.attempt(1)
    assert old.reason == "infrastructure"
    assert world.vm(agent.vm).reason == "agent_lost"
    (life,) = world.observations("life")
    lived = (last - agent.machine.running_at).total_seconds()
    assert life.value == pytest.approx(lived)
    assert (life.censored, life.evidence) == (True, "silence")
    assert world.attempt().number == 2


def test_a_suspect_that_reports_again_goes_on(world: World) -> None:
    agent = world.training()
    world.settle(6)
    assert world.vm(agent.vm).suspect_at is not None
    agent.report()
    world.look()
    assert world.vm(agent.vm).suspect_at is None
    assert world.attempt().number == 1


def test_user_failures_try_again_on_the_same_vm_until_the_budget_is_spent(world: World) -> None:
    agent = world.training()
    for attempt in (1, 2, 3):
        agent.exit(1, message="ValueError")
        world.look()
        assert world.job().state == "queued"  # waits: back-off
        for _ in range(10):
            agent.report()
            world.tick()
        assert world.attempt().number == attempt + 1
        assert world.attempt().vm_id == agent.vm
        assert any(isinstance(d, AssignDirective) for d in agent.obey())
        agent.prepare()
        agent.train(1)
    agent.exit(1, message="ValueError")
    world.look()
    assert world.job().state == "failed"
    assert "4 user failures in a row, 3 are retried" in world.job().reason
    world.settle(3)
    assert all_over(world)
    assert len(world.cloud.launches) == 1


def test_a_new_checkpoint_resets_the_budget(world: World) -> None:
    agent = world.training()
    agent.exit(1)
    world.look()
    assert world.job().user_failures == 1
    for _ in range(4):
        agent.report()
        world.tick()
    agent.obey()
    agent.prepare()
    agent.train(3)
    agent.save()
    assert world.job().user_failures == 0


def test_exit_0_after_a_notice_without_done_resumes(world: World) -> None:
    agent = world.training()
    agent.notice()
    world.look()
    agent.exit(0)
    world.look()
    assert world.attempt(1).reason == "preempted"
    assert world.job().state == "allocating"
    assert world.attempt(2).may_fence


def test_exit_0_after_a_notice_with_done_is_success_and_stops_the_replacement(world: World) -> None:
    agent = world.training()
    agent.notice()
    world.look()
    agent.exit(0, done=True)
    world.settle(4)
    assert world.job().state == "succeeded"
    assert all_over(world)


def test_uncommitted_backups_are_no_success(world: World) -> None:
    agent = world.training()
    agent.exit(0, done=True, uncommitted=1)
    world.look()
    assert world.attempt(1).reason == "infrastructure"
    assert world.job().state == "queued"


def test_a_broken_setup_is_the_users(world: World) -> None:
    world.submit(retries={"user": 0})
    world.look()
    world.settle(3)
    agent = world.join()
    agent.report(PreparationFailedReport(phase="setup", message="pip: no such package", user=True))
    world.look()
    assert world.job().state == "failed"
    assert "no such package" in world.job().reason


@pytest.mark.parametrize("wanted", ["cancelled", "paused"])
@pytest.mark.parametrize("moment", ["queued", "allocating", "preparing", "running", "draining"])
def test_stopping_in_every_state(world: World, moment: str, wanted: str) -> None:
    agent = None
    if moment in ("running", "draining"):
        agent = world.training()
    else:
        world.submit()
        if moment != "queued":
            world.look()
        if moment == "preparing":
            world.settle(3)
            agent = world.join()
    if moment == "draining" and agent is not None:
        agent.notice()
        world.look()
    assert world.job().state == moment
    world.want(wanted)
    world.look()
    if agent is not None:
        stop = next(d for d in agent.obey() if isinstance(d, StopDirective))
        assert (stop.reason, stop.save) == (wanted, wanted == "paused")
    world.settle(8)
    assert world.job().state == wanted
    assert all_over(world)


def test_a_stop_that_is_not_obeyed_ends_with_the_vm(world: World) -> None:
    agent = world.training()
    world.want("cancelled")
    world.look()
    for _ in range(int(world.settings.stop_timeout_s) + 4):
        agent.report()
        world.tick()
    assert world.job().state == "cancelled"
    assert all_over(world)
    assert agent.report() == [ReleaseDirective()]


def test_a_paused_job_resumes_from_its_newest_checkpoint(world: World) -> None:
    agent = world.training()
    agent.save()
    world.want("paused")
    world.look()
    agent.obey()
    world.settle(4)
    world.want("running")
    world.settle(4)
    next_one = world.join()
    next_one.prepare()
    assert next_one.step == 10
    assert (next_one.attempt, world.attempt(1).reason) == (2, "paused")


def test_max_duration_fails_the_job(world: World) -> None:
    world.submit(max_duration="30s")
    world.settle(31)
    assert world.job().state == "failed"
    assert "max_duration" in world.job().reason
    world.settle(5)
    assert all_over(world)


def test_refused_everywhere_waits_and_tries_on_for_ever(world: World) -> None:
    for zone in world.cloud.zones:
        world.cloud.refusing[zone] = NoCapacity(f"none in {zone}")
    world.submit()
    world.look()
    assert [spec.pool.zone for spec in world.cloud.launches] == ["a", "b", "c"]
    job = world.job()
    assert (job.state, job.refusals) == ("allocating", 3)
    assert job.not_before is not None
    assert job.not_before > world.clock()
    world.settle(300)
    assert 30 < len(world.cloud.launches) < 150
    assert world.attempt().number == 1
    world.cloud.refusing.clear()
    world.settle(25)
    assert world.job().refusals == 0
    assert world.join().assignment.attempt == 1


def test_the_next_zone_is_tried_at_once(world: World) -> None:
    world.cloud.refusing["a"] = NoCapacity("none")
    world.submit()
    world.look()
    assert world.machine().pool.zone == "b"
    assert [vm.reason for vm in world.vms()].count("launch_failed") == 1


def test_a_bad_request_is_never_repeated(world: World) -> None:
    for zone in world.cloud.zones:
        world.cloud.refusing[zone] = BadRequest("no such image")
    world.submit()
    world.settle(30)
    assert len(world.cloud.launches) == 3
    assert world.job().state == "failed"
    assert "BadRequest" in world.job().reason
    assert world.attempt().state == "ended"


def test_without_a_pool_for_a_replacement_the_attempt_with_the_notice_goes_on(
    world: World,
) -> None:
    """It may still come to its end; the job fails once nothing of it is left."""
    agent = world.training()
    for zone in world.cloud.zones:
        world.cloud.refusing[zone] = AuthFailed("credentials expired")
    world.cloud.preempt(world.machine().id)
    agent.notice()
    world.settle(2)
    assert world.job().state not in {"failed", "succeeded"}
    assert world.attempt(1).state == "draining"
    world.settle(400)
    assert world.job().state == "failed"
    assert "AuthFailed" in world.job().reason
    assert [a.state for a in world.attempts()] == ["ended"] * len(world.attempts())
    assert all_over(world)


def test_an_unclear_launch_that_happened_is_found_by_its_token(world: World) -> None:
    world.cloud.script.append(AmbiguousAfter())
    world.submit()
    world.look()
    assert world.vms()[0].state == "requested"
    world.settle(3)
    assert world.vms()[0].state == "booting"
    assert len(world.cloud.launches) == 1
    assert world.join().attempt == 1


def test_an_unclear_launch_that_did_not_happen_is_tried_again(world: World) -> None:
    world.cloud.script.append(AmbiguousAfter())
    world.cloud.hidden_s = 3600
    world.submit()
    world.look()
    world.cloud.hidden_s = 0
    world.settle(10)
    first, second = world.vms()
    assert (first.reason, second.state) == ("launch_failed", "booting")
    ghost = world.cloud.machines["i-1"]
    ghost.seen_from = world.clock()  # it was there after all: nobody owns it
    for _ in range(10):
        world.sweep.run_once()
        world.tick()
    assert ghost.ends_at is not None
    assert len(world.events("orphan")) == 1
    assert len(world.cloud.alive()) == 1


def test_the_sweep_leaves_vms_with_living_rows_alone(world: World) -> None:
    agent = world.training()
    for _ in range(20):
        agent.report()
        world.sweep.run_once()
        world.tick()
    assert world.events("orphan") == []
    assert world.cloud.machines[agent.machine.id].ends_at is None


def test_a_cloud_that_is_away_ends_nothing(world: World) -> None:
    agent = world.training()
    world.cloud.away = Unavailable("503")
    for _ in range(100):
        agent.report()
        world.tick()
    assert world.job().state == "running"
    agent.exit(0)
    world.settle(5)
    assert world.vms()[0].state == "terminating"
    world.cloud.away = None
    world.settle(40)
    assert all_over(world)


def test_the_insurance_directive_follows_steps_and_saves(world: World) -> None:
    agent = world.training()
    told = agent.train(10)
    first = next(d for d in told if isinstance(d, InsuranceDirective)).insurance
    agent.save()
    told = agent.report()
    second = next(d for d in told if isinstance(d, InsuranceDirective)).insurance
    assert first.reason
    assert second.at_step > 20
    assert world.events("insurance")


def test_a_second_notice_before_the_replacement_is_in_makes_room_for_a_third(world: World) -> None:
    old = world.training()
    old.notice(100.0)
    world.settle(3)
    second = world.join(2)
    second.notice(100.0)
    world.look()
    assert [a.state for a in world.attempts()] == ["draining", "ended", "preparing"]
    assert len([vm for vm in world.vms() if vm.state not in ("terminating", "terminated")]) == 2


def test_a_used_join_token_is_refused_once_a_report_came(world: World) -> None:
    world.submit()
    world.settle(4)
    agent = world.join()
    again = world.join()  # the answer got lost: asks again
    assert again.assignment == agent.assignment
    again.prepare()
    with pytest.raises(agents.BadToken):
        world.join()
