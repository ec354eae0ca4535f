"""What is written of each VM's and attempt's life; `test_store_statistics` reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.world import World
from spothop.wire import SaveKind
from spothop_master.store import observations
from spothop_master.store.schema import VmRow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.db.close()


def test_the_same_figure_twice_is_one(world: World) -> None:
    agent = world.training()
    for value in (100.0, 200.0):
        with world.db.begin() as session:
            vm = session.get_one(VmRow, agent.vm)
            observations.add(session, vm, "life", value, now=world.clock())
    assert [o.value for o in world.observations("life")] == [100.0]


def test_preparation_leaves_out_the_wait_for_the_fence(world: World) -> None:
    world.training().notice(20.0)
    world.settle(3)
    new = world.join(2)
    world.tick()
    new.prepare()
    waited = 0
    while new.phase == "prepared":
        world.tick()
        new.obey()
        waited += 1
    new.train(1)
    assert waited > 5
    lived = (world.clock() - new.machine.running_at).total_seconds()
    second = max(world.observations("preparation"), key=lambda o: o.attempt)
    assert second.value == pytest.approx(lived - waited)


@pytest.mark.parametrize(
    ("kind", "kept"), [(SaveKind.EMERGENCY, 1.0), (SaveKind.PERIODIC, 0.0), (None, 0.0)]
)
def test_an_emergency_is_kept_only_by_its_own_save(
    world: World, kind: SaveKind | None, kept: float
) -> None:
    agent = world.training()
    agent.notice()
    if kind is not None:
        agent.save(kind)
    agent.exit(None, signal=15)
    assert [o.value for o in world.observations("emergency")] == [kept]


def test_a_preemption_before_the_first_step_says_nothing_of_notices(world: World) -> None:
    world.submit()
    world.settle(4)
    agent = world.join()
    agent.notice()
    agent.exit(None, signal=15)
    assert world.observations("emergency") == []
