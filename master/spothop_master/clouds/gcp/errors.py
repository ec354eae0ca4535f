"""What Compute Engine's refusals mean to us. Pure.

They come in two forms: an HTTP error, whose `reason` tells more than its status
(https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-common-errors and
https://cloud.google.com/apis/design/errors), and the errors of an operation that was accepted,
which have codes of their own
(https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-resource-availability).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    NoCapacity,
    QuotaExceeded,
    Throttled,
    Unavailable,
)
from spothop_master.core.refusals import Scope

Meaning = tuple[type[CloudError], Scope | None]
"""An error of ours, and its scope where it is not the usual one."""

LONGEST = 500
"""Characters of a message that are kept."""

REASONS: Mapping[str, Meaning] = {
    **dict.fromkeys(
        (
            "rateLimitExceeded",
            "userRateLimitExceeded",
            "resourceOperationRateExceeded",
            "concurrentOperationQuotaExceeded",
        ),
        (Throttled, None),
    ),
    **dict.fromkeys(
        (
            "authError",
            "expired",
            "forbidden",
            "insufficientPermissions",
            "accessNotConfigured",
            "accountDisabled",
            "billingNotEnabled",
            "required",  # of a login
        ),
        (AuthFailed, None),
    ),
    **dict.fromkeys(("quotaExceeded", "limitExceeded"), (QuotaExceeded, None)),
    "resourceNotReady": (Unavailable, None),
    "resourceInUseByAnotherResource": (Unavailable, None),
}
"""By the reason of an HTTP error. Every other one is a bad request, or with HTTP 5xx no clear
answer."""

CODES: Mapping[str, Meaning] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": (NoCapacity, None),
    "RESOURCE_POOL_EXHAUSTED": (NoCapacity, None),
    "UNSUPPORTED_OPERATION": (NoCapacity, None),  # a spot VM that was preempted while it was made
    "IP_SPACE_EXHAUSTED": (NoCapacity, Scope.REGION),
    "QUOTA_EXCEEDED": (QuotaExceeded, None),
    "RATE_LIMIT_EXCEEDED": (Throttled, None),
    "RESOURCE_OPERATION_RATE_EXCEEDED": (Throttled, None),
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED": (Throttled, None),
    "INTERNAL_ERROR": (Unavailable, None),
    "RESOURCE_NOT_READY": (Unavailable, None),
    "PERMISSIONS_ERROR": (AuthFailed, None),
    "SERVICE_ACCOUNT_ACCESS_DENIED": (AuthFailed, None),
}
"""By the code of an operation's error, without the suffix `_WITH_DETAILS`. Every other one is a bad
request."""

FORBIDDEN = frozenset({"forbidden", "insufficientPermissions"})
"""The credentials are good, and their role does not allow this."""
IMAGE = re.compile(r"compute\.images\.|/images/")
"""In the message of a denial: it is about an image."""
GONE = frozenset({"notFound"})
TAKEN = frozenset({"alreadyExists", "RESOURCE_ALREADY_EXISTS"})
"""There is already something of this name: in an answer, and inside an operation."""

_GLOBALLY = re.compile(r"\bglobally\b|_ALL_REGIONS\b")


def of_answer(
    status: int,
    body: Mapping[str, Any],
    *,
    launch: bool = False,
    headers: Mapping[str, str] | None = None,
) -> CloudError:
    """An HTTP error. What is unclear about a launch is a failure of the cloud about anything else,
    which may just be asked again."""
    error = body.get("error")
    told: Mapping[str, Any] = error if isinstance(error, Mapping) else {}
    causes = told.get("errors") or [{}]
    reason = str(causes[0].get("reason", ""))
    message = str(told.get("message") or f"HTTP {status}")
    kind, scope = _http(status, reason, message)
    if kind is Ambiguous and not launch:
        kind, scope = Unavailable, None
    return kind(
        words(reason, message),
        scope=scope,
        code=reason or None,
        retry_after_s=_seconds((headers or {}).get("retry-after", "")),
    )


def _http(status: int, reason: str, message: str) -> Meaning:
    found = REASONS.get(reason) or CODES.get(_plain(reason))
    if found is not None:
        return _wider(found, message)
    if status in (401, 403):
        return AuthFailed, None
    if status == 429:
        return Throttled, None
    return (Ambiguous if status >= 500 else BadRequest), None


def of_operation(operation: Mapping[str, Any]) -> CloudError | None:
    """Why an operation failed; None: it has not, or not yet."""
    causes = (operation.get("error") or {}).get("errors") or []
    if not causes:
        return None
    codes = [str(cause.get("code", "")) for cause in causes]
    known = next((n for n, code in enumerate(codes) if _plain(code) in CODES), 0)
    code, message = codes[known], str(causes[known].get("message", ""))
    unknown = Unavailable if int(operation.get("httpErrorStatusCode") or 0) >= 500 else BadRequest
    kind, scope = _wider(CODES.get(_plain(code), (unknown, None)), message)
    return kind(words(code, message), scope=scope, code=code or None)


def _plain(code: str) -> str:
    return code.removesuffix("_WITH_DETAILS")


def _wider(meaning: Meaning, message: str) -> Meaning:
    """A quota may be one of all regions: then another region does not help."""
    kind, _ = meaning
    if kind is QuotaExceeded and _GLOBALLY.search(message):
        return kind, Scope.ACCOUNT
    return meaning


def words(code: str, message: str) -> str:
    """For people: what the provider said."""
    text = " ".join(message.split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return f"{text} ({code})" if text and code else text or code or "no reason given"


def _seconds(text: str) -> float | None:
    """Dates, which are allowed there too, are not followed."""
    try:
        return max(0.0, float(text))
    except ValueError:
        return None
