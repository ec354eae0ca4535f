"""`GET /pools` and its page, over the real application."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from fakes.http_master import HttpMaster
from spothop.wire import PoolView, Problem
from spothop_master.clouds.base import Unavailable
from spothop_master.store.schema import Observation
from spothop_master.web import session as web_session


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
                value=value, vm_id=f"v{count}", at=master.clock(), **more,
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


def test_clouds_that_are_away(master: HttpMaster) -> None:
    master.cloud.away = Unavailable("maintenance")
    answer = master.get("/api/v1/pools")
    assert answer.status_code == 502
    assert "maintenance" in Problem.model_validate(answer.json()).message


def test_the_page(master: HttpMaster) -> None:
    see(master, "life", 900.0)
    headers = {"Cookie": f"{web_session.COOKIE}={master.admin}", "Accept": "text/html"}
    answer = master.get("/pools", token="", headers=headers)
    assert answer.status_code == 200, answer.text
    assert "fake a" in answer.text
    assert "1 alive" not in answer.text
    assert "assumed" in answer.text  # the restart
    assert 'aria-current="page">Pools' in answer.text
    assert master.get("/pools", token="").headers["location"] == "/login"
