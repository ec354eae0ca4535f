"""Storage that is damaged, raced for, away, full or read-only (I1, I2, I5, I8, I9)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from spothop.checkpoints import BadEntry, Chain, Entry
from spothop.storage import open_store
from spothop.wire import StorageSpec
from support.counter import check_result, steps_in_log
from support.disks import small_disk
from support.faults import STEPS, FaultyMachine, hopper, prefixed
from support.machine import Machine
from support.require import may_mount, need_mounts
from support.side_by_side import Case, Run, SideBySide, job_name, on, parameters
from support.truth import chain, check_all
from support.waiting import until

pytestmark = [pytest.mark.e2e]

SAVES_TWICE = """
import os, time
import spothop

saved = 0

def backup(path, real=spothop.backup):
    global saved
    real(path)
    saved += 1
    if saved == 2 and os.environ["SPOTHOP_ATTEMPT"] == "1":
        time.sleep(600)

spothop.backup = backup
"""
"""Put before the counter: the first attempt has two checkpoints, and waits to be taken."""


# --- damage -------------------------------------------------------------------------------------


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def altered(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "torn": torn,
    "altered": altered,
    "empty": empty,
    "missing": Path.unlink,
}


def saved_twice(machine: FaultyMachine, name: str) -> tuple[str, list[Entry]]:
    """A job whose first attempt waits behind its checkpoints of steps 2 and 4."""
    job = hopper(machine, save_every=2, code=SAVES_TWICE, name=name)
    machine.wait(job, lambda j: len(j.checkpoints) == 2, what="saved twice")
    return job, chain(machine, job)


def data_is_damaged(machine: FaultyMachine, name: str, folder: Path, *, how: str) -> None:
    """The job goes on from the entry before, and the message names the object."""
    job, entries = saved_twice(machine, name)
    [record] = entries[-1].files
    path = machine.home / "storage" / record.key
    DAMAGE[how](path)
    machine.client.preempt(job, notice_s=0)
    ended = machine.ends(job)
    check_result(machine, job, folder, STEPS)
    assert ended.attempts[1].restored_step == 2
    assert steps_in_log(machine, job, 2) == [*range(3, STEPS + 1)]
    told = [e for e in machine.events(job, "message") if "rejected" in e.text]
    assert len(told) == 1, machine.timeline(job)
    assert "checkpoint 3 (step 4" in told[0].text
    assert record.key in told[0].text
    machine.gone(job)


def entry_is_unreadable(machine: FaultyMachine, name: str, folder: Path, *, how: str) -> None:
    """The new attempt's fence heals the chain: it goes on top, and the rest is as if it were not
    there."""
    job, entries = saved_twice(machine, name)
    path = machine.home / "storage" / "jobs" / job / "chain" / f"{entries[-1].n:08d}.json"
    DAMAGE[how](path)
    machine.client.preempt(job, notice_s=0)
    ended = machine.ends(job)
    check_result(machine, job, folder, STEPS)
    assert ended.attempts[1].restored_step == 2
    told = [e.text for e in machine.events(job, "message") if "rejected" in e.text]
    assert len(told) == 1, machine.timeline(job)
    assert "3" in told[0]
    store = open_store(StorageSpec(url=f"file://{machine.home}/storage"))
    now = Chain(store, job).entries()
    assert isinstance(now[2], BadEntry)
    assert isinstance(now[3], Entry)
    assert now[3].fence
    machine.gone(job)


# --- several storages ---------------------------------------------------------------------------


def saved_near(machine: FaultyMachine, name: str, folder: Path, *, killed: str = "") -> None:
    """The chain in one folder, the data in one that lies in the VM's region; where the agent is
    killed in between, the next one finishes what it began."""
    if killed:
        machine.strike(name, killed, "kill")
    near = (folder / "near").as_uri()
    region = machine.client.pools()[0].pool.region
    main = (machine.home / "storage").as_uri()
    storage = [main, {"url": near, "cloud": "local", "region": region}]
    job = hopper(machine, save_every=2, name=name, checkpoint={"storage": storage})
    machine.wait(job, lambda j: len(j.checkpoints) >= 2, what="saved twice")
    machine.calm(name)
    machine.client.preempt(job, notice_s=0)
    ended = check_all(machine, job, folder, STEPS)
    assert ended.attempts[1].restored_step is not None
    kept = {record.url for entry in chain(machine, job) for record in entry.files}
    assert kept == {near}
    assert not list((machine.home / "storage" / "jobs" / job).glob("data/*"))


# --- races --------------------------------------------------------------------------------------


def fenced_while_paused(machine: FaultyMachine, name: str, folder: Path) -> None:
    """An agent that was as good as dead wakes up behind the fence, in the middle of a commit.

    Its supervisor sleeps as well: the cloud does not take the VM at the deadline either.
    """
    machine.strike(name, "before_commit", "pause")
    job = hopper(machine, later_ms=25, dialect="gcp", name=name)
    machine.reaches(job, 2)
    machine.client.preempt(job)
    supervisor = machine.supervisor(machine.vm_folder(job, 1))
    log = machine.log_on_disk(job, 1)
    with machine.paused(job, 1, "before_commit"):
        os.kill(supervisor, signal.SIGSTOP)
        machine.wait(
            job,
            lambda j: j.attempt == 2 and j.state == "running" and j.attempts[1].last_step,
            what="training in attempt 2",
        )
        before = machine.attempt(job, 1)
        files = snapshot(machine.home / "storage" / "jobs" / job)
    try:
        until(
            lambda: "attempt 2 has taken over" in log.read_text(),
            what="fenced",
            details=log.read_text,
        )
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert before is not None
    ended = check_all(machine, job, folder, STEPS)
    # Told by the agent, or, if it was paused before it could, by the cloud past the deadline.
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"], machine.timeline(job)
    assert [e.attempt for e in chain(machine, job) if not e.fence] == [2] * len(ended.checkpoints)
    assert ended.attempts[1].restored_step == 0
    assert ended.attempts[0].last_step == before.last_step
    after = snapshot(machine.home / "storage" / "jobs" / job)
    kept = {path: content for path, content in after.items() if path in files}
    assert kept.items() <= files.items()


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- away ---------------------------------------------------------------------------------------


@contextmanager
def away(machine: Machine, *, instead: str = "") -> Iterator[None]:
    """The storage's folder is not there; `instead` is a file in its place."""
    storage = machine.home / "storage"
    aside = storage.with_name("storage.away")
    storage.rename(aside)
    if instead:
        storage.write_text(instead)
    try:
        yield
    finally:
        if instead:
            storage.unlink()
        aside.rename(storage)


