"""When the next sync is wanted: later while answers are slow, and never taken for silence."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fakes.fake_cloud import FakeClock
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.pace import BOUND_S, HALF_LIFE, MOST, SPREAD, Pace

SLOW, QUICK = timedelta(seconds=2), timedelta(milliseconds=5)


def paced(clock: FakeClock, *, random: float = 0.0, silent_after_s: float = 1000) -> Pace:
    return Pace(clock(), lambda: random, every_s=5.0, silent_after_s=silent_after_s)


def busy(pace: Pace, clock: FakeClock, took: timedelta = SLOW, count: int = 200) -> None:
    for _ in range(count):
        pace.answered(took, clock())


def test_a_master_that_keeps_up_asks_for_the_usual() -> None:
    clock = FakeClock()
    pace = paced(clock)
    busy(pace, clock, timedelta(seconds=BOUND_S))
    assert pace.delay_s(5.0, clock()) == 5.0


def test_one_slow_answer_says_nothing() -> None:
    clock = FakeClock()
    pace = paced(clock)
    busy(pace, clock, QUICK)
    pace.answered(SLOW, clock())
    assert pace.delay_s(5.0, clock()) == 5.0


def test_slow_answers_stretch_every_wait_up_to_a_bound() -> None:
    clock = FakeClock()
    pace = paced(clock)
    busy(pace, clock, timedelta(seconds=2 * BOUND_S))
    assert pace.delay_s(5.0, clock()) == pytest.approx(10.0, rel=0.01)
    assert pace.delay_s(0.2, clock()) == pytest.approx(0.4, rel=0.01)
    busy(pace, clock, timedelta(seconds=60))
    assert pace.delay_s(5.0, clock()) == MOST * 5.0


def test_stretched_waits_differ_and_are_never_shorter_than_the_usual() -> None:
    clock = FakeClock()
    waits = []
    for share in (0.0, 0.5, 1.0):
        pace = paced(clock, random=share)
        busy(pace, clock, timedelta(seconds=60))
        waits.append(pace.delay_s(5.0, clock()))
    assert waits == [20.0, 20.0 * (1 - SPREAD / 2), 20.0 * (1 - SPREAD)]
    pace = paced(clock, random=1.0)
    busy(pace, clock, timedelta(seconds=1.1 * BOUND_S))
    assert pace.delay_s(5.0, clock()) == 5.0


def test_a_wait_stays_below_what_other_masters_take_for_silence() -> None:
    clock = FakeClock()
    pace = paced(clock, silent_after_s=30)
    busy(pace, clock)
    assert pace.delay_s(5.0, clock()) == 10.0
    eager = paced(clock, silent_after_s=1)
    busy(eager, clock)
    assert eager.delay_s(5.0, clock()) == 5.0


def test_it_comes_back_slowly() -> None:
    clock = FakeClock()
    pace = paced(clock)
    busy(pace, clock, timedelta(seconds=2))
    clock.advance(HALF_LIFE.total_seconds())
    busy(pace, clock, QUICK)
    level_is_a_second = pytest.approx(MOST * 5.0, rel=0.01)
    assert pace.delay_s(5.0, clock()) == level_is_a_second
    clock.advance(5 * HALF_LIFE.total_seconds())
    assert pace.delay_s(5.0, clock()) == 5.0


def test_an_agent_that_waits_as_it_was_asked_is_not_silent() -> None:
    clock = FakeClock()
    heartbeats = Heartbeats(clock())
    heartbeats.heard("vm-1", clock())
    heartbeats.expect("vm-1", clock() + timedelta(seconds=15))
    clock.advance(14)
    assert heartbeats.silent_for("vm-1", clock()) == timedelta()
    clock.advance(6)
    assert heartbeats.silent_for("vm-1", clock()) == timedelta(seconds=5)
    heartbeats.heard("vm-1", clock())
    heartbeats.expect("vm-1", None)
    clock.advance(5)
    assert heartbeats.silent_for("vm-1", clock()) == timedelta(seconds=5)
