"""Things at the wrong moment: notices twice, early, during a save; a master that is away."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spothop.checkpoints import Chain, Entry
from spothop.storage import open_store
from spothop.wire import SaveKind, StorageSpec
from support.counter import check_result, steps_in_log
from support.machine import GRACE_S, Machine
from support.waiting import until

pytestmark = pytest.mark.e2e

NewMachine = Callable[..., Machine]


def chain_of(machine: Machine, job: str) -> list[Entry]:
    """The job's checkpoints as the storage has them, in order."""
    store = open_store(StorageSpec(url=f"file://{machine.home}/storage"))
    return [
        entry
        for entry in Chain(store, job).entries()
        if isinstance(entry, Entry) and not entry.fence
    ]


SLOW_SAVE = """
import pathlib, sys, time
import spothop as sp
start = 0
if latest := sp.latest_checkpoint():
    start = int(pathlib.Path(latest).read_text())
for step in range(start + 1, start + (10_000 if start == 0 else 11)):
    with sp.step_context():
        time.sleep(0.01)
    if step == 10 or sp.check_save():
        print("saving", step, flush=True)
        while start == 0 and not pathlib.Path("go").exists():
            time.sleep(0.01)
        pathlib.Path("ckpt").write_text(str(step))
        sp.backup("ckpt")
sp.done()
"""


def test_a_notice_during_a_save_is_answered_by_that_save(machine: Machine) -> None:
    job = machine.submit(files={"train.py": SLOW_SAVE}, dialect="gcp")
    until(lambda: "saving 10" in machine.log(job), what="saving")
    machine.client.preempt(job)
    machine.wait(job, lambda j: j.attempts[0].notice_at, what="told of the notice")
    (machine.agent_folder(job, 1) / "attempts" / "1" / "work" / "go").touch()
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    noticed = [c for c in ended.checkpoints if c.since_notice_s is not None]
    assert [c.step for c in noticed] == [10]
    assert (ended.attempts[1].restored_step or 0) >= 10


@pytest.mark.thorough
def test_a_notice_before_the_process_started_costs_nothing_but_the_vm(machine: Machine) -> None:
    """The first VM is taken while its `setup:` still runs."""
    job = machine.submit(
        "echo trained",
        files={"x": ""},
        setup='echo setup; if [ "$SPOTHOP_ATTEMPT" = 1 ]; then sleep 60; fi',
        dialect="gcp",
    )
    until(lambda: "setup" in machine.log(job), what="setting up")
    machine.client.preempt(job)
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert ended.attempts[0].started_at is None
    assert "trained" in machine.log(job, 2)


def test_a_replacement_that_gets_a_notice_while_it_prepares_is_replaced(
    machine: Machine, tmp_path: Path
) -> None:
    job = machine.counter(
        20,
        endless=2,
        setup='if [ "$SPOTHOP_ATTEMPT" = 2 ]; then sleep 60; fi',
        resources={"any_of": [{"zone": "local-1a"}, {"zone": "local-1c"}, {"zone": "local-1b"}]},
    )
    machine.reaches(job, 5)
    machine.client.preempt(job, notice_s=2.5)
    machine.wait(job, lambda j: len(j.attempts) == 2, what="about to be replaced")
    until(lambda: "attempt 2" in machine.log(job, 2), what="setting up")
    machine.client.preempt_vm(machine.vm(job, 2).id)
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "preempted", "succeeded"]
    assert ended.attempts[1].restored_step is None
    check_result(machine, job, tmp_path)


ONE_SAVE = """
import os, pathlib, sys, time
import spothop as sp
if latest := sp.latest_checkpoint():
    print("restored", pathlib.Path(latest, "state").read_text(), flush=True)
    sys.exit()
with sp.step_context():
    os.mkdir("ckpt")
    pathlib.Path("ckpt/empty").touch()
    pathlib.Path("ckpt/state").write_text("step 1")
sp.backup("ckpt")
time.sleep(60)
"""


