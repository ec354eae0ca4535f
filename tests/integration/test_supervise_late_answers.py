"""What a cloud says after it has accepted a launch, and of VMs that vanish from its listing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_cloud import FailsLater
from fakes.master_harness import MasterHarness
from spothop_master.clouds.base import NoCapacity, Unavailable
from spothop_master.core.evidence import EndCause

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    yield made
    made.db.close()


def exhausted(*, stays: bool) -> FailsLater:
    return FailsLater(NoCapacity("the zone is full", code="ZONE_RESOURCE_POOL_EXHAUSTED"), stays)


@pytest.mark.parametrize("stays", [False, True])
def test_a_launch_that_fails_after_it_was_accepted_goes_on_elsewhere(
    harness: MasterHarness, stays: bool
) -> None:
    harness.cloud.failing["a"] = exhausted(stays=stays)
    harness.submit()
    harness.settle(8)
    assert [spec.pool.zone for spec in harness.cloud.launches] == ["a", "b"]
    assert harness.job().infrastructure_failures == 0
    assert harness.attempt().number == 1
    assert harness.machine().pool.zone == "b"
    (row,) = harness.refusals()
    assert (row.zone, row.count, row.code) == ("a", 1, "ZONE_RESOURCE_POOL_EXHAUSTED")
    assert [m.pool.zone for m in harness.cloud.alive()] == ["b"], "what was kept is terminated"
    assert harness.join().attempt == 1


def test_a_vm_that_its_cloud_lists_late_is_waited_for(harness: MasterHarness) -> None:
    harness.cloud.settle_s, harness.cloud.hidden_s = 50, 45
    harness.submit()
    harness.look()
    harness.settle(40)
    assert len(harness.cloud.launches) == 1
    assert [vm.state for vm in harness.vms()] == ["booting"]


@pytest.mark.parametrize("stays", [False, True])
def test_late_refusals_everywhere_are_waited_out(harness: MasterHarness, stays: bool) -> None:
    for zone in harness.cloud.zones:
        harness.cloud.failing[zone] = exhausted(stays=stays)
    harness.submit()
    harness.settle(120)
    assert harness.job().infrastructure_failures == 0
    assert harness.attempt().number == 1
    assert len(harness.cloud.launches) < 45, "15 for each pool at most: the back-off grows"
    assert len(harness.vms()) <= 3
    harness.cloud.failing.clear()
    harness.settle(30)
    assert harness.vm(harness.attempt().leader.vm_id).state == "booting"
    harness.settle(5)
    assert len(harness.cloud.alive()) == 1


def test_a_preempted_vm_that_vanishes_after_its_notice_is_a_preemption(
    harness: MasterHarness,
) -> None:
    harness.cloud.lists_preempted = False
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id)
    agent.notice()
    harness.settle(60)
    assert harness.attempt(1).reason == "preempted"
    assert harness.vm(agent.vm).reason == "preempted"
    assert harness.job().infrastructure_failures == 0
    (life,) = harness.observations("life")
    assert (life.evidence, life.censored) == ("notice", False)
    assert harness.cloud.asked_for_records == []


def test_a_silent_vm_that_its_cloud_takes_is_replaced_before_its_end(
    harness: MasterHarness,
) -> None:
    """Its agent could not tell; the cloud's own reason is in row and events."""
    harness.cloud.tells_early, harness.cloud.grace_s = True, 120
    harness.cloud.termination_s = 20
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id)
    harness.settle(5)  # silence ends a VM after 20 s here
    vm = harness.vm(agent.vm)
    assert (vm.state, vm.reason) == ("terminating", "preempted")
    assert vm.detail == "the cloud takes it back: preempted (no-capacity)"
    assert harness.attempt(1).reason == "preempted"
    assert harness.job().infrastructure_failures == 0
    assert harness.attempt().number == 2
    harness.settle(25)
    (life,) = harness.observations("life")
    assert (life.evidence, life.censored) == ("cloud", False)


def test_an_agent_that_talks_tells_of_its_notice_itself(harness: MasterHarness) -> None:
    harness.cloud.tells_early, harness.cloud.grace_s = True, 120
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id)
    for _ in range(10):
        agent.report()
        harness.tick()
    assert harness.attempt().number == 1
    assert harness.vm(agent.vm).state == "running"


def test_the_clouds_record_tells_a_preemption_that_nobody_announced(
    harness: MasterHarness,
) -> None:
    harness.cloud.lists_preempted, harness.cloud.keeps_records = False, True
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id, 0)
    harness.settle(2)
    assert harness.attempt(1).reason == "preempted"
    assert harness.vm(agent.vm).reason == "preempted"
    assert harness.job().infrastructure_failures == 0
    (life,) = harness.observations("life")
    assert (life.evidence, life.censored) == ("cloud", False)


def test_a_record_that_comes_late_is_waited_for(harness: MasterHarness) -> None:
    harness.cloud.lists_preempted = False
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id, 0)
    harness.settle(12)
    assert harness.vm(agent.vm).state == "running"
    assert 1 < len(harness.cloud.asked_for_records) < 5
    harness.cloud.keeps_records = True
    harness.settle(6)
    assert harness.vm(agent.vm).reason == "preempted"


def test_without_a_record_silence_decides(harness: MasterHarness) -> None:
    harness.cloud.lists_preempted = False
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id, 0)
    harness.settle(40)
    assert harness.vm(agent.vm).reason == "agent_lost"
    assert harness.attempt(1).reason == "infrastructure"


def test_a_record_survives_a_master_that_is_started_again(harness: MasterHarness) -> None:
    harness.cloud.lists_preempted, harness.cloud.keeps_records = False, True
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id, 0)
    harness.restart()
    harness.settle(3)
    assert harness.vm(agent.vm).reason == "preempted"


def test_a_cloud_that_is_away_keeps_its_record_for_later(harness: MasterHarness) -> None:
    harness.cloud.lists_preempted, harness.cloud.keeps_records = False, True
    agent = harness.training()
    harness.cloud.preempt(agent.machine.id, 0)
    end_cause, away = harness.cloud.end_cause, True

    def answer(vm_id: str) -> EndCause | None:
        if away:
            raise Unavailable("503")
        return end_cause(vm_id)

    harness.cloud.end_cause = answer  # type: ignore[method-assign]
    harness.settle(5)
    assert harness.vm(agent.vm).state == "running"
    away = False
    harness.settle(8)
    assert harness.vm(agent.vm).reason == "preempted"
