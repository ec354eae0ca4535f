"""When a save is asked for: insurance, emergency, several ranks. Time and steps are arguments."""

from __future__ import annotations

import math

import pytest

from spothop.policy.types import Measures
from spothop.wire import Insurance, PolicyParams, SaveKind
from spothop_agent.saves import Ask, Saves

FIRST_TAU_S = 60.0


def saves(*, policy: str = "thesis-always", ranks: int = 1, **figures: float) -> Saves:
    known = {"grace_s": 30.0, "first_tau_s": FIRST_TAU_S, "min_interval_s": 0.0, **figures}
    params = PolicyParams(policy=policy, **known)
    made = Saves(params=params, attempt=1, started=0.0)
    made.ranks = set(range(ranks))
    return made


def directive(at_step: int, tau_s: float = 10.0) -> Insurance:
    return Insurance(at_step=at_step, tau_s=tau_s, reason="the master says so")


def accept(made: Saves, kind: SaveKind, step: int, *, now: float) -> None:
    request = made.pending.request if made.pending is not None else None
    made.accepted(kind, step, request=request, delta_s=0.5, now=now)


def test_insurance_at_the_directives_step() -> None:
    made = saves()
    made.insurance = directive(100)
    made.stepped(99, count=99, step_s=0.1)
    assert made.due(1000.0, uploading=False) is None
    made.stepped(100, count=1, step_s=0.1)
    ask = made.due(1000.0, uploading=False)
    assert ask is not None
    assert (ask.kind, ask.at_step, ask.deadline) == (SaveKind.INSURANCE, None, None)
    assert ask.reason == "the master says so"


def test_one_request_at_a_time_and_none_during_an_upload() -> None:
    made = saves()
    made.insurance = directive(10)
    made.stepped(10, count=1, step_s=0.1)
    assert made.due(1.0, uploading=True) is None
    assert made.due(1.0, uploading=False) is not None
    assert made.due(99.0, uploading=False) is None


def test_a_request_that_nobody_answers_is_asked_again_and_then_more_rarely() -> None:
    made = saves(save_s=1.0, backup_s=1.0)
    made.insurance = directive(10)
    made.stepped(10, count=10, step_s=0.1)
    first = made.due(0.0, uploading=False)
    assert first is not None
    assert made.due(59.9, uploading=False) is None
    second = made.due(60.0, uploading=False)
    assert second is not None
    assert second.request != first.request
    assert second.reason == "asked again, no answer for 60 s: the master says so"
    assert made.due(179.9, uploading=False) is None  # twice as long
    third = made.due(180.0, uploading=False)
    assert third is not None
    assert third.reason == "asked again, no answer for 120 s: the master says so"
    made.accepted(SaveKind.INSURANCE, 12, request=third.request, delta_s=1.0, now=181.0)
    assert (made.pending, made.unanswered) == (None, 0)


def test_an_emergency_that_nobody_answers_is_asked_again_until_its_deadline() -> None:
    made = saves(save_s=1.0, backup_s=1.0)
    made.stepped(10, count=10, step_s=0.1)
    assert made.at_notice("e", 100.0, now=0.0).ask is not None
    again = made.due(10.0, uploading=True)
    assert again is not None
    assert (again.kind, again.deadline) == (SaveKind.EMERGENCY, 100.0)
    assert made.due(101.0, uploading=True) is None


def test_a_slow_save_has_the_time_that_it_takes() -> None:
    made = saves(save_s=120.0, backup_s=1.0)
    made.insurance = directive(10)
    made.stepped(10, count=10, step_s=30.0)
    assert made.due(0.0, uploading=False) is not None
    assert made.due(599.0, uploading=False) is None
    assert made.due(600.0, uploading=False) is not None


@pytest.mark.parametrize("kind", [SaveKind.PERIODIC, SaveKind.INSURANCE])
def test_a_save_rearms_and_the_old_directive_is_spent(kind: SaveKind) -> None:
    made = saves()
    made.insurance = directive(10, tau_s=20.0)
    made.stepped(12, count=12, step_s=0.1)
    made.due(1.0, uploading=False)
    accept(made, kind, 12, now=5.0)
    assert made.pending is None
    made.stepped(50, count=38, step_s=0.1)
    assert made.due(24.9, uploading=False) is None
    ask = made.due(25.0, uploading=False)  # the master is away: tau_s after the save
    assert ask is not None
    assert "20.0 s since the last save" in ask.reason
    accept(made, SaveKind.INSURANCE, 50, now=26.0)
    made.insurance = directive(60)
    made.stepped(59, count=9, step_s=0.1)
    assert made.due(99.0, uploading=False) is None  # a new directive counts again


