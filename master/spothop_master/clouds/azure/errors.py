"""What Azure's refusals mean to us. Pure.

An error comes in the answer of a request, or, of a creation that was accepted, as the code of a
status in the VM's instance view: `ProvisioningState/failed/AllocationFailed`. Codes are those of
"Troubleshoot common Azure deployment errors" and "Error messages for Azure Spot VMs"
(https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors,
https://learn.microsoft.com/azure/virtual-machines/error-codes-spot). That a quota is told as
OperationNotAllowed, with status 403 or 409, and by words alone, is from
Azure/karpenter-provider-azure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    NoCapacity,
    PriceTooHigh,
    QuotaExceeded,
    Throttled,
    Unavailable,
)
from spothop_master.core.refusals import Scope

Meaning = tuple[type[CloudError], Scope | None]
"""An error of ours, and its scope where it is not the usual one."""

LONGEST = 800
"""Characters of a message that are kept. A denial names what it is about after 400 or so."""

MEANINGS: Mapping[str, Meaning] = {
    **dict.fromkeys(
        (
            "AllocationFailed",
            "ZonalAllocationFailed",
            "OverconstrainedAllocationRequest",
            "OverconstrainedZonalAllocationRequest",
            "SkuNotAvailable",
        ),
        (NoCapacity, None),
    ),
    "SubnetIsFull": (NoCapacity, Scope.REGION),
    "SubnetIsFullForPublicIP": (NoCapacity, Scope.REGION),
    "QuotaExceeded": (QuotaExceeded, None),
    "SpotPriceGreaterThanProvidedMaxPrice": (PriceTooHigh, None),
    **dict.fromkeys(
        (
            "TooManyRequests",
            "RequestLimitExceeded",
            "SubscriptionRequestsThrottled",
            "ResourceRequestsThrottled",
            "ResourceCollectionRequestsThrottled",
        ),
        (Throttled, None),
    ),
    **dict.fromkeys(
        (
            "SubscriptionNotFound",
            "DisabledSubscription",
            "ReadOnlyDisabledSubscription",
            "InvalidSubscriptionId",
            "MissingSubscriptionRegistration",
        ),
        (AuthFailed, None),
    ),
    "RequestDisallowedByPolicy": (BadRequest, None),
    "RequestDisallowedByAzure": (AuthFailed, Scope.REGION),  # for this kind of subscription
    **dict.fromkeys(("ServiceUnavailable", "ServerBusy"), (Unavailable, None)),
    # of a launch: another call about the same VM, or a fault in the midst of this one
    **dict.fromkeys(
        (
            "Conflict",
            "AnotherOperationInProgress",
            "OperationPreempted",  # by a newer one about the same VM
            "RetryableError",
            "ReferencedResourceNotProvisioned",  # the subnet, while other VMs are put into it
            "ConflictingConcurrentWriteNotAllowed",
            "CanceledAndSupersededDueToAnotherOperation",
            "PreconditionFailed",
            "InternalExecutionError",
            "InternalOperationError",
            "InternalServerError",
            "NetworkingInternalOperationError",
        ),
        (Ambiguous, None),
    ),
}
"""Every other code means what the HTTP status says."""

PATTERNS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (re.compile(r"Quota|LimitReached$|CountLimit"), (QuotaExceeded, None)),
    (re.compile(r"Throttl"), (Throttled, None)),
)
"""Each resource provider has codes of its own for these."""

QUOTA_WORDS = re.compile(r"quota|core limit|cores? usage|limit for", re.IGNORECASE)
"""In a message of `OperationNotAllowed`, which means this and other things."""

TAKEN = frozenset({"PreconditionFailed", "412"})
"""There is a VM of this name."""

GONE = frozenset({"ResourceNotFound", "NotFound", "ResourceGroupNotFound"})
"""There is no such VM."""

FORBIDDEN = frozenset({"AuthorizationFailed", "LinkedAuthorizationFailed", "403"})
"""The credentials are good, and their roles do not allow this."""

IMAGE = re.compile(r"Microsoft\.Compute/(images|galleries)/", re.IGNORECASE)
"""In the message of a denial: it is about an image."""

WINDOWS_S = {"3Min": 180.0, "30Min": 1800.0}
"""Of what the compute resource provider counts; the names of its limits end so:
https://learn.microsoft.com/azure/virtual-machines/compute-throttling-limits"""
SHARE = 6
"""After so much of the window as a sixth of it there is room again: limits refill evenly."""


