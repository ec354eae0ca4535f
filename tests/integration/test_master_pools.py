"""`GET /pools` and its page, over the real application."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes.http_master import HttpMaster
from spothop.wire import JobDetail, PlanReply, PoolView, Problem
from spothop_master import pools as root_pools
from spothop_master.clouds.base import NoCapacity, Throttled, Unavailable
from spothop_master.store.schema import BackOffRow, Observation

pytestmark = pytest.mark.databases


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


def see(master: HttpMaster, kind: str, value: float, *, zone: str = "a", **more: object) -> None:
    with master.services.db.begin() as session:
        count = session.scalar(sa.select(sa.func.count()).select_from(Observation))
        session.add(
            Observation(
                kind=kind, cloud="fake", region="r", zone=zone, vm_type="gpu", spot=True,
                value=value, vm_id=f"v{count}", **{"at": master.clock(), **more},
            )
        )  # fmt: skip


def pools(master: HttpMaster, **more: str) -> list[PoolView]:
    answer = master.get("/api/v1/pools", **more)
    assert answer.status_code == 200, answer.text
    return [PoolView.model_validate(row) for row in answer.json()]


def test_what_was_not_measured_is_a_stated_default(master: HttpMaster) -> None:
    found = pools(master)
    assert [view.pool.zone for view in found] == ["a", "b", "c"]
    first = found[0]
    assert (first.price, first.on_demand_price, first.grace_s) == (1.0, 3.0, 30.0)
    assert (first.mttp_s, first.mttp_assumed, first.lives) == (10_800, True, 0)
    assert (first.restart_s, first.restart_assumed, first.allocation_s) == (120, True, None)
    assert (first.notices_kept, first.notices) == (0, 0)
    assert first.notice_share == pytest.approx(2 / 3)


def test_what_was_measured(master: HttpMaster) -> None:
    for life_s in (900.0, 1100.0, 1000.0):
        see(master, "life", life_s)
    see(master, "life", 500.0, censored=True)
    see(master, "life", 800.0, zone="b")
    see(master, "allocation", 30.0)
    see(master, "preparation", 12.0, zone="b")
    see(master, "emergency", 1.0)
    see(master, "emergency", 0.0)
    first, second, _ = pools(master)
    assert (first.lives, first.censored, first.region_lives) == (3, 1, 4)
    assert first.mttp_low_s < first.mttp_s < first.mttp_high_s
    assert first.mttp_s < 10_800
    assert not first.mttp_assumed
    assert first.median_life_s == 1000.0
    assert (first.allocation_s, first.preparation_s, first.restart_s) == (30, 12, 42)
    assert (first.notices_kept, first.notices) == (1, 2)
    assert first.notice_share == pytest.approx(3 / 5)
    assert first.notice_low < first.notice_share < first.notice_high
    assert (second.lives, second.region_lives, second.restart_s) == (1, 4, 42)


def test_what_has_faded_is_assumed_again_and_what_vm_time_tells_is_not(master: HttpMaster) -> None:
    now = master.clock()
    see(master, "life", 900.0, at=now - timedelta(days=30))
    first, *_ = pools(master)
    assert (first.lives, first.mttp_assumed) == (1, True)
    see(master, "life", 90_000.0, censored=True)
    assert not pools(master)[0].mttp_assumed
    plan = PlanReply.model_validate(master.post("/api/v1/plan", json=PLAN).json())
    assert not plan.pools[0].mttp_assumed


def test_a_preemption_without_a_notice_is_no_notice(master: HttpMaster) -> None:
    see(master, "emergency", 1.0, evidence="notice")
    see(master, "emergency", 0.0, evidence="no_notice")
    first, *_ = pools(master)
    assert (first.notices_kept, first.notices, first.unannounced) == (1, 1, 1)
    assert first.notice_share == pytest.approx(3 / 5)
    assert "1 of 1" in page(master)
    assert "60% expected; 1 came without" in page(master)


def test_no_answer_holds_nan_or_infinity(master: HttpMaster) -> None:
    for kind in ("life", "allocation", "preparation", "emergency"):
        see(master, kind, 0.0)
    text = master.get("/api/v1/pools").text
    numbers = [v for row in json.loads(text) for v in row.values() if isinstance(v, float)]
    assert numbers
    assert all(math.isfinite(number) for number in numbers)


def test_every_user_sees_them_and_nobody_without_a_token(master: HttpMaster) -> None:
    assert len(pools(master, token=master.user("eve"))) == 3
    assert master.get("/api/v1/pools", token="").status_code == 401


PLAN = {"spec": {"name": "mnist", "run": "python train.py"}}


class Later(Executor):
    """Keeps what it was given until the test lets it happen."""

    def __init__(self) -> None:
        self.given: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(lambda: fn(*args, **kwargs))
        return Future()


def test_clouds_that_never_answered_and_are_away(master: HttpMaster) -> None:
    master.cloud.away = Unavailable("maintenance")
    for answer in (master.get("/api/v1/pools"), master.post("/api/v1/plan", json=PLAN)):
        assert answer.status_code == 502
        assert "maintenance" in Problem.model_validate(answer.json()).message
    master.submit()  # what no cloud refused is accepted


def test_a_fault_of_an_adapter_is_told_without_its_details(
    master: HttpMaster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(master.cloud, "pools", broken)
    answer = master.get("/api/v1/pools")
    assert (answer.status_code, answer.json()["error"]) == (502, "clouds_away")
    assert "secret detail" not in answer.text
    assert "secret detail" in caplog.text


def test_a_cloud_that_is_away_keeps_its_last_answer_with_its_age(master: HttpMaster) -> None:
    assert [view.offer_age_s for view in pools(master)] == [0, 0, 0]
    master.cloud.away = Unavailable("maintenance")
    master.clock.advance(720)
    assert [(view.price, view.offer_age_s) for view in pools(master)] == [
        (1.0, 720),
        (1.1, 720),
        (1.2, 720),
    ]
    plan = PlanReply.model_validate(master.post("/api/v1/plan", json=PLAN).json())
    assert [row.offer_age_s for row in plan.pools] == [720] * 3
    assert "fake answered last 12 min ago" in page(master)
    master.cloud.away = None
    master.clock.advance(60)
    pools(master)
    assert {view.offer_age_s for view in pools(master)} == {0}
    assert "answered last" not in page(master)


def test_no_request_calls_a_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_pools, "FIRST_ANSWER_S", 0.0)
    later = Later()
    with HttpMaster(tmp_path, executor=later) as master:
        for answer in (
            master.get("/api/v1/pools"),
            master.get("/pools", headers=as_admin(master)),
            master.post("/api/v1/plan", json=PLAN),
        ):
            assert answer.status_code == 503, answer.text
        assert answer.json()["error"] == "clouds_not_asked"
        master.submit()
        assert len(later.given) == 1, "the cloud is asked once, in the background"
        later.given.pop()()
        assert len(pools(master)) == 3
        master.clock.advance(3600)
        assert {view.offer_age_s for view in pools(master)} == {3600}
        assert len(later.given) == 1
        later.given.pop()()
        assert {view.offer_age_s for view in pools(master)} == {0}


def test_just_after_the_start_a_request_waits_for_the_first_answer(tmp_path: Path) -> None:
    with (
        ThreadPoolExecutor(1) as executor,
        HttpMaster(tmp_path, executor=executor) as master,
    ):
        assert len(pools(master)) == 3


def as_admin(master: HttpMaster) -> dict[str, str]:
    return {**master.cookie(), "Accept": "text/html"}


def page(master: HttpMaster) -> str:
    answer = master.get("/pools", token="", headers=as_admin(master))
    assert answer.status_code == 200, answer.text
    return answer.text


def test_what_refuses_is_told(master: HttpMaster) -> None:
    master.cloud.refusing["a"] = NoCapacity("none", code="InsufficientInstanceCapacity")
    master.cloud.refusing["b"] = Throttled("slow down")
    job = master.submit()["id"]
    for _ in range(2):  # what came of the first launch is a change like any other
        master.services.supervisor.run_once()
    found = {view.pool.zone: view for view in pools(master)}
    assert [found[zone].refusals for zone in "abc"] == [1, 1, 0]
    (told,) = {view.closed for view in found.values()}
    assert told.startswith("fake: throttled, until 00:00:0")
    shown = JobDetail.model_validate(master.get(f"/api/v1/jobs/{job}").json())
    assert {(r.pool.zone, r.count, r.error, r.code) for r in shown.refusals} == {
        ("a", 1, "NoCapacity", "InsufficientInstanceCapacity"),
        ("b", 1, "Throttled", None),
    }
    assert shown.vms == []
    assert master.get("/api/v1/vms").json()["vms"] == []
    page = master.get("/pools", headers=master.cookie(), token="").text
    assert "Left alone: fake: throttled, until" in page
    assert page.count("refused 1 VM<") == 2
    page = master.get(f"/jobs/{job}", headers=master.cookie(), token="").text
    assert "NoCapacity (InsufficientInstanceCapacity)" in page


def test_a_plan_names_last_what_is_left_alone(master: HttpMaster) -> None:
    before = PlanReply.model_validate(master.post("/api/v1/plan", json=PLAN).json())
    zones = [row.pool.zone for row in before.pools]
    now = master.clock()
    with master.services.db.begin() as session:
        for row, seconds in zip(before.pools, (60, 30), strict=False):
            session.add(
                BackOffRow(
                    cloud=row.pool.cloud,
                    scope="zone",
                    name=f"{row.pool.region}/{row.pool.zone}",
                    until=now + timedelta(seconds=seconds),
                    refusals=1,
                    last_at=now,
                    error="NoCapacity",
                )
            )
    plan = PlanReply.model_validate(master.post("/api/v1/plan", json=PLAN).json())
    assert [row.pool.zone for row in plan.pools] == [*zones[2:], zones[1], zones[0]]
    assert [bool(row.closed) for row in plan.pools] == [False] * len(zones[2:]) + [True, True]
    assert "no capacity, until" in plan.pools[-1].closed


def test_the_page(master: HttpMaster) -> None:
    see(master, "life", 900.0)
    text = page(master)
    assert "fake/<wbr>a/<wbr>gpu/<wbr>spot" in text
    assert "1 alive" not in text
    assert "assumed" in text  # the restart
    assert 'aria-current="page">Pools' in text
    assert master.get("/pools", token="").headers["location"] == "/login"
