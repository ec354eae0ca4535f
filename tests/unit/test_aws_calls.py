"""Failures of the SDK as errors of ours. The SDK is boto3's own; nothing is sent."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from typing import Any

import pytest
from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError
from urllib3.exceptions import SSLError as URLLib3SSLError

from spothop_master.clouds.aws.calls import AwsCalls
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    NoCapacity,
    Throttled,
    Unavailable,
)


class Session:
    """Its clients raise."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.made: list[dict[str, Any]] = []

    def client(self, service: str, **how: Any) -> Session:
        self.made.append({"service": service, **how})
        return self

    def run_instances(self, **params: Any) -> None:
        raise self._error

    terminate_instances = run_instances


URL = {"endpoint_url": "https://ec2.example"}
CUT = ssl.SSLError("unexpected eof while reading")
UNTRUSTED = ssl.SSLCertVerificationError("certificate verify failed")
EXPIRED = "Credentials were refreshed, but the refreshed credentials are still expired."


def of_role(code: str, status: int = 400) -> sdk.ClientError:
    """What the SDK's own request for a role answers, in the middle of ours."""
    meta = {"HTTPStatusCode": status}
    answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": meta}
    return sdk.ClientError(answer, "AssumeRole")  # type: ignore[arg-type]


FULL = {
    "Error": {"Code": "InsufficientInstanceCapacity", "Message": "full"},
    "ResponseMetadata": {"HTTPStatusCode": 500},
}


@pytest.mark.parametrize(
    ("error", "launch", "other"),
    [
        (sdk.EndpointConnectionError(**URL), Unavailable, Unavailable),
        (sdk.ConnectTimeoutError(**URL), Unavailable, Unavailable),
        (sdk.ReadTimeoutError(**URL), Ambiguous, Unavailable),
        (sdk.ConnectionClosedError(**URL), Ambiguous, Unavailable),
        (ResponseParserError("cut"), Ambiguous, Unavailable),
        (sdk.IncompleteReadError(actual_bytes=1, expected_bytes=2), Ambiguous, Unavailable),
        (sdk.ResponseStreamingError(error="reset"), Ambiguous, Unavailable),
        (sdk.HTTPClientError(error="broken pipe"), Ambiguous, Unavailable),
        (sdk.ConnectionError(error="of a kind that is new"), Ambiguous, Unavailable),
        (sdk.ProxyConnectionError(proxy_url="http://p"), Unavailable, Unavailable),
        (sdk.SSLError(**URL, error=CUT), Ambiguous, Unavailable),
        (sdk.SSLError(**URL, error=URLLib3SSLError(CUT)), Ambiguous, Unavailable),
        (sdk.SSLError(**URL, error=URLLib3SSLError(UNTRUSTED)), Unavailable, Unavailable),
        (sdk.NoCredentialsError(), AuthFailed, AuthFailed),
        (sdk.ProfileNotFound(profile="p"), AuthFailed, AuthFailed),
        (sdk.ConfigParseError(path="~/.aws/config"), AuthFailed, AuthFailed),
        (sdk.LoginRefreshRequired(), AuthFailed, AuthFailed),
        (sdk.RefreshWithMFAUnsupportedError(), AuthFailed, AuthFailed),
        (RuntimeError(EXPIRED), AuthFailed, AuthFailed),
        (FileNotFoundError("of credential_process"), AuthFailed, AuthFailed),
        (json.JSONDecodeError("of what it wrote", "", 0), AuthFailed, AuthFailed),
        (of_role("ExpiredToken"), AuthFailed, AuthFailed),
        (of_role("IDPRejectedClaim"), AuthFailed, AuthFailed),
        (of_role("Throttling"), Throttled, Throttled),
        (of_role("InternalFailure", 500), Unavailable, Unavailable),
        (sdk.TokenRetrievalError(provider="sso", error_msg="expired"), AuthFailed, AuthFailed),
        (sdk.ParamValidationError(report="Unknown parameter"), BadRequest, BadRequest),
        (sdk.ClientError(FULL, "TheSame"), NoCapacity, NoCapacity),  # type: ignore[arg-type]
    ],
)
def test_what_a_failure_of_the_sdk_means(
    error: Exception, launch: type[CloudError], other: type[CloudError]
) -> None:
    calls = AwsCalls(session=lambda: Session(error))
    for operation, kind in (("run_instances", launch), ("terminate_instances", other)):
        if isinstance(error, sdk.ClientError) and error.operation_name != "AssumeRole":
            error.operation_name = operation.title().replace("_", "")
        with pytest.raises(CloudError) as raised:
            calls.call("ec2", "us-east-1", operation)
        assert type(raised.value) is kind
        assert str(raised.value)


def test_every_request_has_a_deadline_and_none_is_repeated() -> None:
    session = Session(sdk.NoCredentialsError())
    calls = AwsCalls(session=lambda: session, endpoint_url="http://there")
    for _ in range(2):
        with pytest.raises(AuthFailed):
            calls.call("ec2", "us-east-1", "run_instances")
    [made] = session.made
    assert (made["endpoint_url"], made["region_name"]) == ("http://there", "us-east-1")
    config = made["config"]
    assert config.retries == {"total_max_attempts": 1}
    assert config.connect_timeout + config.read_timeout < 60


def test_the_sdk_is_imported_at_the_first_call() -> None:
    code = (
        "import sys; from spothop_master.clouds.aws.making import make; "
        "from spothop_master.clouds.aws.driver import AwsCloud; "
        "from spothop_master.clouds.aws.config import AwsConfig; "
        "AwsCloud(AwsConfig(regions=['us-east-1'])).limits; "
        "sys.exit('botocore' in sys.modules or 'boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
