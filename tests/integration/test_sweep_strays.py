"""What the sweep does with VMs that no row owns: which it ends, which it holds, and who says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_cloud import Machine
from fakes.http_master import HttpMaster
from fakes.master_harness import OWNER, MasterHarness
from spothop.wire import AgentConfig, Dialect, StrayView
from spothop_master.clouds.base import OWNER_TAG, BadRequest, Cloud, LaunchSpec
from spothop_master.loops.sweep import Sweep, hold_limits
from spothop_master.security import Role
from spothop_master.store import strays
from spothop_master.store.schema import Event, Stray

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    yield made
    made.db.close()


def stray(cloud: Cloud, token: str) -> Machine:
    """A VM of this installation without a row."""
    pool = cloud.pool("a")  # type: ignore[attr-defined]
    config = AgentConfig(master="http://m", token="t", vm="v", dialect=Dialect.AWS, directory="/d")
    spec = LaunchSpec(pool=pool, user_data=config, tags={OWNER_TAG: OWNER})
    made: Machine = cloud.machines[cloud.launch(spec, token).id]  # type: ignore[attr-defined]
    return made


def sweep(harness: MasterHarness, passes: int = 4, every_s: float = 6) -> None:
    for _ in range(passes):
        harness.sweep.run_once()
        harness.clock.advance(every_s)


def allow(harness: MasterHarness) -> list[StrayView]:
    with harness.db.begin() as session:
        return strays.end(session, now=harness.clock())


def test_too_many_are_held_until_an_admin_lets_them_go(harness: MasterHarness) -> None:
    found = [stray(harness.cloud, f"t{n}") for n in range(4)]
    sweep(harness)
    assert [machine.ends_at for machine in found] == [None] * 4
    (told,) = harness.events("strays")
    assert "4 VMs that no row owns are held, not ended: 4 of the 4 VMs" in told.text
    assert "spothop vms --end-strays" in told.text
    assert list(harness.attention) == ["strays in fake"]
    harness.restart()
    more = [stray(harness.cloud, f"u{n}") for n in range(9)]  # others make the share no smaller
    sweep(harness)
    assert [machine.ends_at for machine in [*found, *more]] == [None] * 13
    assert len(allow(harness)) == 13
    sweep(harness)
    assert harness.cloud.alive() == []
    assert harness.attention == {}
    assert harness.rows(Stray) == []
    assert len(harness.events("orphan")) == 13


def test_those_that_were_held_stay_so_when_the_fleet_grows(harness: MasterHarness) -> None:
    found = [stray(harness.cloud, f"t{n}") for n in range(3)]
    sweep(harness)
    for n in range(5):
        harness.submit(f"job-{n}")
    harness.look()
    sweep(harness)
    assert [machine.ends_at for machine in found] == [None] * 3
    assert len(harness.cloud.alive()) == 8


def test_a_database_from_a_backup_ends_nothing_that_came_after_it(harness: MasterHarness) -> None:
    harness.training()
    harness.clock.advance(3600)
    newer = stray(harness.cloud, "launched by the database that is lost")
    harness.clock.advance(3600)
    harness.restart()
    sweep(harness)
    assert newer.ends_at is None
    (told,) = harness.events("strays")
    assert "was it restored from a backup" in told.text
    allow(harness)
    sweep(harness)
    assert newer.ends_at is not None


def test_a_new_database_ends_nothing_that_is_older(tmp_path: Path) -> None:
    old = MasterHarness(tmp_path, seed=1)
    older = stray(old.cloud, "of another database")
    old.clock.advance(10)
    harness = MasterHarness(tmp_path, seed=2, clock=old.clock, cloud=old.cloud)
    sweep(harness)
    assert older.ends_at is None
    old.db.close()
    harness.db.close()


def test_one_that_is_not_ended_is_asked_for_less_and_less_often(harness: MasterHarness) -> None:
    protected, other = stray(harness.cloud, "1"), stray(harness.cloud, "2")
    terminate, asked = harness.cloud.terminate, []

    def refuse(vm_id: str) -> None:
        asked.append(vm_id)
        if vm_id == protected.id:
            raise BadRequest("termination protection is on")
        terminate(vm_id)

    harness.cloud.terminate = refuse  # type: ignore[method-assign]
    sweep(harness, passes=100)
    assert other.ends_at is not None
    assert 4 < asked.count(protected.id) < 9, "after 15, 30, 60, 120, 240, ... s"
    told = [e.text for e in harness.events("orphan") if e.data["cloud_id"] == protected.id]
    assert told == [f"fake does not end VM {protected.id}: termination protection is on"]
    (row,) = harness.rows(Stray)
    assert (row.cloud_id, row.error) == (protected.id, "termination protection is on")
    harness.cloud.terminate = terminate  # type: ignore[method-assign]
    sweep(harness, passes=110)
    assert protected.ends_at is not None
    assert harness.rows(Stray) == []


def test_a_cloud_that_hangs_delays_no_other(harness: MasterHarness) -> None:
    """Each is swept by itself, as the scheduler does it."""
    hangs, entered = threading.Event(), threading.Event()
    fresh = harness.watcher.fresh_listings

    def wait(cloud: str, *, wait_s: float) -> object:
        if cloud == "hangs":
            entered.set()
            assert hangs.wait(60)
            return []
        return fresh(cloud, wait_s=wait_s)

    harness.watcher.fresh_listings = wait  # type: ignore[assignment,method-assign]
    clouds = {"hangs": harness.cloud, "fake": harness.cloud}
    both = Sweep(
        harness.db,
        clouds,
        harness.watcher,
        harness.clock,
        limits=hold_limits(harness.settings),
    )
    machine = stray(harness.cloud, "1")
    thread = threading.Thread(target=both.sweep, args=("hangs",))
    thread.start()
    assert entered.wait(60)
    for _ in range(3):
        both.sweep("fake")
        harness.clock.advance(6)
    assert machine.ends_at is not None
    hangs.set()
    thread.join()


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        services = master.services
        found = Sweep(
            services.db,
            services.clouds,
            services.watcher,
            services.clock,
            limits=hold_limits(services.settings),
            attention=services.attention,
        )
        for n in range(3):
            stray(master.cloud, f"t{n}")
        for _ in range(3):
            found.run_once()
            master.clock.advance(6)
        yield master


def test_admins_see_strays_and_let_them_go(master: HttpMaster) -> None:
    rows = [StrayView.model_validate(row) for row in master.get("/api/v1/strays").json()]
    assert [row.cloud_id for row in rows] == ["i-1", "i-2", "i-3"]
    assert all("3 of the 3 VMs" in row.held for row in rows)
    assert master.get("/healthz", token="").json()["attention"] == "strays in fake"
    assert "3 VMs that no row owns" in master.get("/vms", headers=master.cookie(), token="").text
    assert master.post("/api/v1/strays/end", params={"cloud": "other"}).json() == []
    assert len(master.post("/api/v1/strays/end").json()) == 3
    assert master.post("/api/v1/strays/end").json() == []
    with master.services.db.read() as session:
        assert all(row.end_wanted_at for row in session.query(Stray))
        assert session.query(Event).filter_by(kind="strays").count() == 1


@pytest.mark.parametrize("role", [Role.USER, Role.VIEWER])
def test_nobody_else_does(master: HttpMaster, role: Role) -> None:
    token = master.user("someone", role)
    assert master.get("/api/v1/strays", token=token).status_code == 403
    assert master.post("/api/v1/strays/end", token=token).status_code == 403
    page = master.get("/vms", headers=master.cookie(token), token="").text
    assert "no row owns" not in page
