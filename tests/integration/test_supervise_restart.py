"""The master is killed at every named point, and goes on (I3, I10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.master_harness import Killed, MasterHarness
from spothop.chaos import Chaos
from spothop.wire import SaveKind
from spothop_master.chaos import POINTS

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def die(harness: MasterHarness, point: str, act: Callable[[], None]) -> None:
    """The master is killed at `point` while `act` runs, and a new one is started 2 s later, or
    when its leases are over."""
    harness.kill_at(point)
    with pytest.raises(Killed):
        act()
    harness.clock.advance(max(2.0, harness.dead_master_s()))
    harness.restart()


def go_on(harness: MasterHarness, seconds: int = 10) -> None:
    """Time passes; agents on VMs that are up report."""
    for _ in range(seconds):
        for agent in harness.agents.values():
            if agent.machine.is_up(harness.clock()) and agent.phase != "over":
                agent.obey()
        harness.tick()
        harness.sweep.run_once()


def owned(harness: MasterHarness) -> bool:
    """Every living VM of the cloud has a living row, and the other way round."""
    rows = {vm.token for vm in harness.vms() if vm.state not in ("terminating", "terminated")}
    return rows == {machine.token for machine in harness.cloud.alive()}


@pytest.mark.parametrize(
    "point", ["before_plan", "vm_row_committed", "after_launch", "after_apply"]
)
def test_killed_while_launching_the_first_vm(harness: MasterHarness, point: str) -> None:
    harness.submit()
    die(harness, point, harness.look)
    go_on(harness)
    assert len(harness.cloud.alive()) == 1
    assert owned(harness)
    assert [attempt.number for attempt in harness.attempts()] == [1]
    agent = harness.join()
    agent.prepare()
    agent.train(3)
    assert harness.job().state == "running"


@pytest.mark.parametrize("point", ["vm_row_committed", "after_launch"])
def test_a_launch_that_nobody_knows_of_is_asked_for_again_at_once(
    harness: MasterHarness, point: str
) -> None:
    """The listing would tell after minutes."""
    harness.cloud.hidden_s = harness.cloud.settle_s = 120
    harness.submit()
    die(harness, point, harness.look)
    harness.tick()
    (vm,) = harness.vms()
    assert vm.state == "booting"
    assert len(harness.cloud.machines) == 1
    assert harness.join().attempt == 1


@pytest.mark.parametrize("point", ["after_launch", "after_apply"])
def test_a_launch_that_the_cloud_has_is_not_repeated(harness: MasterHarness, point: str) -> None:
    harness.submit()
    die(harness, point, harness.look)
    go_on(harness)
    assert len(harness.cloud.launches) == 1


@pytest.mark.parametrize(
    "point", ["before_plan", "vm_row_committed", "after_launch", "after_apply"]
)
def test_killed_while_launching_the_replacement(harness: MasterHarness, point: str) -> None:
    old = harness.training()
    harness.cloud.preempt(old.machine.id)
    old.notice()
    die(harness, point, harness.look)
    old.save(SaveKind.EMERGENCY)
    go_on(harness)
    assert len(harness.cloud.alive()) == 2
    assert owned(harness)
    new = harness.join(2)
    new.prepare()
    go_on(harness, 40)
    assert (new.phase, new.step) == ("training", 10)
    assert [attempt.number for attempt in harness.attempts()] == [1, 2]
    assert harness.vm(old.vm).reason == "preempted"


@pytest.mark.parametrize("point", ["before_plan", "after_terminate", "after_apply"])
def test_killed_while_ending(harness: MasterHarness, point: str) -> None:
    agent = harness.training()
    agent.exit(0)
    die(harness, point, harness.look)
    go_on(harness)
    assert harness.job().state == "succeeded"
    assert harness.vms()[0].state == "terminated"
    assert harness.cloud.alive() == []
    assert len(harness.observations("life")) == 1


def test_a_restart_counts_every_vm_as_just_heard_of(harness: MasterHarness) -> None:
    agent = harness.training()
    harness.clock.advance(3600)  # nobody listened
    harness.restart()
    harness.look()
    assert harness.vm(agent.vm).suspect_at is None
    go_on(harness, 30)
    assert harness.job().state == "running"
    assert len(harness.attempts()) == 1


def test_two_kills_in_a_row_lose_nothing(harness: MasterHarness) -> None:
    harness.submit()
    die(harness, "vm_row_committed", harness.look)
    harness.clock.advance(10)
    die(harness, "after_launch", lambda: go_on(harness))
    go_on(harness)
    assert len(harness.cloud.alive()) == 1
    assert owned(harness)


def test_a_plan_for_an_unknown_point_is_refused() -> None:
    with pytest.raises(ValueError, match="no chaos point 'later'"):
        Chaos(POINTS).at("later", lambda: None)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_reached(harness: MasterHarness, point: str) -> None:
    seen: list[str] = []
    harness.chaos.at(point, lambda: seen.append(point))
    harness.training().exit(0)
    harness.settle(4)
    assert seen == [point]
