"""`kill -9` of a VM's supervisor, and so of the whole VM at once, with its agent at every point.

What is in the chain is all that is left of it; another VM goes on from there (I1, I2, I7).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.faults import SLOW_SAVE, STEPS, FaultyMachine, hopper, is_alive
from support.side_by_side import Case, SideBySide, on, parameters
from support.truth import chain, check_all
from support.waiting import until

pytestmark = [pytest.mark.e2e]


def lose(machine: FaultyMachine, job: str, attempt: int) -> None:
    """Returns when the agent, which may be paused, is dead too."""
    vm_folder = machine.vm_folder(job, attempt)
    [agent] = machine.agents(vm_folder)
    os.kill(machine.supervisor(vm_folder), signal.SIGKILL)
    until(lambda: not is_alive(agent), what="the agent is dead")


def first_vm_is_lost(
    machine: FaultyMachine, name: str, folder: Path, *, point: str, kept: int
) -> None:
    """`kept` is the newest step in the chain by then: nothing more may be lost, nor be kept."""
    machine.strike(name, point, "pause")
    job = machine.counter(30, step_ms=5, save_every=10, name=name)
    with machine.paused(job, 1, point):
        if kept == 10:
            until(lambda: len(chain(machine, job)) == 2, what="the first checkpoint is there")
        lose(machine, job, 1)
    ended = check_all(machine, job, folder, 30)
    assert [a.reason for a in ended.attempts] == ["infrastructure", "succeeded"]
    assert ended.attempts[1].restored_step == kept
    assert len(ended.vms) == 2


def replacement_is_lost(machine: FaultyMachine, name: str, folder: Path, *, point: str) -> None:
    """The second VM of three, in the middle of taking over from the first."""
    job = hopper(machine, save_every=3, name=name)
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    machine.strike(name, point, "pause")
    machine.client.preempt(job, notice_s=0)
    with machine.paused(job, 2, point):
        before = [e.step for e in chain(machine, job) if e.step][-1]
        lose(machine, job, 2)
    ended = check_all(machine, job, folder, STEPS)
    assert [a.reason for a in ended.attempts] == ["preempted", "infrastructure", "succeeded"]
    assert ended.attempts[2].restored_step == before
    assert before >= 3


def vm_is_lost_while_it_saves(machine: FaultyMachine, name: str, folder: Path) -> None:
    """A torn file on its disk never becomes a checkpoint."""
    job = hopper(machine, save_every=5, code=SLOW_SAVE, name=name)
    log = machine.log_on_disk(job, 1)
    until(lambda: log.read_text().count("half saved") == 2, what="saving")
    lose(machine, job, 1)
    ended = check_all(machine, job, folder, STEPS)
    assert [a.reason for a in ended.attempts] == ["infrastructure", "succeeded"]
    assert ended.attempts[1].restored_step == 5


NOTHING_YET = [
    *("before_fence", "after_fence", "after_restore", "after_start"),
    *("before_upload", "during_upload", "after_upload"),
]
SECOND = ["before_fence", "after_fence", "during_restore", "after_restore"]

CASES: dict[str, Case] = {
    **{f"first-{p}": partial(first_vm_is_lost, point=p, kept=0) for p in NOTHING_YET},
    "first-after_commit": partial(first_vm_is_lost, point="after_commit", kept=10),
    "first-after_report": partial(first_vm_is_lost, point="after_report", kept=10),
    "first-after_exit": partial(first_vm_is_lost, point="after_exit", kept=30),
    **{f"replacement-{p}": partial(replacement_is_lost, point=p) for p in SECOND},
    "half-saved": vm_is_lost_while_it_saves,
}


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    folder = tmp_path_factory.mktemp("vms")
    with (
        FaultyMachine(folder / "machine") as machine,
        SideBySide(request, on(machine, CASES, folder)) as outcomes,
    ):
        yield outcomes


GATE = ["first-after_commit", "replacement-before_fence", "half-saved"]
"""One of each family."""


@pytest.mark.parametrize("case", parameters(CASES, gate=GATE))
def test_the_vm_is_killed(outcomes: SideBySide, case: str) -> None:
    outcomes.check(case)
