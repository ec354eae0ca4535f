"""What an Azure subscription lacks before jobs run on it, found without making anything.

What the master may do is asked of Azure itself, which tells the caller's rights at a scope
(https://learn.microsoft.com/rest/api/authorization/permissions). What the VMs' identity may do
cannot be seen from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spothop.wire import Verdict
from spothop_master.clouds.azure import prices
from spothop_master.clouds.azure.calls import Caller, rows
from spothop_master.clouds.azure.config import AzureConfig, RegionConfig
from spothop_master.clouds.azure.offers import skus
from spothop_master.clouds.base import AuthFailed, Check, CloudError, Throttled, Unavailable

COMPUTE, NETWORK = "Microsoft.Compute", "Microsoft.Network"
NEEDED = (
    f"{COMPUTE}/virtualMachines/read",
    f"{COMPUTE}/virtualMachines/write",
    f"{COMPUTE}/virtualMachines/delete",
    f"{COMPUTE}/disks/read",
    f"{COMPUTE}/disks/write",
    f"{COMPUTE}/disks/delete",
    f"{NETWORK}/networkInterfaces/read",
    f"{NETWORK}/networkInterfaces/write",
    f"{NETWORK}/networkInterfaces/delete",
    f"{NETWORK}/networkInterfaces/join/action",
)
"""In the resource group."""
FOR_ADDRESSES = tuple(
    f"{NETWORK}/publicIPAddresses/{what}" for what in ("read", "write", "delete", "join/action")
)
FOR_TESTS = f"{COMPUTE}/virtualMachines/simulateEviction/action"
JOIN_SUBNET = f"{NETWORK}/virtualNetworks/subnets/join/action"
JOIN_GROUP = f"{NETWORK}/networkSecurityGroups/join/action"
ASSIGN = "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
IMAGES = "locations/publishers/artifacttypes/offers/skus/versions/read"
COMPUTE_VERSION = "2024-07-01"
RIGHTS_VERSION = "2022-04-01"
NETWORK_VERSION = "2024-05-01"
IDENTITY_VERSION = "2023-01-31"
SPOT_QUOTA = "lowprioritycores"
TRIED = "Standard_D2s_v5"
"""The VM type whose price is asked for."""
_ROLE = "compare the master's role with deploy/azure"
_CREDENTIALS = (
    "run the master on a VM with a managed identity, or log in with `az login`, or set"
    " AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET in its environment"
)


_CORRECT = "correct `subscription`, or use credentials of the tenant that it is in"
_SUBSCRIPTION: Mapping[str | None, str] = {
    "MissingSubscriptionRegistration": f"az provider register --namespace {COMPUTE}",
    "SubscriptionNotFound": _CORRECT,
    "InvalidSubscriptionId": _CORRECT,
    "DisabledSubscription": "enable it again in Azure's portal",
    "ReadOnlyDisabledSubscription": "enable it again in Azure's portal",
}
"""What is wrong with it, by Azure's code, and the way out."""


