"""The VMs that this process has seen, until an hour after they are over.

Compute Engine forgets a VM at once. What it was is kept here, so that listings can say that it is
over; after a restart they do not, and its operations still tell why it ended. Nothing is decided by
what is only here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spothop_master.clouds.base import OWNER_TAG, CloudVmState, Vm
from spothop_master.clouds.gcp.reading import Fate
from spothop_master.core.evidence import EndCause

KEPT = timedelta(hours=1)
"""After a VM was over, or was seen last."""


@dataclass
class _Life:
    vm: Vm
    seen_at: datetime


class Lives:
    """Thread-safe."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._lives: dict[str, _Life] = {}
        self._lock = threading.Lock()

    def saw(self, vms: Iterable[Vm]) -> list[Vm]:
        """These are listed, or were just launched. What was told of their ends stays."""
        now = self._now()
        with self._lock:
            for vm in vms:
                known = self._lives.get(vm.id)
                if known is not None and known.vm.state is CloudVmState.TERMINATED:
                    continue  # an older listing: nothing comes back
                if known is not None:
                    vm = replace(
                        vm,
                        running_at=vm.running_at or known.vm.running_at,
                        cause=known.vm.cause,
                        told=known.vm.told,
                    )
                self._lives[vm.id] = _Life(vm, now)
            return [self._lives[vm.id].vm for vm in vms if vm.id in self._lives]

    def unclear(self, region: str, owner: str, listed: Iterable[str]) -> list[str]:
        """Ids of those whose operations have to tell: that come to an end and nobody said why, or
        that are listed no more."""
        there = frozenset(listed)
        with self._lock:
            self._forget()
            return [
                vm_id
                for vm_id, life in self._lives.items()
                if _is_of(life.vm, region, owner) and _is_unclear(life.vm, listed=vm_id in there)
            ]

    def tell(self, fates: Mapping[str, Fate], *, listed: Iterable[str]) -> None:
        """What the operations say of these."""
        there = frozenset(listed)
        with self._lock:
            for vm_id, fate in fates.items():
                if vm_id in self._lives:
                    life = self._lives[vm_id]
                    life.vm = _with_fate(life.vm, fate, listed=vm_id in there)

    def over(self, region: str, owner: str) -> Sequence[Vm]:
        with self._lock:
            return [
                life.vm
                for life in self._lives.values()
                if _is_of(life.vm, region, owner) and life.vm.state is CloudVmState.TERMINATED
            ]

    def get(self, vm_ids: Iterable[str]) -> list[Vm]:
        with self._lock:
            return [self._lives[vm_id].vm for vm_id in vm_ids if vm_id in self._lives]

    def _forget(self) -> None:
        now = self._now()
        for vm_id in [key for key, life in self._lives.items() if now - life.seen_at > KEPT]:
            del self._lives[vm_id]


def _is_of(vm: Vm, region: str, owner: str) -> bool:
    return vm.pool.region == region and vm.tags.get(OWNER_TAG) == owner


def _is_unclear(vm: Vm, *, listed: bool) -> bool:
    if vm.state is CloudVmState.TERMINATED:
        return False
    return not listed or (vm.state is CloudVmState.STOPPING and vm.cause is None)


def _with_fate(vm: Vm, fate: Fate, *, listed: bool) -> Vm:
    """One that is still listed is not over, whatever its operations say."""
    if listed or fate.over_at is None:
        return replace(vm, cause=fate.cause, told=fate.told)
    never_ran = fate.refused is not None
    return replace(
        vm,
        state=CloudVmState.TERMINATED,
        cause=fate.cause or EndCause.UNKNOWN,
        told=fate.told,
        error=fate.refused,
        running_at=None if never_ran else vm.running_at,
        ended_at=max(fate.over_at, vm.running_at or vm.requested_at),
    )
