"""What must hold after a seed, of what was found in the database, the storage and the cloud. Pure.

Each check is a generator of violations in words; `violations` runs all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chaos.schedule import Job
from spothop.checkpoints import Entry
from spothop.wire import AttemptState, EventView, JobDetail, JobState, VmState
from spothop_master.core.states import ATTEMPT, JOB, VM

LIVES: Mapping[str, tuple[Mapping[Any, Mapping[Any, Any]], type, str, str]] = {
    "job": (JOB, JobState, JobState.QUEUED.value, ""),
    "attempt": (ATTEMPT, AttemptState, AttemptState.PREPARING.value, AttemptState.ENDED.value),
    "vm": (VM, VmState, VmState.REQUESTED.value, VmState.TERMINATED.value),
}
"""Table, states, first and last one; a job has several last ones."""
LIVING = {"requested", "booting", "ready", "running", "draining"}
AT_ONCE = 2
"""VMs of a job that nobody has told to end: the old one and the one that replaces it."""


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    number: int
    job: Job
    wishes: frozenset[str]
    """Of users, that the master accepted: cancel, pause."""
    detail: JobDetail
    events: list[EventView]
    """In the order of their ids."""
    entries: list[Entry]
    """The chain."""
    unreadable: list[str]
    result: object
    """What the job has written as its result; None: nothing."""
    expected: object
    launched: frozenset[str]
    """Ids of VMs that the cloud has made for it, but for launches that it accepted and refused
    later: of those no row stays."""
    kept: frozenset[str]
    """Of these, those that had their notice in time, and whose processes nobody struck."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    jobs: list[JobFacts]
    launched: frozenset[str]
    """By the cloud, for whomever, without those that it refused later."""
    owned: frozenset[str]
    """By a row of the database."""
    alive: list[str]
    """VMs that the cloud, or a row, does not know to be over."""
    left: list[str] = field(default_factory=list)
    """Processes, disks and files that are left."""


def violations(facts: Facts) -> list[str]:
    found = [f"left over: {thing}" for thing in facts.left]
    found += [f"not over: {vm}" for vm in facts.alive]
    found += [f"a VM without owner: {vm}" for vm in sorted(facts.launched - facts.owned)]
    for job in facts.jobs:
        for check in CHECKS:
            found += [f"job {job.number}: {text}" for text in check(job)]
    return found


def ended_as_it_should(facts: JobFacts) -> Iterator[str]:
    may = {"succeeded"}
    if facts.job.is_broken:
        may = {"failed"}
    if "cancel" in facts.wishes:
        may |= {"cancelled"}
    state = facts.detail.state.value
    if state not in may:
        yield f"it {state}, not {' or '.join(sorted(may))}: {facts.detail.reason}"
    if state == "succeeded" and facts.result != facts.expected:
        yield f"its result is {facts.result}, not {facts.expected}"


def chain_has_no_forks(facts: JobFacts) -> Iterator[str]:
    entries = facts.entries
    yield from (f"unreadable in the chain: {name}" for name in facts.unreadable)
    if [entry.n for entry in entries] != [*range(1, len(entries) + 1)]:
        yield f"the chain has gaps: {[entry.n for entry in entries]}"
    if len({entry.id for entry in entries}) != len(entries):
        yield "a save is committed twice"
    for before, entry in pairwise(entries):
        if entry.attempt < before.attempt:
            yield f"attempt {entry.attempt} wrote entry {entry.n} behind a newer one's fence"
        if entry.attempt > before.attempt and not entry.fence:
            yield f"attempt {entry.attempt} has committed entry {entry.n} before its fence"
    steps = [(entry.step or 0) for entry in entries if not entry.fence]
    if steps != sorted(steps):
        yield f"the chain goes back: {steps}"


