"""From an attempt with a notice to its replacement: the last save, and when the fence waits."""

from __future__ import annotations

import pytest

from spothop.wire import AttemptState, EndReason, VmState
from spothop_master.core import handover
from spothop_master.core.actions import AllowFence, StopAttempt
from spothop_master.core.decide import decide, fences
from spothop_master.core.facts import LONGEST_SAVES_S, AttemptFacts, Snapshot
from support.core_facts import LIMITS, ago, attempt, seen, vm

SAVED = "attempt 1 has committed its last save"


def old(**facts: object) -> AttemptFacts:
    """Its emergency save is committed; it has trained 20 s since, and a save takes 3 s."""
    known: dict[str, object] = {
        "notice_at": ago(40),
        "deadline_at": ago(-30),
        "saved_since_notice": True,
        "unsaved_s": 20.0,
        "last_save_s": 3.0,
    }
    return attempt(1, state=AttemptState.DRAINING, **(known | facts))


def overlap(older: AttemptFacts, *, prepared: bool = True, **vm_facts: object) -> Snapshot:
    new = attempt(2, "b", AttemptState.PREPARING, prepared_at=ago(1) if prepared else None)
    vms = (vm("a", VmState.DRAINING, **vm_facts), vm("b", VmState.READY))
    return seen(older, new, vms=vms)


def test_what_was_trained_since_the_emergency_save_is_saved_before_the_fence() -> None:
    text = "attempt 2 is ready: a last save, and it takes over"
    asked = [StopAttempt(attempt=1, why=EndReason.PREEMPTED, reason=text)]
    assert decide(overlap(old())) == asked
    assert fences(overlap(old())) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"unsaved_s": 3.0},  # not worth it
        {"deadline_at": ago(-5.0), "unsaved_s": 5.9},  # no time for it
    ],
)
def test_what_is_not_worth_a_save_is_given_up(facts: dict[str, object]) -> None:
    assert decide(overlap(old(**facts))) == [AllowFence(attempt=2, reason=SAVED)]


def test_an_agent_that_is_silent_is_not_waited_for() -> None:
    silent = overlap(old(), silent_s=LIMITS.suspect_after_s)
    assert handover.last_saves(silent) == []
    assert fences(silent) == [AllowFence(attempt=2, reason=SAVED)]


@pytest.mark.parametrize(
    ("facts", "prepared"),
    [({"saved_since_notice": False}, True), ({}, False), ({"notice_at": None}, False)],
)
def test_nobody_is_stopped_before_the_emergency_save_or_before_the_new_one_is_ready(
    facts: dict[str, object], prepared: bool
) -> None:
    snapshot = overlap(old(**facts), prepared=prepared)
    assert handover.last_saves(snapshot) == []
    assert fences(snapshot) == []


@pytest.mark.parametrize(
    ("facts", "waits"),
    [
        ({"stop_at": ago(1)}, True),
        ({"stop_at": ago(1), "saved_since_stop": True}, False),
        ({"stop_at": ago(LIMITS.stop_timeout_s)}, True),
        ({"stop_at": ago(LIMITS.stop_timeout_s + 2 * 3.0)}, False),
        # a save of 25 s, the deadline is far enough: a fence now would give it away
        ({"stop_at": ago(35.0), "last_save_s": 25.0, "deadline_at": ago(-60)}, True),
    ],
)
def test_the_fence_waits_for_the_save_that_was_asked_for(
    facts: dict[str, object], waits: bool
) -> None:
    stopped = old(stop_wanted=EndReason.PREEMPTED, **facts)
    assert handover.last_saves(overlap(stopped)) == []
    assert fences(overlap(stopped)) == ([] if waits else [AllowFence(attempt=2, reason=SAVED)])


@pytest.mark.parametrize("save_s", [1e300, float("inf"), float("nan")])
def test_no_figure_of_an_agent_is_waited_for_without_an_end(save_s: float) -> None:
    stopped = old(stop_wanted=EndReason.PREEMPTED, last_save_s=save_s)
    assert stopped.stop_timeout_s(LIMITS) == LIMITS.stop_timeout_s + LONGEST_SAVES_S
    cancelled = old(stop_wanted=EndReason.CANCELLED, last_save_s=save_s)
    assert cancelled.stop_timeout_s(LIMITS) == LIMITS.stop_timeout_s + LONGEST_SAVES_S
    at_once = old(stop_wanted=EndReason.CANCELLED, last_save_s=save_s, hurried=True)
    assert at_once.stop_timeout_s(LIMITS) == LIMITS.stop_timeout_s, "it does not save"


def test_a_stop_of_the_user_has_more_time_for_a_save_that_was_never_measured() -> None:
    paused = old(stop_wanted=EndReason.PAUSED, last_save_s=0.0)
    assert paused.stop_timeout_s(LIMITS) == LIMITS.stop_timeout_s + LIMITS.stop_save_s


def test_shortly_before_the_deadline_the_agents_own_last_save_is_waited_for() -> None:
    """The wait, 5 s and the margin of 2 s, is shorter than what would be lost."""
    late = old(deadline_at=ago(-5.0), unsaved_s=20.0)
    assert decide(overlap(late)) == []
    over = old(deadline_at=ago(LIMITS.fence_margin_s), unsaved_s=20.0)
    text = "the deadline of attempt 1 is over"
    assert decide(overlap(over)) == [AllowFence(attempt=2, reason=text)]


def test_only_a_living_newest_that_may_not_fence_yet_takes_over() -> None:
    assert handover.last_saves(seen()) == []
    allowed = attempt(2, "b", AttemptState.PREPARING, prepared_at=ago(1), may_fence=True)
    assert handover.last_saves(seen(old(), allowed, vms=(vm("a"), vm("b")))) == []


# --- ahead of a notice --------------------------------------------------------------------------


def moved(**facts: object) -> AttemptFacts:
    """Its VM is at risk; nothing was saved for that, and nothing is announced."""
    return attempt(1, **{"unsaved_s": 0.0, "last_save_s": 3.0, **facts})


def test_a_vm_at_risk_is_stopped_with_a_save_as_soon_as_its_replacement_is_ready() -> None:
    text = "attempt 2 is ready: a last save, and it takes over"
    asked = [StopAttempt(attempt=1, why=EndReason.PREEMPTED, reason=text)]
    assert decide(overlap(moved(), at_risk_at=ago(60))) == asked
    assert decide(overlap(moved(), prepared=False, at_risk_at=ago(60))) == []


def test_its_end_is_waited_for_like_that_of_any_stop() -> None:
    stopped = {"stop_wanted": EndReason.PREEMPTED}
    waits_s = LIMITS.stop_timeout_s + 2 * 3.0
    assert fences(overlap(moved(stop_at=ago(waits_s - 1), **stopped))) == []
    reason = "attempt 1 did not end in time"
    late = overlap(moved(stop_at=ago(waits_s), **stopped))
    assert fences(late) == [AllowFence(attempt=2, reason=reason)]
