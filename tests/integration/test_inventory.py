"""What the clouds list beside the master's rows, and the end of everything of one installation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fakes.fake_cloud import FakeClock, FakeCloud, Machine, RegionalCloud
from fakes.http_master import HttpMaster
from spothop.wire import AgentConfig, Dialect, InventoryView, JobState, ListedAs
from spothop_master.clouds.base import (
    OWNER_TAG,
    CloudError,
    CloudVmState,
    LaunchSpec,
    Remain,
    Unavailable,
)
from spothop_master.store.schema import Event, Job

pytestmark = pytest.mark.databases

US = "owner-1"


@dataclass(kw_only=True)
class WideCloud(RegionalCloud):
    """Disks may be left over in its regions."""

    left: list[Remain] = field(default_factory=list)

    def remains(self, owner: str, *, region: str | None = None) -> Sequence[Remain]:
        if region in self.silent:
            raise Unavailable(f"{region} is away")
        return [each for each in self.left if region in (None, each.region)]

    def remove(self, remain: Remain) -> None:
        self.left.remove(remain)


@pytest.fixture
def cloud() -> WideCloud:
    return WideCloud(clock=FakeClock())


@pytest.fixture
def master(tmp_path: Path, cloud: WideCloud) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path, clock=cloud.clock, clouds={"fake": cloud}) as made:
        made.cloud = cloud
        yield made


def orphan(cloud: FakeCloud, zone: str, token: str = "nobody") -> Machine:
    config = AgentConfig(master="http://m", token="t", vm="v", dialect=Dialect.AWS, directory="/d")
    spec = LaunchSpec(pool=cloud.pool(zone), user_data=config, tags={OWNER_TAG: US})
    return cloud.machines[cloud.launch(spec, token).id]


def volume(region: str) -> Remain:
    return Remain(kind="volume", id=f"vol-{region}", region=region, detail="8 GiB, unattached")


def look(master: HttpMaster) -> InventoryView:
    [found] = master.get("/api/v1/inventory").json()
    return InventoryView.model_validate(found)


def end(master: HttpMaster, *, now: bool = False) -> InventoryView:
    answer = master.post("/api/v1/inventory/fake/end", params={"now": now})
    assert answer.status_code == 200, answer.text
    return InventoryView.model_validate(answer.json())


def end_all(master: HttpMaster, *, now: bool = False, steps: int = 12) -> InventoryView:
    """As the command line does, while the master's loop runs."""
    left = end(master, now=now)
    for _ in range(steps):
        master.look(2.0)
        left = end(master, now=now)
    return left


def is_left(found: InventoryView) -> bool:
    return bool(found.vms or found.remains or found.jobs or found.errors)


def states(master: HttpMaster) -> set[str]:
    with master.services.db.read() as session:
        return {row.state for row in session.query(Job)}


def test_known_orphaned_and_unlisted_vms_are_told_apart(
    master: HttpMaster, cloud: WideCloud
) -> None:
    master.joined()
    orphan(cloud, "b")
    cloud.left.append(volume("r-a"))
    found = look(master)
    assert [(vm.listed_as, vm.state) for vm in found.vms] == [
        (ListedAs.KNOWN, "running"),
        (ListedAs.ORPHAN, "pending"),
    ]
    known, nobodys = found.vms
    assert known.job is not None
    assert known.price == pytest.approx(1.0)
    assert nobodys.job is None
    assert "the sweep ends it" in nobodys.note
    assert [each.id for each in found.remains] == ["vol-r-a"]
    assert found.jobs == 1
    for machine in cloud.machines.values():
        machine.seen_from = cloud.clock.now.replace(year=2031)
    [unlisted] = look(master).vms
    assert unlisted.listed_as is ListedAs.UNLISTED
    assert unlisted.vm == known.vm


def test_a_region_that_does_not_answer_hides_no_other_one(
    master: HttpMaster, cloud: WideCloud
) -> None:
    master.joined()
    cloud.silent.add("r-a")
    orphan(cloud, "b")
    found = look(master)
    assert {vm.listed_as for vm in found.vms} == {ListedAs.ORPHAN, ListedAs.UNLISTED}
    assert [vm.note for vm in found.vms if vm.vm] == ["its region did not answer"]
    assert len(found.errors) == 2
    assert all("fake r-a" in error for error in found.errors)


