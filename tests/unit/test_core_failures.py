"""Which failures are tried again: budgets, and what would only repeat itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spothop.wire import EndReason, JobState
from spothop_master.core import failures
from spothop_master.core.actions import FinishJob
from support.core_facts import ago, attempt, ended, seen


@pytest.mark.parametrize(
    ("newest", "job", "reason"),
    [
        (EndReason.USER_FAILURE, {"user_failures": 3}, None),
        (
            EndReason.USER_FAILURE,
            {"user_failures": 4},
            "why it ended (4 failures of the script in a row; `retries.user` is 3)",
        ),
        (
            EndReason.OUT_OF_MEMORY,
            {"user_failures": 4},
            "why it ended (4 failures of the script in a row; `retries.user` is 3)",
        ),
        (EndReason.USER_FAILURE, {"infrastructure_failures": 99}, None),
        (EndReason.INFRASTRUCTURE, {"infrastructure_failures": 10}, None),
        (
            EndReason.INFRASTRUCTURE,
            {"infrastructure_failures": 11},
            "why it ended (11 failures of the infrastructure in a row; "
            "`retries.infrastructure` is 10)",
        ),
        (EndReason.INFRASTRUCTURE, {"user_failures": 99}, None),
        (EndReason.HANG, {"hangs": 3, "user_failures": 99}, None),
        (EndReason.HANG, {"hangs": 4}, "why it ended (4 hangs in a row; `retries.hang` is 3)"),
        (EndReason.USER_FAILURE, {"hangs": 99}, None),
        (EndReason.PREEMPTED, {"user_failures": 99, "infrastructure_failures": 99}, None),
    ],
)
def test_failures_in_a_row_have_their_own_budgets(
    newest: EndReason, job: dict[str, object], reason: str | None
) -> None:
    expected = [FinishJob(state=JobState.FAILED, reason=reason)] if reason else []
    assert failures.budgets(seen(ended(why=newest, trained=True), **job)) == expected  # type: ignore[arg-type]
    assert failures.budgets(seen(**job)) == []  # type: ignore[arg-type]
    assert failures.budgets(seen(attempt(), **job)) == []  # type: ignore[arg-type]


SAME = "ValueError: no such dataset (the process exited with code 1)"


@pytest.mark.parametrize(
    ("before", "newest", "is_final"),
    [
        ({}, {}, True),
        ({"trained": True}, {}, False),
        ({}, {"trained": True}, False),
        ({"detail": "another"}, {}, False),
        ({"why": EndReason.OUT_OF_MEMORY}, {}, False),
        ({"why": EndReason.PREEMPTED}, {}, False),
        ({"why": EndReason.INFRASTRUCTURE}, {"why": EndReason.INFRASTRUCTURE}, False),
        ({"why": EndReason.HANG}, {"why": EndReason.HANG}, False),
        ({"why": EndReason.OUT_OF_MEMORY}, {"why": EndReason.OUT_OF_MEMORY}, True),
        (None, {}, False),
    ],
)
def test_the_same_failure_before_the_first_step_is_tried_twice(
    before: dict[str, object] | None, newest: dict[str, object], is_final: bool
) -> None:
    fields: dict[str, object] = {
        "why": EndReason.USER_FAILURE,
        "detail": SAME,
        "prepared_at": ago(9),
    }
    one = ended(1, **{**fields, **before}) if before is not None else None  # type: ignore[arg-type]
    two = ended(2, **{**fields, **newest})  # type: ignore[arg-type]
    snapshot = replace(seen(two, user_failures=2, was_prepared=True), before=one)
    reason = f"{SAME} (the same before the first step of two attempts in a row: not tried again)"
    expected = [FinishJob(state=JobState.FAILED, reason=reason)] if is_final else []
    assert failures.budgets(snapshot) == expected
    trained = replace(snapshot, job=replace(snapshot.job, was_trained=True))
    assert failures.budgets(trained) == [], "it could begin before: something is away for a while"


@pytest.mark.parametrize(
    ("was_prepared", "why", "is_final"),
    [
        (False, EndReason.USER_FAILURE, True),
        (True, EndReason.USER_FAILURE, False),  # a package index that is away for a moment
        (False, EndReason.INFRASTRUCTURE, False),
        (False, EndReason.PREEMPTED, False),
    ],
)
def test_a_setup_that_never_worked_is_tried_once(
    was_prepared: bool, why: EndReason, is_final: bool
) -> None:
    snapshot = seen(ended(1, why), was_prepared=was_prepared)
    found = failures.budgets(snapshot)
    assert bool(found) == is_final
    assert all("never worked" in action.reason for action in found)


def test_a_failure_without_a_budget_is_one_failure() -> None:
    once = seen(ended(why=EndReason.USER_FAILURE, trained=True), user_failures=1)
    strict = replace(once.job.requirements, user_retries=0)
    [action] = failures.budgets(replace(once, job=replace(once.job, requirements=strict)))
    assert isinstance(action, FinishJob)
    assert action.reason.endswith("(1 failure of the script; `retries.user` is 0)")