def told_of_trouble(machine: Machine, job: str) -> bool:
    messages = machine.events(job, "message")
    return any("trying again until it works" in e.text for e in messages)


def away_in_the_middle_of(
    machine: FaultyMachine, name: str, folder: Path, *, point: str, instead: str = ""
) -> None:
    machine.strike(name, point, "pause")
    job = machine.counter(30, step_ms=5, save_every=10, payload_kb=3000, name=name)
    with ExitStack() as stack:
        with machine.paused(job, 1, point):
            console = machine.vm_folder(job, 1) / "console.log"
            stack.enter_context(away(machine, instead=instead))
        until(
            lambda: told_of_trouble(machine, job),
            what="told",
            details=lambda: machine.timeline(job),
        )
        until(lambda: "storage, try 2" in console.read_text(), what="tried again")
    ended = check_all(machine, job, folder, 30)
    assert [a.reason for a in ended.attempts] == ["succeeded"]
    assert [c.step for c in sorted(ended.checkpoints, key=lambda c: c.n)] == [10, 20, 30]
    warned = [e for e in machine.events(job, "message") if "trying again" in e.text]
    assert len(warned) == 1
    assert warned[0].data.get("level") == "warning"


def away_at_a_restore(machine: FaultyMachine, name: str, folder: Path, *, point: str) -> None:
    """An empty folder is no empty chain: the job waits, and does not begin again."""
    job, _ = saved_twice(machine, name)
    machine.strike(name, point, "pause")
    machine.client.preempt(job, notice_s=0)
    with ExitStack() as stack:
        with machine.paused(job, 2, point):
            stack.enter_context(away(machine))
        until(
            lambda: told_of_trouble(machine, job),
            what="told",
            details=lambda: machine.timeline(job),
        )
    ended = check_all(machine, job, folder, STEPS)
    assert ended.attempts[1].restored_step == 4


# --- disks --------------------------------------------------------------------------------------


FILLS = """
import time
import spothop

def backup(path, real=spothop.backup):
    real(path)
    time.sleep(0.4)  # the agent looks at its outbox several times

spothop.backup = backup
"""


def outbox_is_full(machine: FaultyMachine, name: str, folder: Path) -> None:
    """The storage is away: the oldest save goes first, the newest one stays, the user is told."""
    machine.strike(name, "before_upload", "pause")
    run = "python train.py --steps 10 --step-ms 1 --save-every 1 --payload-kb 3000"
    job = machine.submit(run, files=prefixed(FILLS), name=name)
    with ExitStack() as stack:
        with machine.paused(job, 1, "before_upload"):
            stack.enter_context(away(machine))
        until(
            lambda: given_up(machine, job), what="given up", details=lambda: machine.timeline(job)
        )
    ended = machine.ends(job)
    check_result(machine, job, folder, 10)
    lost = given_up(machine, job)
    steps = [int(text.partition("save of step ")[2].split()[0]) for text in lost]
    assert steps == [*range(2, 2 + len(steps))]  # the first one is being backed up meanwhile
    saved = {c.step for c in ended.checkpoints if c.attempt == 1}
    assert saved.isdisjoint(steps)
    assert saved | set(steps) == {*range(1, 11)}
    assert all("the disk is nearly full" in text for text in lost)
    assert ended.attempts[0].reason == "infrastructure"  # not every accepted save was committed
    assert ended.attempts[-1].restored_step == 10
    machine.gone(job)


