"""`kill -9` of the training process in the middle of a save, of a backup, and around its end.

The agent tells it as the user's failure, and a new attempt goes on from the newest checkpoint.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from spothop.wire import SaveKind
from support.faults import STEPS, FaultyMachine, hopper, prefixed
from support.side_by_side import Case, SideBySide, on, parameters
from support.truth import chain, check_all
from support.waiting import until

pytestmark = [pytest.mark.e2e]

DIES = """
import os, pathlib, signal
import spothop, spothop.training.outbox

calls = 0

def dies(real, last=None):
    # That call of the first attempt is the process's last: it does `last`, and then dies.
    def call(*args, **more):
        global calls
        calls += 1
        if calls != {call} or os.environ["SPOTHOP_ATTEMPT"] != "1":
            return real(*args, **more)
        if last is not None:
            last(*args, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

write = pathlib.Path.write_text

def torn(path, text):
    write(path, text[: len(text) // 2])

"""

OUTBOX = "spothop.training.outbox"
PLACES = {
    "in-a-step": ("spothop.log", "None", 15, 10),
    "save-begins": ("pathlib.Path.write_text", "None", 2, 10),
    "save-is-torn": ("pathlib.Path.write_text", "torn", 2, 10),
    "backup-begins": ("spothop.backup", "None", 2, 10),
    "backup-moves": (f"{OUTBOX}._move", "None", 2, 10),
    "backup-moved": (f"{OUTBOX}._move", f"{OUTBOX}._move", 2, 10),
    "backup-published": (f"{OUTBOX}.publish", f"{OUTBOX}.publish", 2, 20),
    "done-begins": ("spothop.done", "None", 1, 30),
    "done": ("spothop.done", "spothop.done", 1, 30),
}
"""What is replaced, what its last call still does, which call that is, and the newest step that has
to survive it."""


def dies_once(machine: FaultyMachine, name: str, folder: Path, *, place: str) -> None:
    target, last, call, kept = PLACES[place]
    code = DIES.replace("{call}", str(call)) + f"{target} = dies({target}, {last})\n"
    run = "python train.py --steps 30 --step-ms 5 --save-every 10"
    job = machine.submit(run, files=prefixed(code), name=name)
    ended = check_all(machine, job, folder, 30)
    assert [a.reason for a in ended.attempts] == ["user_failure", "succeeded"]
    assert "signal 9" in ended.attempts[0].detail or "code 137" in ended.attempts[0].detail
    assert ended.attempts[1].restored_step == kept
    assert len({a.vm for a in ended.attempts}) == 1  # the VM is not at fault


ASKED = """
import os, signal
import spothop

def check_save(real=spothop.check_save):
    if real() and os.environ["SPOTHOP_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return False

spothop.check_save = check_save
"""


def dies_when_asked_to_save(machine: FaultyMachine, name: str, folder: Path) -> None:
    """After a notice, between `check_save()` and `backup()`: the save before has to do."""
    job = hopper(machine, code=ASKED, save_every=5, dialect="gcp", name=name)
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    machine.client.preempt(job)
    ended = check_all(machine, job, folder, STEPS)
    # by the chain: a VM that is killed may not have told of its last commits
    saved = [e.step or 0 for e in chain(machine, job) if e.attempt == 1 and not e.fence]
    assert ended.attempts[-1].restored_step == max(saved)
    # A periodic save that is due at the very step answers the request instead, and nobody dies.
    kinds = {c.kind for c in ended.checkpoints}
    assert SaveKind.PERIODIC in kinds
    assert SaveKind.INSURANCE not in kinds
    assert len({a.vm for a in ended.attempts}) == len(ended.attempts)  # not on that VM again


def is_killed_from_outside(machine: FaultyMachine, name: str, folder: Path, *, point: str) -> None:
    """While its agent is at this point of the first backup, which is committed all the same."""
    machine.strike(name, point, "pause")
    job = hopper(machine, save_every=3, name=name)
    with machine.paused(job, 1, point):
        os.kill(machine.trainer(machine.vm_folder(job, 1)), signal.SIGKILL)
    ended = check_all(machine, job, folder, STEPS)
    assert [a.reason for a in ended.attempts] == ["user_failure", "succeeded"]
    accepted = [e.step for e in chain(machine, job) if e.attempt == 1 and not e.fence]
    assert accepted[0] == 3
    assert ended.attempts[1].restored_step == accepted[-1]


def wrapper_is_killed(machine: FaultyMachine, name: str, folder: Path) -> None:
    """Nobody saw how the process ended; it must not run on beside the next attempt."""
    job = hopper(machine, save_every=3, name=name)
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    line = f"wrapper.py {machine.agent_folder(job, 1)}"
    [wrapper] = [pid for pid, found in machine.processes().items() if line in found]
    trainer = machine.trainer(machine.vm_folder(job, 1))
    os.kill(wrapper, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{trainer}/cwd").exists(), what="the process is ended too")
    ended = check_all(machine, job, folder, STEPS)
    assert len(ended.attempts) == 2
    assert {c.kind for c in ended.checkpoints} == {SaveKind.PERIODIC}


CASES: dict[str, Case] = {
    **{place: partial(dies_once, place=place) for place in PLACES},
    "asked-to-save": dies_when_asked_to_save,
    "agent-before_upload": partial(is_killed_from_outside, point="before_upload"),
    "agent-before_commit": partial(is_killed_from_outside, point="before_commit"),
    "wrapper": wrapper_is_killed,
}


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    folder = tmp_path_factory.mktemp("trainers")
    with (
        FaultyMachine(folder / "machine", grace_s=10.0) as machine,
        SideBySide(request, on(machine, CASES, folder)) as outcomes,
    ):
        yield outcomes


GATE = ["save-is-torn", "asked-to-save", "agent-before_commit", "wrapper"]
"""One of each family."""


@pytest.mark.parametrize("case", parameters(CASES, gate=GATE))
def test_the_training_process_is_killed(outcomes: SideBySide, case: str) -> None:
    outcomes.check(case)