def test_no_insurance_without_a_step_since_the_last_save() -> None:
    made = saves()
    made.stepped(7, count=7, step_s=0.1)
    accept(made, SaveKind.PERIODIC, 7, now=1.0)
    assert made.due(1000.0, uploading=False) is None


@pytest.mark.parametrize(
    ("policy", "figures", "asks"),
    [
        ("thesis-always", {"save_s": 1.0, "backup_s": 1.0}, True),
        ("none", {}, False),
        ("thesis", {"save_s": 1.0, "backup_s": 1.0}, False),
        ("thesis", {"save_s": 20.0, "backup_s": 20.0}, True),
        ("thesis", {}, True),
    ],
)
def test_before_the_first_directive(policy: str, figures: dict[str, float], asks: bool) -> None:
    made = saves(policy=policy, **figures)
    made.stepped(5, count=5, step_s=0.1)
    assert made.due(FIRST_TAU_S - 0.1, uploading=False) is None
    assert (made.due(FIRST_TAU_S, uploading=False) is not None) is asks


def test_emergency_is_asked_for_even_where_it_does_not_fit() -> None:
    made = saves(save_s=20.0, backup_s=20.0, step_s=1.0)
    answer = made.at_notice("e", 130.0, now=100.0)
    assert not answer.fits
    assert "does not fit" in answer.reason
    assert answer.ask is not None
    assert (answer.ask.kind, answer.ask.deadline) == (SaveKind.EMERGENCY, 130.0)


@pytest.mark.parametrize(("left_s", "fits"), [(6.0, False), (6.2, True)])
def test_emergency_rule_with_measured_figures(left_s: float, fits: bool) -> None:
    made = saves(margin_s=0.5)
    made.stepped(10, count=10, step_s=0.6)
    made.accepted(SaveKind.PERIODIC, 10, request=None, delta_s=2.0, now=1.0)
    made.committed(3.0)
    # 0.6 + 2 + 3 + 0.5 = 6.1 s have to fit.
    assert made.at_notice("e", 50.0 + left_s, now=50.0).fits is fits


def test_earlier_figures_blend_with_new_ones() -> None:
    made = saves(save_s=1.0, backup_s=10.0)
    made.accepted(SaveKind.PERIODIC, 10, request=None, delta_s=2.0, now=1.0)
    made.committed(20.0)
    assert made.save_s == pytest.approx(1.3)
    assert made.backup_s == pytest.approx(13.0)


def test_an_emergency_replaces_a_pending_insurance_and_a_second_notice_changes_nothing() -> None:
    made = saves()
    made.insurance = directive(1)
    made.stepped(1, count=1, step_s=0.1)
    insurance = made.due(1.0, uploading=False)
    first = made.at_notice("e1", 30.0, now=2.0)
    assert insurance is not None
    assert first.ask is not None
    assert made.pending == first.ask
    assert made.at_notice("e2", 30.0, now=3.0).ask is None
    accept(made, SaveKind.EMERGENCY, 2, now=4.0)
    assert made.at_notice("e3", 60.0, now=30.0).ask is not None  # progress since: worth another


def test_an_emergency_save_does_not_rearm_the_insurance() -> None:
    made = saves()
    made.at_notice("e", 30.0, now=2.0)
    accept(made, SaveKind.EMERGENCY, 5, now=3.0)
    assert made.saved_step == -1


def test_a_periodic_save_keeps_a_pending_emergency() -> None:
    made = saves()
    asked = made.at_notice("e", 30.0, now=2.0).ask
    made.accepted(SaveKind.PERIODIC, 5, request=None, delta_s=0.1, now=1.9)  # was on its way
    assert made.pending == asked


def test_ranks_save_a_common_step_ahead_of_what_they_know() -> None:
    made = saves(ranks=4)
    made.stepped(100, count=100, step_s=0.05)
    ask = made.at_notice("e", 30.0, now=2.0).ask
    assert ask is not None
    assert ask.at_step == 105  # 0.25 s of steps
    again = made.missed(ask.request, 110, now=2.5)
    assert again is not None
    assert again.at_step == 120
    assert again.request != ask.request
    assert made.missed(ask.request, 130, now=2.6) is None  # of the request before


