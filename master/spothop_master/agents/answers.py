"""What syncs are answered when memory has nothing: read for many VMs at once.

`protocol.answer` says what holds for one VM, whatever its state. Nearly all VMs of a fleet train,
and all of them ask at once when a master was started again. For those in the plain case
(`is_plain`) the answer is their insurance alone, or nothing after a notice, and `read` reads it for
all of them in as many queries as for one; of the others it says nothing, and they are asked for by
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session, aliased

from spothop.wire import AttemptState, InsuranceDirective, Pool, VmState
from spothop_master.agents import insurance
from spothop_master.agents.insurance import Insured, Noted
from spothop_master.agents.protocol import Answer
from spothop_master.core import gang
from spothop_master.core.insurance import directive
from spothop_master.store.schema import Attempt, Job, Place, VmRow
from spothop_master.store.statistics import Statistics

_each = aliased(Place)
_FACTS = (
    select(
        VmRow.id.label("vm"),
        VmRow.state,
        VmRow.acked_seq,
        VmRow.cloud,
        VmRow.region,
        VmRow.zone,
        VmRow.vm_type,
        VmRow.spot,
        VmRow.grace_s,
        VmRow.running_at,
        Place.first_step_at,
        Attempt.id.label("attempt"),
        Attempt.job_id,
        Attempt.number,
        Attempt.state.label("attempt_state"),
        Attempt.fenced_in,
        Attempt.stop_wanted,
        Attempt.restored_step,
        Attempt.step_s,
        Job.spec,
        Job.insurance,
        _each.started_at,
    )
    .join(Place, Place.vm_id == VmRow.id)
    .join(Attempt, Attempt.id == Place.attempt_id)
    .join(Job, Job.id == Attempt.job_id)
    .join(_each, _each.attempt_id == Attempt.id)
    .where(Place.living, VmRow.id.in_(bindparam("vms", expanding=True)))
    .order_by(VmRow.id)
)
"""A row for each place of the attempt."""


@dataclass(frozen=True, kw_only=True)
class Found:
    acked_seq: int
    answer: Answer


_TRAINS = {VmState.RUNNING.value, VmState.DRAINING.value}
_ALIVE = {AttemptState.RUNNING.value, AttemptState.DRAINING.value}


def is_plain(facts: Any) -> bool:
    """Of a row with these columns: the VM trains, perhaps with a notice, its attempt is fenced in,
    and nobody wants it stopped. Nobody shuts out what is fenced in: a newer fence ends that."""
    return bool(
        facts.state in _TRAINS
        and facts.attempt_state in _ALIVE
        and facts.fenced_in
        and facts.stop_wanted is None
        and facts.first_step_at is not None
    )


def drains(facts: Any) -> bool:
    """The attempt of a VM in the plain case has a notice."""
    return bool(facts.attempt_state == AttemptState.DRAINING.value)


def read(
    session: Session,
    vm_ids: Sequence[str],
    statistics: Statistics,
    *,
    now: datetime,
    writes: bool = False,
) -> dict[str, Found]:
    """Of each of these VMs that is in the plain case; the same as `protocol.answer`."""
    rows = session.execute(_FACTS, {"vms": sorted(vm_ids)}).all()
    places = {vm: [*of_one] for vm, of_one in groupby(rows, key=lambda row: row.vm)}
    plain = {vm: of_one for vm, of_one in places.items() if is_plain(of_one[0])}
    trains = {vm: of_one for vm, of_one in plain.items() if not drains(of_one[0])}
    insured = [_insured(of_one) for of_one in trains.values()]
    decided = insurance.decisions(session, insured, statistics, now=now) if insured else []
    if writes:
        noted = [
            Noted(job=row.job_id, attempt=row.number, told=row.insurance, decision=decision)
            for (row, *_), decision in zip(trains.values(), decided, strict=True)
        ]
        insurance.note_all(session, noted, now=now)
    found = {
        vm: Found(acked_seq=row.acked_seq, answer=drained(row.step_s))
        for vm, (row, *_) in plain.items()
    }
    for (vm, (row, *_)), decision in zip(trains.items(), decided, strict=True):
        due = directive(decision)
        said = [] if due is None else [InsuranceDirective(attempt=row.number, insurance=due)]
        answer = Answer(
            directives=[*said],
            waiting=False,
            draining=False,
            step_s=row.step_s,
            noted=writes or insurance.is_noted(row.insurance, due),
        )
        found[vm] = Found(acked_seq=row.acked_seq, answer=answer)
    return found


def drained(step_s: float | None) -> Answer:
    """What is said to a VM in the plain case whose attempt has a notice."""
    return Answer(directives=[], waiting=False, draining=True, step_s=step_s)


def _insured(places: Sequence[Any]) -> Insured:
    row = places[0]
    return Insured(
        job=row.job_id,
        spec=insurance.checkpoint_spec(row.spec),
        pool=_pool(row),
        grace_s=row.grace_s,
        running_at=row.running_at,
        attempt=row.attempt,
        restored_step=row.restored_step,
        started_at=gang.reached(place.started_at for place in places),
    )


def _pool(row: Any) -> Pool:
    return Pool(cloud=row.cloud, region=row.region, zone=row.zone, vm=row.vm_type, spot=row.spot)
