"""The rig of the contract suite for Azure: the driver over the fake, whose time goes by as the
suite says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from fakes.azure import Emulator
from fakes.azure.group import vm_body
from fakes.cloud_rigs import Named
from spothop.wire import Pool
from spothop_master.clouds.azure import prices
from spothop_master.clouds.azure.calls import AzureCalls
from spothop_master.clouds.azure.config import AzureConfig, load
from spothop_master.clouds.azure.driver import AzureCloud
from spothop_master.clouds.base import OWNER_TAG, Cloud

DEPLOY = Path(__file__).parents[2] / "deploy" / "azure"

_calls: dict[str, AzureCalls] = {}
_askers: dict[str, prices.Ask] = {}
"""By endpoint: their clients take a tenth of a second each."""


def calls_of(config: AzureConfig) -> AzureCalls:
    known = _calls.get(config.endpoint_url)
    if known is None:
        known = _calls[config.endpoint_url] = AzureCalls(
            subscription=config.subscription, endpoint_url=config.endpoint_url
        )
    return known


def cloud_of(azure: Emulator, config: AzureConfig, *, behind_s: float = 0.0) -> AzureCloud:
    """`behind_s`: the master's clock, against Azure's."""

    def now() -> datetime:
        return datetime.fromtimestamp(azure.clock() - behind_s, timezone.utc)

    asker = _askers.setdefault(config.prices_url, prices.asker(config.prices_url))
    return AzureCloud(config, calls=calls_of(config), ask_prices=asker, now=now)


class AzureRig(Named):
    throttled = "TooManyRequests"

    def __init__(self, folder: Path, make_azure: Callable[[], Any]) -> None:
        super().__init__()
        self.azure: Emulator = make_azure()
        self.azure.page = 1
        file = folder / "azure.yaml"
        file.write_text(
            yaml.safe_dump(self.azure.config(vm_types={"Standard_D2s_v5": {"price": 1}}))
        )
        self.cloud: Cloud = cloud_of(self.azure, load(file))
        self.spot = Pool(cloud="azure", region="eastus", zone="eastus-1", vm="Standard_D2s_v5")
        self.on_demand = self.spot.model_copy(update={"spot": False})
        self.cloud.pools()  # so that prices are known

    def pass_time(self) -> None:
        self.azure.clock.advance(10.0)

    def refuse(self) -> None:
        self.azure.fail("PUT virtualMachines", 409, "SkuNotAvailable")

    def refuse_later(self) -> None:
        self.azure.group.doomed.append("ZonalAllocationFailed")

    def throttle(self) -> None:
        self.azure.fail("PUT virtualMachines", 429, "TooManyRequests")

    def expire(self) -> None:
        self.azure.fail("*", 401, "ExpiredAuthenticationToken", times=1 << 30)

    def renew(self) -> None:
        self.azure.faults.clear()

    def lose_answer(self) -> None:
        self.azure.cut("PUT virtualMachines", after=True)

    def lose_request(self) -> None:
        self.azure.cut("PUT virtualMachines")

    def hide(self) -> None:
        raise NotImplementedError

    def vanish_preempted(self) -> None:
        self.azure.group.log_lag_s = 1e6

    def stray(self) -> str:
        """Made by hand, in a region that the configuration lacks."""
        body = vm_body("by-hand", **{OWNER_TAG: self.us})
        return self.azure.group.make("by-hand", body).name

    def left(self) -> list[str]:
        return self.azure.group.left()

    def close(self) -> None: ...
