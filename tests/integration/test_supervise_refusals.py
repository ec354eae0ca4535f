"""What clouds refuse: how often they are asked then, by all jobs together, and what users see."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.fake_cloud import AmbiguousAfter, FakeClock
from fakes.master_harness import Inline, Later, MasterHarness
from spothop.wire import Pool
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    NoCapacity,
    QuotaExceeded,
    Throttled,
    Unavailable,
)
from spothop_master.core.refusals import BackOff, Growth, Refused, Scope, name_of
from spothop_master.store import refusals

pytestmark = pytest.mark.databases

POOLS = tuple(f"{region}{n}" for region in "xyz" for n in range(20))
"""Zones of three regions."""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    made = MasterHarness(tmp_path)
    made.cloud.zones = POOLS
    made.cloud.region_of = lambda zone: zone[0]
    yield made
    made.db.close()


def refuse(harness: MasterHarness, error: CloudError, zones: tuple[str, ...] = POOLS) -> None:
    harness.cloud.refusing.update(dict.fromkeys(zones, error))


def rest(harness: MasterHarness, seconds: int) -> None:
    for _ in range(0, seconds, 3):
        harness.tick(3)


def asked(harness: MasterHarness) -> list[str]:
    """The zones of all launches so far."""
    return [spec.pool.zone for spec in harness.cloud.launches]


def test_a_throttled_account_is_asked_once_a_back_off(harness: MasterHarness) -> None:
    refuse(harness, Throttled("request limit exceeded"))
    for n in range(3):
        harness.submit(f"job-{n}")
    rest(harness, 3)
    assert len(asked(harness)) <= 2, "at 0 s, and after a back-off of 0.5 to 1 s"
    rest(harness, 60)
    assert 4 < len(asked(harness)) <= 11, (
        "after 2, 4, 8, 16, 20 s at most, and half of that at least"
    )
    assert len(harness.vms()) <= 3


def test_an_account_that_works_again_is_used_by_all_at_once(harness: MasterHarness) -> None:
    refuse(harness, Throttled("request limit exceeded"))
    for n in range(3):
        harness.submit(f"job-{n}")
    rest(harness, 30)
    harness.cloud.refusing.clear()
    rest(harness, 60)
    assert harness.back_offs() == []
    assert {harness.machine(job_id=f"job-{n}").pool.zone for n in range(3)} <= set(POOLS)
    assert {vm.state for vm in harness.vms()} == {"booting"}


def test_a_job_says_which_account_it_waits_for(harness: MasterHarness) -> None:
    refuse(harness, Throttled("request limit exceeded", code="RequestLimitExceeded"))
    harness.submit()
    rest(harness, 60)
    (told,) = harness.events("wait")
    assert told.text.startswith("fake: throttled; next try in ")
    (row,) = harness.back_offs()
    assert (row.scope, row.name, row.code) == ("account", "", "RequestLimitExceeded")
    assert row.refusals > 3


def test_what_the_provider_asks_for_is_honoured(harness: MasterHarness) -> None:
    refuse(harness, Throttled("slow down", retry_after_s=100))
    harness.submit()
    rest(harness, 99)
    assert len(asked(harness)) == 1
    rest(harness, 15)
    assert len(asked(harness)) == 2


def test_a_spot_quota_leaves_its_region_out_and_no_other_one(harness: MasterHarness) -> None:
    refuse(harness, QuotaExceeded("40 vCPUs"), POOLS[:20])
    harness.submit()
    harness.look()
    assert [zone[0] for zone in asked(harness)] == ["x", "y"]
    (row,) = harness.back_offs()
    assert (row.scope, row.name) == ("region", "x spot")
    (place,) = harness.attempt().places
    reasons = [event.text for event in harness.events("vm") if event.vm_id == place.vm_id]
    assert "left out: fake x spot: quota reached, until 00:00:0" in reasons[0]
    harness.submit("job-2")
    harness.look()
    assert [zone[0] for zone in asked(harness)] == ["x", "y", "y"], "the other job knows it, too"


def test_the_quota_of_one_family_of_vm_types_closes_no_other(harness: MasterHarness) -> None:
    gpu, plain = (Pool(cloud="c", region="r", zone="z", vm=vm) for vm in ("g5.xlarge", "m5.large"))
    closed = BackOff(
        cloud="c",
        scope=Scope.REGION,
        name=name_of(Scope.REGION, gpu, "QuotaExceeded"),
        error="QuotaExceeded",
        until=FakeClock().now,
    )
    assert closed.covers(gpu)
    assert closed.covers(gpu.model_copy(update={"vm": "g6.12xlarge", "zone": "other"}))
    assert not closed.covers(plain)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (NoCapacity("none left", code="Full"), "none left; asked again in 1 s"),
        (Unavailable("503"), "503; its region is asked again in 1 s"),
        (BadRequest("no such image"), "no such image"),
    ],
)
def test_who_looks_sees_what_was_answered_and_when_it_is_asked_again(
    harness: MasterHarness, answer: CloudError, told: str
) -> None:
    refuse(harness, answer)
    harness.submit()
    harness.look()
    first = next(event for event in harness.events("vm") if "refused" in event.text)
    assert first.text.endswith(told)
    with harness.db.read() as session:
        (view, *_) = refusals.views(session, "job-1")
    assert (view.detail, view.code) == (str(answer), answer.code)
    assert view.until is not None
    assert view.until > harness.clock()


def test_an_on_demand_job_is_not_kept_from_a_region_whose_spot_quota_is_reached() -> None:
    spot = Pool(cloud="c", region="r", zone="z", vm="v")
    name = name_of(Scope.REGION, spot, "QuotaExceeded")
    back_off = BackOff(
        cloud="c", scope=Scope.REGION, name=name, error="QuotaExceeded", until=FakeClock().now
    )
    assert back_off.covers(spot)
    assert not back_off.covers(spot.model_copy(update={"spot": False}))


def test_credentials_that_are_refused_hold_the_account_until_they_are_mended(
    harness: MasterHarness,
) -> None:
    refuse(harness, AuthFailed("token expired"))
    for n in range(3):
        harness.submit(f"job-{n}")
    rest(harness, 10)
    assert len(asked(harness)) == 1
    told = harness.events("wait")
    assert len(told) == 3, "one for each job"
    assert "credentials are refused (token expired); an admin" in told[0].text
    rest(harness, 60)
    assert len(harness.events("wait")) == 3
    assert harness.job("job-0").state in {"queued", "allocating"}
    harness.cloud.refusing.clear()
    rest(harness, 60)
    assert len(harness.cloud.alive()) == 3


def test_refusals_of_one_pool_are_counted_in_one_row(harness: MasterHarness) -> None:
    harness.cloud.zones = ("x0", "x1")
    refuse(harness, NoCapacity("none", code="InsufficientInstanceCapacity"))
    harness.submit()
    rest(harness, 100)
    rows = {row.zone: row for row in harness.refusals()}
    assert sum(row.count for row in rows.values()) == len(asked(harness)) > 10
    assert min(row.count for row in rows.values()) > 4, "both are tried"
    assert rows["x0"].code == "InsufficientInstanceCapacity"
    assert len(harness.vms()) == 1, "the row of the last refused launch fills the place"
    harness.cloud.refusing.clear()
    rest(harness, 30)
    assert [vm.state for vm in harness.vms()] == ["booting"]
    used = rows[harness.machine().pool.zone]
    now = next(row for row in harness.refusals() if row.zone == used.zone)
    assert (now.count, now.in_row, now.until) == (used.count, 0, None)


def test_a_region_that_is_unavailable_is_tried_once_and_the_next_one_at_once(
    harness: MasterHarness,
) -> None:
    refuse(harness, Unavailable("503"), POOLS[:40])
    harness.submit()
    harness.look()
    assert [zone[0] for zone in asked(harness)] == ["x", "y", "z"]


def test_one_launch_is_let_through_while_all_others_wait_for_its_answer(
    harness: MasterHarness,
) -> None:
    harness.cloud.zones = ("x0",)
    refuse(harness, Throttled("slow down"), ("x0",))
    for n in range(5):
        harness.submit(f"job-{n}")
    harness.look()
    harness.cloud.refusing.clear()
    harness.cloud.script.append(AmbiguousAfter())  # no answer to the one that is let through
    harness.tick(12)
    assert len(asked(harness)) == 2
    harness.tick(1)
    assert len(asked(harness)) == 2


def test_launches_that_wait_for_their_turn_are_not_made_once_their_account_is_closed(
    harness: MasterHarness,
) -> None:
    harness.calls = later = Later()
    harness.restart()
    refuse(harness, Throttled("slow down"))
    for n in range(20):
        harness.submit(f"job-{n}")
    harness.look()
    assert len(later.given) == 20, "all of them are decided before the first answer"
    for call in later.given:
        call()
    assert len(asked(harness)) == 1
    (row,) = harness.refusals()
    assert row.count == 1
    harness.calls = Inline()
    harness.cloud.refusing.clear()
    harness.restart()
    rest(harness, 60)
    assert len(harness.cloud.alive()) == 20
    assert len(asked(harness)) == 21


def test_an_answer_to_a_launch_from_before_opens_nothing(tmp_path: Path) -> None:
    """It was on its way when another one was refused."""
    harness = MasterHarness(tmp_path)
    refused = Refused(error="Throttled", scope=Scope.ACCOUNT, detail="slow down")
    growth = Growth(base_s=10, max_s=100, jitter=0)
    harness.submit()
    harness.look()
    (row,) = harness.vms()
    with harness.db.begin() as session:
        for seconds in (1, 2):  # two more that were under way: one piece of news
            at = harness.clock() + timedelta(seconds=seconds)
            refusals.count(session, row, refused, growth=growth, now=at)
        refusals.accepted(session, row)
    (kept,) = harness.back_offs()
    assert (kept.refusals, kept.until) == (1, harness.clock() + timedelta(seconds=2 + 5))
    harness.db.close()


# --- other requests that are throttled ------------------------------------------------------------


def test_a_throttled_listing_keeps_launches_waiting(harness: MasterHarness) -> None:
    harness.training()
    harness.cloud.away = Throttled("slow down", code="RequestLimitExceeded", retry_after_s=40)
    harness.tick()
    [row] = harness.back_offs()
    assert (row.scope, row.code, row.refusals) == ("account", "RequestLimitExceeded", 1)
    harness.cloud.away = None
    before = len(harness.cloud.launches)
    harness.submit("job-2")
    rest(harness, 36)
    assert len(harness.cloud.launches) == before
    rest(harness, 20)
    assert len(harness.cloud.launches) > before


def test_a_throttled_termination_keeps_launches_waiting(harness: MasterHarness) -> None:
    harness.training()
    terminate = harness.cloud.terminate

    def refused(vm_id: str) -> None:
        raise Throttled("slow down")

    harness.cloud.terminate = refused  # type: ignore[method-assign]
    harness.want("cancelled")
    rest(harness, 60)
    [row] = harness.back_offs()
    assert (row.scope, row.error) == ("account", "Throttled")
    harness.cloud.terminate = terminate  # type: ignore[method-assign]
    rest(harness, 60)
    assert [vm.state for vm in harness.vms()] == ["terminated"]


def test_a_throttled_repeat_of_an_unclear_launch_keeps_others_waiting(
    harness: MasterHarness,
) -> None:
    harness.repeat_after_s = (1.0,)
    harness.restart()
    harness.cloud.script += [Ambiguous("cut"), Throttled("slow down", retry_after_s=30)]
    harness.submit()
    harness.look()
    [row] = harness.back_offs()
    assert (row.scope, row.error) == ("account", "Throttled")
    assert [vm.state for vm in harness.vms()] == ["requested"], "it may have been made"
    assert harness.refusals() == []
