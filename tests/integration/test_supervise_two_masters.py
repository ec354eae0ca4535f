"""Two masters on one database: the lease keeps a job with one of them at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from fakes.master_harness import OWNER, Inline, MasterHarness
from spothop_master.agents.directive_cache import DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.sessions import Sessions
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.loops.supervise import LEASE, Supervisor
from spothop_master.store import leases


class Later(Executor):
    """A launch that hangs until the test lets it happen."""

    def __init__(self) -> None:
        self.given: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(lambda: fn(*args, **kwargs))
        return Future()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    harness.db.single_master = False  # as on PostgreSQL
    yield harness
    harness.db.close()


def second_master(harness: MasterHarness) -> Supervisor:
    clouds, rng = {"fake": harness.cloud}, random.Random(2)
    return Supervisor(
        harness.db,
        clouds,
        harness.settings,
        watcher=CloudWatcher(clouds, OWNER, executor=Inline(), clock=harness.clock, rng=rng),
        heartbeats=Heartbeats(harness.clock()),
        directives=DirectiveCache(),
        sessions=Sessions(harness.db),
        clock=harness.clock,
        executor=Inline(),
        rng=rng,
    )


def hang(harness: MasterHarness) -> Later:
    """The first master's launch hangs after its intent was committed."""
    harness.submit()
    harness.watcher.ask_offers()
    later = Later()
    harness.supervisor._executor = later
    harness.look()
    assert len(later.given) == 1
    return later


def test_a_launch_under_way_is_left_alone(harness: MasterHarness) -> None:
    later = hang(harness)
    other = second_master(harness)
    for _ in range(20):
        harness.clock.advance(1)
        other.run_once()
    assert [vm.state for vm in harness.vms()] == ["requested"]
    later.given.pop()()
    assert [vm.state for vm in harness.vms()] == ["booting"]
    other.run_once()
    assert len(harness.cloud.launches) == 1


def test_a_result_that_comes_after_the_lease_is_dropped_and_its_vm_swept(
    harness: MasterHarness,
) -> None:
    later = hang(harness)
    other = second_master(harness)
    harness.clock.advance(LEASE.total_seconds())
    for _ in range(12):
        harness.clock.advance(1)
        other.run_once()
    lost, taken = harness.vms()
    assert (lost.reason, taken.state) == ("launch_failed", "booting")
    later.given.pop()()
    assert len(harness.cloud.alive()) == 2
    for _ in range(10):
        harness.clock.advance(1)
        harness.sweep.run_once()
    (alive,) = harness.cloud.alive()
    assert alive.token == taken.token
    assert harness.vms()[0].cloud_id is None


def test_a_stop_waits_for_the_launch_under_way(harness: MasterHarness) -> None:
    later = hang(harness)
    harness.want("cancelled")
    other = second_master(harness)
    other.run_once()
    assert harness.job().state == "allocating"
    later.given.pop()()
    for _ in range(4):
        harness.clock.advance(1)
        other.run_once()
    assert harness.job().state == "cancelled"
    assert harness.cloud.alive() == []


def test_a_job_that_another_master_takes_in_between_is_left_alone(harness: MasterHarness) -> None:
    """After the look without a lock, and before the decision under it: also where the decision
    needs no cloud and so no lease of its own."""
    harness.submit()
    harness.want("cancelled")

    def taken() -> None:
        with harness.db.begin() as session:
            leases.take(session, "job-1", token="other", ttl=LEASE, now=harness.clock())

    harness.chaos.at("before_plan", taken)
    harness.look()
    assert (harness.job().state, harness.job().lease_token) == ("queued", "other")
    assert harness.events("state") == []
    harness.clock.advance(LEASE.total_seconds())  # the other one has died
    harness.look()
    assert harness.job().state == "cancelled"
