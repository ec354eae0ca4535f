"""Which pools of EC2 there are, and what they cost: read rarely, because little of it changes.

A region that does not answer keeps what it said before, so that others can go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spothop.wire import Dialect, Pool
from spothop_master.clouds.aws import pricing, reading, requests
from spothop_master.clouds.aws.calls import Caller
from spothop_master.clouds.aws.config import AwsConfig, RegionConfig
from spothop_master.clouds.base import CloudError, PoolInfo

log = logging.getLogger(__name__)

GRACE_S = 120.0
"""From the notice to the end of a spot VM, at most."""
PLACES_EVERY = timedelta(hours=6)
"""Which types which zones have, and where there are subnets."""
PRICES_EVERY = timedelta(minutes=5)
"""AWS changes its spot prices by little and slowly since 2017."""
LISTED_EVERY = timedelta(days=1)
"""Prices on demand, which change a few times a year."""
TYPES_AT_ONCE = 100
"""VM types in one question."""


@dataclass(frozen=True, kw_only=True)
class VmType:
    """What the catalogue or the configuration says of a VM type."""

    prices: Mapping[str, float]
    """Region -> USD an hour on demand; elsewhere it is offered as spot only."""
    gpu: bool = False
    arch: str = "x86_64"

    def on_demand(self, region: str) -> float:
        """There; where nobody told it to us, the lowest that is known."""
        return self.prices.get(region) or min(self.prices.values())


@dataclass(kw_only=True)
class _Region:
    places: frozenset[tuple[str, str]] = frozenset()
    """VM types and zones in which one could be placed."""
    places_at: datetime | None = None
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    prices_at: datetime | None = None
    listed: Mapping[str, float] = field(default_factory=dict)
    """USD an hour on demand, by AWS's own Price List; it wins over the catalogue."""
    listed_at: datetime | None = None


class Offers:
    """For one caller at a time."""

    def __init__(
        self,
        config: AwsConfig,
        types: Mapping[str, VmType],
        calls: Caller,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._config = config
        self._types = types
        self._calls = calls
        self._now = now
        self._regions = {name: _Region() for name in config.regions}

    def read(self) -> Sequence[PoolInfo]:
        """Raises CloudError when no region ever answered."""
        errors: list[CloudError] = []
        for name, region in self._regions.items():
            try:
                self._refresh(name, region)
            except CloudError as error:
                log.warning("AWS %s does not say what it offers: %s", name, error)
                errors.append(error)
        if errors and not any(region.places_at for region in self._regions.values()):
            raise errors[0]
        return [info for name in self._regions for info in self._infos(name)]

    def spot_price(self, pool: Pool) -> float | None:
        """As it was read last."""
        region = self._regions.get(pool.region)
        return region.prices.get((pool.vm, pool.zone)) if region is not None else None

    def _refresh(self, name: str, region: _Region) -> None:
        now = self._now()
        wanted = sorted(vm for vm, each in self._types.items() if each.prices)
        if _is_old(region.places_at, PLACES_EVERY, now):
            region.places = frozenset(self._places(name, wanted))
            region.places_at = now
        if region.prices_at is not None:  # whoever waits for the first answer gets it sooner
            self._read_list(name, region, now)
        offered = sorted({vm for vm, _ in region.places})
        if offered and _is_old(region.prices_at, PRICES_EVERY, now):
            region.prices = self._prices(name, offered, now)
            region.prices_at = now

    def _read_list(self, name: str, region: _Region, now: datetime) -> None:
        if not _is_old(region.listed_at, LISTED_EVERY, now):
            return
        region.listed_at = now
        try:
            region.listed = pricing.read(self._calls, name)
        except CloudError as error:
            log.warning("AWS %s: prices on demand are those of the catalogue: %s", name, error)

    def _places(self, name: str, wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
        zones = self._zones(name, self._config.regions[name])
        for some in _parts(wanted):
            answer = self._calls.pages(
                "ec2",
                name,
                "describe_instance_type_offerings",
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": some}],
            )
            yield from (each for each in reading.offerings(answer) if each[1] in zones)

    def _zones(self, name: str, region: RegionConfig) -> frozenset[str]:
        if region.subnets:
            return frozenset(region.subnets)
        default = [{"Name": "default-for-az", "Values": ["true"]}]
        found = reading.zones_with_subnet(
            self._calls.pages("ec2", name, "describe_subnets", Filters=default)
        )
        if not found:
            log.warning("AWS %s has no default VPC with subnets; name `subnets` for it", name)
        return found

    def _prices(
        self, name: str, offered: Sequence[str], now: datetime
    ) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for some in _parts(offered):
            question = requests.spot_prices(some, now=now)
            found |= reading.prices(
                self._calls.pages("ec2", name, "describe_spot_price_history", **question)
            )
        return found

    def _infos(self, name: str) -> Iterator[PoolInfo]:
        region = self._regions[name]
        for vm, zone in sorted(region.places):
            known = self._types[vm]
            for spot in (True, False):
                listed = region.listed.get(vm)
                on_demand = listed or known.prices.get(name)
                price = region.prices.get((vm, zone)) if spot else on_demand
                if price is not None:
                    yield PoolInfo(
                        pool=Pool(cloud="aws", region=name, zone=zone, vm=vm, spot=spot),
                        price=price,
                        on_demand_price=listed or known.on_demand(name),
                        grace_s=GRACE_S,
                        dialect=Dialect.AWS,
                    )


def _is_old(at: datetime | None, every: timedelta, now: datetime) -> bool:
    return at is None or not timedelta() <= now - at < every


def _parts(names: Sequence[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), TYPES_AT_ONCE):
        yield list(names[first : first + TYPES_AT_ONCE])


def types_of(config: AwsConfig, known: Mapping[str, VmType]) -> dict[str, VmType]:
    """Those of the catalogue, and the configuration's own."""
    own = {
        name: VmType(prices=dict.fromkeys(config.regions, each.price), gpu=each.gpu, arch=each.arch)
        for name, each in config.vm_types.items()
    }
    return {**known, **own}