def test_static_counts_steps_and_needs_no_master() -> None:
    made = saves(policy="static:10", step_s=1.0)
    made.start_step = 25
    made.stepped(34, count=9, step_s=0.01)
    assert made.due(10 * FIRST_TAU_S, uploading=False) is None
    made.stepped(35, count=1, step_s=0.01)
    ask = made.due(0.1, uploading=False)
    assert ask is not None
    assert ask.reason == "every 10 steps"
    accept(made, SaveKind.INSURANCE, 36, now=1.0)
    made.insurance = directive(40)  # of the save before: it does not count
    made.stepped(45, count=9, step_s=0.01)
    assert made.due(999.0, uploading=False) is None
    made.stepped(46, count=1, step_s=0.01)
    assert made.due(999.0, uploading=False) is not None


def test_a_periodic_save_rearms_static() -> None:
    made = saves(policy="static:10")
    made.stepped(8, count=8, step_s=0.01)
    accept(made, SaveKind.PERIODIC, 8, now=1.0)
    made.stepped(17, count=9, step_s=0.01)
    assert made.due(9.0, uploading=False) is None
    made.stepped(18, count=1, step_s=0.01)
    assert made.due(9.0, uploading=False) is not None


def test_thesis_switches_insurance_off_whatever_was_told_before() -> None:
    """Algorithm 1: once the measured emergency save fits, a directive of before is void."""
    made = saves(policy="thesis")
    made.insurance = directive(10, tau_s=1.0)
    made.stepped(10, count=10, step_s=0.1)
    assert made.due(5.0, uploading=False) is not None
    accept(made, SaveKind.INSURANCE, 10, now=6.0)
    made.committed(1.0)
    made.stepped(500, count=490, step_s=0.1)
    assert made.due(999.0, uploading=False) is None


@pytest.mark.parametrize(("policy", "asks"), [("thesis", False), ("notice-aware", True)])
def test_thesis_asks_for_no_emergency_save_that_does_not_fit(policy: str, asks: bool) -> None:
    made = saves(policy=policy, save_s=20.0, backup_s=20.0, step_s=1.0)
    answer = made.at_notice("e", 130.0, now=100.0)
    assert not answer.fits
    assert (answer.ask is not None) is asks
    assert (made.pending is not None) is asks


def test_a_save_of_which_only_the_step_is_known_measures_nothing() -> None:
    made = saves(save_s=4.0, backup_s=1.0)
    made.accepted(SaveKind.PERIODIC, 10, request=None, delta_s=0.0, now=1.0)
    assert made.save_s == 4.0


# --- what a request says, field by field ----------------------------------------------------------


def accept_unmarked(made: Saves, *deltas_s: float) -> None:
    for step, delta_s in enumerate(deltas_s, 1):
        made.accepted(
            SaveKind.PERIODIC, step, request=None, delta_s=delta_s, exact=False, now=float(step)
        )


@pytest.mark.parametrize("policy", ["thesis", "notice-aware"])
def test_an_evaluation_before_a_save_makes_no_emergency_save_not_fit(policy: str) -> None:
    made = saves(policy=policy)
    made.committed(1.0)
    accept_unmarked(made, 8.0, 9.0)
    assert made.save_s is None
    answer = made.at_notice("e", 5.0, now=0.0)
    assert answer.ask is not None
    assert answer.fits
    assert answer.reason.endswith("(no save was measured yet, but took at most 8.0 s)")


def test_bounds_are_forgotten_and_one_measured_save_counts_more_than_all_of_them() -> None:
    made = saves()
    accept_unmarked(made, 0.1, *[8.0] * 5)
    assert min(made.save_bounds_s) == 8.0
    made.accepted(SaveKind.INSURANCE, 10, request=None, delta_s=0.25, now=10.0)
    accept_unmarked(made, 8.0)
    assert made.save_s == 0.25


def test_a_save_that_may_be_slow_has_its_time_to_answer() -> None:
    made = saves()
    accept_unmarked(made, 100.0)
    made.insurance = directive(10)
    made.stepped(10, count=10, step_s=0.1)
    assert made.due(1.0, uploading=False) is not None
    assert made.due(400.0, uploading=False) is None
    assert made.due(402.0, uploading=False) is not None


