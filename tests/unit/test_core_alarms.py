"""When an alarm begins, and when it is over."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.wire import JOB_ACTIVE, Alarm, EndReason, JobState, Unprotected
from spothop_master.core.alarms import Budget, Facts, alarms
from support.core_facts import NOW, ago

WELL = Facts(
    now=NOW,
    state=JobState.RUNNING,
    trains_since=ago(7200),
    committed_at=ago(60),
    interval_s=300.0,
    budgets=(Budget(key="user", used=0, allowed=3),),
    unconfirmed={},
)
WAITS = replace(
    WELL,
    state=JobState.ALLOCATING,
    trains_since=None,
    waits_since=ago(1000),
    refused_at=ago(30),
    refused_why="NoCapacity: none is left",
)
LOST = replace(
    WELL,
    trains_since=ago(10),
    ended_as=EndReason.PREEMPTED,
    ended_at=ago(40),
    noticed_at=ago(70),
    had_trained=True,
    committed_at=ago(80),
)


def one(facts: Facts) -> str | None:
    found = alarms(facts)
    assert len(found) <= 1
    return next(iter(found.values()), None)


def test_a_job_that_is_well_has_none() -> None:
    assert alarms(WELL) == {}


@pytest.mark.parametrize(
    ("facts", "kind", "words"),
    [
        (
            replace(WELL, committed_at=ago(600)),
            Alarm.STALE,
            "10 min old; a save is due every 5 min",
        ),
        (replace(WELL, committed_at=None), Alarm.STALE, "nothing is committed, for 2 h"),
        (
            replace(WELL, unprotected=Unprotected.STORAGE, unprotected_why="denied"),
            Alarm.STORAGE,
            "the storage takes no save: denied",
        ),
        (
            replace(WELL, unprotected=Unprotected.NO_CHECK, unprotected_why="no check"),
            Alarm.UNPROTECTED,
            "no check",
        ),
        (
            replace(WELL, trains_since=None, ended_as=EndReason.HANG),
            Alarm.HANG,
            "has not trained since",
        ),
        (WAITS, Alarm.NO_CAPACITY, "no VM for 16 min 40 s: NoCapacity: none is left"),
        (replace(WELL, unconfirmed={"vm-1": ago(600)}), Alarm.UNCONFIRMED, "10 min: vm-1"),
        (
            replace(WELL, budgets=(Budget(key="infrastructure", used=8, allowed=10),)),
            Alarm.RETRIES,
            "8 failures in a row; `retries.infrastructure` is 10",
        ),
        (
            replace(WELL, idle_since=ago(1200), idle_why="the GPU is used 1 %"),
            Alarm.IDLE,
            "the GPU is used 1 % for 20 min",
        ),
        (LOST, Alarm.NOTICE_LOST, "led to no commit"),
    ],
)
def test_an_alarm_says_why(facts: Facts, kind: Alarm, words: str) -> None:
    found = alarms(facts)
    assert list(found) == [kind]
    assert words in found[kind]


@pytest.mark.parametrize(
    "facts",
    [
        replace(WELL, committed_at=ago(599)),
        replace(WELL, committed_at=ago(900), trains_since=ago(100)),
        replace(WELL, committed_at=ago(110), interval_s=2.0),
        replace(WELL, committed_at=None, interval_s=None),
        replace(WELL, ended_as=EndReason.HANG),
        replace(WAITS, waits_since=ago(899)),
        replace(WAITS, refused_at=ago(1001)),
        replace(WAITS, waits_since=None),
        replace(WELL, unconfirmed={"vm-1": ago(599)}),
        replace(WELL, budgets=(Budget(key="infrastructure", used=7, allowed=10),)),
        replace(WELL, budgets=(Budget(key="user", used=0, allowed=0),)),
        replace(WELL, idle_since=ago(1199)),
        replace(WELL, idle_since=ago(1300), trains_since=ago(1100)),
        replace(LOST, committed_at=ago(70)),
        replace(LOST, had_trained=False),
        replace(LOST, noticed_at=None),
        replace(LOST, ended_as=EndReason.FENCED),
    ],
)
def test_there_is_none_yet_or_any_more(facts: Facts) -> None:
    assert one(facts) is None


@given(state=st.sampled_from(sorted(set(JobState) - JOB_ACTIVE)))
def test_a_job_that_rests_has_only_what_a_cloud_did_not_confirm(state: JobState) -> None:
    for facts in (LOST, WAITS, replace(WELL, committed_at=None)):
        assert alarms(replace(facts, state=state)) == {}
    left = replace(WELL, state=state, unconfirmed={"vm-1": NOW - timedelta(hours=1)})
    assert list(alarms(left)) == [Alarm.UNCONFIRMED]