def of_answer(
    status: int, headers: Mapping[str, str], body: Any, *, launch: bool = False
) -> CloudError:
    """An error answer. What is unclear about a launch is a failure of the cloud about anything
    else, which may just be asked again."""
    code, message = _told(body)
    kind, scope = _meaning(code, message, status)
    if kind is Ambiguous and not launch:
        kind, scope = Unavailable, None
    return kind(
        words(code, message or f"HTTP status {status}"),
        scope=scope,
        code=code or str(status),
        retry_after_s=_retry_after(status, headers),
    )


def of_operation(code: str, message: str) -> CloudError:
    """Of a creation that was accepted, and failed. What is not known may work elsewhere."""
    kind, scope = MEANINGS.get(code) or _by_pattern(code, message) or (Unavailable, Scope.POOL)
    if kind is Ambiguous:
        kind, scope = Unavailable, Scope.POOL
    if code.startswith(("Invalid", "Image", "Marketplace", "OSProvisioningClientError")):
        kind, scope = BadRequest, None
    return kind(words(code, message), scope=scope, code=code or None)


def _told(body: Any) -> tuple[str, str]:
    """Code and message; the outer code is only that something inside failed, in some answers."""
    error = body.get("error", body) if isinstance(body, dict) else {}
    if not isinstance(error, dict):
        return "", str(error)
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    if code in ("DeploymentFailed", "InvalidTemplateDeployment", "ResourceOperationFailure"):
        for each in error.get("details") or ():
            return _told(each)
    return code, message


def _meaning(code: str, message: str, status: int) -> Meaning:
    if status == 429:
        return Throttled, None
    known = MEANINGS.get(code) or _by_pattern(code, message)
    if known is not None:
        return known
    if status == 401 or (status == 403 and code != "OperationNotAllowed"):
        return AuthFailed, None
    if status == 503:
        return Unavailable, None
    return (Ambiguous if status >= 500 or status in (408, 412) else BadRequest), None


def _by_pattern(code: str, message: str) -> Meaning | None:
    if code == "OperationNotAllowed" and QUOTA_WORDS.search(message):
        return QuotaExceeded, None
    return next((meaning for known, meaning in PATTERNS if known.search(code)), None)


def words(code: str, message: str) -> str:
    """For people: what the provider said."""
    text = " ".join(message.split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return f"{text} ({code})" if text and code else text or code or "no reason given"


def _retry_after(status: int, headers: Mapping[str, str]) -> float | None:
    """Seconds; dates, which are allowed there too, are not followed. Where the compute provider
    names none, what it says is left of each of its limits tells which one is used up."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        return float(lower.get("retry-after", ""))
    except ValueError:
        pass
    if status != 429:
        return None
    left = lower.get("x-ms-ratelimit-remaining-resource", "")
    waits = [
        window / SHARE
        for limit, _, count in (each.strip().rpartition(";") for each in left.split(","))
        for ending, window in WINDOWS_S.items()
        if limit.endswith(ending) and not ("30Min" in limit and ending == "3Min") and count == "0"
    ]
    return max(waits, default=None)


def of_status(code: str) -> str:
    """`AllocationFailed` of `ProvisioningState/failed/AllocationFailed`; empty for others."""
    parts = code.split("/")
    return parts[2] if len(parts) > 2 and parts[1].lower() == "failed" else ""


def details(message: str) -> str:
    """Some statuses hold JSON with a message in it."""
    try:
        found = json.loads(message)
    except ValueError:
        return message
    return _told(found)[1] or message
