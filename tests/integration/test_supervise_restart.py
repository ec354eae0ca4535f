"""The master is killed at every named point, and goes on (I3, I10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.world import Killed, World
from spothop.wire import SaveKind
from spothop_master.chaos import POINTS, Chaos


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.db.close()


def die(world: World, point: str, act: Callable[[], None]) -> None:
    """The master is killed at `point` while `act` runs, and a new one is started 2 s later."""
    world.kill_at(point)
    with pytest.raises(Killed):
        act()
    world.clock.advance(2)
    world.restart()


def go_on(world: World, seconds: int = 10) -> None:
    """Time passes; agents on VMs that are up report."""
    for _ in range(seconds):
        for agent in world.agents.values():
            if agent.machine.is_up(world.clock()) and agent.phase != "over":
                agent.obey()
        world.tick()
        world.sweep.run_once()


def owned(world: World) -> bool:
    """Every living VM of the cloud has a living row, and the other way round."""
    rows = {vm.token for vm in world.vms() if vm.state not in ("terminating", "terminated")}
    return rows == {machine.token for machine in world.cloud.alive()}


@pytest.mark.parametrize(
    "point", ["before_plan", "vm_row_committed", "after_launch", "after_apply"]
)
def test_killed_while_launching_the_first_vm(world: World, point: str) -> None:
    world.submit()
    die(world, point, world.look)
    go_on(world)
    assert len(world.cloud.alive()) == 1
    assert owned(world)
    assert [attempt.number for attempt in world.attempts()] == [1]
    agent = world.join()
    agent.prepare()
    agent.train(3)
    assert world.job().state == "running"


@pytest.mark.parametrize("point", ["after_launch", "after_apply"])
def test_a_launch_that_the_cloud_has_is_not_repeated(world: World, point: str) -> None:
    world.submit()
    die(world, point, world.look)
    go_on(world)
    assert len(world.cloud.launches) == 1


@pytest.mark.parametrize(
    "point", ["before_plan", "vm_row_committed", "after_launch", "after_apply"]
)
def test_killed_while_launching_the_replacement(world: World, point: str) -> None:
    old = world.training()
    world.cloud.preempt(old.machine.id)
    old.notice()
    die(world, point, world.look)
    old.save(SaveKind.EMERGENCY)
    go_on(world)
    assert len(world.cloud.alive()) == 2
    assert owned(world)
    new = world.join(2)
    new.prepare()
    go_on(world, 40)
    assert (new.phase, new.step) == ("training", 10)
    assert [attempt.number for attempt in world.attempts()] == [1, 2]
    assert world.vm(old.vm).reason == "preempted"


@pytest.mark.parametrize("point", ["before_plan", "after_terminate", "after_apply"])
def test_killed_while_ending(world: World, point: str) -> None:
    agent = world.training()
    agent.exit(0)
    die(world, point, world.look)
    go_on(world)
    assert world.job().state == "succeeded"
    assert world.vms()[0].state == "terminated"
    assert world.cloud.alive() == []
    assert len(world.observations("life")) == 1


def test_a_restart_counts_every_vm_as_just_heard_of(world: World) -> None:
    agent = world.training()
    world.clock.advance(3600)  # nobody listened
    world.restart()
    world.look()
    assert world.vm(agent.vm).suspect_at is None
    go_on(world, 30)
    assert world.job().state == "running"
    assert len(world.attempts()) == 1


def test_two_kills_in_a_row_lose_nothing(world: World) -> None:
    world.submit()
    die(world, "vm_row_committed", world.look)
    world.clock.advance(10)
    die(world, "after_launch", lambda: go_on(world))
    go_on(world)
    assert len(world.cloud.alive()) == 1
    assert owned(world)


def test_a_plan_for_an_unknown_point_is_refused() -> None:
    with pytest.raises(ValueError, match="no chaos point 'later'"):
        Chaos().at("later", lambda: None)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_reached(world: World, point: str) -> None:
    seen: list[str] = []
    world.chaos.at(point, lambda: seen.append(point))
    world.training().exit(0)
    world.settle(4)
    assert seen == [point]
