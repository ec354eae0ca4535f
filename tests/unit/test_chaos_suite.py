"""The chaos suite itself: its schedules are the seed's alone, and its checks see what is wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from chaos import line, schedule
from chaos.check import Facts, JobFacts, violations
from spothop.checkpoints import Entry
from spothop.wire import AttemptView, CheckpointView, EventView, JobDetail, JobState, VmView

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOB = schedule.Job(steps=10, step_ms=1, save_every=5, zone="", on_s3=False)
BROKEN = replace(JOB, fails_at=5, fails_in=10**6)


@pytest.mark.parametrize("seed", [1, 2, 77])
def test_a_seed_makes_one_schedule_which_can_be_written_and_read(seed: int) -> None:
    made = schedule.from_seed(seed)
    assert schedule.from_seed(seed) == made
    assert schedule.from_json(made.as_json()) == made
    assert schedule.from_seed(seed + 1) != replace(made, seed=seed + 1)


def test_every_kind_of_fault_comes_up() -> None:
    made = [schedule.from_seed(seed) for seed in range(1, 201)]
    kinds = {fault.kind for plan in made for fault in plan.faults}
    assert kinds == {"kill", "stop", "preempt", "line", "store", "disk", "cancel", "pause"}
    targets = {fault.target for plan in made for fault in plan.faults}
    assert targets >= {*schedule.LINE, *schedule.STORE, *schedule.PROCESSES, "master"}
    assert {plan.masters for plan in made} == {1, 2, 3}


def test_a_poisoned_call_keeps_its_shape() -> None:
    body = b'{"reports": [{"seq": 4, "kind": "steps", "step": 3, "count": 1}, {"seq": 5}]}'
    assert line.poisoned(body) == (
        b'{"reports": [{"seq": 4, "kind": "steps", "step": 9223372036854775808, "count": -1}, '
        b'{"seq": 5}]}'
    )
    assert line.poisoned(b"no JSON") == b"no JSON"


# --- checks -------------------------------------------------------------------------------------


def event(number: int, kind: str, before: str, to: str, **more: Any) -> EventView:
    named = {"job": "j", "vm": None, "attempt": None, **more}
    return EventView(
        id=number, at=NOW, kind=kind, text="", data={"from": before, "to": to}, **named
    )


def entry(n: int, attempt: int, step: int | None = None) -> Entry:
    return Entry(n=n, attempt=attempt, id=f"id-{n}", fence=step is None, step=step)


def attempt(number: int, **more: Any) -> AttemptView:
    known = {"number": number, "vm": f"vm-{number}", "restored_step": 0, "step_at_notice": None}
    return AttemptView.model_construct(**{**known, **more})


def of_job(state: str = "succeeded", **more: Any) -> JobFacts:
    """A job without a fault, of one attempt."""
    vms = [VmView.model_construct(id=f"vm-{n}", cloud_id=f"lvm-{n}") for n in (1, 2)]
    detail = JobDetail.model_construct(
        state=JobState(state),
        reason="",
        attempts=more.pop("attempts", [attempt(1)]),
        vms=vms,
        checkpoints=[
            CheckpointView.model_construct(n=e.n, step=e.step, attempt=e.attempt)
            for e in more.pop("recorded", [entry(2, 1, 10)])
        ],
    )
    known: dict[str, Any] = {
        "number": 0,
        "job": JOB,
        "wishes": frozenset(),
        "detail": detail,
        "events": [],
        "entries": [entry(1, 1), entry(2, 1, 10)],
        "unreadable": [],
        "result": "r",
        "expected": "r",
        "launched": frozenset({"lvm-1"}),
        "kept": frozenset({"lvm-1"}),
    }
    return JobFacts(**{**known, **more})


def found(*jobs: JobFacts, **more: Any) -> list[str]:
    known: dict[str, Any] = {"launched": frozenset(), "owned": frozenset(), "alive": []}
    return violations(Facts(jobs=[*jobs], **{**known, **more}))


def test_a_job_as_it_should_be_violates_nothing() -> None:
    assert found(of_job()) == []
    assert found(of_job(job=BROKEN, state="failed", result=None)) == []
    assert found(of_job(state="cancelled", wishes=frozenset({"cancel"}))) == []


WARNED = [attempt(1, step_at_notice=7), attempt(2, restored_step=5)]
AFTER_IT = [entry(1, 1), entry(2, 1, 5), entry(3, 2), entry(4, 2, 10)]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (of_job(state="failed"), "it failed, not succeeded"),
        (of_job(state="cancelled"), "it cancelled, not succeeded"),
        (of_job(result="other"), "its result is other, not r"),
        (of_job(entries=[entry(1, 1), entry(3, 1, 10)], recorded=[]), "the chain has gaps"),
        (of_job(entries=[entry(1, 2), entry(2, 1, 10)]), "behind a newer one's fence"),
        (of_job(entries=[entry(1, 1), entry(2, 2, 10)], recorded=[]), "before its fence"),
        (
            of_job(entries=[entry(1, 1), entry(2, 1, 9), entry(3, 1, 8)], recorded=[]),
            "the chain goes back: [9, 8]",
        ),
        (of_job(recorded=[entry(2, 1, 10), entry(2, 1, 10)]), "is recorded twice"),
        (of_job(recorded=[entry(3, 1, 20)]), "that the chain does not know"),
        (of_job(attempts=[attempt(2)]), "attempt 2 has trained without a fence"),
        (of_job(attempts=[attempt(1, restored_step=3)]), "began at step 3, not at 0"),
        (
            of_job(attempts=WARNED, entries=AFTER_IT, recorded=[]),
            "attempt 1 was warned at step 7, and 2 began before it",
        ),
        (of_job(launched=frozenset({"lvm-9"})), "in no row of the job: ['lvm-9']"),
        (
            of_job(events=[event(1, "vm", "requested", "booting", vm=f"v{n}") for n in range(3)]),
            "3 VMs at once",
        ),
        (of_job(events=[event(1, "job", "queued", "running")]), "job  stays running"),
        (
            of_job(events=[event(1, "vm", "requested", "running", vm="v")]),
            "vm v went from requested to running",
        ),
        (
            of_job(events=[event(1, "attempt", "running", "ended", attempt=1)]),
            "attempt 1 left running, and was preparing",
        ),
        (
            of_job(events=[event(n, "attempt", "preparing", "running", attempt=n) for n in (1, 2)]),
            "attempts [1, 2] ran at once",
        ),
    ],
)
def test_what_is_wrong_is_told(facts: JobFacts, told: str) -> None:
    assert any(told in text for text in found(facts)), found(facts)


def test_a_notice_that_was_not_kept_may_lose_steps() -> None:
    facts = of_job(attempts=WARNED, entries=AFTER_IT, recorded=[], kept=frozenset())
    assert found(facts) == []


def test_what_is_left_is_told() -> None:
    launched = {"launched": frozenset({"lvm-1"})}
    assert found(**launched, alive=["x"], left=["y"]) == [
        "left over: y",
        "not over: x",
        "a VM without owner: lvm-1",
    ]
