"""What EC2's refusals mean to us. Pure.

Codes are those of the EC2 API reference, "Error codes for the Amazon EC2 API"
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html), and "Common errors".
"""

from __future__ import annotations

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

THROTTLING = "https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"
"""Each action has a bucket of its own in each region, too; a region is the least that our back-offs
tell apart, and one that throttles its listing is not asked for launches meanwhile."""

LONGEST = 500
"""Characters of a message that are kept."""

MEANINGS: Mapping[str, Meaning] = {
    **dict.fromkeys(
        (
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientCapacity",
            "UnfulfillableCapacity",
            "SpotInstanceCapacityExceeded",
            "ReservationCapacityExceeded",
        ),
        (NoCapacity, None),
    ),
    "InsufficientFreeAddressesInSubnet": (NoCapacity, Scope.ZONE),
    "InsufficientAddressCapacity": (NoCapacity, Scope.REGION),
    "InsufficientVolumeCapacity": (NoCapacity, Scope.ZONE),
    **dict.fromkeys(
        (
            "MaxSpotInstanceCountExceeded",
            "VcpuLimitExceeded",
            "InstanceLimitExceeded",
            "VolumeLimitExceeded",
            "MaxIOPSLimitExceeded",
            "AddressLimitExceeded",
            "NetworkInterfaceLimitExceeded",
            "ResourceLimitExceeded",
        ),
        (QuotaExceeded, None),
    ),
    "SpotMaxPriceTooLow": (PriceTooHigh, None),
    **dict.fromkeys(
        (
            "RequestLimitExceeded",
            "Throttling",
            "ThrottlingException",
            "ThrottledException",
            "RequestThrottled",
            "RequestThrottledException",
            "TooManyRequestsException",
            "EC2ThrottledException",
            "ResourceCountLimitExceeded",
            "SlowDown",
            "BandwidthLimitExceeded",
        ),
        (Throttled, Scope.REGION),  # "for each AWS account on a per-Region basis", see THROTTLING
    ),
    **dict.fromkeys(
        (
            "AuthFailure",
            "UnauthorizedOperation",
            "AccessDenied",
            "AccessDeniedException",
            "InvalidClientTokenId",
            "UnrecognizedClientException",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "InvalidSignatureException",
            "MissingAuthenticationToken",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "Blocked",
            "PendingVerification",
        ),
        (AuthFailed, None),
    ),
    "OptInRequired": (AuthFailed, Scope.REGION),
    **dict.fromkeys(("Unavailable", "ServiceUnavailable"), (Unavailable, None)),
    # of a launch: another one with this token was sent, or has had its VM, or has failed half way
    **dict.fromkeys(
        (
            "IdempotentParameterMismatch",
            "IdempotentInstanceTerminated",
            "InternalError",
            "InternalFailure",
            "RequestTimeout",
            "RequestTimeoutException",
        ),
        (Ambiguous, None),
    ),
}
"""Every other code is a bad request, or with HTTP 5xx no clear answer."""

GONE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
"""There is no such VM, or, right after its launch, EC2 does not know it yet."""

REMOVED = frozenset(
    {
        "InvalidVolume.NotFound",
        "InvalidAllocationID.NotFound",
        "InvalidNetworkInterfaceID.NotFound",
    }
)
"""What was to be deleted is gone."""

FORBIDDEN = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
"""The credentials are good, and their policy does not allow this."""

OUT_OF_TIME = frozenset(
    {"RequestExpired", "SignatureDoesNotMatch", "InvalidSignatureException", "RequestTimeTooSkewed"}
)
"""What a signature with a wrong date may give, too."""

REFUSED_LATER: Mapping[str, Meaning] = {
    "Server.InsufficientInstanceCapacity": (NoCapacity, None),
    "Client.VolumeLimitExceeded": (QuotaExceeded, None),
    "Client.InternalError": (BadRequest, None),
    "Client.InvalidSnapshot.NotFound": (BadRequest, None),
    "Client.UserInitiatedHibernate": (BadRequest, None),
}
"""State reasons of VMs that were accepted and never ran. Client.InternalError is what a disk gives
that nobody may decrypt."""


def of_answer(answer: Mapping[str, Any], *, launch: bool = False) -> CloudError:
    """An error answer of the SDK (`ClientError.response`). What is unclear about a launch is a
    failure of the cloud about anything else, which may just be asked again."""
    error, meta = answer.get("Error", {}), answer.get("ResponseMetadata", {})
    code, status = str(error.get("Code", "")), int(meta.get("HTTPStatusCode") or 0)
    kind, scope = MEANINGS.get(code, (Ambiguous if status >= 500 else BadRequest, None))
    if kind is Ambiguous and not launch:
        kind, scope = Unavailable, None
    return kind(
        words(code, str(error.get("Message", ""))),
        scope=scope,
        code=code or None,
        retry_after_s=_retry_after(meta),
    )


def of_state_reason(code: str, message: str) -> CloudError | None:
    """Of a VM that ended without having run; None: it was not refused."""
    meaning = REFUSED_LATER.get(code)
    if meaning is None:
        return None
    kind, scope = meaning
    text = message.removeprefix(f"{code}: ")
    return kind(words(code, text), scope=scope, code=code.rpartition(".")[2])


def words(code: str, message: str) -> str:
    """For people: what the provider said, without what only machines can read."""
    text = message.partition("Encoded authorization failure message")[0].strip()
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return f"{text} ({code})" if text and code else text or code or "no reason given"


def _retry_after(meta: Mapping[str, Any]) -> float | None:
    """Seconds; dates, which are allowed there too, are not followed."""
    try:
        return float(meta.get("HTTPHeaders", {}).get("retry-after", ""))
    except ValueError:
        return None
