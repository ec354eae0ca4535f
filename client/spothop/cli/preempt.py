"""`spothop preempt`: the target may be a job or a VM."""

from __future__ import annotations

from spothop.cli.target import job_or_vm
from spothop.sdk.client import Client
from spothop.wire import VmView


def preempt(client: Client, target: str, notice_s: float | None) -> VmView:
    """Preempt the VM of the job with this id or name, or the VM with this id; raises ApiError."""
    return job_or_vm(
        target,
        lambda job: client.preempt(job, notice_s=notice_s),
        lambda vm: client.preempt_vm(vm, notice_s=notice_s),
    )
