"""Azure's errors, names, configuration and answers, without any call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from spothop_master.clouds.azure import errors, reading, requests
from spothop_master.clouds.azure.config import NOBODYS_KEY, AzureConfig, load
from spothop_master.clouds.azure.making import make
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    CloudVmState,
    NoCapacity,
    PriceTooHigh,
    QuotaExceeded,
    Throttled,
    Unavailable,
)
from spothop_master.clouds.configuration import CloudContext, ConfigError
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope

GROUP = "/subscriptions/0aaa0000-0000-4000-8000-000000000001/resourceGroups/g"
SUBNET = f"{GROUP}/providers/Microsoft.Network/virtualNetworks/n/subnets/default"
FILE = {
    "subscription": "0aaa0000-0000-4000-8000-000000000001",
    "resource_group": "g",
    "identity": f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/vm",
    "regions": {"eastus": {"subnet": SUBNET, "zones": [1, 2]}},
}


@pytest.mark.parametrize(
    ("status", "code", "kind", "scope"),
    [
        (409, "AllocationFailed", NoCapacity, Scope.POOL),
        (409, "ZonalAllocationFailed", NoCapacity, Scope.POOL),
        (409, "OverconstrainedAllocationRequest", NoCapacity, Scope.POOL),
        (409, "SkuNotAvailable", NoCapacity, Scope.POOL),
        (400, "SubnetIsFull", NoCapacity, Scope.REGION),
        (409, "SpotPriceGreaterThanProvidedMaxPrice", PriceTooHigh, Scope.POOL),
        (403, "OperationNotAllowed", BadRequest, Scope.POOL),
        (409, "OperationPreempted", Ambiguous, Scope.POOL),
        (409, "QuotaExceeded", QuotaExceeded, Scope.REGION),
        (400, "PublicIPCountLimitReached", QuotaExceeded, Scope.REGION),
        (429, "Whatever", Throttled, Scope.ACCOUNT),
        (409, "ResourceCollectionRequestsThrottled", Throttled, Scope.ACCOUNT),
        (401, "InvalidAuthenticationTokenTenant", AuthFailed, Scope.ACCOUNT),
        (403, "LinkedAuthorizationFailed", AuthFailed, Scope.ACCOUNT),
        (403, "RequestDisallowedByPolicy", BadRequest, Scope.POOL),
        (403, "RequestDisallowedByAzure", AuthFailed, Scope.REGION),
        (404, "SubscriptionNotFound", AuthFailed, Scope.ACCOUNT),
        (404, "ResourceGroupNotFound", BadRequest, Scope.POOL),
        (503, "ServiceUnavailable", Unavailable, Scope.REGION),
        (500, "", Ambiguous, Scope.POOL),
        (504, "GatewayTimeout", Ambiguous, Scope.POOL),
        (409, "Conflict", Ambiguous, Scope.POOL),
        (400, "ReferencedResourceNotProvisioned", Ambiguous, Scope.POOL),
        (409, "ConflictingConcurrentWriteNotAllowed", Ambiguous, Scope.POOL),
        (409, "CanceledAndSupersededDueToAnotherOperation", Ambiguous, Scope.POOL),
        (412, "PreconditionFailed", Ambiguous, Scope.POOL),
        (400, "InvalidParameter", BadRequest, Scope.POOL),
    ],
)
def test_an_answer_to_a_launch_means(
    status: int, code: str, kind: type[CloudError], scope: Scope
) -> None:
    body = {"error": {"code": code, "message": "m"}}
    found = errors.of_answer(status, {}, body, launch=True)
    assert (type(found), found.scope, found.code) == (kind, scope, code or str(status))
    again = errors.of_answer(status, {}, body)
    assert type(again) is (Unavailable if kind is Ambiguous else kind)


def test_operation_not_allowed_is_a_quota_only_where_it_says_so() -> None:
    def kind(message: str) -> type[CloudError]:
        body = {"error": {"code": "OperationNotAllowed", "message": message}}
        [found] = {type(errors.of_answer(each, {}, body, launch=True)) for each in (403, 409)}
        return found

    assert kind("results in exceeding approved standardNCFamily Cores quota.") is QuotaExceeded
    assert kind("results in exceeding approved LowPriorityCores quota.") is QuotaExceeded
    assert kind("results in exceeding approved Total Regional Cores quota.") is QuotaExceeded
    assert kind("Eviction policy can be set only on Azure Spot VMs.") is BadRequest


@pytest.mark.parametrize("body", [{}, [], "text", {"error": "text"}, {"error": None}, None])
def test_an_answer_that_makes_no_sense_is_still_an_error(body: Any) -> None:
    assert isinstance(errors.of_answer(500, {}, body), Unavailable)
    assert errors.of_answer(400, {}, body).code == "400"


def test_what_failed_inside_a_deployment_counts() -> None:
    inner = {"code": "SkuNotAvailable", "message": "not here"}
    body = {"error": {"code": "DeploymentFailed", "message": "see details", "details": [inner]}}
    assert isinstance(errors.of_answer(409, {}, body), NoCapacity)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "12"}, 12.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"x-ms-ratelimit-remaining-resource": "Microsoft.Compute/PutVM3Min;0"}, 30.0),
        ({"x-ms-ratelimit-remaining-resource": "a/X3Min;3, a/X30Min;0"}, 300.0),
        ({"x-ms-ratelimit-remaining-resource": "a/X3Min;3,a/X30Min;7"}, None),
        ({"x-ms-ratelimit-remaining-resource": "odd"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_told_by_one_header_or_the_other(
    headers: dict[str, str], wait_s: float | None
) -> None:
    assert errors.of_answer(429, headers, {}).retry_after_s == wait_s


def test_a_status_with_json_in_it_is_told_in_its_words() -> None:
    inside = '{"error": {"code": "AllocationFailed", "message": "no room"}}'
    row = {
        "properties": {
            "instanceView": {
                "statuses": [
                    {"code": "ProvisioningState/failed/AllocationFailed", "message": inside}
                ]
            }
        }
    }
    assert str(reading.refusal(row)) == "no room (AllocationFailed)"
    row["properties"]["instanceView"]["statuses"].append({"code": "PowerState/running"})  # type: ignore[attr-defined]
    assert reading.refusal(row) is None, "its guest did not tell that it is up; it runs"
    assert isinstance(reading.refusal({"properties": {}}), Unavailable)


@pytest.mark.parametrize(
    ("token", "name"),
    [("spothop-aB3", "spothop-aB3"), ("with_underscore", None), ("x" * 70, None), ("a-", None)],
)
def test_the_name_of_a_vm_is_its_token_where_azure_takes_that(token: str, name: str | None) -> None:
    found = requests.name_of(token)
    assert found == (name or found)
    assert requests.is_name(found)
    assert requests.name_of(token) == found


@pytest.mark.parametrize("zone", ["eastus-4", "1", "westus-1", "eastus1", ""])
def test_a_zone_that_there_is_not_is_refused(zone: str) -> None:
    with pytest.raises(BadRequest, match="its zones are eastus-1 to eastus-3"):
        requests.zone_number("eastus", zone)


def event(operation: str, status: str = "Succeeded", name: str = "VM-1") -> dict[str, Any]:
    return {
        "operationName": {"value": f"Microsoft.Compute/virtualMachines/{operation}"},
        "status": {"value": status},
        "resourceId": f"{GROUP}/providers/Microsoft.Compute/virtualMachines/{name}",
    }


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([], None),
        ([event("write")], None),
        ([event("delete")], EndCause.TERMINATED),
        ([event("delete", "Failed")], None),
        ([event("evictSpotVM/action"), event("delete")], EndCause.PREEMPTED),
        ([event("delete"), event("evictSpotVM/action")], EndCause.PREEMPTED),
        ([event("simulateEviction/action")], EndCause.PREEMPTED),
        ([event("simulateEviction/action"), event("delete")], EndCause.TERMINATED),
        ([event("simulateEviction/action", "Failed")], None),
        ([{}], None),
    ],
)
def test_the_activity_log_tells_ends(events: list[dict[str, Any]], cause: EndCause | None) -> None:
    assert reading.ends([{"value": events}, {}]).get("vm-1") is cause


@pytest.mark.parametrize(
    ("state", "ran", "seen"),
    [
        ("Creating", False, CloudVmState.PENDING),
        ("Succeeded", False, CloudVmState.RUNNING),
        ("Updating", True, CloudVmState.RUNNING),
        ("Failed", True, CloudVmState.RUNNING),
        ("Deleting", True, CloudVmState.STOPPING),
        ("NewWord", False, CloudVmState.PENDING),
    ],
)
def test_states_of_azure_are_states_of_ours(state: str, ran: bool, seen: CloudVmState) -> None:
    assert reading.state_of({"properties": {"provisioningState": state}}, ran=ran) is seen


def test_moments_have_seven_digits_of_a_second() -> None:
    found = reading.moment("2026-11-22T18:03:04.1234567+00:00")
    assert found is not None
    assert found.isoformat() == "2026-11-22T18:03:04+00:00"
    assert reading.moment("yesterday") is None
    assert reading.moment(None) is None


def test_the_key_on_vms_is_one_that_nobody_has() -> None:
    import base64
    import hashlib

    blob = base64.b64decode(NOBODYS_KEY.split()[1])
    assert blob[-32:] == hashlib.sha256(b"spothop: nobody has this key 0").digest()


def write(folder: Path, **changes: Any) -> Path:
    file = folder / "azure.yaml"
    content = {key: value for key, value in {**FILE, **changes}.items() if value is not None}
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_file_with_the_least_is_enough(tmp_path: Path) -> None:
    config = load(write(tmp_path))
    assert config.regions["eastus"].zones == ["1", "2"]
    assert config.image_for("eastus", gpu=False, arch="arm64").endswith(":22_04-lts-arm64:latest")
    assert "hpc" in config.image_for("eastus", gpu=True, arch="x86_64")
    assert config.group_id == GROUP


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"subscription": "mine"},
            r"subscription: .*`az account show --query id`.*\(it is 'mine'\)",
        ),
        (
            {"identity": "spothop-vm"},
            r"identity.*`az identity show --query id`.*\(it is 'spothop-vm'\)",
        ),
        ({"identity": None}, "identity: Field required"),
        (
            {"regions": {"eastus": {"subnet": "default"}}},
            r"regions.eastus.subnet: .*\(it is 'default'\)",
        ),
        ({"regions": {"eastus": {"subnet": SUBNET, "zones": [4]}}}, "regions.eastus.zones.0"),
        ({"credential": "password"}, "credential: Input should be 'default'"),
        ({"image": "ubuntu"}, "image: "),
        ({"zone": "1"}, "zone: Extra inputs"),
    ],
)
def test_a_mistake_is_told_with_field_and_value(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, **changes))


def test_without_a_file_the_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SPOTHOP_MASTER_AZURE_CLOUD"):
        make(CloudContext(home=tmp_path, master_url="http://m"))


def test_the_catalogues_vm_types_are_used(tmp_path: Path) -> None:
    cloud = make(CloudContext(home=tmp_path, master_url="http://m", file=write(tmp_path)))
    assert cloud.name == "azure"
    assert cloud.limits.settle_s > 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("default", "DefaultAzureCredential"),
        ("cli", "AzureCliCredential"),
        ("managed_identity", "ManagedIdentityCredential"),
        ("environment", "EnvironmentCredential"),
    ],
)
def test_each_kind_of_credential_is_one_of_azure_identity(kind: str, name: str) -> None:
    from spothop_master.clouds.azure.calls import _credential

    AzureConfig.model_validate({**FILE, "credential": kind})
    assert type(_credential(kind, None)).__name__ == name
