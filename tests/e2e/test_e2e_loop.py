"""The counter trains to its end through every kind of preemption, and as if there were none."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from spothop.wire import JobDetail, SaveKind
from support.counter import check_result, expected_value, steps_in_log
from support.machine import COUNTER, GRACE_S, Machine

pytestmark = pytest.mark.e2e

DIALECTS = ["azure", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("aws", "gcp"))]
"""Of metadata servers; azure's is the one that also takes an answer."""


def trains(job: JobDetail, attempt: int) -> bool:
    """This attempt has made steps."""
    newest = job.attempts[-1] if job.attempts else None
    return job.state == "running" and job.attempt == attempt and bool(newest and newest.last_step)


def reasons(job: JobDetail) -> list[str | None]:
    """Why its attempts ended."""
    return [attempt.reason for attempt in job.attempts]


def test_an_uninterrupted_job_succeeds_and_its_files_come_home(
    machine: Machine, tmp_path: Path
) -> None:
    job = machine.counter(30, step_ms=5, save_every=10, setup="echo from setup")
    ended = machine.ends(job)
    check_result(machine, job, tmp_path, 30)
    assert reasons(ended) == ["succeeded"]
    assert ended.step == 30
    assert ended.saves.get(SaveKind.PERIODIC, 0) >= 3
    log = machine.log(job)
    assert log.startswith("spothop agent: attempt 1")  # the first line of bootstrap
    assert log.index("from setup") < log.index("step 1 value")
    assert "done at step 30" in log


def test_off_cluster_the_same_script_runs_unchanged(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COUNTER.read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "train.py", "--steps", "20", "--step-ms", "1", "--save-every", "5"],
        cwd=tmp_path,
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert f"done at step 20, value {expected_value(20)}" in done.stdout
    assert done.stderr == ""
    assert (tmp_path / "ckpt.json").exists()  # backup() leaves it where it is


@pytest.mark.parametrize("dialect", DIALECTS)
def test_after_a_notice_no_finished_step_is_computed_again(
    machine: Machine, tmp_path: Path, dialect: str
) -> None:
    job = machine.counter(20, endless=1, dialect=dialect)
    machine.reaches(job, 10)
    machine.client.preempt(job)
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert reasons(ended) == ["preempted", "succeeded"]
    first, second = ended.attempts
    assert first.notice_at is not None
    assert first.step_at_notice is not None
    assert second.restored_step is not None
    assert second.restored_step >= first.step_at_notice
    emergency = [c for c in ended.checkpoints if c.kind is SaveKind.EMERGENCY]
    assert {c.attempt for c in emergency} == {1}  # and perhaps a second one at the hand-over
    assert emergency[0].since_notice_s is not None
    assert emergency[0].since_notice_s < GRACE_S  # in time
    assert steps_in_log(machine, job, 2) == [
        *range(second.restored_step + 1, second.restored_step + 21)
    ]
    first_steps = steps_in_log(machine, job, 1)
    assert first_steps == [*range(1, len(first_steps) + 1)]  # no line is lost or doubled
    assert machine.gone(job).vms[0].reason == "preempted"
    told = "acknowledged" in (machine.vm_folder(job, 1) / "state.json").read_text()
    assert not told or dialect == "azure"  # the only one of the three that can be told


@pytest.mark.parametrize(
    ("dialect", "notice_s"),
    [
        ("gcp", 0.05),
        pytest.param("aws", 0.05, marks=pytest.mark.thorough),
        pytest.param("azure", 0.0, marks=pytest.mark.thorough),
    ],
)
def test_with_too_short_a_notice_or_none_it_goes_on_from_the_newest_checkpoint(
    machine: Machine, tmp_path: Path, dialect: str, notice_s: float
) -> None:
    job = machine.counter(20, endless=1, save_every=20, dialect=dialect)
    machine.wait(job, lambda j: len(j.checkpoints) >= 2, what="saved twice")
    machine.client.preempt(job, notice_s=notice_s)
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert reasons(ended) == ["preempted", "succeeded"]
    assert (ended.attempts[1].restored_step or 0) >= 20
    assert machine.gone(job).vms[0].reason == "preempted"


def test_many_preemptions_in_all_zones_end_in_the_same_value(
    machine: Machine, tmp_path: Path
) -> None:
    job = machine.counter(20, endless=3, save_every=50)
    for number, notice_s in enumerate((None, 0.0, 0.3), 1):
        machine.wait(job, partial(trains, attempt=number), what=f"training, attempt {number}")
        machine.client.preempt(job, notice_s=notice_s)
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert reasons(ended) == [*["preempted"] * 3, "succeeded"]
    assert ended.preemptions == 3
    assert len({vm.pool.zone for vm in ended.vms}) == 3  # it hopped to where it was not preempted
    assert ended.cost > 0
    assert ended.on_demand_cost  # tiny steps: what starts cost may well be more


def test_cancelling_ends_the_process_and_keeps_the_checkpoints(
    machine: Machine, tmp_path: Path
) -> None:
    job = machine.counter(10_000, step_ms=10, save_every=10)
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    before = machine.agent_folder(job)
    machine.client.cancel(job)
    ended = machine.ends(job, "cancelled")
    assert reasons(ended) == ["cancelled"]
    machine.gone(job)
    assert not before.exists()
    found = machine.client.download(job, tmp_path / "there")
    assert found.checkpoint is not None
    assert found.step >= ended.checkpoints[0].step


@pytest.mark.thorough
def test_a_vm_that_is_lost_without_a_word_is_replaced(machine: Machine, tmp_path: Path) -> None:
    """Not a preemption by the cloud's word, and yet the job goes on."""
    job = machine.counter(20, endless=1, save_every=20)
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    supervisor = [
        pid
        for pid, line in machine.processes().items()
        if "local.vm_supervisor" in line and str(machine.vm(job).cloud_id) in line
    ]
    assert supervisor
    os.kill(min(supervisor), 9)
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert reasons(ended) == ["infrastructure", "succeeded"]