@contextmanager
def held_back(file: Path) -> Iterator[None]:
    """Whoever opens this file meanwhile hangs, and who comes later finds it whole."""
    aside = file.with_name("aside")
    file.rename(aside)
    os.mkfifo(file)  # opening it to read waits for a writer, and there is none: fifo(7)
    try:
        yield
    finally:
        aside.rename(file)


def test_a_notice_during_a_restore_leads_to_one_on_another_vm(machine: Machine) -> None:
    job = machine.submit(files={"train.py": ONE_SAVE}, dialect="gcp")
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    [entry] = chain_of(machine, job)
    # an empty one: a pipe has its size, and so the restore goes as far as opening it
    empty = next(record for record in entry.files if record.size == 0)
    with held_back(machine.home / "storage" / empty.key):
        machine.client.preempt(job, notice_s=0)
        until(lambda: len(machine.events(job, "fenced_in")) == 2, what="attempt 2 restores")
        machine.client.preempt(job)
        machine.wait(job, lambda j: j.attempts[1].notice_at, what="told of the notice")
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "preempted", "succeeded"]
    assert ended.attempts[1].started_at is None
    assert ended.attempts[2].restored_step == 1
    assert "restored step 1" in machine.log(job, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("dialect", ["aws", "gcp"])
def test_a_second_notice_changes_nothing_but_the_end(
    machine: Machine, tmp_path: Path, dialect: str
) -> None:
    job = machine.counter(20, endless=1, dialect=dialect)
    machine.reaches(job, 10)
    machine.client.preempt(job)
    machine.client.preempt(job, notice_s=GRACE_S / 2)
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    asked = [e for e in machine.events(job, "save_requested") if "asked for: notice" in e.text]
    assert len(asked) == 1  # besides that of the hand-over
    assert (ended.attempts[1].restored_step or 0) >= (ended.attempts[0].step_at_notice or 0)


@pytest.mark.parametrize("notice_s", [pytest.param(0.0, marks=pytest.mark.thorough), 0.3])
def test_a_preemption_before_the_vm_has_joined_leads_to_another_vm(
    new_machine: NewMachine, tmp_path: Path, notice_s: float
) -> None:
    early = {"launch": 1, "after_s": 0.05, "notice_s": notice_s}
    machine = new_machine(pools={"aws": {"boot_s": [1.5, 1.5], "preemptions": [early]}})
    job = machine.counter(20, step_ms=5, resources={"any_of": [{"zone": "local-1a"}, {}]})
    ended = machine.ends(job)
    check_result(machine, job, tmp_path, 20)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert [vm.pool.zone for vm in ended.vms] == ["local-1a", "local-1b"]
    assert ended.vms[0].running_at is not None


def test_a_preemption_that_comes_with_the_join_is_noticed(
    new_machine: NewMachine, tmp_path: Path
) -> None:
    """The notice stands at the metadata endpoint before the agent looks for the first time."""
    early = {"launch": 1, "after_s": 0.05}
    machine = new_machine(pools={"aws": {"boot_s": [0.3, 0.3], "preemptions": [early]}})
    job = machine.counter(20, endless=1, resources={"any_of": [{"zone": "local-1a"}, {}]})
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert ended.attempts[0].notice_at is not None


def test_a_master_that_is_away_for_the_whole_life_of_a_vm_goes_on_behind_it(
    new_machine: NewMachine, tmp_path: Path
) -> None:
    """From the join to the kill nobody hears the VM; what it has committed counts all the same."""
    machine = new_machine()
    job = machine.counter(20, endless=1, save_every=40, dialect="gcp")
    machine.wait(job, lambda j: j.state == "running", what="training")
    folder = machine.vm_folder(job)
    machine.kill()
    before = len(chain_of(machine, job))
    until(lambda: len(chain_of(machine, job)) > before, what="it saves")
    machine.cloud.preempt(folder.name)
    until(lambda: saved_at_the_notice(machine, job), what="it saves at the notice")
    machine.cloud.preempt(folder.name, 0)
    until(lambda: over(folder), what="the VM is taken")
    saved = chain_of(machine, job)
    machine.start()
    ended = machine.ends(job)
    check_result(machine, job, tmp_path)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert ended.attempts[1].restored_step == saved[-1].step
    assert len(ended.vms) == 2
    first = steps_in_log(machine, job, 2)[0]
    assert first == (saved[-1].step or 0) + 1


@pytest.mark.thorough
def test_a_vm_that_joined_and_then_hears_nothing_more_is_replaced_when_the_master_is_back(
    new_machine: NewMachine, tmp_path: Path
) -> None:
    """It waits for its code until it is taken."""
    machine = new_machine()
    job = machine.counter(30, step_ms=5, dialect="gcp")
    machine.wait(job, lambda j: j.attempts and j.vms[0].state == "booting", what="launched")
    state = machine.agent_folder(job) / "state.json"
    until(state.exists, what="joined")
    machine.kill()
    folder = state.parents[2]
    machine.cloud.preempt(folder.name, 0.5)
    until(lambda: over(folder), what="the VM is taken")
    machine.start()
    ended = machine.ends(job)
    check_result(machine, job, tmp_path, 30)
    assert len(ended.vms) == 2


def saved_at_the_notice(machine: Machine, job: str) -> bool:
    return SaveKind.EMERGENCY in [entry.kind for entry in chain_of(machine, job)]


def over(vm_folder: Path) -> bool:
    return bool(json.loads((vm_folder / "state.json").read_text())["state"] == "terminated")


@pytest.mark.thorough
def test_a_master_that_is_killed_and_back_takes_the_vm_up_again(
    new_machine: NewMachine, tmp_path: Path
) -> None:
    """Training does not wait for it, and every report arrives, none twice."""
    machine = new_machine()
    job = machine.counter(250, step_ms=10, save_every=25)
    machine.reaches(job, 25)
    machine.kill()
    chain = len(chain_of(machine, job))
    until(lambda: len(chain_of(machine, job)) >= chain + 2, what="it goes on alone")
    machine.start()
    ended = machine.ends(job)
    check_result(machine, job, tmp_path, 250)
    assert [a.reason for a in ended.attempts] == ["succeeded"]
    assert len(ended.vms) == 1
    recorded = sorted((c.n, c.step) for c in ended.checkpoints)
    assert recorded == [(entry.n, entry.step) for entry in chain_of(machine, job)]
    assert steps_in_log(machine, job, 1) == [*range(1, 251)]


@pytest.mark.thorough
def test_a_job_that_ends_while_the_master_is_away_succeeds(
    new_machine: NewMachine, tmp_path: Path
) -> None:
    machine = new_machine()
    job = machine.counter(100, step_ms=10)
    machine.reaches(job, 5)
    trainer = machine.agent_folder(job) / "attempts" / "1" / "run" / "exit.json"
    machine.kill()
    until(trainer.exists, what="the process ended")
    machine.start()
    ended = machine.ends(job)
    check_result(machine, job, tmp_path, 100)
    assert [a.reason for a in ended.attempts] == ["succeeded"]


@pytest.mark.thorough
def test_nothing_is_left_when_all_is_over(new_machine: NewMachine) -> None:
    """No VM, no process with our marker, no disk; the cloud's own listing agrees."""
    machine = new_machine()
    jobs = [machine.counter(20, step_ms=5), machine.counter(10_000, step_ms=10)]
    machine.reaches(jobs[1], 5)
    machine.client.preempt(jobs[1])
    machine.wait(jobs[1], lambda j: j.attempt == 2 and j.state == "running", what="replaced")
    machine.client.cancel(jobs[1])
    machine.ends(jobs[0])
    machine.ends(jobs[1], "cancelled")
    for job in jobs:
        machine.gone(job)
    states = [over(path) for path in (machine.folder / "cloud" / "vms").iterdir()]
    assert states == [True] * 3
    machine.stop()
    assert machine.leftovers() == []
