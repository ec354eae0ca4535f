"""Which pools of Compute Engine there are, and what they cost.

Where machine types and GPUs are is read rarely. What they cost is told by no API that needs no key
of its own, so prices are those of the catalogue and of the configuration: a pool whose price on
demand in its region is not known is not offered. A spot price that is not known is taken to be the
price on demand, which it never exceeds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spothop.wire import Dialect, Pool
from spothop_master.clouds.base import BadRequest, CloudError, PoolInfo
from spothop_master.clouds.gcp import reading, requests
from spothop_master.clouds.gcp.calls import Caller
from spothop_master.clouds.gcp.config import GcpConfig, region_of

log = logging.getLogger(__name__)

GRACE_S, SHUTDOWN_S = 120.0, 30.0
"""From the notice to the end of a spot VM: with the notice that we ask for, and without."""
PLACES_EVERY = timedelta(hours=6)
SILENT_EVERY = timedelta(minutes=2)
"""While a zone of ours does not answer."""
TYPES_AT_ONCE = 50
"""VM types in one question."""


@dataclass(frozen=True, kw_only=True)
class VmType:
    """What the catalogue or the configuration says of a VM type."""

    prices: Mapping[str, float]
    """Region -> USD an hour on demand."""
    spot_prices: Mapping[str, float] = field(default_factory=dict)
    gpu: bool = False
    arch: str = "x86_64"

    def price(self, region: str, *, spot: bool) -> float | None:
        """None: nobody told it to us."""
        on_demand = self.prices.get(region)
        return self.spot_prices.get(region, on_demand) if spot else on_demand


class Offers:
    """For one caller at a time."""

    def __init__(
        self,
        config: GcpConfig,
        types: Mapping[str, VmType],
        calls: Caller,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._config = config
        self._types = types
        self._calls = calls
        self._now = now
        self._places: frozenset[tuple[str, str]] = frozenset()
        """VM types and zones in which one could be placed."""
        self._places_at: datetime | None = None
        self._silent: frozenset[str] = frozenset()
        """Zones that did not answer: what was known of them holds, and they are asked again."""

    def read(self, *, notice: bool) -> Sequence[PoolInfo]:
        """`notice`: whether spot VMs have the one that we ask for. Raises CloudError when that was
        never answered."""
        now = self._now()
        every = SILENT_EVERY if self._silent else PLACES_EVERY
        if self._places_at is None or not timedelta() <= now - self._places_at < every:
            try:
                self._places, self._silent = self._read()
                self._places_at = now
            except CloudError as error:
                if self._places_at is None:
                    raise
                log.warning("GCP does not say what it offers: %s", error)
        return [*self._infos(GRACE_S if notice else SHUTDOWN_S)]

    def price(self, pool: Pool) -> float | None:
        known = self._types.get(pool.vm)
        return known.price(pool.region, spot=pool.spot) if known is not None else None

    def _read(self) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
        """VM types and their zones, and the zones of which that is from before."""
        wanted = {vm: machine for vm in self._types if (machine := _machine(vm)) is not None}
        names = sorted({machine.type for machine in wanted.values()})
        there: set[tuple[str, str]] = set()
        silent: set[str] = set()
        project = f"/projects/{self._config.project}"
        for first in range(0, len(names), TYPES_AT_ONCE):
            asked = requests.machine_types(names[first : first + TYPES_AT_ONCE])
            pages = self._calls.pages(f"{project}/aggregated/machineTypes", params=asked)
            some, away = reading.in_zones(pages, "machineTypes")
            there, silent = there | some, silent | away
        if gpus := {machine.gpu for machine in wanted.values() if machine.gpu}:
            asked = requests.machine_types(gpus)
            pages = self._calls.pages(f"{project}/aggregated/acceleratorTypes", params=asked)
            some, away = reading.in_zones(pages, "acceleratorTypes")
            there, silent = there | some, silent | away
        silent = {zone for zone in silent if self._is_ours(zone)}
        zones = {zone for _, zone in there if self._is_ours(zone)} - silent
        found = {(vm, zone) for vm, zone in self._places if zone in silent}
        for vm, machine in wanted.items():
            needed = [machine.type, *([machine.gpu] if machine.gpu else [])]
            found |= {(vm, zone) for zone in zones if all((each, zone) in there for each in needed)}
        return frozenset(found), frozenset(silent)

    def _is_ours(self, zone: str) -> bool:
        region = self._config.regions.get(region_of(zone))
        return region is not None and (not region.zones or zone in region.zones)

    def _infos(self, grace_s: float) -> Iterator[PoolInfo]:
        for vm, zone in sorted(self._places):
            known, region = self._types[vm], region_of(zone)
            on_demand = known.price(region, spot=False)
            for spot in (True, False):
                price = known.price(region, spot=spot)
                if price is None or on_demand is None:
                    continue
                yield PoolInfo(
                    pool=Pool(cloud="gcp", region=region, zone=zone, vm=vm, spot=spot),
                    price=price,
                    on_demand_price=on_demand,
                    grace_s=grace_s if spot else GRACE_S,
                    dialect=Dialect.GCP,
                )


def _machine(vm: str) -> requests.Machine | None:
    try:
        return requests.machine(vm)
    except BadRequest as error:
        log.warning("GCP: %s", error)
        return None


def types_of(config: GcpConfig, known: Mapping[str, VmType]) -> dict[str, VmType]:
    """Those of the catalogue, and the configuration's own."""
    own = {
        name: VmType(
            prices=dict.fromkeys(config.regions, each.price),
            spot_prices=(dict.fromkeys(config.regions, each.spot_price) if each.spot_price else {}),
            gpu=each.gpu,
            arch=each.arch,
        )
        for name, each in config.vm_types.items()
    }
    return {**known, **own}
