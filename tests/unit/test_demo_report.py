"""The demo's plan and figures, which everyone reads first."""

from __future__ import annotations

import importlib
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spothop.wire import (
    AttemptView,
    CheckpointView,
    Dialect,
    JobDetail,
    Pool,
    SaveKind,
    StorageSpec,
    VmView,
)

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("plan")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DEMO)
    return importlib.import_module("report")


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


POOL = Pool(cloud="local", region="r", zone="z", vm="small")


def attempt(number: int, **facts: Any) -> AttemptView:
    base: dict[str, Any] = {
        "number": number,
        "vm": f"vm-{number}",
        "state": "ended",
        "reason": "preempted",
        "detail": "",
        "started_at": None,
        "ended_at": None,
        "restored_step": 0,
        "last_step": None,
        "notice_at": None,
    }
    return AttemptView(**(base | facts))


def vm(number: int, ended_s: float) -> VmView:
    return VmView(
        id=f"vm-{number}",
        cloud_id=None,
        pool=POOL,
        state="terminated",
        reason="preempted",
        dialect=Dialect.AWS,
        attempt=number,
        requested_at=BEGIN,
        running_at=BEGIN,
        ended_at=at(ended_s),
        price=0.2,
        cost=0.01,
    )


def job(attempts: list[AttemptView], *, cost: float = 0.01, **facts: Any) -> JobDetail:
    base: dict[str, Any] = {
        "id": "gpt-1",
        "name": "gpt",
        "owner": "admin",
        "state": "succeeded",
        "wanted": "running",
        "reason": "",
        "submitted_at": BEGIN,
        "ended_at": at(100),
        "attempt": len(attempts),
        "vm": None,
        "pool": None,
        "step": 60,
        "metrics": {},
        "preemptions": 2,
        "saves": {SaveKind.EMERGENCY: 1},
        "cost": cost,
        "on_demand_cost": 0.03,
        "storage": StorageSpec(url="file:///s"),
        "insurance": None,
        "spec": {},
        "attempts": attempts,
        "vms": [vm(1, 30), vm(2, 60), vm(3, 100)],
        "checkpoints": [
            CheckpointView(
                n=2,
                step=21,
                attempt=1,
                kind=SaveKind.EMERGENCY,
                bytes=1,
                delta_s=0.1,
                beta_s=0.1,
                committed_at=at(20.5),
            )
        ],
        "useful_s": 40.0,
        "recomputed_steps": 0,
        "log_tail": "",
    }
    return JobDetail(**(base | facts))


@pytest.fixture
def preemptions(plan: ModuleType) -> list[Any]:
    begin = BEGIN.timestamp()
    return [
        plan.Preemption(
            kind=plan.Kind.NOTICE,
            dialect=Dialect.AWS,
            attempt=1,
            vm="vm-1",
            at=begin + 20,
            deadline=begin + 40,
        ),
        plan.Preemption(
            kind=plan.Kind.NONE,
            dialect=Dialect.GCP,
            attempt=2,
            vm="vm-2",
            at=begin + 60,
            deadline=begin + 60,
        ),
    ]


ATTEMPTS = [
    attempt(1, last_step=23, step_at_notice=20),
    attempt(2, restored_step=21, last_step=50, first_step_at=at(35)),
    attempt(3, restored_step=45, last_step=60, first_step_at=at(64)),
]


def computed(report: ModuleType, preemptions: list[Any], hopped: JobDetail, **more: Any) -> Any:
    straight = job([attempt(1, last_step=60)], cost=0.04)
    options = {"released": {"vm-1"}, "weights": ("a", "a")} | more
    return report.compute(hopped, straight, preemptions, **options)


def test_the_figures_come_from_the_records(report: ModuleType, preemptions: list[Any]) -> None:
    answer = computed(report, preemptions, job(ATTEMPTS))
    assert answer.steps_recomputed_noticed == 0  # restored 21, beyond the 20 of the notice
    assert answer.steps_recomputed_unnoticed == 5
    assert answer.notice_to_commit_s == [0.5]
    # vm-1 was given back before its deadline, which counts; vm-2 was killed
    assert answer.kill_to_step_s == [-5.0, 4.0]
    assert answer.effective_training_time == 0.4
    assert answer.saving == 0.75
    assert answer.weights_identical


def test_a_step_lost_in_spite_of_a_notice_is_told(
    report: ModuleType, preemptions: list[Any]
) -> None:
    lost = [ATTEMPTS[0], attempt(2, restored_step=12, last_step=50), ATTEMPTS[2]]
    answer = computed(report, preemptions, job(lost))
    assert answer.steps_recomputed_noticed == 8
    broken = report.broken_promises(answer, job(lost), preemptions)
    assert any("8 steps finished before a notice" in line for line in broken)


def test_different_weights_break_the_promise(report: ModuleType, preemptions: list[Any]) -> None:
    answer = computed(report, preemptions, job(ATTEMPTS), weights=("a", "b"))
    assert not answer.weights_identical
    assert "the weights of the two runs differ" in report.broken_promises(
        answer, job(ATTEMPTS), preemptions
    )


def test_the_plan_shows_every_kind_of_preemption(plan: ModuleType) -> None:
    todo = plan.Plan()
    zones = [Dialect.AWS, Dialect.AZURE, Dialect.GCP]
    shown = []
    while (kind := todo.next(zones[len(shown) % 3], done=len(shown))) is not None:
        todo.carried_out(kind, zones[len(shown) % 3])
        shown.append(kind)
    assert shown == [plan.Kind.NOTICE] * 3 + [plan.Kind.SHORT, plan.Kind.NONE, plan.Kind.NONE]


def test_the_plan_ends_even_if_a_dialect_never_comes(plan: ModuleType) -> None:
    todo = plan.Plan()
    shown = []
    while (kind := todo.next(Dialect.AWS, done=len(shown))) is not None:
        todo.carried_out(kind, Dialect.AWS)
        shown.append(kind)
    assert len(shown) == todo.most
