"""Launches are spread over the time that their cloud wants for them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from spothop_master.clouds.pacing import Pacing

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def waits(pacing: Pacing, count: int, *, at_s: float = 0.0) -> list[float]:
    return [pacing.wait_s(START + timedelta(seconds=at_s)) for _ in range(count)]


def test_a_burst_is_free_and_then_each_has_its_place() -> None:
    assert waits(Pacing(2.0, 3), 6) == [0, 0, 0, 0.5, 1.0, 1.5]


def test_a_rest_saves_up_a_burst_and_no_more() -> None:
    pacing = Pacing(2.0, 3)
    waits(pacing, 6)
    assert waits(pacing, 2, at_s=2.5) == [0, 0]
    assert waits(pacing, 4, at_s=1_000) == [0, 0, 0, 0.5]


@pytest.mark.parametrize("burst", [1, 5])
def test_a_minute_has_no_more_places_than_its_rate(burst: int) -> None:
    pacing = Pacing(2.0, burst)
    assert sum(wait < 60 for wait in waits(pacing, 1000)) == 60 * 2 + burst - 1


def test_a_clock_that_is_set_back_delays_nobody_for_long() -> None:
    pacing = Pacing(2.0, 1)
    waits(pacing, 1, at_s=100_000)
    assert waits(pacing, 2) == [0, 0.5]
