"""What listings showed of VMs: for the moments that Azure does not tell, and for VMs that vanish.

None of it matters: after a restart of the master a VM that ran counts as running since it was
made, and one that vanished meanwhile is asked about by whoever misses it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spothop_master.clouds.base import CloudError, CloudVmState, Vm
from spothop_master.core.evidence import EndCause

KEPT = timedelta(hours=1)
"""So long a VM that ended is listed."""


@dataclass
class Memory:
    """Thread-safe. All by the names of VMs."""

    _seen: dict[str, Vm] = field(default_factory=dict)
    """As they were listed last, while they lived."""
    _pending: set[str] = field(default_factory=set)
    _ran: dict[str, datetime] = field(default_factory=dict)
    _first: dict[str, datetime] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    """Whose end we asked for."""
    _lost: dict[str, Vm] = field(default_factory=dict)
    """That are gone, and nobody knows why."""
    _ended: dict[str, Vm] = field(default_factory=dict)
    _refusals: dict[str, CloudError | None] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # --- moments --------------------------------------------------------------------------------

    def first(self, name: str, *, now: datetime) -> datetime:
        """When it was listed first."""
        with self._lock:
            return self._first.setdefault(name, now)

    def ran(self, name: str) -> datetime | None:
        with self._lock:
            return self._ran.get(name)

    def runs(self, name: str, otherwise: datetime, *, now: datetime) -> datetime:
        """Since when; `otherwise` for one that was never seen pending: it may have run for long."""
        with self._lock:
            since = now if name in self._pending else otherwise
            self._pending.discard(name)
            return self._ran.setdefault(name, since)

    def pending(self, name: str) -> None:
        with self._lock:
            self._pending.add(name)

    # --- refusals -------------------------------------------------------------------------------

    def knows_refusal(self, name: str) -> bool:
        with self._lock:
            return name in self._refusals

    def refusal(self, name: str) -> CloudError | None:
        with self._lock:
            return self._refusals.get(name)

    def refused(self, name: str, error: CloudError | None) -> None:
        with self._lock:
            self._refusals[name] = error

    # --- ends -----------------------------------------------------------------------------------

    def seen(self, vm: Vm) -> None:
        """It lives; one of that name may have been made again."""
        with self._lock:
            self._seen[vm.id] = vm
            self._ended.pop(vm.id, None)
            self._lost.pop(vm.id, None)

    def missing(self, owner_tag: tuple[str, str], listed: Iterable[str]) -> list[Vm]:
        """That were listed before, and are not in this listing."""
        key, value = owner_tag
        with self._lock:
            gone = self._seen.keys() - set(listed)
            return [
                self._seen[name] for name in sorted(gone) if self._seen[name].tags.get(key) == value
            ]

    def ask_end(self, name: str) -> None:
        with self._lock:
            self._asked.add(name)

    def asked(self, name: str) -> bool:
        with self._lock:
            return name in self._asked

    def is_gone(self, name: str, *, now: datetime) -> None:
        """Azure says that there is none of this name."""
        with self._lock:
            vm = self._seen.pop(name, None)
            if vm is not None:
                ended_at = max(now, vm.running_at or vm.requested_at)
                self._lost[name] = replace(vm, state=CloudVmState.TERMINATED, ended_at=ended_at)

    def lost(self) -> dict[str, datetime]:
        """That are gone, and nobody knows why: since when they are missed."""
        with self._lock:
            return {name: vm.ended_at or vm.requested_at for name, vm in self._lost.items()}

    def over(self, name: str, cause: EndCause) -> None:
        """Why one ended that is gone."""
        with self._lock:
            vm = self._lost.pop(name, None)
            if vm is not None:
                self._ended[name] = replace(vm, cause=cause)

    def ended(self, name: str) -> Vm | None:
        """Whatever it ended of."""
        with self._lock:
            return self._ended.get(name) or self._lost.get(name)

    def all_ended(self, owner_tag: tuple[str, str], *, now: datetime) -> list[Vm]:
        """Of this owner, in the last hour, and known why; what is older is forgotten."""
        key, value = owner_tag
        with self._lock:
            for kept in (self._ended, self._lost):
                for name, vm in [*kept.items()]:
                    if vm.ended_at is not None and not now - KEPT < vm.ended_at <= now + KEPT:
                        self._forget(name)
            return [vm for vm in self._ended.values() if vm.tags.get(key) == value]

    def _forget(self, name: str) -> None:
        for known in (self._ended, self._lost, self._ran, self._first, self._refusals):
            known.pop(name, None)
        self._asked.discard(name)
        self._pending.discard(name)
