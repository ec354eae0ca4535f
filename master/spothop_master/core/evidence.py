"""What a VM's end says about preemptions (I7): notice > cloud API > silence. Pure.

A life is censored when we cannot say that the cloud took the VM: we ended it ourselves, it broke,
or it only fell silent. A censored life still counts as exposure: it lasted at least that long.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from spothop.wire import VmReason


class EndCause(str, Enum):
    """Why the cloud says a VM ended: what every driver of a cloud has to tell apart."""

    PREEMPTED = "preempted"
    TERMINATED = "terminated"  # by request
    FAILED = "failed"  # hardware, or it never came up
    UNKNOWN = "unknown"


class Evidence(str, Enum):
    """What the end of a life is known from; the first three in the order of their rank."""

    NOTICE = "notice"
    CLOUD = "cloud"
    SILENCE = "silence"
    RELEASED = "released"  # we ended it


@dataclass(frozen=True, kw_only=True)
class EndEvidence:
    """All that is known of an ended VM."""

    running_at: datetime | None
    notice_at: datetime | None
    deadline_at: datetime | None
    ours: VmReason | None
    """Why we asked for its end; None when we did not."""
    cause: EndCause | None
    """None when the cloud no longer knows it."""
    cloud_ended_at: datetime | None
    last_contact_at: datetime | None
    now: datetime


@dataclass(frozen=True, kw_only=True)
class VmVerdict:
    reason: VmReason
    evidence: Evidence
    life_s: float | None
    """None when it never ran."""
    censored: bool
    ended_at: datetime
    """For the bill: when the cloud says it ended."""


def ending(vm: EndEvidence) -> VmVerdict:
    ended_at = vm.cloud_ended_at or vm.now
    if vm.notice_at is not None:
        # Released before its deadline, it would have lived until then.
        died = ended_at if vm.ours is None else (vm.deadline_at or ended_at)
        return _verdict(vm, VmReason.PREEMPTED, Evidence.NOTICE, died, ended_at)
    if EndCause.PREEMPTED is vm.cause or vm.ours is VmReason.PREEMPTED:
        # The latter: the cloud was about to take it, and we ended it first.
        return _verdict(vm, VmReason.PREEMPTED, Evidence.CLOUD, ended_at, ended_at)
    contact = vm.last_contact_at or ended_at
    if vm.ours is VmReason.AGENT_LOST:
        return _verdict(vm, vm.ours, Evidence.SILENCE, contact, ended_at, censored=True)
    if vm.ours is not None:
        return _verdict(vm, vm.ours, Evidence.RELEASED, ended_at, ended_at, censored=True)
    if vm.cause in (EndCause.FAILED, EndCause.TERMINATED):
        return _verdict(vm, VmReason.FAILED, Evidence.CLOUD, ended_at, ended_at, censored=True)
    return _verdict(vm, VmReason.AGENT_LOST, Evidence.SILENCE, contact, ended_at, censored=True)


def _verdict(
    vm: EndEvidence,
    reason: VmReason,
    evidence: Evidence,
    died: datetime,
    ended_at: datetime,
    *,
    censored: bool = False,
) -> VmVerdict:
    life_s = None
    if vm.running_at is not None:
        life_s = max(0.0, (died - vm.running_at).total_seconds())
    return VmVerdict(
        reason=reason, evidence=evidence, life_s=life_s, censored=censored, ended_at=ended_at
    )
