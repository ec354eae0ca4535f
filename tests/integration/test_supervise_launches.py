"""Launches that a cloud refuses or answers unclearly: fake cloud, scripted agents, fake time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_cloud import AmbiguousAfter
from fakes.master_harness import MasterHarness
from spothop_master.clouds.base import (
    BadRequest,
    CloudError,
    LaunchSpec,
    NoCapacity,
    Vm,
)

pytestmark = pytest.mark.databases(gate=True)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    yield harness
    harness.db.close()


def test_a_refusal_of_a_drivers_own_kind_is_written_down_too(harness: MasterHarness) -> None:
    class Weekend(CloudError):
        """Known to one driver only."""

    harness.submit()
    harness.cloud.refusing["a"] = Weekend("closed")
    harness.look()
    harness.tick()
    assert [row.error for row in harness.refusals()] == ["CloudError"]
    assert len(harness.cloud.launches) == 2, "the next zone is tried"


def test_a_driver_that_raises_what_nobody_expected_gives_the_lease_back(
    harness: MasterHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the launch would count as under way for ever: leases are renewed."""

    class Broken:
        def launch(self, spec: LaunchSpec, token: str) -> Vm:
            raise ZeroDivisionError("a bug in a driver")

    harness.submit()
    harness.watcher.ask_offers()
    launch = harness.cloud.launch
    harness.cloud.launch = Broken().launch  # type: ignore[method-assign]
    harness.look()
    harness.cloud.launch = launch  # type: ignore[method-assign]
    assert "a bug in a driver" in caplog.text
    (vm,) = harness.vms()
    assert vm.lease_token is None
    assert vm.state == "requested"
    harness.settle(60)  # far less than a lease: the listing says that there is no such VM
    assert [vm.state for vm in harness.vms()] == ["terminated", "booting"]


@pytest.mark.databases  # long: on PostgreSQL with `--all`
def test_refused_everywhere_waits_and_tries_on_for_ever(harness: MasterHarness) -> None:
    for zone in harness.cloud.zones:
        harness.cloud.refusing[zone] = NoCapacity(f"none in {zone}")
    harness.submit()
    harness.look()
    assert [spec.pool.zone for spec in harness.cloud.launches] == ["a", "b", "c"]
    job = harness.job()
    assert (job.state, job.refusals) == ("allocating", 3)
    assert job.not_before is not None
    assert job.not_before > harness.clock()
    harness.settle(100)  # five of the longest back-offs
    assert 12 < len(harness.cloud.launches) < 60
    assert harness.attempt().number == 1
    harness.cloud.refusing.clear()
    harness.settle(25)
    assert harness.job().refusals == 0
    assert harness.join().assignment.attempt == 1


def test_the_next_zone_is_tried_at_once(harness: MasterHarness) -> None:
    harness.cloud.refusing["a"] = NoCapacity("none")
    harness.submit()
    harness.look()
    assert harness.machine().pool.zone == "b"
    assert [vm.zone for vm in harness.vms()] == ["b"], "the refused one had no VM"
    assert [(row.zone, row.count) for row in harness.refusals()] == [("a", 1)]


def test_a_bad_request_is_never_repeated(harness: MasterHarness) -> None:
    for zone in harness.cloud.zones:
        harness.cloud.refusing[zone] = BadRequest("no such image")
    harness.submit()
    harness.settle(30)
    assert len(harness.cloud.launches) == 3
    assert harness.job().state == "failed"
    assert "BadRequest" in harness.job().reason
    assert harness.attempt().state == "ended"


@pytest.mark.databases  # long: on PostgreSQL with `--all`
def test_without_a_pool_for_a_replacement_the_attempt_with_the_notice_goes_on(
    harness: MasterHarness,
) -> None:
    """It may still come to its end; the job fails once nothing of it is left."""
    agent = harness.training()
    for zone in harness.cloud.zones:
        harness.cloud.refusing[zone] = BadRequest("no such image")
    harness.cloud.preempt(harness.machine().id)
    agent.notice()
    harness.settle(2)
    assert harness.job().state not in {"failed", "succeeded"}
    assert harness.attempt(1).state == "draining"
    harness.settle(400)
    assert harness.job().state == "failed"
    assert "BadRequest" in harness.job().reason
    assert [a.state for a in harness.attempts()] == ["ended"] * len(harness.attempts())
    assert harness.all_over()


def test_an_unclear_launch_that_happened_is_found_by_its_token(harness: MasterHarness) -> None:
    harness.cloud.script.append(AmbiguousAfter())
    harness.cloud.hidden_s = 1
    harness.submit()
    harness.look()
    assert harness.vms()[0].state == "requested"
    harness.settle(3)
    assert harness.vms()[0].state == "booting"
    assert len(harness.cloud.launches) == 1
    assert harness.join().attempt == 1


def test_an_unclear_launch_that_did_not_happen_is_tried_again(harness: MasterHarness) -> None:
    harness.cloud.script.append(AmbiguousAfter())
    harness.cloud.hidden_s = 3600
    harness.submit()
    harness.look()
    harness.cloud.hidden_s = 0
    harness.settle(10)
    first, second = harness.vms()
    assert (first.reason, second.state) == ("launch_failed", "booting")
    ghost = harness.cloud.machines["i-1"]
    ghost.seen_from = harness.clock()  # it was there after all: nobody owns it
    for _ in range(10):
        harness.sweep.run_once()
        harness.tick()
    assert ghost.ends_at is not None
    assert len(harness.events("orphan")) == 1
    assert len(harness.cloud.alive()) == 1
