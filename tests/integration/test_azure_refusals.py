"""What Azure refuses a launch for, and whom that concerns (tests/fakes/azure)."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.azure import Emulator
from fakes.azure.group import GROUP_ID
from fakes.azure.server import subnet
from fakes.azure_rig import cloud_of
from spothop.wire import AgentConfig, Dialect, Pool
from spothop_master.clouds.azure.config import AzureConfig
from spothop_master.clouds.azure.driver import AzureCloud
from spothop_master.clouds.base import OWNER_TAG, AuthFailed, BadRequest, LaunchSpec
from spothop_master.core.refusals import Scope

POOL = Pool(cloud="azure", region="eastus", zone="eastus-1", vm="Standard_D2s_v5")


@pytest.fixture
def cloud(azure: Emulator) -> AzureCloud:
    return cloud_of(azure, AzureConfig.model_validate(azure.config()))


def spec(**more: Any) -> LaunchSpec:
    user_data = AgentConfig(
        master="http://m", token="j", vm="vm-1", dialect=Dialect.AZURE, directory="/x"
    )
    tags = {OWNER_TAG: "us", "spothop-vm": "vm-1"}
    return LaunchSpec(pool=POOL, user_data=user_data, script="#!/bin/sh\n", tags=tags, **more)


def test_an_image_that_a_job_may_not_have_is_that_jobs_mistake(
    azure: Emulator, cloud: AzureCloud
) -> None:
    theirs = f"/subscriptions/{POOL.region}/resourceGroups/x/providers/Microsoft.Compute/images/x"
    caller = "f3a2b1c0-0000-4000-8000-000000000001"
    words = (
        f"The client '{caller}' with object id '{caller}' has permission to perform action"
        f" 'Microsoft.Compute/virtualMachines/write' on scope '{GROUP_ID}/providers/"
        f"Microsoft.Compute/virtualMachines/{'x' * 64}'; however, it does not have permission to"
        " perform action(s) '{}' on the linked scope(s) '{}' or the linked scope(s) are invalid."
    )
    read = words.format("Microsoft.Compute/images/read", theirs)
    azure.fail("PUT virtualMachines", 403, "LinkedAuthorizationFailed", message=read, times=2)
    with pytest.raises(BadRequest, match="image /subscriptions") as caught:
        cloud.launch(spec(image=theirs), "t1")
    assert caught.value.scope is Scope.POOL, "other jobs go on"
    with pytest.raises(AuthFailed):  # the configuration's: for an admin to mend
        cloud.launch(spec(), "t2")
    join = words.format("Microsoft.Network/virtualNetworks/subnets/join/action", subnet("eastus"))
    azure.fail("PUT virtualMachines", 403, "LinkedAuthorizationFailed", message=join)
    with pytest.raises(AuthFailed):
        cloud.launch(spec(image=theirs), "t3")


def test_a_subscription_that_lacks_the_provider_is_told_and_not_changed(
    azure: Emulator, cloud: AzureCloud
) -> None:
    words = (
        "The subscription is not registered to use namespace 'Microsoft.Compute'. See"
        " https://aka.ms/rps-not-found for how to register subscriptions."
    )
    azure.fail("*", 409, "MissingSubscriptionRegistration", message=words, times=2)
    with pytest.raises(AuthFailed, match=r"Microsoft\.Compute"):
        cloud.list("us")
    with pytest.raises(AuthFailed, match=r"Microsoft\.Compute"):
        cloud.launch(spec(), "t")
    assert [call.method for call in azure.calls] == ["GET", "PUT"], "the SDK would register it"
