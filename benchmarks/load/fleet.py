"""The rows of a fleet that trains, written straight into a database, and the cloud that lists it.

A thousand real VMs do not fit on one machine. What the master sees of them does: rows, the cloud's
listing, and the calls of their agents. So everything but the trainers is as it would be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy.orm import Session

from spothop.jobspec import JobSpec
from spothop.wire import Dialect, Pool
from spothop_master.clouds.base import (
    OWNER_TAG,
    CloudLimits,
    CloudVmState,
    LaunchSpec,
    PoolInfo,
    QuotaExceeded,
    Scope,
    Vm,
)
from spothop_master.security import token_hash
from spothop_master.store.schema import Attempt, Checkpoint, Job, Observation, Place, VmRow

OWNER = "load"
ZONES = 9
STEP_S = 0.5
LIVES = 300
"""Ended lives of the region, so that the hazard is fitted as with real use."""
FULL = "full"
"""A file of this name in the master's home: the cloud takes no launch."""
JOB_SAVES = 20
"""Measured saves and backups of each job."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One VM of the fleet."""

    number: int

    @property
    def job(self) -> str:
        return f"load-{self.number:06d}"

    @property
    def vm(self) -> str:
        return f"vm-{self.number:06d}"

    @property
    def session(self) -> str:
        return f"session-{self.number:06d}"

    @property
    def pool(self) -> Pool:
        return pool(self.number % ZONES)


def pool(zone: int) -> Pool:
    return Pool(cloud="resting", region="r1", zone=f"r1-{chr(ord('a') + zone)}", vm="gpu")


def write(session: Session, members: Sequence[Member], *, owner_id: int, now: datetime) -> None:
    """Jobs that train since an hour, each with its VM, and the region's history."""
    spec = JobSpec.model_validate({"name": "load", "run": "python train.py"}).model_dump(
        mode="json", exclude_none=True
    )
    since = now - timedelta(hours=1)
    for member in members:
        session.add(_job(member, spec, owner_id, since))
        session.add(_vm(member, since))
    session.flush()
    for member in members:
        session.add(_attempt(member, since))
        session.add(_checkpoint(member, now))
        session.add_all(_saves(member, now))
    session.add_all(_life(number, now) for number in range(LIVES))


def _job(member: Member, spec: dict[str, object], owner_id: int, since: datetime) -> Job:
    return Job(
        id=member.job,
        name="load",
        owner_id=owner_id,
        submit_token=f"submit-{member.number}",
        spec=spec,
        bundle="0" * 64,
        state="running",
        submitted_at=since,
    )


def _vm(member: Member, since: datetime) -> VmRow:
    where = member.pool
    return VmRow(
        id=member.vm,
        job_id=member.job,
        token=f"launch-{member.number}",
        cloud_id=f"i-{member.number:06d}",
        cloud=where.cloud,
        region=where.region,
        zone=where.zone,
        vm_type=where.vm,
        spot=True,
        dialect="aws",
        grace_s=120.0,
        price=1.0,
        on_demand_price=3.0,
        state="running",
        requested_at=since,
        launched_at=since,
        running_at=since + timedelta(seconds=40),
        joined_at=since + timedelta(seconds=60),
        last_contact_at=since,
        session_hash=token_hash(member.session),
    )


def _attempt(member: Member, since: datetime) -> Attempt:
    trained = since + timedelta(seconds=100)
    place = Place(
        vm_id=member.vm,
        living=True,
        prepared_at=trained,
        started_at=trained,
        first_step_at=trained,
        last_step=1000,
        last_step_at=trained,
    )
    return Attempt(
        job_id=member.job,
        number=1,
        state="running",
        fenced_in=True,
        may_fence=True,
        fenced_at=trained,
        created_at=since,
        restored_step=0,
        save_s=0.4,
        backup_s=6.0,
        step_s=STEP_S,
        places=[place],
    )


def _checkpoint(member: Member, now: datetime) -> Checkpoint:
    return Checkpoint(
        job_id=member.job,
        attempt=1,
        n=2,
        step=1000,
        kind="insurance",
        bytes=500_000_000,
        delta_s=0.4,
        beta_s=6.0,
        committed_at=now - timedelta(seconds=30),
    )


def _saves(member: Member, now: datetime) -> list[Observation]:
    found = []
    for n in range(JOB_SAVES):
        for kind, value in (("save", 0.4), ("backup", 6.0)):
            old = _observation(member.pool, kind, value, member.vm, member.job, n, now)
            old.attempt = 0  # of before: the agent commits the same numbers
            found.append(old)
    return found


def _life(number: int, now: datetime) -> Observation:
    life_s = 3600.0 * (1 + number % 7)
    at = now - timedelta(minutes=3 * number)
    found = _observation(pool(number % ZONES), "life", life_s, f"old-{number}", None, 0, at)
    found.evidence = "notice"
    return found


def _observation(
    where: Pool, kind: str, value: float, vm: str, job: str | None, n: int, at: datetime
) -> Observation:
    return Observation(
        kind=kind,
        cloud=where.cloud,
        region=where.region,
        zone=where.zone,
        vm_type=where.vm,
        spot=True,
        value=value,
        censored=False,
        evidence="",
        job_id=job,
        vm_id=vm,
        attempt=1,
        n=n,
        at=at,
    )


class RestingCloud:
    """Implements `clouds.base.Cloud`: every VM of the fleet runs, every launch is accepted at once
    and written to `launches` with the moment on the monotonic clock of this machine."""

    name = "resting"
    limits = CloudLimits(list_every_s=5.0, boots_images=False)
    separates_users = True

    def __init__(self, members: Sequence[Member], launches: Path, now: datetime) -> None:
        self._launches = launches
        self._vms = {
            f"i-{member.number:06d}": Vm(
                id=f"i-{member.number:06d}",
                token=f"launch-{member.number}",
                pool=member.pool,
                state=CloudVmState.RUNNING,
                requested_at=now,
                running_at=now,
                tags={OWNER_TAG: OWNER},
            )
            for member in members
        }
        self._now = now

    def pools(self) -> Sequence[PoolInfo]:
        return [
            PoolInfo(
                pool=pool(zone),
                price=1.0 + zone / 100,
                on_demand_price=3.0,
                grace_s=120.0,
                dialect=Dialect.AWS,
            )
            for zone in range(ZONES)
        ]

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        if (self._launches.parent / FULL).exists():
            raise QuotaExceeded("nothing more can be had here", scope=Scope.ACCOUNT)
        line = json.dumps({"at": time.monotonic(), "tags": dict(spec.tags)})
        with self._launches.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        vm = Vm(
            id=f"new-{token}",
            token=token,
            pool=spec.pool,
            state=CloudVmState.PENDING,
            requested_at=self._now,
            tags=dict(spec.tags),
        )
        self._vms[vm.id] = vm
        return vm

    def list(self, owner: str) -> Sequence[Vm]:
        return [*self._vms.values()]

    def terminate(self, vm_id: str) -> None:
        self._vms.pop(vm_id, None)

    def preempt(self, vm_id: str, notice_s: float | None = None) -> None:
        raise NotImplementedError("nobody asks for it here")
