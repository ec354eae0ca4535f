"""What the answers of before say, where the newest one is silent. Not thread-safe."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spothop.backoff import delay_s
from spothop_master.clouds.aws.reading import SpotStatus
from spothop_master.clouds.base import AuthFailed, CloudError

AGAIN_BASE_S, AGAIN_MAX_S = 10.0, 600.0
"""Until spot requests are asked for again that were refused: EC2 counts each action by itself, so
asking at every listing would keep its bucket empty."""


class Whereabouts:
    """The regions of VMs, until some time after their listings lack them."""

    def __init__(self, kept: timedelta) -> None:
        self._kept = kept
        self._regions: dict[str, str] = {}
        self._unlisted: dict[str, datetime] = {}
        """Since when the listing of its region lacks a VM."""

    def of(self, vm_id: str) -> str | None:
        return self._regions.get(vm_id)

    def saw(self, vm_ids: Iterable[str], region: str) -> None:
        for vm_id in vm_ids:
            self._regions[vm_id] = region
            self._unlisted.pop(vm_id, None)

    def unlisted(self, region: str, listed: Container[str], *, now: datetime) -> list[str]:
        """Those that this listing lacks; who is missing for longer than `kept` is forgotten. Not at
        once: one that was just launched may not be listed yet."""
        missing = [
            vm_id
            for vm_id, there in self._regions.items()
            if there == region and vm_id not in listed
        ]
        for vm_id in missing:
            since = self._unlisted.setdefault(vm_id, now)
            if now - since >= self._kept:
                del self._regions[vm_id], self._unlisted[vm_id]
            elif since > now:  # the clock was set back
                self._unlisted[vm_id] = now
        return missing


@dataclass(kw_only=True)
class SpotRequests:
    """What the spot requests of one region said last, and when they may be asked for again."""

    statuses: Mapping[str, SpotStatus] = field(default_factory=dict)
    """By the VM's id. Kept while nobody answers: what EC2 has announced stays true."""
    error: CloudError | None = None
    """Why the newest question had no answer."""
    _forbidden: bool = False
    _failures: int = 0
    _asked_at: datetime | None = None
    _wait: timedelta = timedelta()

    def is_due(self, now: datetime) -> bool:
        if self._forbidden:
            return False
        return self._asked_at is None or not timedelta() <= now - self._asked_at < self._wait

    def answered(self, statuses: Mapping[str, SpotStatus]) -> None:
        self.statuses, self.error = statuses, None
        self._failures, self._asked_at = 0, None

    def failed(self, error: CloudError, *, now: datetime) -> None:
        """A policy that forbids the question is not asked again."""
        self.error = error
        self._forbidden = isinstance(error, AuthFailed)
        self._failures += 1
        wait_s = delay_s(self._failures, base_s=AGAIN_BASE_S, max_s=AGAIN_MAX_S, jitter=0.5)
        wait_s = max(wait_s, min(error.retry_after_s or 0.0, AGAIN_MAX_S))
        self._asked_at, self._wait = now, timedelta(seconds=wait_s)