def test_a_missed_request_is_asked_again_whole() -> None:
    made = saves(ranks=2)
    made.stepped(100, count=100, step_s=0.05)
    ask = made.at_notice("e", 30.0, now=2.0).ask
    assert ask is not None
    again = made.missed(ask.request, 90, now=2.5)  # of a rank that is behind what is known
    assert again == Ask(
        request="emergency-1-2500", kind=SaveKind.EMERGENCY, at_step=110, deadline=30.0,
        reason="notice e", ranks=(0, 1),
    )  # fmt: skip
    assert made.pending == again


def test_several_are_asked_anew_after_a_restart_of_the_script() -> None:
    """The step of the request was one of the run before."""
    made = saves(ranks=2)
    made.stepped(100, count=100, step_s=0.05)
    ask = made.at_notice("e", 30.0, now=2.0).ask
    made.restarted()
    assert made.due(2.1, uploading=False) is None  # how far they are is not known yet
    made.stepped(40, count=1, step_s=0.05)
    again = made.due(2.2, uploading=False)
    assert ask is not None
    assert again is not None
    assert again.request != ask.request
    assert (again.at_step, again.deadline) == (45, 30.0)
    assert again.reason == "asked again, after a restart: notice e"


def test_a_missed_request_before_any_step_was_reported() -> None:
    made = saves(ranks=2, step_s=0.05)
    ask = made.at_notice("e", 30.0, now=2.0).ask
    assert ask is not None
    assert ask.at_step == 5  # 0.25 s of steps, from step 0
    again = made.missed(ask.request, 7, now=2.5)
    assert again is not None
    assert (again.at_step, made.step) == (17, 7)


@pytest.mark.parametrize(("ranks", "at_step"), [(1, None), (2, 12)])
def test_a_single_rank_saves_at_its_next_check(ranks: int, at_step: int | None) -> None:
    made = saves(ranks=ranks)
    made.stepped(10, count=10, step_s=10.0)  # slow steps: two of them ahead are enough
    ask = made.at_notice("e", 60.0, now=1.0).ask
    assert ask is not None
    assert ask.at_step == at_step


def test_without_a_step_time_ranks_look_two_steps_ahead() -> None:
    made = saves(ranks=2)
    ask = made.at_notice("e", 30.0, now=2.0).ask
    assert ask is not None
    assert ask.at_step == 2


def test_an_emergency_is_asked_again_before_any_step_but_insurance_is_not() -> None:
    made = saves(save_s=1.0, backup_s=1.0)
    made.at_notice("e", 100.0, now=0.0)
    again = made.due(10.0, uploading=False)
    assert again is not None
    assert again.kind is SaveKind.EMERGENCY
    asked = saves(save_s=1.0, backup_s=1.0)
    asked.resume(
        Ask(request="r", kind=SaveKind.INSURANCE, at_step=None, deadline=None, reason="x"), now=0.0
    )
    assert asked.due(60.0, uploading=False) is None
    assert (asked.pending, asked.unanswered) == (None, 1)


def test_an_emergency_is_asked_for_up_to_its_deadline() -> None:
    made = saves(save_s=1.0, backup_s=1.0)
    made.at_notice("e", 10.0, now=0.0)
    assert made.due(10.0, uploading=False) is not None
    assert made.due(10.1, uploading=False) is None


@pytest.mark.parametrize(
    ("kind", "first_s"), [(SaveKind.EMERGENCY, 30.0), (SaveKind.INSURANCE, 300.0)]
)
def test_an_unmeasured_save_is_given_more_time_and_ever_more(
    kind: SaveKind, first_s: float
) -> None:
    made = saves()
    made.stepped(1, count=1, step_s=0.1)
    made.resume(Ask(request="r", kind=kind, at_step=None, deadline=None, reason="x"), now=0.0)
    now = 0.0
    for doublings in (1, 2, 4, 8, 16, 32, 64, 64):  # and no rarer than that
        assert made.due(now + first_s * doublings - 0.1, uploading=False) is None
        now += first_s * doublings
        assert made.due(now, uploading=False) is not None


