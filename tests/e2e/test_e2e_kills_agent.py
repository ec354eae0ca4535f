"""`kill -9` of the agent at every point of a save, a backup, a commit, a fence and a restore.

Training does not notice, and the agent that is started again goes on where the first one was (I1,
I2, I6, I8).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spothop.wire import SaveKind
from support.counter import steps_in_log
from support.faults import SLOW_SAVE, STEPS, FaultyMachine, hopper
from support.side_by_side import Case, SideBySide, on, parameters
from support.truth import chain, check_all
from support.waiting import until

pytestmark = [pytest.mark.e2e]


def deaths(machine: FaultyMachine, job: str, attempt: int) -> int:
    """How often the agent of this VM was killed, by its supervisor's word."""
    console = (machine.vm_folder(job, attempt) / "console.log").read_text()
    return console.count("agent ended with code -9")


def goes_on_in_the_same_attempt(
    machine: FaultyMachine, name: str, folder: Path, *, point: str
) -> None:
    machine.strike(name, point, "kill")
    job = machine.counter(30, step_ms=10, save_every=10, name=name)
    ended = check_all(machine, job, folder, 30)
    assert deaths(machine, job, 1) == 1
    assert [a.reason for a in ended.attempts] == ["succeeded"]
    assert [e.step for e in chain(machine, job)] == [None, 10, 20, 30]
    assert [c.step for c in sorted(ended.checkpoints, key=lambda c: c.n)] == [10, 20, 30]
    assert steps_in_log(machine, job, 1) == [*range(1, 31)]


def replacement_takes_over(machine: FaultyMachine, name: str, folder: Path, *, point: str) -> None:
    """The agent is that of the second attempt, while the first one still trains."""
    job = hopper(machine, dialect="gcp", name=name)
    machine.reaches(job, 2)
    machine.strike(name, point, "kill")
    machine.client.preempt(job)
    ended = check_all(machine, job, folder, STEPS)
    assert [deaths(machine, job, attempt) for attempt in (1, 2)] == [0, 1]
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert {c.kind for c in ended.checkpoints if c.attempt == 1} == {SaveKind.EMERGENCY}


def emergency_save_survives(machine: FaultyMachine, name: str, folder: Path, *, point: str) -> None:
    """The first backup of this job is the one after the notice."""
    machine.strike(name, point, "kill")
    job = hopper(machine, dialect="gcp", name=name)
    machine.reaches(job, 2)
    machine.calm(name)
    machine.client.preempt(job)
    ended = check_all(machine, job, folder, STEPS)
    assert [deaths(machine, job, attempt) for attempt in (1, 2)] == [1, 0]
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    saved = [c for c in ended.checkpoints if c.attempt == 1]  # at the notice, and the hand-over
    assert {c.kind for c in saved} == {SaveKind.EMERGENCY}
    assert ended.attempts[1].restored_step == max(c.step for c in saved)
    assert saved[0].step >= (ended.attempts[0].step_at_notice or 0)


def half_written_save_is_completed(
    machine: FaultyMachine, name: str, folder: Path, *, save_every: int
) -> None:
    """The training process hands it over to the next agent; with and without a notice."""
    noticed = save_every > STEPS
    job = hopper(machine, save_every=save_every, code=SLOW_SAVE, dialect="gcp", name=name)
    log = machine.log_on_disk(job, 1)
    if noticed:
        machine.reaches(job, 2)
        machine.client.preempt(job)
    until(lambda: "half saved" in log.read_text(), what="saving")
    [agent] = machine.agents(machine.vm_folder(job, 1))
    os.kill(agent, signal.SIGKILL)
    if not noticed:
        machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
        machine.client.preempt(job, notice_s=0)
    ended = check_all(machine, job, folder, STEPS)
    assert deaths(machine, job, 1) == 1
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert (ended.attempts[1].restored_step or 0) > 0


FIRST = [
    *("before_fence", "after_fence", "before_restore", "after_restore", "after_start"),
    *("before_upload", "during_upload", "after_upload", "before_commit", "after_commit"),
    *("after_report", "after_exit"),
]
SECOND = ["before_fence", "after_fence", "before_restore", "during_restore", "after_restore"]
EMERGENCY = ["before_upload", "before_commit", "after_commit"]

CASES: dict[str, Case] = {
    **{f"first-{p}": partial(goes_on_in_the_same_attempt, point=p) for p in FIRST},
    **{f"replacement-{p}": partial(replacement_takes_over, point=p) for p in SECOND},
    **{f"emergency-{p}": partial(emergency_save_survives, point=p) for p in EMERGENCY},
    "half-saved": partial(half_written_save_is_completed, save_every=3),
    "half-saved-after-notice": partial(half_written_save_is_completed, save_every=1000),
}


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    folder = tmp_path_factory.mktemp("agents")
    with (
        FaultyMachine(folder / "machine", grace_s=10.0) as machine,
        SideBySide(request, on(machine, CASES, folder)) as outcomes,
    ):
        yield outcomes


GATE = [
    "first-before_commit",
    "replacement-during_restore",
    "emergency-before_upload",
    "half-saved-after-notice",
]
"""One of each family."""


@pytest.mark.parametrize("case", parameters(CASES, gate=GATE))
def test_the_agent_is_killed(outcomes: SideBySide, case: str) -> None:
    outcomes.check(case)
