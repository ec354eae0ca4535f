"""Errors as AWS writes them on the wire: status and body by the protocol of the service.

Codes and statuses are those of the Amazon EC2 API Reference ("Error codes"), messages those that
users meet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from xml.sax.saxutils import escape

STATUSES = {
    "InsufficientInstanceCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InsufficientAddressCapacity": 500,
    "InternalError": 500,
    "Unavailable": 503,
    "ServiceUnavailable": 503,
    "RequestLimitExceeded": 503,
    "SlowDown": 503,
    "AuthFailure": 401,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "InvalidClientTokenId": 403,
    "SignatureDoesNotMatch": 403,
    "OptInRequired": 403,
    "ExpiredToken": 403,
    "DryRunOperation": 412,
}
"""Every other code is a 400."""

MESSAGES = {
    "InsufficientInstanceCapacity": (
        "We currently do not have sufficient {type} capacity in the Availability Zone you requested"
        " ({zone}). Our system will be working on provisioning additional capacity."
    ),
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "VcpuLimitExceeded": (
        "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the"
        " instance bucket that the specified instance type belongs to."
    ),
    "SpotMaxPriceTooLow": (
        "Your Spot request price is lower than the minimum required Spot request fulfillment price."
    ),
    "Unsupported": (
        "Your requested instance type ({type}) is not supported in your requested Availability Zone"
        " ({zone})."
    ),
    "RequestLimitExceeded": "Request limit exceeded.",
    "RequestExpired": "Request has expired.",
    "ExpiredToken": "The security token included in the request is expired",
    "AuthFailure": "AWS was not able to validate the provided access credentials",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "InternalError": "An internal error has occurred",
    "Unavailable": "The service is unavailable. Please try again shortly.",
    "IdempotentParameterMismatch": (
        "Arguments on this idempotent request are inconsistent with arguments used in previous"
        " request(s)."
    ),
    "DryRunOperation": "Request would have succeeded, but DryRun flag is set.",
}


@dataclass(frozen=True)
class AwsError(Exception):
    """One refusal."""

    code: str
    message: str = ""

    @property
    def status(self) -> int:
        return STATUSES.get(self.code, 400)

    def body(self, protocol: str) -> tuple[str, str]:
        """Content type and body, in one of botocore's protocols: ec2, query, json, rest-xml..."""
        code, message = escape(self.code), escape(self.message)
        inner = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        if protocol == "ec2":
            text = f"<Response><Errors>{inner}</Errors><RequestID>by-script</RequestID></Response>"
        elif protocol == "query":
            text = f"<ErrorResponse>{inner}<RequestId>by-script</RequestId></ErrorResponse>"
        elif protocol == "rest-xml":
            text = inner
        else:
            return "application/x-amz-json-1.1", json.dumps(
                {"__type": self.code, "message": self.message}
            )
        return "text/xml", f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'


def by_code(code: str, *, vm_type: str | None = None, zone: str | None = None) -> AwsError:
    """The error of this code in AWS's words."""
    words = MESSAGES.get(code, "by script")
    return AwsError(code, words.format(type=vm_type or "t3.micro", zone=zone or "any"))
