"""What the demo calls the VMs of a job: `VM 2 (azure)`, in the order in which they came."""

from __future__ import annotations

from spothop.wire import JobDetail


def vm_name(job: JobDetail, vm: str | None) -> str:
    """Short, and with the dialect that it speaks; the id of a VM that the job does not list."""
    for number, view in enumerate(job.vms, start=1):
        if view.id == vm:
            speaks = view.dialect.value if view.dialect else view.pool.zone
            return f"VM {number} ({speaks if view.pool.spot else 'on demand'})"
    return vm or "no VM"
