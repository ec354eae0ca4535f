"""The driver of Azure over the fake, and what its tests ask it for."""

from __future__ import annotations

from typing import Any

from fakes.azure import Emulator
from fakes.azure_rig import cloud_of
from spothop.wire import AgentConfig, Dialect, Pool
from spothop_master.clouds.azure.config import AzureConfig
from spothop_master.clouds.azure.driver import AzureCloud
from spothop_master.clouds.base import (
    OWNER_TAG,
    CloudVmState,
    LaunchSpec,
    Vm,
)

D2 = "Standard_D2s_v5"
POOL = Pool(cloud="azure", region="eastus", zone="eastus-1", vm=D2)
ON_DEMAND = POOL.model_copy(update={"spot": False})


def cloud_at(azure: Emulator, **more: Any) -> AzureCloud:
    """`more`: of its configuration."""
    config = azure.config(vm_types={D2: {"price": 1.0}}, **more)
    return cloud_of(azure, AzureConfig.model_validate(config))


def spec(pool: Pool = POOL, **more: Any) -> LaunchSpec:
    user_data = AgentConfig(
        master="http://m", token="j", vm="vm-1", dialect=Dialect.AZURE, directory="/x"
    )
    tags = {OWNER_TAG: "us", "spothop-vm": "vm-1"}
    return LaunchSpec(pool=pool, user_data=user_data, script="#!/bin/sh\n", tags=tags, **more)


def listed(cloud: AzureCloud, vm: Vm) -> Vm:
    [found] = [each for each in cloud.list("us") if each.id == vm.id]
    return found


def running(azure: Emulator, cloud: AzureCloud, token: str = "t1", pool: Pool = POOL) -> Vm:
    vm = cloud.launch(spec(pool), token)
    azure.clock.advance(azure.group.boot_s)
    found = listed(cloud, vm)
    assert found.state is CloudVmState.RUNNING
    return found
