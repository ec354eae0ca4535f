"""What the refusal of a launch closes, for how long, and what is told of it. Pure.

What it must guarantee: a cloud that refuses is asked less and less often, by all jobs and masters
together, and no pool stands idle for what only concerns another one. Four rules:

1. A refusal closes its scope. A pool is closed for the job that was refused: its price cap or its
   image may be the reason. A zone, a region and an account are closed for all jobs.
2. It stays closed for a back-off that grows with the refusals in a row and is never shorter than
   what the provider asked for. A refusal of a launch that was asked for before the newest one was
   known grows nothing: a hundred launches under way at once are one piece of news.
3. After it one launch is let through, and the others wait `PROBE` for what comes of it (the
   half-open state of a circuit breaker). Else every job that waits would ask in the same second.
4. A launch that was accepted opens the account again, and what was throttled around it; a VM that
   runs opens everything around it. Two of three clouds accept first and refuse later, so that
   acceptance says nothing of capacity.

Quotas of spot and on-demand VMs are different ones, and so are those of families of VM types (a new
AWS account has none for GPUs, and one for plain VMs): a quota closes its market and family alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache

from spothop.backoff import delay_s
from spothop.wire import Pool

REFUSALS = (
    "CloudError",  # any other
    "NoCapacity",
    "QuotaExceeded",
    "PriceTooHigh",
    "Throttled",
    "Unavailable",
    "Ambiguous",
    "BadRequest",
    "AuthFailed",
)
"""Names of the errors with which clouds refuse launches (`clouds.base`)."""

FINAL = frozenset({"BadRequest"})
"""Refusals that no repetition changes."""

HELD = frozenset({"AuthFailed"})
"""Only people can mend these: the longest back-off from the first one on."""

PROBE = timedelta(seconds=20)
"""How long all others wait for what becomes of the launch that was let through."""

SPREAD_S = 10.0
"""Jobs that wait for one scope come back over so many seconds after it has opened."""

LONGEST_RETRY_S = 3600.0
"""What a provider asks for is followed up to this."""

_GENERATION = re.compile(r"([a-z]+)\d")

_WORDS = {
    "CloudError": "refused",
    "NoCapacity": "no capacity",
    "QuotaExceeded": "quota reached",
    "PriceTooHigh": "above the price cap",
    "Throttled": "throttled",
    "Unavailable": "unavailable",
    "Ambiguous": "no clear answer",
    "BadRequest": "bad request",
    "AuthFailed": "the master's credentials are refused",
}
_HINTS = {"AuthFailed": "an admin of this master has to mend them, then the job goes on by itself"}


class Scope(str, Enum):
    """What a refusal is about."""

    POOL = "pool"
    ZONE = "zone"
    REGION = "region"
    ACCOUNT = "account"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """One answer of a cloud."""

    error: str
    """One of `REFUSALS`."""
    scope: Scope
    detail: str
    """In the cloud's own words."""
    code: str | None = None
    """The provider's own name for it."""
    retry_after_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PoolRefusal:
    """What one pool answered to one job lately."""

    pool: Pool
    error: str
    last_at: datetime
    until: datetime | None = None
    """Closed for this job; None: it was not the pool that refused, or it has accepted since."""


@dataclass(frozen=True, kw_only=True)
class BackOff:
    """A zone, a region or an account that is closed for all jobs until some moment."""

    cloud: str
    scope: Scope
    name: str
    """As `name_of` makes it."""
    error: str
    detail: str = ""
    until: datetime

    def covers(self, pool: Pool) -> bool:
        return (self.cloud, self.scope, self.name) in keys_of(pool)

    @property
    def label(self) -> str:
        """What is closed and why, without its times."""
        what = _WORDS.get(self.error, self.error)
        where = f"{self.cloud} {self.name}".rstrip()
        hint = _HINTS.get(self.error)
        return f"{where}: {what}" + (f" ({self.detail}); {hint}" if hint else "")

    @property
    def told(self) -> str:
        return f"{self.label}, until {self.until:%H:%M:%S} UTC"


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How back-offs grow; seconds."""

    base_s: float
    max_s: float
    jitter: float
    """Uniform in [0, 1)."""

    def back_off(self, refused: Refused, in_row: int) -> timedelta:
        """After the `in_row`-th refusal, counted from 1."""
        failures = 99 if refused.error in HELD else in_row
        seconds = delay_s(failures, base_s=self.base_s, max_s=self.max_s, jitter=self.jitter)
        return timedelta(seconds=max(seconds, _bounded(refused.retry_after_s)))

    def in_row(self, before: int, last_at: datetime, *, asked_at: datetime) -> int:
        """Of a refusal now, after `before` in a row, the newest of them at `last_at`; `asked_at` is
        when its launch was asked for. Long after the longest back-off the count begins anew."""
        if asked_at <= last_at:
            return max(1, before)
        return 1 if asked_at - last_at > timedelta(seconds=2 * self.max_s) else before + 1


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A pool that is left alone for now."""

    until: datetime
    by: BackOff | None
    """None: by its own refusal."""