def given_up(machine: Machine, job: str) -> list[str]:
    return [e.text for e in machine.events(job, "message") if "was given up" in e.text]


def storage_is_read_only(machine: FaultyMachine, name: str, folder: Path) -> None:
    """Training goes on; what could not be saved is told, and the job is no success before it is."""
    storage = str(machine.home / "storage")
    job = hopper(machine, save_every=3, name=name)
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    read_only = ["mount", "-o", "remount,ro", storage]  # refused while something is written
    until(lambda: subprocess.run(read_only, check=False).returncode == 0, what="read-only")
    try:
        refused = partial(machine.events, job, "message")
        until(lambda: any("read-only" in e.text for e in refused()), what="told")
        step = machine.job(job).step or 0
        machine.reaches(job, step + 2)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", storage], check=True)
    there = len(machine.job(job).checkpoints)
    machine.wait(job, lambda j: len(j.checkpoints) > there, what="saved again")
    machine.client.preempt(job, notice_s=0)
    check_all(machine, job, folder, STEPS)


# --- all of them --------------------------------------------------------------------------------

MIDDLE = ["during_upload", "before_commit", "after_commit"]

CASES: dict[str, Case] = {
    **{f"data-is-{how}": partial(data_is_damaged, how=how) for how in DAMAGE},
    **{f"entry-is-{how}": partial(entry_is_unreadable, how=how) for how in ("torn", "empty")},
    "near": saved_near,
    **{f"near-killed-{at}": partial(saved_near, killed=at) for at in ("after_upload", *MIDDLE[1:])},
}
"""On one machine, whose storage stays."""

OWN: dict[str, Case] = {
    **{f"away-{point}": partial(away_in_the_middle_of, point=point) for point in MIDDLE},
    "a-file-instead": partial(away_in_the_middle_of, point="before_upload", instead="not a folder"),
    "away-before_fence-2": partial(away_at_a_restore, point="before_fence"),
    "away-before_restore-2": partial(away_at_a_restore, point="before_restore"),
}
"""Each on a machine of its own."""


def alone(name: str, folder: Path) -> None:
    with FaultyMachine(folder / "machine") as machine:
        OWN[name](machine, job_name(name), folder)


def paused_at_the_fence(folder: Path) -> None:
    """Plain processes: a VM in a network namespace reaches nobody while its supervisor sleeps."""
    # the fence of the next attempt waits for the deadline of the notice
    with FaultyMachine(folder / "machine", isolation="processes", grace_s=15.0) as machine:
        fenced_while_paused(machine, "paused", folder)


def full_outbox(folder: Path) -> None:
    vms = folder / "machine" / "cloud" / "vms"
    with small_disk(vms, "16m"), FaultyMachine(folder / "machine") as machine:
        outbox_is_full(machine, "full", folder)


def read_only_storage(folder: Path) -> None:
    storage = folder / "machine" / "master" / "storage"
    with small_disk(storage, "16m"), FaultyMachine(folder / "machine") as machine:
        storage_is_read_only(machine, "read-only", folder)


NEED_MOUNTS: dict[str, Callable[[Path], None]] = {
    "full-outbox": full_outbox,
    "read-only": read_only_storage,
}


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    folder = tmp_path_factory.mktemp("storage")
    runs: dict[str, Run] = {name: partial(alone, name, folder / name) for name in OWN}
    runs["paused-at-the-fence"] = partial(paused_at_the_fence, folder / "paused")
    if may_mount():
        runs |= {name: partial(run, folder / name) for name, run in NEED_MOUNTS.items()}
    with (
        FaultyMachine(folder / "machine") as machine,
        SideBySide(request, runs | on(machine, CASES, folder)) as outcomes,
    ):
        yield outcomes


GATE = [
    "data-is-torn",
    "entry-is-empty",
    "away-before_commit",
    "paused-at-the-fence",
]
"""One of each family."""


@pytest.mark.parametrize("case", parameters([*CASES, *OWN, "paused-at-the-fence"], gate=GATE))
def test_the_job_goes_on_when_storage_does_not(outcomes: SideBySide, case: str) -> None:
    outcomes.check(case)


@pytest.mark.parametrize("case", NEED_MOUNTS)
def test_the_job_goes_on_when_a_disk_does_not(outcomes: SideBySide, case: str) -> None:
    need_mounts()
    outcomes.check(case)
