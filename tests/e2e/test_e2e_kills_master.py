"""`kill -9` of the master at its own named points, and with an agent at every point of its own.

The VM goes on training; the restarted master takes it up again: same jobs, same VMs, none lost,
none doubled (I3, I6, I10).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from spothop.sdk.errors import ClientError
from support.counter import steps_in_log
from support.faults import SLOW_SAVE, STEPS, FaultyMachine, hopper, prefixed
from support.side_by_side import Case, SideBySide, job_name, parameters
from support.truth import check_all
from support.waiting import until

pytestmark = [pytest.mark.e2e]


def dies_at_the_first_launch(machine: FaultyMachine, name: str, folder: Path) -> None:
    with suppress(ClientError):  # it may die before it has answered
        machine.counter(30, step_ms=5, save_every=10, name=name)
    machine.master_died()
    [job] = [job.id for job in machine.client.jobs(all=True) if job.name == name]
    ended = check_all(machine, job, folder, 30)
    assert [a.reason for a in ended.attempts] == ["succeeded"]
    assert len([vm for vm in ended.vms if vm.cloud_id]) == 1


def dies_while_it_replaces(machine: FaultyMachine, name: str, folder: Path) -> None:
    job = hopper(machine, dialect="gcp", name=name)
    machine.reaches(job, 2)
    with suppress(ClientError):
        machine.client.preempt(job)
    machine.master_died()
    ended = check_all(machine, job, folder, STEPS)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert len([vm for vm in ended.vms if vm.cloud_id]) == 2
    assert (ended.attempts[1].restored_step or 0) >= (ended.attempts[0].step_at_notice or 0)


def dies_when_it_terminates(machine: FaultyMachine, name: str, folder: Path) -> None:
    """The cloud was asked to end the VM, and nobody wrote that down."""
    job = machine.counter(30, step_ms=5, save_every=10, name=name)
    machine.master_died()
    ended = check_all(machine, job, folder, 30)
    assert [a.reason for a in ended.attempts] == ["succeeded"]


def is_away_till_the_end(machine: FaultyMachine, name: str, folder: Path, *, point: str) -> None:
    """It dies with the agent at this point, and is back when the process has ended."""
    machine.strike(name, point, "pause")
    job = machine.counter(30, step_ms=5, save_every=10, name=name)
    with machine.paused(job, 1, point):
        run = machine.agent_folder(job, 1) / "attempts" / "1" / "run"
        machine.kill()
    until((run / "exit.json").exists, what="the process ended")
    machine.start()
    ended = check_all(machine, job, folder, 30)
    assert [a.reason for a in ended.attempts] == ["succeeded"]
    assert [c.step for c in sorted(ended.checkpoints, key=lambda c: c.n)] == [10, 20, 30]
    assert steps_in_log(machine, job, 1) == [*range(1, 31)]
    assert len(ended.vms) == 1


def is_away_while_another_takes_over(
    machine: FaultyMachine, name: str, folder: Path, *, point: str
) -> None:
    """It dies with the agent of the second attempt at this point; both VMs go on without it."""
    job = hopper(machine, dialect="gcp", name=name)
    machine.reaches(job, 2)
    machine.strike(name, point, "pause")
    machine.client.preempt(job)
    with machine.paused(job, 2, point):
        run = machine.agent_folder(job, 2) / "attempts" / "2" / "run"
        machine.kill()
    until((run / "exit.json").exists, what="the second process ended")
    machine.start()
    ended = check_all(machine, job, folder, STEPS)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert len(ended.vms) == 2


def is_away_during_a_save(machine: FaultyMachine, name: str, folder: Path) -> None:
    run = "python train.py --steps 20 --step-ms 5 --save-every 10"
    job = machine.submit(run, files=prefixed(SLOW_SAVE), name=name)
    log = machine.log_on_disk(job, 1)
    until(lambda: "half saved" in log.read_text(), what="saving")
    machine.kill()
    until(lambda: "checkpoint 2" in log.read_text(), what="committed without the master")
    machine.start()
    ended = check_all(machine, job, folder, 20)
    assert [a.reason for a in ended.attempts] == ["succeeded"]
    assert [c.step for c in sorted(ended.checkpoints, key=lambda c: c.n)] == [10, 20]


LAUNCH = ["before_plan", "vm_row_committed", "after_launch", "after_apply"]
REPLACE = ["vm_row_committed", "after_launch", "after_apply"]
FIRST = ["after_fence", "before_upload", "before_commit", "after_commit", "after_exit"]
SECOND = ["before_fence", "during_restore"]

CASES: dict[str, tuple[Case, str]] = {
    **{f"launch-{p}": (dies_at_the_first_launch, f"{p}=kill") for p in LAUNCH},
    **{f"replace-{p}": (dies_while_it_replaces, f"{p}@2=kill") for p in REPLACE},
    "after_terminate": (dies_when_it_terminates, "after_terminate=kill"),
    **{f"agent-{p}": (partial(is_away_till_the_end, point=p), "") for p in FIRST},
    **{f"agent-2-{p}": (partial(is_away_while_another_takes_over, point=p), "") for p in SECOND},
    "during-a-save": (is_away_during_a_save, ""),
}
"""With the setting `chaos` of the case's own master."""


def alone(name: str, folder: Path) -> None:
    case, chaos = CASES[name]
    settings = {"chaos": chaos}
    with FaultyMachine(folder / "machine", grace_s=10.0, settings=settings) as machine:
        case(machine, job_name(name), folder)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    folder = tmp_path_factory.mktemp("masters")
    runs = {name: partial(alone, name, folder / name) for name in CASES}
    with SideBySide(request, runs) as outcomes:
        yield outcomes


GATE = ["launch-after_launch", "agent-before_commit", "agent-2-during_restore"]
"""At a point of its own, and away while an agent works alone, the first one or the second;
`tests/integration/test_supervise_restart.py` kills it at all of its own points."""


@pytest.mark.parametrize("case", parameters(CASES, gate=GATE))
def test_the_master_is_killed(outcomes: SideBySide, case: str) -> None:
    outcomes.check(case)
