"""The folders of all VMs: the listing, orders to supervisors, cleaning up after dead ones."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from spothop.wire import Pool
from spothop_master.clouds.base import CloudVmState, NoCapacity, Vm
from spothop_master.clouds.local.disk import VmFolder, locked, read_json, write_json
from spothop_master.clouds.local.processes import kill_until_gone, marked
from spothop_master.core.evidence import EndCause

_ID = re.compile(r"lvm-[0-9a-f]{16}")
_BURIAL_S = 5.0
NEW, GONE = ".new-", ".gone-"
"""Before the names of folders that are not VMs yet, or not any more."""

_log = logging.getLogger(__name__)


class VmFolders:
    """Reads and orders; launches are the driver's."""

    def __init__(self, path: Path, *, now: Callable[[], datetime]) -> None:
        self.path = path
        self._now = now
        self._ended: dict[str, Vm] = {}
        """Those that ended change no more; they are most of a listing, which is asked for often."""

    def all(self) -> Sequence[VmFolder]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:  # nothing was launched yet
            return []
        return [VmFolder(self.path / name) for name in names if _ID.fullmatch(name)]

    def find(self, vm_id: str) -> VmFolder | None:
        path = self.path / vm_id
        return VmFolder(path) if _ID.fullmatch(vm_id) and path.exists() else None

    def read(self, folder: VmFolder) -> Vm:
        """What the disk says, after cleaning up a VM that has no supervisor any more."""
        if folder.id in self._ended:
            return self._ended[folder.id]
        vm = self._read(folder)
        if vm.state is CloudVmState.TERMINATED:
            self._ended[vm.id] = vm
        return vm

    def _read(self, folder: VmFolder) -> Vm:
        spec, state = folder.read_spec(), read_json(folder.state)
        if state["state"] != CloudVmState.TERMINATED.value:
            with locked(folder.lock, wait=False) as lock:
                if lock is not None:
                    self._clean_up(folder)
                    state = read_json(folder.state)
        said = CloudVmState(state["state"])
        return Vm(
            id=spec.id,
            token=spec.token,
            pool=Pool.model_validate(spec.pool),
            state=said,
            cause=_cause(said, state, now=self._now()),
            requested_at=datetime.fromisoformat(spec.requested_at),
            running_at=_moment(state.get("running_at")),
            ended_at=_moment(state.get("ended_at")),
            error=NoCapacity(str(state["error"])) if state.get("error") else None,
            tags=spec.tags,
        )

    def order(
        self,
        folder: VmFolder,
        *,
        terminate: bool = False,
        preemption: tuple[float | None, ...] = (),
    ) -> None:
        """Add to the VM's orders and wake its supervisor; the caller holds the cloud's lock."""
        orders: dict[str, Any] = {"terminate": False, "preemptions": []}
        if folder.control.exists():
            orders = read_json(folder.control)
        orders["terminate"] = orders["terminate"] or terminate
        orders["preemptions"] = [*orders["preemptions"], *preemption]
        write_json(folder.control, orders)
        folder.ring()

    def drop_unfinished(self) -> None:
        """Remove what a crash or a full disk left of a launch, or of a VM that was forgotten; the
        caller holds the cloud's lock, so that neither is under way."""
        for name in os.listdir(self.path):
            if name.startswith((NEW, GONE)):
                shutil.rmtree(self.path / name, ignore_errors=True)

    def forget(self, folder: VmFolder) -> None:
        """Take a VM that ended off the listing."""
        self._ended.pop(folder.id, None)
        gone = folder.path.with_name(f"{GONE}{folder.id}")
        folder.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _clean_up(self, folder: VmFolder) -> None:
        """End what a dead supervisor left; the caller holds the VM's lock."""
        if read_json(folder.state)["state"] == CloudVmState.TERMINATED.value:
            return  # it ended as it should, since we looked first
        left = kill_until_gone(partial(marked, folder.id), within_s=_BURIAL_S)
        if left:
            _log.error("VM %s: processes %s cannot be killed; trying again later", folder.id, left)
            return
        detail = "its supervisor died"
        try:
            folder.wipe()
        except OSError as error:  # it is over all the same: one VM's disk holds up no other's list
            _log.error("VM %s: its disk cannot be wiped: %s", folder.id, error)
            detail += f"; disk not wiped: {error}"
        folder.write_state(
            CloudVmState.TERMINATED.value,
            cause=EndCause.FAILED.value,
            detail=detail,
            ended_at=self._now().isoformat(),
        )


def _cause(said: CloudVmState, state: Mapping[str, Any], *, now: datetime) -> EndCause | None:
    """Past the announced deadline the cloud has taken the VM, whether its supervisor, which may
    hang, has ended its processes or not."""
    if cause := state.get("cause"):
        return EndCause(cause)
    deadline = _moment(state.get("announced_deadline"))
    taken = said is CloudVmState.RUNNING and deadline is not None and now >= deadline
    return EndCause.PREEMPTED if taken else None


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
