"""`spothop doctor`: an Azure subscription, from one that has nothing to one that is ready."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fakes.azure import Emulator
from fakes.azure.group import GROUP_ID
from fakes.azure.server import subnet
from fakes.azure_rig import DEPLOY, cloud_of
from spothop.wire import Verdict
from spothop_master.clouds.azure.config import AzureConfig
from spothop_master.clouds.base import Check, Diagnoses

Diagnose = Callable[..., dict[str, Check]]


@pytest.fixture
def diagnose(azure: Emulator) -> Diagnose:
    def ask(storage_url: str = "az://runs", **config: Any) -> dict[str, Check]:
        cloud = cloud_of(azure, AzureConfig.model_validate(azure.config(**config)))
        assert isinstance(cloud, Diagnoses)
        return {check.subject: check for check in cloud.diagnose(storage_url)}

    return ask


def role(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / f"{name}.json").read_text("utf-8"))
    return found


def test_with_the_roles_of_deploy_all_is_well(azure: Emulator, diagnose: Diagnose) -> None:
    azure.roles = {"none": [role("master"), role("reader")]}
    found = diagnose()
    assert {subject for subject, check in found.items() if check.verdict is not Verdict.OK} == {
        "storage"
    }
    assert found["prices"].fact == "a spot Standard_D2s_v5 in eastus costs 0.02 USD/h"
    assert found["eastus: quota"].fact == "100 vCPUs for spot VMs, 0 of them in use"
    assert azure.group.left() == []
    assert {call.method for call in azure.calls} == {"GET"}, "it makes nothing"


def test_credentials_that_nobody_takes_are_the_only_thing_told(
    azure: Emulator, diagnose: Diagnose
) -> None:
    azure.fail("*", 401, "ExpiredAuthenticationToken", times=9)
    [check] = diagnose().values()
    assert (check.subject, check.verdict) == ("credentials", Verdict.FAILED)
    assert "az login" in check.hint


@pytest.mark.parametrize(
    ("status", "code", "subject", "hint"),
    [
        (409, "MissingSubscriptionRegistration", "subscription", "provider register"),
        (404, "SubscriptionNotFound", "subscription", "correct `subscription`"),
        (404, "ResourceGroupNotFound", "resource group", "make it"),
        (403, "AuthorizationFailed", "resource group", "role"),
        (429, "TooManyRequests", "Azure", "later"),
        (503, "ServiceUnavailable", "Azure", "later"),
        (400, "Odd", "resource group", "portal"),
    ],
)
def test_each_trouble_of_the_first_question_has_its_own_way_out(
    azure: Emulator, diagnose: Diagnose, status: int, code: str, subject: str, hint: str
) -> None:
    azure.fail("*", status, code)
    [check] = diagnose().values()
    assert (check.subject, check.verdict) == (subject, Verdict.FAILED)
    assert hint in check.hint
    assert code in check.fact


def test_what_a_role_lacks_is_named(azure: Emulator, diagnose: Diagnose) -> None:
    lacking = role("master")
    lacking["Actions"].remove("Microsoft.Compute/disks/write")
    lacking["Actions"].remove("Microsoft.Compute/virtualMachines/simulateEviction/action")
    azure.roles = {"none": [lacking]}
    found = diagnose()
    check = found["what the master may do"]
    assert (check.verdict, check.fact) == (Verdict.FAILED, "denied: Microsoft.Compute/disks/write")
    for subject in ("tests of preemptions", "why VMs end", "eastus: VM types", "eastus: quota"):
        assert found[subject].verdict is Verdict.LOOK, subject


def test_what_does_not_exist_is_told_with_its_field(azure: Emulator, diagnose: Diagnose) -> None:
    azure.quota = 0
    other = subnet("eastus").replace("/eastus/", "/nowhere/")
    gone = azure.config()["identity"].replace("spothop-vm", "gone")
    found = diagnose(regions={"eastus": {"subnet": other}}, identity=gone)
    assert found["eastus: subnet"].hint == "make it, or correct `subnet` of this region"
    assert found["identity of the VMs"].hint == "make it, or correct `identity`"
    assert found["eastus: quota"].verdict is Verdict.LOOK
    wrong = diagnose(regions={"westus": {"subnet": subnet("eastus")}})
    assert wrong["westus: subnet"].fact == "eastus is in eastus"


def test_an_image_that_there_is_not_is_told(azure: Emulator, diagnose: Diagnose) -> None:
    azure.images.remove("2204")
    found = diagnose()
    assert found["eastus: image"].verdict is Verdict.OK
    assert found["eastus: GPU image"].hint == "name another `gpu_image`"
    own = f"{GROUP_ID}/providers/Microsoft.Compute/images/mine"
    assert diagnose(image=own)["eastus: image"].verdict is Verdict.LOOK


def test_without_an_identity_a_vm_cannot_end_itself(azure: Emulator, diagnose: Diagnose) -> None:
    check = diagnose(identity="")["identity of the VMs"]
    assert check.verdict is Verdict.LOOK
    assert "goes on costing" in check.hint


def test_the_storage_is_named(azure: Emulator, diagnose: Diagnose) -> None:
    assert "az://runs" in diagnose()["storage"].fact
    assert "SPOTHOP_MASTER_STORAGE_URL" in diagnose("file:///tmp/x")["storage"].hint
