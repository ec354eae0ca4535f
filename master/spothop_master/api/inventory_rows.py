"""The master's rows beside what a cloud itself lists, and the jobs that may run there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from spothop.jobspec import JobSpec
from spothop.wire import InventoryVm, ListedAs, Pool, VmState, Wanted
from spothop_master.clouds.base import Vm
from spothop_master.store.schema import Job, Stray, VmRow
from spothop_master.store.vms import pool_of

IN_QUERY = 500
"""Ids in one query."""
SOON = "no row owns it: the sweep ends it once two listings have it"
NOT_YET = "the cloud does not list it (yet)"
NO_ANSWER = "its region did not answer"


def jobs_in(session: Session, cloud: str) -> list[str]:
    """Jobs that have not ended, are not being cancelled, and may have VMs in this cloud."""
    living = select(Job.id, Job.spec).where(
        Job.ended_at.is_(None), Job.wanted != Wanted.CANCELLED.value
    )
    here = set(session.scalars(select(VmRow.job_id).where(VmRow.cloud == cloud, _alive())))
    return [
        row[0]
        for row in session.execute(living.order_by(Job.submitted_at))
        if row[0] in here or may_run_in(JobSpec.model_validate(row[1]), cloud)
    ]


def with_vms(session: Session, job_ids: Sequence[str]) -> set[str]:
    """Those of these jobs that have a VM, in any cloud: what it trained is saved first."""
    found: set[str] = set()
    for first in range(0, len(job_ids), IN_QUERY):
        some = job_ids[first : first + IN_QUERY]
        query = select(VmRow.job_id).where(VmRow.job_id.in_(some), _alive())
        found.update(job_id for job_id in session.scalars(query) if job_id)
    return found


def may_run_in(spec: JobSpec, cloud: str) -> bool:
    """As far as its file says: one that names no cloud may."""
    choices = spec.resources.choices()
    return not choices or any(choice.cloud in (None, cloud) for choice in choices)


def views(
    session: Session,
    cloud: str,
    listed: Sequence[Vm],
    *,
    answered: Callable[[str], bool],
    prices: Mapping[Pool, float],
) -> list[InventoryVm]:
    """First what the cloud lists, oldest first, then the rows whose VM it does not list."""
    rows = {
        row.token: row
        for row in session.scalars(select(VmRow).where(VmRow.cloud == cloud, _alive()))
    }
    strays = {
        row.cloud_id: row for row in session.scalars(select(Stray).where(Stray.cloud == cloud))
    }
    tokens = {vm.token for vm in listed}
    found = [
        _listed(vm, rows.get(vm.token), strays.get(vm.id), prices)
        for vm in sorted(listed, key=lambda vm: (vm.requested_at, vm.id))
    ]
    for row in sorted(rows.values(), key=lambda row: (row.requested_at, row.id)):
        if row.token not in tokens:
            found.append(_unlisted(row, answered=answered(row.region)))
    return found


def _listed(
    vm: Vm, row: VmRow | None, stray: Stray | None, prices: Mapping[Pool, float]
) -> InventoryVm:
    note = ""
    if row is None:
        note = SOON
        if stray is not None:
            waits = stray.held and stray.end_wanted_at is None
            note = f"held: {stray.held}" if waits else "the sweep ends it"
            if stray.error:
                note = f"{note}; its cloud said: {stray.error}"
    return InventoryVm(
        cloud_id=vm.id,
        pool=vm.pool,
        state=vm.state.value,
        listed_as=ListedAs.ORPHAN if row is None else ListedAs.KNOWN,
        requested_at=vm.requested_at,
        vm=row.id if row else None,
        job=row.job_id if row else None,
        price=row.price if row else prices.get(vm.pool),
        note=note,
    )


def _unlisted(row: VmRow, *, answered: bool) -> InventoryVm:
    return InventoryVm(
        cloud_id=row.cloud_id,
        pool=pool_of(row),
        state=row.state,
        listed_as=ListedAs.UNLISTED,
        requested_at=row.requested_at,
        vm=row.id,
        job=row.job_id,
        price=row.price,
        note=NOT_YET if answered else NO_ANSWER,
    )


def _alive() -> ColumnElement[bool]:
    return VmRow.state != VmState.TERMINATED.value
