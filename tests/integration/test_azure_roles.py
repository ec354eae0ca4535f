"""What the roles in deploy/azure allow, against what the driver does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes.azure import Emulator
from fakes.azure.server import Refusal
from fakes.azure_driver import ON_DEMAND, cloud_at, listed, running, spec
from fakes.azure_rig import DEPLOY
from spothop_master.clouds.azure.driver import AzureCloud
from spothop_master.clouds.base import (
    AuthFailed,
)
from spothop_master.core.evidence import EndCause


@pytest.fixture
def cloud(azure: Emulator) -> AzureCloud:
    return cloud_at(azure)


def roles(*names: str) -> list[dict[str, Any]]:
    return [json.loads((DEPLOY / f"{name}.json").read_text("utf-8")) for name in names]


def test_the_roles_of_deploy_allow_all_that_the_driver_does(
    azure: Emulator, cloud: AzureCloud
) -> None:
    azure.roles = {"none": roles("master", "reader")}
    vm = running(azure, cloud)
    assert cloud.pools()
    assert cloud.console(vm.id) == ""
    cloud.preempt(vm.id)
    azure.clock.advance(60)
    assert listed(cloud, vm).cause is EndCause.PREEMPTED
    assert cloud.remains("us") == []
    cloud.terminate(cloud.launch(spec(ON_DEMAND), "t2").id)
    asked = {call.what for call in azure.calls}
    assert {"GET values", "GET skus", "POST virtualMachines/simulateEviction"} <= asked


@pytest.mark.parametrize("role", ["master", "vm", "reader"])
def test_no_role_of_deploy_allows_more_than_it_says(role: str) -> None:
    [found] = roles(role)
    assert not any("*" in action for action in found["Actions"])
    [scope] = found["AssignableScopes"]
    assert scope.endswith("RESOURCE_GROUP") is (role != "reader")


@pytest.mark.parametrize(
    "action",
    [
        "Microsoft.Compute/virtualMachines/write",
        "Microsoft.Network/virtualNetworks/subnets/join/action",
        "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
        "Microsoft.Network/publicIPAddresses/write",
    ],
)
def test_a_role_that_lacks_an_action_says_which(
    azure: Emulator, cloud: AzureCloud, action: str
) -> None:
    [role] = roles("master")
    role["Actions"] = [each for each in role["Actions"] if each != action]
    azure.roles = {"none": [role]}
    with pytest.raises(AuthFailed, match=action):
        cloud.launch(spec(), "t1")
    assert azure.group.left() == []


def test_the_role_of_a_vm_lets_it_delete_and_do_nothing_else(azure: Emulator) -> None:
    azure.roles = {"vm": roles("vm")}
    azure.require("vm", "Microsoft.Compute/virtualMachines/delete")
    for action in ("Microsoft.Compute/virtualMachines/write", "Microsoft.Compute/disks/read"):
        with pytest.raises(Refusal):
            azure.require("vm", action)