def checkpoints_are_those_of_the_chain(facts: JobFacts) -> Iterator[str]:
    there = {(e.n, e.step, e.attempt) for e in facts.entries if not e.fence}
    recorded = [(c.n, c.step, c.attempt) for c in facts.detail.checkpoints]
    if len(set(recorded)) != len(recorded):
        yield f"a checkpoint is recorded twice: {recorded}"
    if unknown := set(recorded) - there:
        yield f"checkpoints that the chain does not know: {sorted(unknown)}"


def resumed_from_the_newest(facts: JobFacts) -> Iterator[str]:
    """Each attempt at the newest checkpoint before its fence; after a kept notice that one is not
    older than the notice."""
    fences = {entry.attempt: entry.n for entry in facts.entries if entry.fence}
    attempts = {attempt.number: attempt for attempt in facts.detail.attempts}
    for number, attempt in attempts.items():
        if attempt.restored_step is None:
            continue
        if number not in fences:
            yield f"attempt {number} has trained without a fence"
            continue
        before = [e.step or 0 for e in facts.entries if e.n < fences[number] and not e.fence]
        newest = before[-1] if before else 0
        if attempt.restored_step != newest:
            yield f"attempt {number} began at step {attempt.restored_step}, not at {newest}"
    clouds = {vm.id: vm.cloud_id for vm in facts.detail.vms}
    for number, attempt in attempts.items():
        step = attempt.step_at_notice
        if not step or clouds.get(attempt.vm) not in facts.kept:
            continue
        later = [n for n in attempts if n > number and attempts[n].restored_step is not None]
        if later and (attempts[min(later)].restored_step or 0) < step:
            yield f"attempt {number} was warned at step {step}, and {min(later)} began before it"


def no_vm_is_doubled(facts: JobFacts) -> Iterator[str]:
    ids = [vm.cloud_id for vm in facts.detail.vms if vm.cloud_id is not None]
    if len(set(ids)) != len(ids):
        yield f"two rows have the same VM: {ids}"
    if unknown := facts.launched - set(ids):
        yield f"launched, and in no row of the job: {sorted(unknown)}"
    states: dict[str, str] = {}
    worst = 0
    for event in facts.events:
        if event.kind == "vm" and event.vm is not None and "to" in event.data:
            states[event.vm] = event.data["to"]
            worst = max(worst, sum(state in LIVING for state in states.values()))
    if worst > AT_ONCE:
        yield f"{worst} VMs at once"


def every_way_is_legal(facts: JobFacts) -> Iterator[str]:
    ways: dict[tuple[str, object], list[Mapping[str, Any]]] = defaultdict(list)
    for event in facts.events:
        if event.kind in LIVES and "from" in event.data:
            thing = {"job": "", "attempt": event.attempt, "vm": event.vm}[event.kind]
            if thing is None:  # of a launch that was refused, whose row is gone
                continue
            ways[event.kind, thing].append(event.data)
    for (kind, thing), steps in ways.items():
        table, states, first, last = LIVES[kind]
        at = first
        for step in steps:
            if step["from"] != at:
                yield f"{kind} {thing} left {step['from']}, and was {at}"
            legal = {to.value for to in table[states(step["from"])].values()}
            if step["to"] not in legal:
                yield f"{kind} {thing} went from {step['from']} to {step['to']}"
            at = step["to"]
        if (at not in {"succeeded", "failed", "cancelled"}) if kind == "job" else (at != last):
            yield f"{kind} {thing} stays {at}"


def one_attempt_trains(facts: JobFacts) -> Iterator[str]:
    """By the events: a new attempt runs only when the one before is over, or drains."""
    states: dict[int, str] = {}
    for event in facts.events:
        if event.kind == "attempt" and event.attempt is not None and "to" in event.data:
            states[event.attempt] = event.data["to"]
            running = [number for number, state in states.items() if state == "running"]
            if len(running) > 1:
                yield f"attempts {running} ran at once"


CHECKS = (
    ended_as_it_should,
    chain_has_no_forks,
    checkpoints_are_those_of_the_chain,
    resumed_from_the_newest,
    no_vm_is_doubled,
    every_way_is_legal,
    one_attempt_trains,
)
