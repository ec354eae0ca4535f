"""`/api/v1/inventory`: what the clouds themselves list of this installation, beside the master's
rows, and the end of all of it. For admins alone.

The end is one pass that does what can be done now, and says what is left; whoever wants everything
gone asks again until nothing is. So it is idempotent, a master may be killed at any instruction of
it, and nobody waits for a whole fleet in one request. A pass goes in this order:

1. Jobs that may run in the cloud are paused, with a save, and cancelled once they are: so nothing
   is launched anew, and no work is lost. Those without a VM, and with `now` all, are cancelled at
   once. What the sweep holds may go.
2. The cloud is asked, only then: a VM that was launched before is in the listing, or has a row.
3. VMs that no row owns are ended. Those of a row are left to the supervise loop, which ends them
   after their save, unless there is no time for that (`now`).
4. Where a region lists no VM and no row is alive in it, what is left over is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from fastapi import APIRouter

from spothop.wire import InventoryView, ListedAs, RemainView, Wanted
from spothop_master.api import errors
from spothop_master.api import inventory_rows as rows
from spothop_master.api.deps import ServicesDep
from spothop_master.api.users import Admin
from spothop_master.api.wishes import AT_ONCE
from spothop_master.clouds import inventory
from spothop_master.clouds.base import Cloud, CloudVmState, Remain, Vm
from spothop_master.problems import ApiError
from spothop_master.services import Services
from spothop_master.store import jobs, strays
from spothop_master.store.schema import Event

log = logging.getLogger(__name__)

router = APIRouter(prefix="/api/v1", tags=["inventory"], responses=errors.answers(401, 403))


@router.get("/inventory", responses=errors.answers(422))
def list_inventory(
    services: ServicesDep, _user: Admin, cloud: str | None = None
) -> list[InventoryView]:
    """Of one cloud or of all. Asks the providers; takes seconds."""
    names = [*services.clouds] if cloud is None else [cloud]
    clouds = {name: _cloud(services, name) for name in names}
    return [
        _view(services, name, inventory.read(each, services.settings.owner))
        for name, each in clouds.items()
    ]


@router.post("/inventory/{cloud}/end", responses=errors.answers(422))
def end_inventory(
    cloud: str, services: ServicesDep, user: Admin, now: bool = False
) -> InventoryView:
    """One pass; the answer is what is left, so ask again until that is nothing. `now`: no VM is
    waited for, and what was not saved is lost."""
    asked = _cloud(services, cloud)
    _cancel(services, cloud, now=now)
    found = inventory.read(asked, services.settings.owner)
    before = _view(services, cloud, found)
    theirs = {vm.cloud_id for vm in before.vms if vm.listed_as is ListedAs.KNOWN}
    wanted = [vm for vm in found.vms if now or vm.id not in theirs]
    ended, failed = inventory.end(asked, wanted)
    _tell(services, cloud, ended, by=user.name)
    busy = {vm.pool.region for vm in before.vms}
    loose = [each for each in found.remains if _idle(found, each, busy)]
    removed, stuck = inventory.remove(asked, loose)
    services.wake()
    left = [each for each in before.remains if each.id not in {gone.id for gone in removed}]
    return before.model_copy(update={"remains": left, "errors": [*before.errors, *failed, *stuck]})


def _idle(found: inventory.Inventory, remain: Remain, busy: set[str]) -> bool:
    """A disk that a launch has just made is not attached yet."""
    return found.answered(remain.region) and remain.region not in busy


def _cloud(services: Services, name: str) -> Cloud:
    if name not in services.clouds:
        raise ApiError(
            422,
            "no_such_cloud",
            f"cloud: {name!r} is none of this master's clouds ({', '.join(services.clouds)})",
            "SPOTHOP_MASTER_CLOUDS names those that it works with",
            field="cloud",
        )
    return services.clouds[name]


def _view(services: Services, cloud: str, found: inventory.Inventory) -> InventoryView:
    offers = services.watcher.offers_by_cloud().get(cloud)
    prices = {pool: info.price for pool, info in offers.by_pool.items()} if offers else {}
    with services.db.read() as session:
        vms = rows.views(session, cloud, found.vms, answered=found.answered, prices=prices)
        waiting = rows.jobs_in(session, cloud)
    return InventoryView(
        cloud=cloud,
        vms=vms,
        remains=[
            RemainView(kind=each.kind, id=each.id, region=each.region, detail=each.detail)
            for each in found.remains
        ],
        jobs=len(waiting),
        errors=[*found.errors],
    )


def _cancel(services: Services, cloud: str, *, now: bool) -> None:
    """The jobs that may run there, a few in each transaction; and nothing is held any more."""
    with services.db.begin() as session:
        strays.end(session, cloud=cloud, now=services.clock())
        ids = rows.jobs_in(session, cloud)
        saving = set() if now else rows.with_vms(session, ids)
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        with services.db.begin() as session:
            for job_id in saving.intersection(some):
                with suppress(jobs.JobIsOver):  # by now
                    jobs.want(session, job_id, Wanted.PAUSED, now=services.clock())
            over = [job_id for job_id in some if job_id not in saving]
            jobs.want_all(session, over, Wanted.CANCELLED, now=services.clock(), at_once=now)


def _tell(services: Services, cloud: str, ended: Sequence[Vm], *, by: str) -> None:
    """Of those that still ran: later passes find them stopping."""
    ended = [vm for vm in ended if vm.state is not CloudVmState.STOPPING]
    for vm in ended:
        log.warning("%s VM %s is ended: user %s ends everything", cloud, vm.id, by)
    if ended:
        names = ", ".join(vm.id for vm in ended[:10]) + (", ..." if len(ended) > 10 else "")
        text = f"user {by} ends everything in {cloud}: {len(ended)} VMs are asked to end: {names}"
        data = {"cloud": cloud, "vms": [vm.id for vm in ended]}
        with services.db.begin() as session:
            event = Event(at=services.clock(), kind="terminate_all", text=text, data=data)
            session.add(event)
