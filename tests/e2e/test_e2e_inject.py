"""Injected preemptions and policies on real processes: the job takes it, and says what it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.conftest import NewMachine
from spothop.sdk.errors import ApiError
from spothop.wire import InjectRequest, JobDetail, SaveKind
from support.counter import check_result
from support.machine import Machine
from support.waiting import until

pytestmark = pytest.mark.e2e


def test_injected_preemptions_change_nothing_in_the_result(
    machine: Machine, tmp_path: Path
) -> None:
    job = machine.counter(20, endless=2, checkpoint={"policy": "notice-aware"})
    machine.client.inject(job, InjectRequest(mttp_s=[1.0, 0.8], seed=7))
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert ended.injection is not None
    assert ended.preemptions >= 2
    assert ended.injection.done >= 2
    told = [e.text for e in machine.events(job, "injected")]
    assert told[0].startswith("injected preemption 1 of VM ")
    until(
        lambda: (i := machine.job(job).injection) is not None and "succeeded" in i.reason,
        what="the injection ends with its job",
    )
    spot = [p for p in machine.client.pools() if p.pool.spot]
    assert sum(p.lives for p in spot) >= 2
    assert all(p.region_lives >= 2 and not p.mttp_assumed for p in spot)
    assert all(p.mttp_low_s < p.mttp_s < p.mttp_high_s for p in spot)


@pytest.mark.thorough
def test_an_injection_survives_a_killed_master(new_machine: NewMachine) -> None:
    machine = new_machine()
    job = machine.counter(400, step_ms=20)
    machine.reaches(job, 5)
    machine.client.inject(job, InjectRequest(lives_s=[1.5], no_notice=1.0))
    machine.kill()
    machine.start()
    ended = machine.wait(
        job, lambda j: j if j.injection and j.injection.ended_at else None, what="injected"
    )
    assert ended.injection is not None
    assert (ended.injection.done, ended.injection.reason) == (1, "the trace is over")
    assert machine.attempt(job, 1) is not None
    ended = machine.ends(job)
    assert ended.attempts[0].notice_at is None
    assert ended.attempts[0].reason == "preempted"


@pytest.mark.thorough
def test_static_saves_every_n_steps(machine: Machine) -> None:
    job = machine.counter(10**6, step_ms=10, checkpoint={"policy": "static", "static_every": 50})
    machine.wait(job, lambda j: len(insured(j)) >= 3, what="saved three times")
    saved = insured(machine.job(job))
    machine.client.cancel(job)
    gaps = [b - a for a, b in zip([0, *saved], saved, strict=False)]
    assert all(gap >= 50 for gap in gaps), saved
    told = machine.events(job, "insurance")  # again where the time of a step has changed much
    assert told
    assert all("every 50 steps" in event.text for event in told)


def insured(job: JobDetail) -> list[int]:
    return sorted(c.step for c in job.checkpoints if c.kind is SaveKind.INSURANCE)


@pytest.mark.thorough
def test_none_saves_only_at_the_users_own_steps(machine: Machine) -> None:
    job = machine.counter(150, step_ms=10, checkpoint={"policy": "none"})
    ended = machine.ends(job)
    assert [c.kind for c in ended.checkpoints] == [SaveKind.PERIODIC]
    (event,) = machine.events(job, "insurance")
    assert event.text.startswith("no insurance saves: the policy is none")


def test_stop_and_refusals(machine: Machine) -> None:
    job = machine.counter(5000, step_ms=10)
    machine.client.inject(job, InjectRequest(mttp_s=[1e6]))
    with pytest.raises(ApiError, match="under way"):
        machine.client.inject(job, InjectRequest(mttp_s=[1e6]))
    assert machine.client.stop_injection(job).done == 0
    machine.client.cancel(job)
    machine.ends(job, "cancelled")
    with pytest.raises(ApiError, match="is cancelled"):
        machine.client.inject(job, InjectRequest(mttp_s=[1e6]))
