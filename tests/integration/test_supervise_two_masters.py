"""Two masters on one database: the lease keeps a job with one of them at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from fakes.world import Inline, World
from spothop_master.chaos import Chaos
from spothop_master.loops.presence import Presence
from spothop_master.loops.supervise import LEASE, Supervisor


class Later(Executor):
    """A launch that hangs until the test lets it happen."""

    def __init__(self) -> None:
        self.given: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(lambda: fn(*args, **kwargs))
        return Future()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.db.single_master = False  # as on PostgreSQL
    yield world
    world.db.close()


def second_master(world: World) -> Supervisor:
    return Supervisor(
        world.db,
        {"fake": world.cloud},
        world.settings,
        Presence(world.clock()),
        world.clock,
        Chaos(),
        executor=Inline(),
        rng=random.Random(2),
    )


def hang(world: World) -> Later:
    """The first master's launch hangs after its intent was committed."""
    world.submit()
    world.supervisor.market.ask_offers()
    later = Later()
    world.supervisor._executor = later
    world.look()
    assert len(later.given) == 1
    return later


def test_a_launch_under_way_is_left_alone(world: World) -> None:
    later = hang(world)
    other = second_master(world)
    for _ in range(20):
        world.clock.advance(1)
        other.run_once()
    assert [vm.state for vm in world.vms()] == ["requested"]
    later.given.pop()()
    assert [vm.state for vm in world.vms()] == ["booting"]
    other.run_once()
    assert len(world.cloud.launches) == 1


def test_a_result_that_comes_after_the_lease_is_dropped_and_its_vm_swept(world: World) -> None:
    later = hang(world)
    other = second_master(world)
    world.clock.advance(LEASE.total_seconds())
    for _ in range(12):
        world.clock.advance(1)
        other.run_once()
    lost, taken = world.vms()
    assert (lost.reason, taken.state) == ("launch_failed", "booting")
    later.given.pop()()
    assert len(world.cloud.alive()) == 2
    for _ in range(10):
        world.clock.advance(1)
        world.sweep.run_once()
    (alive,) = world.cloud.alive()
    assert alive.token == taken.token
    assert world.vms()[0].cloud_id is None


def test_a_wish_waits_for_the_launch_under_way(world: World) -> None:
    later = hang(world)
    world.want("cancelled")
    other = second_master(world)
    other.run_once()
    assert world.job().state == "allocating"
    later.given.pop()()
    for _ in range(4):
        world.clock.advance(1)
        other.run_once()
    assert world.job().state == "cancelled"
    assert world.cloud.alive() == []
