"""`DirectiveCache`: no answer is older than a change of its job or VM, and no other job's change
costs one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fake_cloud import FakeClock
from spothop.wire import FenceDirective
from spothop_master.agents.directive_cache import MAX_AGE, DirectiveCache, Version

JOB_OF = {"vm-a1": "job-a", "vm-a2": "job-a", "vm-b1": "job-b"}
FENCE = [FenceDirective(attempt=1)]

vms = st.sampled_from(sorted(JOB_OF))
jobs = st.sampled_from(sorted(set(JOB_OF.values())))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("change"), jobs),
        st.tuples(st.just("forget"), vms),
        st.tuples(st.just("begin"), vms),
        st.tuples(st.just("finish"), st.integers(0, 1)),
        st.tuples(st.just("get"), vms),
    ),
    max_size=40,
)


def kept(cache: DirectiveCache, clock: FakeClock, vm: str = "vm-a1") -> None:
    cache.keep(cache.version(vm, JOB_OF[vm]), FENCE, now=clock())


@given(operations)
def test_an_answer_is_never_older_than_a_change_of_its_job_or_vm(
    told: list[tuple[str, str | int]],
) -> None:
    cache, clock = DirectiveCache(), FakeClock()
    changes: Counter[str] = Counter()
    reading: list[tuple[Version, int]] = []

    def in_the_database(vm: str) -> int:
        return changes[vm] + changes[JOB_OF[vm]]

    for what, whom in told:
        if what == "change":
            changes[str(whom)] += 1
            cache.job_changed(str(whom))
        elif what == "forget":
            changes[str(whom)] += 1
            cache.forget(str(whom))
        elif what == "begin":
            version = cache.version(str(whom), JOB_OF[str(whom)])
            reading.append((version, in_the_database(str(whom))))
        elif what == "finish" and reading:
            version, read = reading.pop(int(whom) % len(reading))
            cache.keep(version, [FenceDirective(attempt=1 + read)], now=clock())
        elif what == "get":
            answer = cache.get(str(whom), now=clock())
            newest = [FenceDirective(attempt=1 + in_the_database(str(whom)))]
            assert answer is None or answer == newest


@given(operations)
def test_changes_of_others_cost_no_answer(told: list[tuple[str, str | int]]) -> None:
    cache, clock = DirectiveCache(), FakeClock()
    kept(cache, clock)
    for what, whom in told:
        if what == "change" and whom != "job-a":
            cache.job_changed(str(whom))
        elif what == "forget" and whom != "vm-a1":
            cache.forget(str(whom))
        elif what in ("begin", "get") and whom != "vm-a1":
            cache.keep(cache.version(str(whom), JOB_OF[str(whom)]), [], now=clock())
    assert cache.get("vm-a1", now=clock()) == FENCE


def test_a_change_of_the_job_reaches_all_its_vms() -> None:
    cache, clock = DirectiveCache(), FakeClock()
    for vm in JOB_OF:
        kept(cache, clock, vm)
    cache.job_changed("job-a")
    answers = {vm: cache.get(vm, now=clock()) for vm in JOB_OF}
    assert answers == {"vm-a1": None, "vm-a2": None, "vm-b1": FENCE}


def test_what_other_masters_change_is_seen_soon() -> None:
    cache, clock = DirectiveCache(), FakeClock()
    kept(cache, clock)
    clock.advance(MAX_AGE.total_seconds())
    assert cache.get("vm-a1", now=clock()) == FENCE
    clock.advance(0.001)
    assert cache.get("vm-a1", now=clock()) is None


def test_directives_that_were_read_before_a_change_are_not_used_after_it() -> None:
    cache, clock = DirectiveCache(), FakeClock()
    version = cache.version("vm-a1", "job-a")
    cache.job_changed("job-a")
    cache.keep(version, FENCE, now=clock())
    assert cache.get("vm-a1", now=clock()) is None


def test_directives_that_were_read_before_a_vm_was_forgotten_are_not_used_after_it() -> None:
    cache, clock = DirectiveCache(), FakeClock()
    kept(cache, clock)
    version = cache.version("vm-a1", "job-a")
    cache.forget("vm-a1")
    cache.keep(version, FENCE, now=clock())
    assert cache.get("vm-a1", now=clock()) is None


def test_an_answer_from_a_clock_that_was_set_back_is_not_used() -> None:
    cache, clock = DirectiveCache(), FakeClock()
    kept(cache, clock)
    clock.advance(-3_600)
    assert cache.get("vm-a1", now=clock()) is None


@pytest.mark.parametrize(
    ("step_s", "stays"), [(0.5, True), (0.54, True), (0.6, False), (0.4, False)]
)
def test_an_answer_from_quite_another_step_time_is_not_used(step_s: float, stays: bool) -> None:
    cache, clock = DirectiveCache(), FakeClock()
    version = cache.version("vm-a1", "a")
    cache.keep(version, [*FENCE], now=clock(), step_s=0.5)
    cache.steps_take("vm-a1", step_s)
    assert (cache.get("vm-a1", now=clock()) is not None) is stays