@dataclass(frozen=True)
class Doctor:
    config: AzureConfig
    calls: Caller
    ask_prices: prices.Ask

    def checks(self, storage_url: str) -> Iterator[Check]:
        """Stops at credentials that nobody takes. Raises no CloudError."""
        try:
            path = f"{self.config.group_id}/providers/{COMPUTE}/virtualMachines"
            [*self.calls.ask("GET", path, version=COMPUTE_VERSION)]
        except CloudError as error:
            subject, hint = self._trouble(error)
            yield _failed(subject, str(error), hint)
            return
        yield _ok("resource group", f"{self.config.resource_group}, and its VMs may be listed")
        yield self._group()
        yield self._evictions()
        yield self._identity()
        yield self._activity_log()
        yield self._prices()
        for name, region in self.config.regions.items():
            yield from self._region(name, region)
        yield _storage(storage_url)

    def _trouble(self, error: CloudError) -> tuple[str, str]:
        """What the first question has found, and the way out."""
        if error.code in _SUBSCRIPTION:
            return "subscription", _SUBSCRIPTION[error.code]
        if error.code == "ResourceGroupNotFound":
            return "resource group", "make it, or correct `resource_group`"
        if error.code == "AuthorizationFailed":
            return "resource group", _ROLE
        if isinstance(error, AuthFailed):
            return "credentials", _CREDENTIALS
        if isinstance(error, (Unavailable, Throttled)):
            return "Azure", f"ask again later; {self.config.endpoint_url} has to be in reach"
        return "resource group", "compare `subscription` and `resource_group` with the portal"

    # --- rights ---------------------------------------------------------------------------------

    def _lacks(self, scope: str, actions: Sequence[str]) -> list[str]:
        """Raises CloudError."""
        path = f"{scope}/providers/Microsoft.Authorization/permissions"
        pages = self.calls.ask("GET", path, version=RIGHTS_VERSION)
        rights = [right for page in pages for right in page.get("value", ())]
        return [action for action in actions if not _allows(rights, action)]

    def _rights(self, subject: str, scope: str, actions: Sequence[str]) -> Check:
        try:
            lacks = self._lacks(scope, actions)
        except CloudError as error:
            return _look(subject, str(error), "allow Microsoft.Authorization/permissions/read")
        if lacks:
            return _failed(subject, f"denied: {', '.join(lacks)}", _ROLE)
        return _ok(subject, f"{len(actions)} actions are allowed")

    def _group(self) -> Check:
        needed = NEEDED + (FOR_ADDRESSES if self.config.public_address else ())
        return self._rights("what the master may do", self.config.group_id, needed)

    def _evictions(self) -> Check:
        """Only `spothop preempt` needs it."""
        found = self._rights("tests of preemptions", self.config.group_id, [FOR_TESTS])
        failed = found.verdict is Verdict.FAILED
        return _look(found.subject, found.fact, found.hint) if failed else found

    def _identity(self) -> Check:
        subject, identity = "identity of the VMs", self.config.identity
        if not identity:
            hint = (
                "name an `identity` that may use the storage and delete VMs of the resource group:"
                " without it a VM that has lost its master goes on costing"
            )
            return _look(subject, "VMs have none, so jobs must bring their own keys", hint)
        try:
            [found] = self.calls.ask("GET", identity, version=IDENTITY_VERSION)
        except AuthFailed as error:
            return _look(subject, str(error), "allow reading it, so that this can be checked")
        except CloudError as error:
            return _failed(subject, str(error), "make it, or correct `identity`")
        return self._rights(f"{subject}: {found.get('name', identity)}", identity, [ASSIGN])

    # --- what makes things easier ---------------------------------------------------------------

    def _activity_log(self) -> Check:
        subject = "why VMs end"
        needed = "Microsoft.Insights/eventtypes/values/read"
        scope = f"/subscriptions/{self.config.subscription}"
        found = self._rights(subject, scope, [needed])
        if found.verdict is Verdict.OK:
            return _ok(subject, "the activity log may be read")
        hint = f"allow {needed} on the subscription: evictions without a notice are told by it"
        return _look(subject, found.fact, hint)

    def _prices(self) -> Check:
        subject, region = "prices", next(iter(self.config.regions))
        try:
            found = prices.read(self.ask_prices, region, [TRIED])
        except CloudError as error:
            hint = f"the master needs to reach {self.config.prices_url}: without spot prices no"
            return _failed(subject, str(error), f"{hint} spot VM is offered")
        if not found.spot:
            return _look(
                subject, f"none of a spot {TRIED} in {region}", "is the region's name right?"
            )
        return _ok(subject, f"a spot {TRIED} in {region} costs {min(found.spot.values()):g} USD/h")

    # --- one region -----------------------------------------------------------------------------

    def _region(self, name: str, region: RegionConfig) -> Iterator[Check]:
        yield self._subnet(name, region)
        if region.security_group is not None:
            yield self._rights(f"{name}: security group", region.security_group, [JOIN_GROUP])
        yield from (self._image(name, gpu=gpu) for gpu in (False, True))
        yield self._types(name)
        yield self._quota(name)

    def _subnet(self, name: str, region: RegionConfig) -> Check:
        subject = f"{name}: subnet"
        network = region.subnet.rpartition("/subnets/")[0]
        try:
            [found] = self.calls.ask("GET", network, version=NETWORK_VERSION)
        except AuthFailed:
            return self._rights(subject, region.subnet, [JOIN_SUBNET])
        except CloudError as error:
            return _failed(subject, str(error), "make it, or correct `subnet` of this region")
        where = str(found.get("location", name)).replace(" ", "").lower()
        if where != name:
            fact = f"{network.rpartition('/')[2]} is in {where}"
            return _failed(subject, fact, "name a subnet of a network in this region")
        return self._rights(subject, region.subnet, [JOIN_SUBNET])

    def _image(self, name: str, *, gpu: bool) -> Check:
        subject = f"{name}: {'GPU image' if gpu else 'image'}"
        image = self.config.image_for(name, gpu=gpu, arch="x86_64")
        if image.startswith("/"):
            return _look(subject, f"{image}: not tried from here")
        publisher, offer, sku, _ = image.split(":")
        where = f"/subscriptions/{self.config.subscription}/providers/{COMPUTE}/locations/{name}"
        path = f"{where}/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}/skus/{sku}"
        try:
            pages = self.calls.ask("GET", f"{path}/versions", version=COMPUTE_VERSION)
            versions = [str(row.get("name")) for page in pages for row in page]
        except AuthFailed as error:
            return _look(subject, str(error), f"allow {COMPUTE}/{IMAGES} on the subscription")
        except CloudError as error:
            key = "gpu_image" if gpu else "image"
            return _failed(subject, f"{image}: {error}", f"name another `{key}`")
        if not versions:
            return _failed(subject, f"{image} has no version in {name}", "name another one")
        return _ok(subject, f"{image}, with {len(versions)} versions")

    def _types(self, name: str) -> Check:
        subject = f"{name}: VM types"
        try:
            types = skus(self.calls, self.config.subscription, name)
        except CloudError as error:
            hint = "allow Microsoft.Compute/skus/read on the subscription"
            return _look(subject, f"those of the catalogue: {error}", hint)
        if not types:
            return _failed(subject, "none", "is the region's name right?")
        return _ok(subject, f"{len(types)} are known")

    def _quota(self, name: str) -> Check:
        subject = f"{name}: quota"
        where = f"/subscriptions/{self.config.subscription}/providers/{COMPUTE}/locations"
        path = f"{where}/{name}/usages"
        try:
            usages = [*rows(self.calls.ask("GET", path, version=COMPUTE_VERSION))]
        except CloudError as error:
            hint = "allow Microsoft.Compute/locations/usages/read on the subscription"
            return _look(subject, str(error), hint)
        for usage in usages:
            if str((usage.get("name") or {}).get("value", "")).lower() == SPOT_QUOTA:
                limit, used = int(usage["limit"]), int(usage["currentValue"])
                told = f"{limit} vCPUs for spot VMs, {used} of them in use"
                hint = "ask for more: Azure's portal, Quotas, Total Regional Spot vCPUs"
                return _ok(subject, told) if limit > 0 else _look(subject, told, hint)
        return _look(subject, "Azure tells none for spot VMs")