def test_all_ends_after_a_save_and_what_is_left_over_goes(
    master: HttpMaster, cloud: WideCloud
) -> None:
    agent = master.joined()
    master.submit(name="waits")
    lost = orphan(cloud, "b")
    cloud.left += [volume("r-a"), volume("r-b")]
    first = end(master)
    assert lost.state(cloud.clock()) is CloudVmState.STOPPING
    [kept] = [vm for vm in first.vms if vm.vm == agent.vm]
    assert kept.state == "running", "it saves first"
    assert [each.id for each in cloud.left] == ["vol-r-a", "vol-r-b"], "VMs may still want them"
    left = end_all(master, steps=60)
    assert not is_left(left)
    assert cloud.left == []
    assert not [m for m in cloud.machines.values() if m.is_up(cloud.clock())]
    assert states(master) == {JobState.CANCELLED}
    assert not is_left(end(master)), "again"
    with master.services.db.read() as session:
        [told] = session.query(Event).filter_by(kind="terminate_all")
        assert told.data["vms"] == [lost.id]


def test_a_job_with_a_vm_is_paused_first_which_saves(master: HttpMaster) -> None:
    agent = master.joined()
    end(master)
    with master.services.db.read() as session:
        job = session.get_one(Job, agent.job)
        assert job.wanted == "paused"


def test_now_waits_for_no_save(master: HttpMaster, cloud: WideCloud) -> None:
    agent = master.joined()
    end(master, now=True)
    assert cloud.alive() == []
    assert not is_left(end_all(master, now=True))
    with master.services.db.read() as session:
        assert session.get_one(Job, agent.job).state == JobState.CANCELLED


def test_what_the_database_has_lost_is_found_by_its_tag(
    master: HttpMaster, cloud: WideCloud
) -> None:
    for number in range(5):  # so many that the sweep would hold them
        orphan(cloud, "ab"[number % 2], f"t{number}")
    theirs = LaunchSpec(
        pool=cloud.pool("a"), user_data=cloud.launches[0].user_data, tags={OWNER_TAG: "them"}
    )
    cloud.launch(theirs, "theirs")
    assert not is_left(end_all(master, steps=2))
    [stays] = cloud.alive()
    assert stays.token == "theirs"


def test_the_other_regions_are_emptied_when_one_is_away(
    master: HttpMaster, cloud: WideCloud
) -> None:
    here, there = orphan(cloud, "a", "t1"), orphan(cloud, "b", "t2")
    cloud.left += [volume("r-a"), volume("r-b")]
    cloud.silent.add("r-b")
    left = end_all(master, steps=3)
    assert left.errors
    assert here.ends_at is not None
    assert there.ends_at is None
    assert [each.id for each in cloud.left] == ["vol-r-b"]
    cloud.silent.clear()
    assert not is_left(end_all(master, steps=3))
    assert cloud.left == []


def test_one_vm_that_is_not_ended_keeps_no_other_alive(
    master: HttpMaster, cloud: WideCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected, other = orphan(cloud, "a", "t1"), orphan(cloud, "b", "t2")
    terminate = cloud.terminate

    def refuse(vm_id: str) -> None:
        if vm_id == protected.id:
            raise CloudError("termination protection")
        terminate(vm_id)

    monkeypatch.setattr(cloud, "terminate", refuse)
    left = end_all(master, steps=2)
    assert [vm.cloud_id for vm in left.vms] == [protected.id]
    assert "termination protection" in left.errors[0]
    assert other.ends_at is not None


def test_only_jobs_that_may_run_there_are_cancelled(master: HttpMaster) -> None:
    here = master.submit(name="anywhere")["id"]
    with master.services.db.begin() as session:
        job = session.get_one(Job, here)
        elsewhere = {**job.spec, "resources": {"any_of": [{"cloud": "other"}]}}
        job.spec = elsewhere
    assert look(master).jobs == 0
    end(master)
    assert states(master) == {JobState.QUEUED}
