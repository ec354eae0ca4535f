"""Which pools of Azure there are, and what they cost: read rarely, because little of it changes.

A region that does not answer keeps what it said before, so that others can go on. A master that
may not ask which VM types there are offers those of the catalogue: one that its region has not is
refused by the launch, and then another one is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from spothop.wire import Dialect, Pool
from spothop_master.clouds.azure import errors, prices
from spothop_master.clouds.azure.calls import Caller, rows
from spothop_master.clouds.azure.config import AzureConfig
from spothop_master.clouds.azure.prices import Ask, Prices
from spothop_master.clouds.azure.reading import region_of
from spothop_master.clouds.azure.requests import zone_name
from spothop_master.clouds.base import AuthFailed, CloudError, PoolInfo

log = logging.getLogger(__name__)

GRACE_S = 30.0
"""From the notice to the end of a spot VM: what Azure says at least, and does not always keep."""
PLACES_EVERY = timedelta(hours=6)
"""Which VM types which zones have: an answer of some megabytes a region."""
PRICES_EVERY = timedelta(hours=1)
"""Azure changes its spot prices a few times a month."""
SKUS_VERSION = "2021-07-01"
ALL_ZONES = ("1", "2", "3")


@dataclass(frozen=True, kw_only=True)
class VmType:
    """What the catalogue or the configuration says of a VM type."""

    prices: Mapping[str, float]
    """Region -> USD an hour on demand; elsewhere it is offered as spot only, unless Azure tells."""
    gpu: bool = False
    arch: str = "x86_64"

    def on_demand(self, region: str) -> float | None:
        """There; where nobody told it to us, the lowest that is known."""
        return self.prices.get(region) or min(self.prices.values(), default=None)


@dataclass(frozen=True)
class Place:
    """One VM type in one zone of a region."""

    vm: str
    zone: str | None
    spot: bool
    """It can be had as spot."""


@dataclass(kw_only=True)
class _Region:
    places: frozenset[Place] = frozenset()
    places_at: datetime | None = None
    prices: Prices = field(default_factory=Prices)
    prices_at: datetime | None = None


class Offers:
    """For one caller at a time."""

    def __init__(
        self,
        config: AzureConfig,
        types: Mapping[str, VmType],
        calls: Caller,
        *,
        ask: Ask,
        now: Callable[[], datetime],
    ) -> None:
        self._config = config
        self._types = types
        self._calls = calls
        self._ask = ask
        self._now = now
        self._regions = {name: _Region() for name in config.regions}

    def read(self) -> Sequence[PoolInfo]:
        """Raises CloudError when no region ever answered."""
        failed: list[CloudError] = []
        for name, region in self._regions.items():
            try:
                self._refresh(name, region)
            except CloudError as error:
                log.warning("Azure %s does not say what it offers: %s", name, error)
                failed.append(error)
        if failed and not any(region.places_at for region in self._regions.values()):
            raise failed[0]
        return [info for name in self._regions for info in self._infos(name)]

    def spot_price(self, pool: Pool) -> float | None:
        """As it was read last."""
        region = self._regions.get(pool.region)
        return region.prices.spot.get(pool.vm.lower()) if region is not None else None

    def _refresh(self, name: str, region: _Region) -> None:
        now = self._now()
        if _is_old(region.places_at, PLACES_EVERY, now):
            region.places = frozenset(self._places(name))
            region.places_at = now
        offered = {place.vm for place in region.places}
        if offered and _is_old(region.prices_at, PRICES_EVERY, now):
            region.prices = prices.read(self._ask, name, offered)
            region.prices_at = now

    def _places(self, name: str) -> Iterator[Place]:
        zones = self._config.regions[name].zones
        try:
            found = skus(self._calls, self._config.subscription, name)
        except AuthFailed as error:
            if error.code not in errors.FORBIDDEN:
                raise
            log.warning("Azure %s: offering what the catalogue has: %s", name, error)
            for vm in self._types:
                yield from (Place(vm, each, spot=True) for each in zones or ALL_ZONES)
            return
        known = {vm.lower(): vm for vm in self._types}
        for row in found:
            vm = known.get(str(row.get("name", "")).lower(), "")
            if vm:
                spot = _has(row, "LowPriorityCapable")
                for zone in _zones(row, name):
                    if zones is None or zone is None or zone in zones:
                        yield Place(vm, zone, spot=spot)

    def _infos(self, name: str) -> Iterator[PoolInfo]:
        region = self._regions[name]
        for place in sorted(region.places, key=lambda each: (each.vm, each.zone or "")):
            known, vm = self._types[place.vm], place.vm.lower()
            listed = region.prices.on_demand.get(vm)
            reference = listed or known.on_demand(name)
            if reference is None:
                continue
            asked = {True: region.prices.spot.get(vm), False: listed or known.prices.get(name)}
            for spot, price in asked.items():
                if price is not None and (place.spot or not spot):
                    zone = zone_name(name, place.zone)
                    yield PoolInfo(
                        pool=Pool(cloud="azure", region=name, zone=zone, vm=place.vm, spot=spot),
                        price=price,
                        on_demand_price=reference,
                        grace_s=GRACE_S,
                        dialect=Dialect.AZURE,
                    )


def skus(calls: Caller, subscription: str, region: str) -> list[Mapping[str, Any]]:
    """Every VM type there. Raises CloudError."""
    path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/skus"
    wanted = {"$filter": f"location eq '{region}'"}
    found = rows(calls.ask("GET", path, version=SKUS_VERSION, **wanted))
    return [row for row in found if row.get("resourceType") == "virtualMachines"]


def _zones(row: Mapping[str, Any], region: str) -> Iterable[str | None]:
    """Where the subscription may have this VM type; [None] in a region without zones."""
    zones: set[str | None] = set()
    for info in row.get("locationInfo") or ():
        if region_of(str(info.get("location", ""))) == region:
            zones.update(info.get("zones") or ())
    without: set[str | None] = set()
    for restriction in row.get("restrictions") or ():
        info = restriction.get("restrictionInfo") or {}
        where = info.get("locations") or restriction.get("values") or ()
        if region not in [region_of(each) for each in where]:
            continue
        if restriction.get("type") == "Location":
            return []
        without.update(info.get("zones") or ())
    return sorted(filter(None, zones - without)) if zones else [None]


def _has(row: Mapping[str, Any], capability: str) -> bool:
    return any(
        each.get("name") == capability and str(each.get("value")).lower() == "true"
        for each in row.get("capabilities") or ()
    )


def _is_old(at: datetime | None, every: timedelta, now: datetime) -> bool:
    return at is None or not timedelta() <= now - at < every


def types_of(config: AzureConfig, known: Mapping[str, VmType]) -> dict[str, VmType]:
    """Those of the catalogue, and the configuration's own."""
    own = {
        name: VmType(prices=dict.fromkeys(config.regions, each.price), gpu=each.gpu, arch=each.arch)
        for name, each in config.vm_types.items()
    }
    return {**known, **own}
