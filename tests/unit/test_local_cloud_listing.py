"""What the local cloud's listing says of a VM, from the files in its folder alone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spothop.wire import Dialect
from spothop_master.clouds.base import CloudVmState
from spothop_master.clouds.local.disk import VmFolder, VmSpec, locked
from spothop_master.clouds.local.vms import VmFolders
from spothop_master.core.evidence import EndCause

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
POOL = {"cloud": "local", "region": "r", "zone": "z", "vm": "small", "spot": True}


def folder_of(path: Path) -> VmFolder:
    folder = VmFolder(path / "lvm-0123456789abcdef")
    folder.path.mkdir()
    folder.write_spec(
        VmSpec(
            id=folder.id,
            token="t",
            pool=POOL,
            tags={},
            requested_at=NOW.isoformat(),
            dialect=Dialect.GCP.value,
            grace_s=30.0,
            allocation_s=0.0,
            boot_s=0.0,
            user_data={},
            command=[],
            isolation="processes",
            forward=[],
            script=None,
        )
    )
    return folder


@pytest.mark.parametrize(
    ("state", "passed_s", "cause"),
    [
        (CloudVmState.RUNNING, -1, None),
        (CloudVmState.RUNNING, 0, EndCause.PREEMPTED),
        (CloudVmState.STOPPING, 1, None),  # somebody asked for the end; which it was is told soon
    ],
)
def test_past_the_announced_deadline_a_vm_is_taken_though_its_supervisor_hangs(
    tmp_path: Path, state: CloudVmState, passed_s: float, cause: EndCause | None
) -> None:
    folder = folder_of(tmp_path)
    deadline = NOW - timedelta(seconds=passed_s)
    folder.write_state(state.value, announced_deadline=deadline.isoformat())
    vms = VmFolders(tmp_path, now=lambda: NOW)
    with locked(folder.lock):  # as its supervisor holds it
        vm = vms.read(folder)
    assert (vm.state, vm.cause) == (state, cause)


def test_without_a_notice_nothing_is_said(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.write_state(CloudVmState.RUNNING.value)
    with locked(folder.lock):
        assert VmFolders(tmp_path, now=lambda: NOW).read(folder).cause is None
