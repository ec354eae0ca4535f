"""What clouds differ in, as the loops use it: unclear answers, pace, and zones that they choose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_cloud import AmbiguousAfter
from fakes.master_harness import MasterHarness
from spothop.wire import ANY_ZONE
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    LaunchSpec,
    NoCapacity,
    PriceTooHigh,
    Throttled,
    Unavailable,
    Vm,
)
from spothop_master.core.evidence import EndCause
from spothop_master.store.schema import VmRow

pytestmark = pytest.mark.databases


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    made.repeat_after_s = (1.0, 4.0)
    made.restart()
    yield made
    made.db.close()


@pytest.mark.parametrize("lost", [AmbiguousAfter(), Ambiguous("connection lost")])
def test_an_unclear_launch_is_made_clear_by_the_same_token(
    harness: MasterHarness, lost: Exception
) -> None:
    harness.cloud.hidden_s = 100  # no listing could tell
    harness.cloud.script.append(lost)
    harness.submit()
    harness.look()
    assert [vm.state for vm in harness.vms()] == ["booting"]
    assert harness.slept == [1.0]
    assert len(harness.cloud.machines) == 1
    specs = harness.cloud.launches
    assert all(spec == specs[0] for spec in specs), "and by the same bytes"


def test_a_refusal_that_follows_an_unclear_answer_is_one(harness: MasterHarness) -> None:
    harness.cloud.script += [Ambiguous("connection lost"), NoCapacity("none left")]
    harness.submit()
    harness.look()
    assert [row.error for row in harness.refusals()] == ["NoCapacity"]
    assert harness.machine().pool.zone == "b"


@pytest.mark.parametrize("kind", [Throttled, Unavailable, AuthFailed, PriceTooHigh, BadRequest])
def test_a_refusal_that_did_not_look_at_the_launch_makes_nothing_clear(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch, kind: type[CloudError]
) -> None:
    """The first one has made a VM: if its row were over, the VM would be nobody's."""
    launch = harness.cloud.launch

    def asked_again(spec: LaunchSpec, token: str) -> Vm:
        if any(machine.token == token for machine in harness.cloud.machines.values()):
            raise kind("not now")
        return launch(spec, token)

    monkeypatch.setattr(harness.cloud, "launch", asked_again)
    harness.cloud.script.append(AmbiguousAfter())
    harness.submit()
    harness.look()
    harness.settle(10)
    assert [vm.state for vm in harness.vms()] == ["booting"]
    assert len(harness.cloud.machines) == 1
    assert not harness.refusals()


def test_what_stays_unclear_is_left_to_the_listing(harness: MasterHarness) -> None:
    harness.cloud.script += 3 * [Ambiguous("connection lost")]
    harness.submit()
    harness.look()
    assert harness.slept == [1.0, 4.0]
    assert [vm.state for vm in harness.vms()] == ["requested"]
    harness.settle(10)
    assert harness.vm(harness.attempt().leader.vm_id).state == "booting"


def test_launches_go_as_fast_as_their_cloud_takes_them(harness: MasterHarness) -> None:
    harness.cloud.launches_per_s, harness.cloud.launches_in_burst = 2.0, 5
    for n in range(15):
        harness.submit(f"job-{n}")
    harness.look()
    assert len(harness.cloud.launches) == 15
    assert sum(harness.slept) == pytest.approx(5.0, abs=0.5), "ten after the burst, two a second"


def test_a_throttled_account_is_asked_a_few_times_a_minute(harness: MasterHarness) -> None:
    """By 50 jobs together."""
    for zone in harness.cloud.zones:
        harness.cloud.refusing[zone] = Throttled("slow down")
    for n in range(50):
        harness.submit(f"job-{n}")
    harness.look()
    harness.settle(60)
    assert len(harness.cloud.launches) <= 12
    before = len(harness.cloud.launches)
    harness.settle(60)
    assert len(harness.cloud.launches) - before <= 6, "the back-off has grown"


def row(harness: MasterHarness) -> VmRow:
    return harness.vm(harness.attempt().leader.vm_id)


@pytest.mark.parametrize("refusal", [None, NoCapacity("none left")])
def test_the_zone_that_the_cloud_chose_is_that_of_the_vm(
    harness: MasterHarness, refusal: CloudError | None
) -> None:
    harness.cloud.zones = (ANY_ZONE,)
    harness.cloud.script.append(refusal)
    harness.submit()
    harness.settle(5)
    assert row(harness).zone == "given"
    assert [life.zone for life in harness.observations("allocation")] == ["given"]
    assert [each.until for each in harness.refusals()] == ([None] if refusal else [])
    agent = harness.join()
    harness.cloud.kill(agent.machine.id, EndCause.PREEMPTED)
    harness.settle(3)
    assert [life.zone for life in harness.observations("life")] == ["given"]
