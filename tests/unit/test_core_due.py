"""What a job waits for: nothing that a rule looks at is forgotten, and nothing steady is named."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from spothop.wire import (
    VM_LEAVING,
    AttemptState,
    EndReason,
    JobState,
    VmReason,
    VmState,
    Wanted,
)
from spothop_master.core.decide import decide
from spothop_master.core.due import Due, Quiet, due
from spothop_master.core.evidence import EndCause
from spothop_master.core.facts import (
    AttemptFacts,
    Limits,
    PlaceFacts,
    Requirements,
    Sighting,
    Snapshot,
    VmFacts,
)
from spothop_master.core.refusals import BackOff, PoolRefusal, Scope
from support.core_facts import NOW, OTHER, POOL, ago, attempt, ended, seen, vm
from support.examples import examples

LISTED = Sighting(cloud_id="i-a", over=False, running_at=ago(490))
TRAINS = vm(sighting=LISTED, listed_at=ago(1))

# --- one thing at a time --------------------------------------------------------------------------


def test_a_job_that_trains_waits_for_silence_alone() -> None:
    expected = Due(quiet={"a": Quiet(since=NOW, until=NOW + timedelta(seconds=15))})
    assert due(seen(attempt(), vms=(TRAINS,))) == expected


def test_a_suspect_is_looked_at_when_it_is_heard_or_silent_for_longer() -> None:
    silent = replace(TRAINS, silent_s=20, suspect_at=ago(5))
    found = due(seen(attempt(), vms=(silent,)))
    until = NOW + timedelta(seconds=40)
    assert found == Due(quiet={"a": Quiet(since=ago(20), until=until, suspect=True)})


def test_a_vm_that_is_silent_for_ever_waits_for_nothing_more() -> None:
    silent = replace(TRAINS, silent_s=90, suspect_at=ago(80), deadline_at=NOW)
    found = due(seen(attempt(), vms=(silent,)))
    assert found is not None
    assert found.quiet["a"].until is None


@pytest.mark.parametrize(
    ("job", "facts", "expected"),
    [
        ({"not_before": NOW + timedelta(seconds=9)}, {}, 9),
        ({"requirements": Requirements(max_duration_s=510)}, {}, 10),
        ({"requirements": Requirements(max_duration_s=410), "paused_s": 100.0}, {}, 10),
        ({}, {"state": VmState.BOOTING, "running_at": ago(200)}, 100),
        ({}, {"deadline_at": NOW + timedelta(seconds=30), "notice_at": ago(9)}, 32),
        ({}, {"state": VmState.TERMINATING, "asked_s": 2.0}, 3),
        ({}, {"in_flight": True, "effect_until": NOW + timedelta(seconds=20)}, 20),
    ],
)
def test_a_moment(job: dict[str, object], facts: dict[str, object], expected: float) -> None:
    found = due(seen(attempt(), vms=(replace(TRAINS, **facts),), **job))  # type: ignore[arg-type]
    assert found is not None
    assert found.at == NOW + timedelta(seconds=expected)


@pytest.mark.parametrize(("hurried", "left_s"), [(True, 18), (False, 918)])
def test_a_stop_has_its_time(hurried: bool, left_s: float) -> None:
    stopping = attempt(stop_wanted=EndReason.CANCELLED, stop_at=ago(12), hurried=hurried)
    found = due(seen(stopping, vms=(TRAINS,), wanted=Wanted.CANCELLED))
    assert found is not None
    assert found.at == NOW + timedelta(seconds=left_s)


def test_the_deadline_of_a_place_is_one_of_its_vm_or_not() -> None:
    noticed = attempt(notice_at=ago(9), deadline_at=NOW + timedelta(seconds=30))
    found = due(seen(noticed, vms=(TRAINS,)))
    assert found is not None
    assert found.at == NOW + timedelta(seconds=32)


def test_a_suspect_that_is_heard_again_is_one_no_more() -> None:
    silent = replace(TRAINS, silent_s=20, suspect_at=ago(5))
    trains = attempt(may_fence=True)
    assert decide(seen(trains, vms=(silent,))) == []
    assert decide(seen(trains, vms=(replace(silent, silent_s=0),))) != []


def test_a_vm_that_no_listing_has_waits_for_each_of_them() -> None:
    found = due(seen(attempt(), vms=(replace(TRAINS, sighting=None),)))
    assert found is not None
    assert found.listing


def test_without_offers_a_job_waits_for_them() -> None:
    found = due(replace(seen(vms=(vm(state=VmState.TERMINATED),)), offers=None))
    assert found == Due(offers=True)


def test_a_job_that_is_over_waits_until_its_vms_are() -> None:
    over = vm(state=VmState.TERMINATED)
    leaving = replace(TRAINS, state=VmState.TERMINATING, asked_s=0.0)
    last = ended(why=EndReason.SUCCEEDED)
    assert due(seen(last, vms=(over,), state=JobState.SUCCEEDED)) is None
    assert due(seen(last, vms=(leaving,), state=JobState.SUCCEEDED)) is not None
    assert due(seen(last, vms=(over,), state=JobState.PAUSED)) == Due(), "it may be resumed"


# --- whatever the facts ---------------------------------------------------------------------------

T = TypeVar("T")
LIMITS = Limits(avoid_s=30, stop_save_s=20)
HORIZON_S = 200
"""All moments of the facts, with any limit, lie within."""
seconds = st.integers(0, 80)
moments = st.none() | st.integers(-80, 80).map(lambda s: NOW + timedelta(seconds=s))
past = st.none() | seconds.map(ago)
ACCOUNT = BackOff(
    cloud=POOL.cloud,
    scope=Scope.ACCOUNT,
    name="",
    error="Throttled",
    until=NOW + timedelta(seconds=40),
)


def mostly(value: T, else_: T) -> st.SearchStrategy[T]:
    """Where a rule speaks at once about the other one, so that few facts rest."""
    return st.sampled_from([value, value, value, else_])


@st.composite
def vms(draw: st.DrawFn, name: str) -> VmFacts:
    state = draw(st.sampled_from(VmState))
    leaves = state in VM_LEAVING
    cause = draw(mostly(None, EndCause.PREEMPTED))
    sighting = Sighting(cloud_id=f"i-{name}", over=False, cause=cause, running_at=draw(past))
    effect_until = draw(moments)
    return VmFacts(
        id=name,
        pool=POOL,
        state=state,
        reason=draw(st.sampled_from(VmReason)) if leaves else None,
        cloud_id=draw(mostly(f"i-{name}", None)),
        requested_at=ago(draw(seconds)),
        launched_at=draw(past),
        running_at=draw(past),
        joined_at=draw(past),
        suspect_at=draw(past),
        notice_at=draw(past),
        deadline_at=draw(moments),
        at_risk_at=draw(mostly(None, ago(1))),
        ended_at=draw(past),
        listed_at=draw(past),
        sighting=draw(mostly(sighting, None)),
        awaits_record=draw(st.booleans()),
        silent_s=draw(seconds),
        settle_s=draw(st.sampled_from((0, 5, 120))),
        join_timeout_s=90,
        asked_s=draw(st.none() | st.integers(0, 9)),
        called_here=draw(mostly(True, False)),
        in_flight=effect_until is not None and effect_until > NOW,
        effect_until=effect_until,
    )


@st.composite
def attempts(draw: st.DrawFn, number: int, on: str) -> AttemptFacts:
    state, stops = draw(st.sampled_from(AttemptState)), draw(st.booleans())
    place = PlaceFacts(
        vm=on, prepared_at=draw(past), notice_at=draw(past), deadline_at=draw(moments)
    )
    return AttemptFacts(
        number=number,
        places=(place,),
        state=state,
        reason=draw(st.sampled_from(EndReason)) if state is AttemptState.ENDED else None,
        fenced_at=draw(past),
        may_fence=draw(mostly(True, False)),
        saved_since_notice=draw(st.booleans()),
        stop_wanted=EndReason.CANCELLED if stops else None,
        stop_at=ago(draw(seconds)) if stops else None,
        ended_at=draw(past) if state is AttemptState.ENDED else None,
        saved_since_stop=draw(st.booleans()),
        unsaved_s=draw(seconds),
        last_save_s=draw(seconds),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    count = draw(st.integers(0, 2))
    names = ("a", "b")[:count]
    limit = draw(st.none() | st.integers(1, 120))
    facts = seen(
        *(draw(attempts(number, name)) for number, name in enumerate(names, 1)),
        vms=tuple(draw(vms(name)) for name in names) or (draw(vms("c")),),
        state=draw(mostly(JobState.RUNNING, JobState.SUCCEEDED)),
        wanted=draw(mostly(Wanted.RUNNING, Wanted.CANCELLED)),
        submitted_at=ago(draw(seconds)),
        not_before=draw(moments),
        requirements=Requirements(max_duration_s=limit),
        user_failures=draw(st.integers(0, 4)),
    )
    offers = draw(mostly(facts.offers, None))
    return replace(
        facts,
        limits=LIMITS,
        offers=offers,
        refusals=tuple(
            PoolRefusal(pool=pool, error="NoCapacity", last_at=ago(1), until=draw(moments))
            for pool in draw(st.lists(st.sampled_from([POOL, OTHER]), max_size=2, unique=True))
        ),
        back_offs=draw(st.sampled_from([(), (ACCOUNT,)])),
        silent_together=draw(st.booleans()),
    )


def later(facts: Snapshot, seconds: float) -> Snapshot:
    """Time has passed and nobody was heard."""
    return replace(
        facts,
        now=facts.now + timedelta(seconds=seconds),
        attempts=tuple(
            replace(one, unsaved_s=one.unsaved_s + seconds if one.unsaved_s else 0.0)
            for one in facts.attempts
        ),
        vms=tuple(
            replace(
                one,
                silent_s=one.silent_s + seconds,
                asked_s=None if one.asked_s is None else one.asked_s + seconds,
                in_flight=one.effect_until is not None
                and one.effect_until > facts.now + timedelta(seconds=seconds),
            )
            for one in facts.vms
        ),
    )


def _is_suspect(found: Due, name: str) -> bool:
    return name in found.quiet and found.quiet[name].suspect


def first_s(facts: Snapshot, found: Due) -> float:
    """Seconds until the first thing that it names."""
    times = [found.at, *(quiet.until for quiet in found.quiet.values())]
    waits = [(at - facts.now).total_seconds() for at in times if at is not None]
    return min(waits, default=HORIZON_S)


@examples(100, suppress_health_check=[HealthCheck.filter_too_much])
@given(facts=snapshots())
def test_until_then_there_is_nothing_to_decide(facts: Snapshot) -> None:
    """Second by second, as all facts are in whole seconds."""
    assume(decide(facts) == [])
    found = due(facts)
    left_s = HORIZON_S if found is None else min(HORIZON_S, first_s(facts, found))
    for passed in range(1, math.ceil(left_s)):
        assert decide(later(facts, passed)) == [], f"after {passed} s of {left_s}"


@examples(100)
@given(facts=snapshots())
def test_what_it_names_lies_ahead(facts: Snapshot) -> None:
    found = due(facts)
    assert found is None or first_s(facts, found) > 0


@examples(60, suppress_health_check=[HealthCheck.filter_too_much])
@given(facts=snapshots(), heard=st.sampled_from(["a", "b", "c"]))
def test_a_vm_that_is_heard_again_matters_only_if_it_is_a_suspect(
    facts: Snapshot, heard: str
) -> None:
    assume(decide(facts) == [])
    found = due(facts)
    assume(found is not None and not _is_suspect(found, heard))
    vms = [replace(one, silent_s=0) if one.id == heard else one for one in facts.vms]
    assert decide(replace(facts, vms=tuple(vms))) == []


def test_the_examples_know_a_deadline() -> None:
    """The property above would hold for facts that never change, too."""
    noticed = attempt(
        notice_at=ago(5), deadline_at=ago(-5), may_fence=True, state=AttemptState.DRAINING
    )
    draining = vm(
        sighting=LISTED, state=VmState.DRAINING, notice_at=ago(5), deadline_at=ago(-5), silent_s=16
    )
    facts = seen(noticed, vms=(replace(draining, suspect_at=ago(1)),), not_before=ago(-60))
    facts = replace(facts, limits=LIMITS)
    assert decide(facts) == []
    found = due(facts)
    assert found is not None
    assert found.at == datetime.fromisoformat("2030-01-01T00:00:07+00:00")
    assert decide(later(facts, 7)) != []
