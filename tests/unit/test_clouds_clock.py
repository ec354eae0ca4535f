"""Our clock and a provider's."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from spothop.wire import Verdict
from spothop_master.clouds.clock import CloudClock, check

NOW = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def heard(clock: CloudClock, ahead_s: float, *, at_s: float = 0, took_s: float = 0.1) -> float:
    """An answer whose Date was made half way; what is believed then, in seconds."""
    theirs = after(at_s + took_s / 2 - ahead_s).replace(microsecond=0)
    date = format_datetime(theirs, usegmt=True)
    clock.heard(date, asked_at=after(at_s), now=after(at_s + took_s))
    return clock.ahead.total_seconds()


@pytest.mark.parametrize("ahead_s", [0, 0.9, -0.9, 1.5])
def test_small_differences_are_none(ahead_s: float) -> None:
    assert heard(CloudClock(), ahead_s) == 0


@pytest.mark.parametrize("ahead_s", [240, -240, 10, -10])
def test_what_is_believed_is_right_to_a_second_and_stays(ahead_s: float) -> None:
    clock = CloudClock()
    first = heard(clock, ahead_s)
    assert first == pytest.approx(ahead_s, abs=1.1)
    assert {heard(clock, ahead_s + step, at_s=60 + step) for step in (0, 0.3, -0.8)} == {first}


def test_a_slow_answer_is_no_difference() -> None:
    assert heard(CloudClock(), 0, took_s=50) == 0
    clock = CloudClock()
    assert heard(clock, 0, took_s=0.1) == 0
    assert heard(clock, 20, took_s=50) == 0, "it may have been made at the end"


def test_a_clock_that_was_mended_is_believed() -> None:
    clock = CloudClock()
    heard(clock, 240)
    assert heard(clock, 0) == 0


@pytest.mark.parametrize("date", [None, "", "yesterday", "Thu, 99 Jan 2026 12:00:00 GMT"])
def test_without_a_date_nothing_changes(date: str | None) -> None:
    clock = CloudClock()
    before = heard(clock, 240)
    clock.heard(date, asked_at=NOW, now=NOW)
    clock.heard("Thu, 01 Jan 2026 12:00:00 GMT", asked_at=after(9), now=NOW)  # it was set back
    assert clock.ahead.total_seconds() == before


def test_what_the_doctor_says() -> None:
    clock = CloudClock()
    assert check(clock, "AWS").verdict is Verdict.OK
    heard(clock, -90)
    found = check(clock, "AWS")
    assert found.verdict is Verdict.LOOK
    assert "behind AWS's" in found.fact