def test_a_directive_for_the_step_that_is_saved_is_spent() -> None:
    made = saves()
    accept(made, SaveKind.PERIODIC, 10, now=1.0)
    made.insurance = directive(10, tau_s=20.0)
    made.stepped(11, count=1, step_s=0.1)
    assert made.due(20.9, uploading=False) is None
    ask = made.due(21.0, uploading=False)
    assert ask is not None
    assert "20.0 s since the last save" in ask.reason


def test_the_last_save_before_we_end_the_process() -> None:
    made = saves()
    ask = made.last_save("the job is paused", now=3.0)
    assert ask == Ask(
        request="insurance-1-3000", kind=SaveKind.INSURANCE, at_step=None, deadline=None,
        reason="the job is paused",
    )  # fmt: skip
    assert (made.pending, made.asked_at) == (ask, 3.0)
    assert made.last_save("again", now=4.0) is None
    assert made.pending == ask


def draining(**figures: float) -> Saves:
    """Its emergency save of step 10 took 1 s and its backup 1 s; it has trained on since 12.0."""
    made = saves(**figures)
    made.stepped(10, count=10, step_s=0.5)
    made.at_notice("e", 40.0, now=10.0)
    assert made.pending is not None
    request = made.pending.request
    made.accepted(SaveKind.EMERGENCY, 10, request=request, delta_s=1.0, now=12.0)
    made.committed(1.0)
    made.stepped(30, count=20, step_s=0.5)
    return made


def late(made: Saves, now: float, *, by: float = 40.0, uploading: bool = False) -> Ask | None:
    return made.late(by, deadline=40.0, now=now, uploading=uploading)


@pytest.mark.parametrize("told", [True, False])
def test_insurance_saves_are_at_least_so_far_apart(told: bool) -> None:
    """By the master's directive, and by the agent's own rule while the master is away."""
    made = saves(first_tau_s=0.5, min_interval_s=10.0)
    made.insurance = directive(10, tau_s=0.5) if told else None
    made.stepped(100, count=100, step_s=0.01)
    assert made.due(9.9, uploading=False) is None
    ask = made.due(10.0, uploading=False)
    assert ask is not None
    made.accepted(SaveKind.INSURANCE, 100, request=ask.request, delta_s=0.01, now=10.0)
    made.insurance = directive(120, tau_s=0.5) if told else None
    made.stepped(1000, count=900, step_s=0.01)
    assert made.due(19.9, uploading=False) is None
    assert made.due(20.0, uploading=False) is not None


def test_static_saves_as_often_as_it_was_told() -> None:
    made = saves(policy="static:5", min_interval_s=10.0)
    made.stepped(5, count=5, step_s=0.01)
    assert made.due(0.1, uploading=False) is not None


def test_one_more_save_as_late_as_it_fits_before_the_deadline() -> None:
    made = draining()  # 0.5 s + 1 s + 1 s + margin 0.5 s; asked for 1.5 times that and 1 s ahead
    assert late(made, 34.4) is None
    assert late(made, 34.6, uploading=True) is None
    ask = late(made, 34.6)
    assert ask is not None
    assert (ask.kind, ask.deadline) == (SaveKind.EMERGENCY, 40.0)
    assert ask.reason == "5.4 s to the deadline: what was trained since the last save"
    made.accepted(SaveKind.EMERGENCY, 31, request=ask.request, delta_s=0.1, now=35.0)
    made.stepped(32, count=1, step_s=0.5)
    assert late(made, 35.5) is None  # once


@pytest.mark.parametrize(("now", "by"), [(37.1, 40.0), (34.6, 37.5), (34.6, -3500.0)])
def test_a_last_save_that_does_not_fit_any_more_is_not_asked_for(now: float, by: float) -> None:
    assert late(draining(), now, by=by) is None


def test_no_last_save_without_a_step_or_where_one_was_just_made() -> None:
    made = draining()
    made.emergency_step = 30
    assert late(made, 36.0) is None
    made = draining()
    made.emergency_at = 33.5
    assert late(made, 36.0) is None
    assert late(saves(), 36.0) is None


def test_ranks_need_their_common_step_for_a_last_save() -> None:
    made = draining()
    made.ranks = {0, 1}  # two steps ahead, and the one that runs: 1.5 s in place of 0.5 s
    ask = late(made, 33.1)
    assert ask is not None
    assert ask.at_step == 32


