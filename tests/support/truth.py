"""What must hold of a counter job after whatever was done to it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from spothop.checkpoints import Chain, Entry
from spothop.storage import open_store
from spothop.wire import JobDetail, StorageSpec
from support.counter import check_result, steps_in_log
from support.machine import Machine
from support.waiting import until

AT_ONCE = 2
"""The old VM and the one that replaces it."""


def chain(machine: Machine, job: str) -> list[Entry]:
    """Everything in the job's chain, fences included; all of it must be readable."""
    store = open_store(StorageSpec(url=f"file://{machine.home}/storage"), create=False)
    entries = Chain(store, job).entries()
    assert all(isinstance(entry, Entry) for entry in entries), entries
    return [entry for entry in entries if isinstance(entry, Entry)]


def check_all(machine: Machine, job: str, folder: Path, steps: int) -> JobDetail:
    """Of a counter job: it succeeds as if nothing had happened, and nothing is left of it."""
    ended = machine.ends(job)
    check_result(machine, job, folder, steps)
    entries = chain(machine, job)
    check_chain(entries)
    check_recorded(machine, ended, entries)
    for attempt in ended.attempts:
        if attempt.restored_step is not None:
            check_resumed(machine, ended, attempt.number, entries)
    check_vms(machine, machine.gone(job))
    return ended


def check_chain(entries: list[Entry]) -> None:
    """No gap, no fork: attempts follow each other, each behind a fence of its own (I2)."""
    assert [entry.n for entry in entries] == [*range(1, len(entries) + 1)]
    attempts = [entry.attempt for entry in entries]
    assert attempts == sorted(attempts)
    for before, entry in pairwise([None, *entries]):
        assert entry is not None
        new = before is None or before.attempt != entry.attempt
        assert entry.fence == new, entry
        if not entry.fence and before is not None and not before.fence:
            assert entry.parent == before.n
            assert (entry.step or 0) > (before.step or 0)
    assert len({entry.id for entry in entries}) == len(entries)


def check_recorded(machine: Machine, job: JobDetail, entries: list[Entry]) -> None:
    """The master knows no checkpoint that the chain does not know, and each one once; what a VM
    did not live to report is only in the chain."""
    there = {(e.n, e.step, e.attempt) for e in entries if not e.fence}
    recorded = [(c.n, c.step, c.attempt) for c in job.checkpoints]
    assert len(set(recorded)) == len(recorded)
    assert set(recorded) <= there
    lost = {a.number for a in job.attempts if a.reason not in {"succeeded", "user_failure"}}
    assert {attempt for _, _, attempt in there - set(recorded)} <= lost, machine.timeline(job.id)


def check_resumed(machine: Machine, job: JobDetail, attempt: int, entries: list[Entry]) -> None:
    """It began at the newest checkpoint before its fence, and computed each step once."""
    [fence] = [e.n for e in entries if e.fence and e.attempt == attempt]
    before = [e.step or 0 for e in entries if e.n < fence and not e.fence]
    [restored] = [a.restored_step for a in job.attempts if a.number == attempt]
    assert restored == (before[-1] if before else 0), machine.timeline(job.id)
    steps = steps_in_log(machine, job.id, attempt)
    assert steps == [*range(restored + 1, restored + 1 + len(steps))], machine.timeline(job.id)


def check_vms(machine: Machine, job: JobDetail) -> None:
    """None doubled, none lost, none left."""
    cloud_ids = [vm.cloud_id for vm in job.vms if vm.cloud_id is not None]
    assert len(set(cloud_ids)) == len(cloud_ids)
    at_once = 0
    moments = [(vm.requested_at, 1) for vm in job.vms]
    moments += [(vm.ended_at, -1) for vm in job.vms if vm.ended_at is not None]
    for _, change in sorted(moments):
        at_once += change
        assert at_once <= AT_ONCE, machine.timeline(job.id)
    assert at_once == 0
    assert _of_job(machine, job.id) == set(cloud_ids)
    ours = set(cloud_ids)
    until(
        lambda: not [line for line in machine.processes().values() if any(i in line for i in ours)],
        what="no process is left",
    )


def _of_job(machine: Machine, job: str) -> set[str]:
    """What the cloud itself has launched for the job."""
    found = set()
    for spec in (machine.folder / "cloud" / "vms").glob("*/spec.json"):
        if json.loads(spec.read_text())["tags"]["spothop-job"] == job:
            found.add(spec.parent.name)
    return found