def name_of(scope: Scope, pool: Pool, error: str) -> str:
    """Of what `scope` means for this pool; empty for the whole account."""
    place = {
        Scope.ACCOUNT: "",
        Scope.REGION: pool.region,
        Scope.ZONE: f"{pool.region}/{pool.zone}",
        Scope.POOL: str(pool),
    }[scope]
    if error != "QuotaExceeded":
        return place
    market = "spot" if pool.spot else "on-demand"
    return f"{place} {market} {_family(pool.vm)}".strip()


def _family(vm: str) -> str:
    """Of a VM type: what stands before the number of its generation (g5.xlarge, a2-highgpu-1g);
    empty where its name has no such form, and then all are one family."""
    found = _GENERATION.match(vm)
    return found[1] if found else ""


@lru_cache(maxsize=4096)
def keys_of(pool: Pool) -> frozenset[tuple[str, Scope, str]]:
    """Cloud, scope and name of every back-off that closes this pool for all jobs."""
    return frozenset(
        (pool.cloud, scope, name_of(scope, pool, error))
        for scope in (Scope.ZONE, Scope.REGION, Scope.ACCOUNT)
        for error in ("QuotaExceeded", "")
    )


def closed(
    pools: Iterable[Pool],
    refusals: Sequence[PoolRefusal],
    back_offs: Sequence[BackOff],
    *,
    now: datetime,
) -> dict[Pool, Closed]:
    """Those of `pools` that are left alone now; each by what closes it for longest."""
    own = {each.pool: each.until for each in refusals if each.until is not None}
    shut = [each for each in back_offs if now < each.until]
    found: dict[Pool, Closed] = {}
    if not own and not shut:
        return found
    for pool in pools:
        reasons = [Closed(until=each.until, by=each) for each in shut if each.covers(pool)]
        if pool in own and now < own[pool]:
            reasons.append(Closed(until=own[pool], by=None))
        if reasons:
            found[pool] = max(reasons, key=lambda reason: reason.until)
    return found


def first_opening(closed: Mapping[Pool, Closed], *, jitter: float) -> datetime:
    """When the first of them is to be tried again."""
    return min(
        each.until + timedelta(seconds=SPREAD_S * jitter if each.by else 0.0)
        for each in closed.values()
    )


def told_until(refused: Refused, until: datetime | None, *, now: datetime) -> str:
    """When whatever refused is asked again, for people; empty where it is not."""
    if until is None or refused.error in FINAL:
        return ""
    what = "" if refused.scope is Scope.POOL else f"its {refused.scope.value} is "
    return f"; {what}asked again in {(until - now).total_seconds():.0f} s"


def left_out(closed: Mapping[Pool, Closed]) -> list[str]:
    """What a choice of another pool says of zones, regions and accounts that are closed."""
    found = sorted({each.by.told for each in closed.values() if each.by is not None})
    return [f"left out: {', '.join(found)}"] if found else []


def why(closed: Mapping[Pool, Closed]) -> str:
    """Why no pool is tried now, without times."""
    reasons = sorted({each.by.label for each in closed.values() if each.by is not None})
    own = sum(each.by is None for each in closed.values())
    if own:
        reasons.append("1 pool refused" if own == 1 else f"{own} pools refused")
    return "; ".join(reasons)


def _bounded(retry_after_s: float | None) -> float:
    """Nothing that is no number, and nothing without an end."""
    if retry_after_s is None or math.isnan(retry_after_s):
        return 0.0
    return min(max(0.0, retry_after_s), LONGEST_RETRY_S)