def test_the_last_save_after_a_notice_replaces_an_insurance_save() -> None:
    made = saves()
    made.insurance = directive(10)
    made.stepped(10, count=10, step_s=0.1)
    assert made.due(1.0, uploading=False) is not None
    last = made.last_save("stopping: preempted", kind=SaveKind.EMERGENCY, now=2.0)
    assert last is not None
    assert last.kind is SaveKind.EMERGENCY
    assert made.last_save("stopping: preempted", kind=SaveKind.EMERGENCY, now=3.0) is None


def test_a_second_notice_says_whether_the_save_that_was_asked_for_fits() -> None:
    made = saves(save_s=1.0, backup_s=1.0)
    made.at_notice("e1", 30.0, now=2.0)
    assert made.at_notice("e2", 30.0, now=3.0).fits is True
    assert made.at_notice("e3", 30.0, now=29.0).fits is False


def test_a_reason_says_when_nothing_was_measured() -> None:
    assert "no save was measured yet" in saves().at_notice("e", 30.0, now=1.0).reason
    measured = saves(save_s=1.0, backup_s=1.0).at_notice("e", 30.0, now=1.0)
    assert "no save was measured yet" not in measured.reason


def test_what_is_not_measured_counts_as_nothing() -> None:
    assert saves().measures(-5.0) == Measures(
        step_s=0.0, save_s=0.0, backup_s=0.0, mttp_s=math.inf, restart_s=0.0, grace_s=0.0,
        margin_s=saves().params.margin_s,
    )  # fmt: skip


def test_the_step_never_falls_and_its_time_is_a_mean_over_all_steps() -> None:
    made = saves(step_s=9.0)
    assert made.step_s == 9.0  # of earlier attempts
    made.stepped(10, count=10, step_s=1.0)
    made.stepped(4, count=30, step_s=2.0)  # of a rank that is behind
    assert (made.step, made.step_s) == (10, 1.75)
    accept(made, SaveKind.PERIODIC, 7, now=1.0)
    assert made.step == 10
    accept(made, SaveKind.PERIODIC, 20, now=2.0)
    assert made.step == 20
    fresh = saves()
    accept(fresh, SaveKind.PERIODIC, 3, now=1.0)
    assert fresh.step == 3


def test_a_directive_from_before_the_newest_save_is_spent() -> None:
    made = saves()
    made.insurance = directive(100, tau_s=20.0)
    made.stepped(95, count=95, step_s=0.1)
    accept(made, SaveKind.PERIODIC, 95, now=5.0)
    made.insurance = directive(100, tau_s=20.0)  # the master has not heard of the save yet
    made.stepped(110, count=15, step_s=0.1)
    assert made.due(6.0, uploading=False) is None
    assert made.due(25.0, uploading=False) is not None


def own_saves(policy: str) -> Saves:
    """The script saves every 100 steps of 1 s; the interval would be 43 s."""
    made = saves(policy=policy)
    for step in (100, 200, 300):
        made.stepped(step, count=100, step_s=1.0)
        accept(made, SaveKind.PERIODIC, step, now=float(step))
    made.insurance = directive(1, tau_s=43.0)
    return made


def asked_at(made: Saves, upto: int) -> list[int]:
    """The steps of the insurance saves, the master being away."""
    found = []
    for step in range(301, upto):
        made.stepped(step, count=1, step_s=1.0)
        if step % 100 == 0:
            accept(made, SaveKind.PERIODIC, step, now=float(step))
        elif made.due(float(step), uploading=False) is not None:
            found.append(step)
            accept(made, SaveKind.INSURANCE, step, now=float(step))
    return found


def test_without_the_master_saves_are_spread_between_the_scripts_own() -> None:
    assert asked_at(own_saves("notice-aware"), 500) == [350, 450]
    assert asked_at(own_saves("thesis-always"), 500) == [343, 386, 443, 486]


def test_an_own_save_that_does_not_come_is_asked_for() -> None:
    made = own_saves("notice-aware")
    made.stepped(350, count=50, step_s=1.0)
    accept(made, SaveKind.INSURANCE, 350, now=350.0)
    made.stepped(400, count=50, step_s=1.0)
    made.stepped(410, count=10, step_s=1.0)
    assert made.due(410.0, uploading=False) is None  # one that a thread writes may still come
    made.stepped(411, count=1, step_s=1.0)
    ask = made.due(411.0, uploading=False)
    assert ask is not None
    assert ask.reason == "spread evenly up to your own save at step 400, and no newer directive"