def _allows(rights: Sequence[Mapping[str, Any]], action: str) -> bool:
    """Roles add up; what a role excludes, another one may allow."""
    return any(
        any(_matches(each, action) for each in right.get("actions") or ())
        and not any(_matches(each, action) for each in right.get("notActions") or ())
        for right in rights
    )


def _matches(pattern: str, action: str) -> bool:
    """`*` stands for any text."""
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, action, re.IGNORECASE) is not None


def _storage(storage_url: str) -> Check:
    url = urlsplit(storage_url)
    if url.scheme not in ("az", "azure", "abfs", "abfss") and not url.netloc.endswith(
        ".core.windows.net"
    ):
        hint = (
            "set SPOTHOP_MASTER_STORAGE_URL=az://ACCOUNT/CONTAINER/path,"
            " or checkpoint.storage in each job"
        )
        return _look("storage", f"the default storage is {storage_url or 'not set'}", hint)
    hint = "the VMs' identity needs Storage Blob Data Contributor on its container"
    return _look("storage", f"{storage_url}: not tried from here", hint)


def _ok(subject: str, fact: str) -> Check:
    return Check(subject=subject, verdict=Verdict.OK, fact=fact)


def _failed(subject: str, fact: str, hint: str) -> Check:
    return Check(subject=subject, verdict=Verdict.FAILED, fact=fact, hint=hint)


def _look(subject: str, fact: str, hint: str = "") -> Check:
    return Check(subject=subject, verdict=Verdict.LOOK, fact=fact, hint=hint)
