"""A region that does not answer hides no other one, and of its own VMs nothing is concluded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_cloud import FakeClock, Machine, RegionalCloud
from fakes.master_harness import OWNER, MasterHarness
from spothop.wire import AgentConfig, Dialect, VmState
from spothop_master.clouds.base import OWNER_TAG, LaunchSpec, NoCapacity, Throttled
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope
from spothop_master.store import strays
from spothop_master.store.schema import Stray

pytestmark = pytest.mark.databases


@pytest.fixture
def cloud() -> RegionalCloud:
    return RegionalCloud(clock=FakeClock())


@pytest.fixture
def harness(tmp_path: Path, cloud: RegionalCloud) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path, clock=cloud.clock, cloud=cloud)
    yield made
    made.db.close()


def in_both(harness: MasterHarness, cloud: RegionalCloud) -> None:
    """A job in each region: job-1 in r-a, job-2 in r-b."""
    harness.training("job-1")
    cloud.refusing["a"] = NoCapacity("full")
    harness.training("job-2")
    cloud.refusing.clear()
    assert [vm.region for vm in harness.vms()] == ["r-a", "r-b"]


def talk(harness: MasterHarness, seconds: int) -> None:
    for _ in range(seconds):
        for machine in harness.cloud.alive():
            if machine.id in harness.agents:
                harness.agents[machine.id].report()
        harness.tick()


def orphan(cloud: RegionalCloud, zone: str, token: str) -> Machine:
    config = AgentConfig(master="http://m", token="t", vm="v", dialect=Dialect.AWS, directory="/d")
    spec = LaunchSpec(pool=cloud.pool(zone), user_data=config, tags={OWNER_TAG: OWNER})
    return cloud.machines[cloud.launch(spec, token).id]


def test_the_end_of_a_vm_elsewhere_is_seen(harness: MasterHarness, cloud: RegionalCloud) -> None:
    in_both(harness, cloud)
    cloud.silent = {"r-b"}
    talk(harness, 5)
    cloud.kill(harness.machine(job_id="job-1").id, EndCause.PREEMPTED)
    talk(harness, 5)
    assert harness.attempt(1, "job-1").reason == "preempted"
    assert harness.attempt(job_id="job-2").state == "running"


def test_a_vm_of_a_region_that_was_never_heard_is_not_gone(
    harness: MasterHarness, cloud: RegionalCloud
) -> None:
    """It is not over because another region's listing lacks it: it runs, and costs."""
    in_both(harness, cloud)
    silent, [_, there] = harness.machine(job_id="job-2"), harness.vms()
    cloud.silent = {"r-b"}
    harness.restart()
    harness.want("cancelled", "job-2", at_once=True)
    for _ in range(40):  # until its agent has had its time to stop
        if harness.vm(there.id).state == VmState.TERMINATING.value:
            break
        harness.clock.advance(5)
        talk(harness, 1)
    cloud.machines.pop(silent.id)
    talk(harness, 8)
    assert harness.vm(there.id).state == VmState.TERMINATING.value
    cloud.silent = set()
    talk(harness, 35)  # the back-off of the watcher, at its longest
    assert harness.vm(there.id).state == VmState.TERMINATED.value


def test_the_sweep_ends_strays_elsewhere_and_keeps_what_it_knows(
    harness: MasterHarness, cloud: RegionalCloud
) -> None:
    in_both(harness, cloud)
    there = [orphan(cloud, "b", f"t{number}") for number in range(3)]

    def sweep(passes: int = 4) -> None:
        for _ in range(passes):
            talk(harness, 1)
            harness.sweep.run_once()
            harness.clock.advance(6)

    sweep()
    assert len(harness.rows(Stray)) == 3, "too many to be ended without an admin"
    cloud.silent = {"r-b"}
    harness.restart()
    here = orphan(cloud, "a", "t9")
    sweep()
    assert here.ends_at is not None
    assert len(harness.rows(Stray)) == 3, "of r-b nothing new was heard"
    with harness.db.begin() as session:
        strays.end(session, now=harness.clock())
    sweep()
    assert [machine.ends_at for machine in there] == [None] * 3
    cloud.silent = set()
    harness.clock.advance(60)
    sweep(5)
    assert None not in [machine.ends_at for machine in there]
    assert harness.rows(Stray) == []


def test_a_throttled_part_of_a_listing_hides_no_vm_and_closes_its_region_alone(
    harness: MasterHarness, cloud: RegionalCloud
) -> None:
    in_both(harness, cloud)
    cloud.gaps = {"r-a": Throttled("slow down", scope=Scope.REGION, retry_after_s=60)}
    cloud.kill(harness.machine(job_id="job-2").id, EndCause.PREEMPTED)
    launched = len(cloud.launches)
    talk(harness, 10)
    [closed] = harness.back_offs()
    assert (closed.scope, closed.name, closed.error) == ("region", "r-a", "Throttled")
    assert harness.attempt(job_id="job-1").state == "running"
    assert [launch.pool.region for launch in cloud.launches[launched:]] == ["r-b"]


def test_a_launch_that_is_accepted_opens_its_throttled_region(
    harness: MasterHarness, cloud: RegionalCloud
) -> None:
    harness.training("job-1")
    cloud.refusing = {zone: Throttled("slow down", scope=Scope.REGION) for zone in "ab"}
    harness.submit("job-2")
    talk(harness, 1)
    assert [row.name for row in harness.back_offs()] == ["r-a", "r-b"]
    cloud.refusing.clear()
    cloud.boot_s = 1000.0  # accepted, and it does not run yet
    talk(harness, 40)
    assert len(harness.back_offs()) == 1, "of the region that took the launch"


def test_a_silent_region_is_named_to_admins_until_it_answers(
    harness: MasterHarness, cloud: RegionalCloud
) -> None:
    in_both(harness, cloud)
    cloud.silent = {"r-b"}
    talk(harness, 1)
    assert harness.attention == {}, "one refusal is no news"
    talk(harness, 20)
    assert harness.attention == {"no listing of fake r-b": "r-b is away"}
    cloud.silent = set()
    talk(harness, 35)
    assert harness.attention == {}
