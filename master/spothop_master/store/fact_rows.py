"""The queries for the facts that decisions are made from (`loops.snapshot`), several jobs at once.

Columns and not objects, which cost ten times as much. The statements are made once. What they
return does not grow with a job's history: an index leads to the job's rows, and of those that are
over only the ones that some rule looks at are returned.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, bindparam, func, or_, select
from sqlalchemy.orm import aliased

from spothop.wire import AttemptState, EndReason, SaveKind, VmState
from spothop_master.store.schema import Attempt, Checkpoint, Job, Place, User, VmRow

ALIVE = [state.value for state in VmState if state is not VmState.TERMINATED]

_of_these: BindParameter[Any] = bindparam("jobs", expanding=True)
_other = aliased(Attempt)
_newest = select(func.max(_other.number)).where(_other.job_id == Attempt.job_id).scalar_subquery()

JOBS = (
    select(
        Job.id,
        Job.state,
        Job.wanted,
        Job.submitted_at,
        Job.user_failures,
        Job.infrastructure_failures,
        Job.not_before,
        Job.wanted_why,
        Job.at_once,
        Job.paused_s,
        Job.owner_id,
        User.name.label("owner"),
        User.max_vms,
    )
    .join(User, User.id == Job.owner_id)
    .where(Job.id.in_(_of_these))
)

ATTEMPTS = (
    select(
        Attempt.id,
        Attempt.job_id,
        Attempt.number,
        Attempt.state,
        Attempt.reason,
        Attempt.detail,
        Attempt.fenced_at,
        Attempt.may_fence,
        Attempt.step_s,
        Attempt.save_s,
        Attempt.backup_s,
        Attempt.stop_wanted,
        Attempt.stop_at,
        Attempt.ended_at,
        Place.vm_id,
        Place.node,
        Place.prepared_at,
        Place.first_step_at,
        Place.notice_at,
        Place.deadline_at,
    )
    .join(Place, Place.attempt_id == Attempt.id)
    .where(
        Attempt.job_id.in_(_of_these),
        or_(
            Attempt.state != AttemptState.ENDED.value,
            Attempt.reason == EndReason.SUCCEEDED.value,
            Attempt.number > _newest - 2,
        ),
    )
    .order_by(Attempt.job_id, Attempt.number, Place.node)
)

VMS = (
    select(
        VmRow.id,
        VmRow.job_id,
        VmRow.token,
        VmRow.cloud_id,
        VmRow.cloud,
        VmRow.region,
        VmRow.zone,
        VmRow.vm_type,
        VmRow.spot,
        VmRow.state,
        VmRow.reason,
        VmRow.requested_at,
        VmRow.launched_at,
        VmRow.running_at,
        VmRow.joined_at,
        VmRow.last_contact_at,
        VmRow.suspect_at,
        VmRow.notice_at,
        VmRow.deadline_at,
        VmRow.at_risk_at,
        VmRow.ended_at,
        VmRow.lease_token,
        VmRow.lease_until,
    )
    .where(
        VmRow.job_id.in_(_of_these),
        or_(
            VmRow.state.in_(ALIVE),
            VmRow.id.in_(bindparam("placed", expanding=True)),
            VmRow.ended_at >= bindparam("since"),
        ),
    )
    .order_by(VmRow.requested_at, VmRow.id)
)

_saves = (
    select(Checkpoint.id)
    .where(Checkpoint.job_id == Attempt.job_id, Checkpoint.attempt == Attempt.number)
    .order_by(Checkpoint.n.desc())
    .limit(1)
    .correlate(Attempt)
)
_newest_save = aliased(Checkpoint)
_emergency = aliased(Checkpoint)
SAVES = (
    select(
        Attempt.id,
        _newest_save.committed_at,
        _newest_save.beta_s,
        _emergency.committed_at.label("emergency_at"),
    )
    .select_from(Attempt)
    .outerjoin(_newest_save, _newest_save.id == _saves.scalar_subquery())
    .outerjoin(
        _emergency,
        _emergency.id
        == _saves.where(Checkpoint.kind == SaveKind.EMERGENCY.value).scalar_subquery(),
    )
    .where(Attempt.id.in_(bindparam("attempts", expanding=True)))
)
"""Of attempts with a notice: the newest checkpoint, and the newest that an emergency asked for. (A
save of the user that answers its request is of this kind. Other saves do not count: one that was on
its way when the notice came is followed by a better one.)"""
