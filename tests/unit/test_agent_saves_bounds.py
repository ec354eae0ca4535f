"""When a save is asked for: exactly at a bound, of several ranks, and after a restart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from spothop.wire import Insurance, PolicyParams, SaveKind
from spothop_agent.saves import MAX_DOUBLINGS, Ask, Saves

N, E = SaveKind.INSURANCE, SaveKind.EMERGENCY


def saves(*, policy: str = "thesis-always", ranks: int = 1, **figures: float) -> Saves:
    known = {"grace_s": 30.0, "first_tau_s": 60.0, "min_interval_s": 0.0, **figures}
    made = Saves(params=PolicyParams(policy=policy, **known), attempt=1, started=0.0)
    made.ranks = set(range(ranks))
    return made


def asked(made: Saves) -> Ask:
    """For an emergency save, at step 100 of 0.05 s each: ranks look five steps ahead."""
    made.stepped(100, count=100, step_s=0.05)
    ask = made.at_notice("e", 1000.0, now=2.0).ask
    assert ask is not None
    return ask


def missed(made: Saves, times: int, missing: Sequence[int] = ()) -> Ask:
    """The newest request, once more each millisecond."""
    ask = made.pending
    for number in range(times):
        assert ask is not None
        ask = made.missed(ask.request, 100, now=3.0 + number / 1000, missing=missing)
    assert ask is not None
    return ask


# --- several ranks --------------------------------------------------------------------------------


def test_a_request_names_the_processes_that_save_together() -> None:
    assert asked(saves(ranks=3)).ranks == (0, 1, 2)
    assert asked(saves()).ranks == ()


@pytest.mark.parametrize("times", [1, 2, 3, MAX_DOUBLINGS, MAX_DOUBLINGS + 2])
def test_each_miss_looks_twice_as_far_ahead_up_to_a_bound(times: int) -> None:
    made = saves(ranks=2)
    asked(made)
    assert missed(made, times).at_step == 100 + 5 * 2 ** min(times, MAX_DOUBLINGS)


def test_who_is_missing_twice_in_a_row_is_not_waited_for_any_more() -> None:
    made = saves(ranks=3)
    asked(made)
    assert missed(made, 1, missing=[2]).ranks == (0, 1, 2)
    assert missed(made, 1, missing=[1, 2]).ranks == (0, 1)
    assert missed(made, 1).ranks == (0, 1), "nor later"


def test_who_is_missing_twice_with_an_answer_in_between_is_waited_for() -> None:
    made = saves(ranks=3)
    asked(made)
    missed(made, 1, missing=[2])
    missed(made, 1)
    assert missed(made, 1, missing=[2]).ranks == (0, 1, 2)


def test_a_restart_of_the_script_forgets_misses_and_who_was_missing() -> None:
    made = saves(ranks=3)
    asked(made)
    missed(made, 2, missing=[2])
    made.restarted()
    made.stepped(100, count=1, step_s=0.05)
    again = made.due(4.0, uploading=False)
    assert again is not None
    assert (again.at_step, again.ranks) == (105, (0, 1, 2))
    assert missed(made, 1).at_step == 110


def test_a_restart_of_the_script_changes_no_request_of_a_single_process() -> None:
    made = saves()
    made.restarted()
    assert made.pending is None
    ask = asked(made)
    made.restarted()
    assert (made.pending, made.asked_at) == (ask, 2.0)


def test_several_are_asked_anew_by_an_agent_that_is_started_again() -> None:
    before = Ask(request="old", kind=E, at_step=105, deadline=30.0, reason="why", ranks=(7, 8))
    made = saves(ranks=2, step_s=0.05)
    made.step = 200
    anew = made.resume(before, now=3.5)
    assert anew == Ask(
        request="emergency-1-3500", kind=E, at_step=205, deadline=30.0, reason="why", ranks=(0, 1)
    )
    assert (made.pending, made.asked_at) == (anew, 3.5)


def test_a_single_process_keeps_the_request_of_an_agent_before() -> None:
    before = Ask(request="old", kind=E, at_step=None, deadline=30.0, reason="why")
    made = saves()
    assert made.resume(before, now=3.5) == before
    assert (made.pending, made.asked_at) == (before, 3.5)


# --- the last save before a deadline --------------------------------------------------------------


def draining() -> Saves:
    """It trains after a notice; 3 s are needed for one more save, which fits up to 5.5 s before."""
    made = saves(save_s=1.0, backup_s=1.0, margin_s=0.5)
    made.stepped(30, count=30, step_s=0.5)
    return made


@pytest.mark.parametrize(("now", "asks"), [(34.5, True), (36.99, True), (37.0, False)])
def test_the_last_save_is_asked_for_from_its_first_moment_until_it_takes_too_long(
    now: float, asks: bool
) -> None:
    ask = draining().late(40.0, deadline=41.0, now=now, uploading=False)
    assert (ask is not None) is asks


@pytest.mark.parametrize(("trained_s", "asks"), [(3.0, False), (3.25, True)])
def test_only_what_took_longer_than_a_save_is_saved_once_more(trained_s: float, asks: bool) -> None:
    made = draining()
    made.emergency_at, made.emergency_step = 36.0 - trained_s, 20
    assert (made.late(40.0, deadline=40.0, now=36.0, uploading=False) is not None) is asks


def test_the_last_save_is_asked_for_once_a_notice() -> None:
    made = draining()
    first = made.late(40.0, deadline=40.0, now=35.0, uploading=False)
    assert first is not None
    made.accepted(E, 31, request=first.request, delta_s=1.0, now=35.1)
    made.stepped(50, count=1, step_s=0.5)
    made.emergency_at = -math.inf
    assert made.late(40.0, deadline=40.0, now=36.0, uploading=False) is None
    assert made.at_notice("second", 80.0, now=36.5).ask is not None
    assert made.asked_late is False
    made.pending = None
    assert made.late(80.0, deadline=80.0, now=75.0, uploading=False) is not None


# --- while the master is away ---------------------------------------------------------------------


def own_saves(*, step_s: float, min_interval_s: float = 0.0, tau_s: float) -> Saves:
    """The script saved at steps 100, 200 and 300 by itself."""
    made = saves(policy="notice-aware", min_interval_s=min_interval_s)
    for step in (100, 200, 300):
        made.stepped(step, count=100, step_s=step_s)
        made.accepted(SaveKind.PERIODIC, step, request=None, delta_s=0.0, now=0.0)
    made.insurance = Insurance(at_step=1, tau_s=tau_s, reason="of before")
    return made


def first_due(made: Saves, *, step_s: float) -> int:
    """The first step after 300 at which a save is asked for."""
    for step in range(301, 500):
        made.stepped(step, count=1, step_s=step_s)
        if made.due(1e6, uploading=False) is not None:
            return step
    raise AssertionError("none")


def test_saves_are_spread_by_steps_whatever_a_step_takes() -> None:
    assert first_due(own_saves(step_s=2.0, tau_s=86.0), step_s=2.0) == 350  # 43 steps


def test_saves_are_spread_no_closer_than_the_least_interval() -> None:
    made = own_saves(step_s=2.0, tau_s=40.0, min_interval_s=80.0)  # 20 steps, but 40 at least
    assert first_due(made, step_s=2.0) == 350
    made = own_saves(step_s=2.0, tau_s=40.0)
    assert first_due(made, step_s=2.0) == 320


def test_without_a_least_interval_every_step_may_be_saved() -> None:
    assert first_due(own_saves(step_s=2.0, tau_s=2.0), step_s=2.0) == 301


def test_steps_that_take_no_time_are_spread_by_time() -> None:
    made = own_saves(step_s=0.0, tau_s=40.0)
    made.stepped(301, count=1, step_s=0.0)
    assert made.due(39.9, uploading=False) is None
    assert made.due(40.0, uploading=False) is not None


# --- what the answer to a notice says -------------------------------------------------------------


def test_nothing_is_said_of_bounds_where_there_are_none() -> None:
    assert saves().at_notice("e", 60.0, now=1.0).reason.endswith(" (no save was measured yet)")


def test_bounds_do_not_count_where_a_save_was_measured() -> None:
    made = saves(save_s=1.0)
    made.save_bounds_s.append(9.0)
    assert made.at_notice("e", 60.0, now=1.0).reason.endswith(" (no save was measured yet)")
    made = saves()
    made.save_bounds_s.append(9.0)
    assert "(no save was measured yet, but took at most 9" in made.at_notice("e", 60, now=1).reason
