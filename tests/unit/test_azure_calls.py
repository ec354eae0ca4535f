"""What the SDK raises, as errors of ours: above all, whether a launch may have been sent."""

from __future__ import annotations

import json
import ssl
from typing import Any

import pytest

from spothop_master.clouds.azure.calls import AzureCalls, _as_ours
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    Throttled,
    Unavailable,
)


class Answer:
    """As the SDK has it."""

    reason = "reason"
    headers: dict[str, str] = {}  # noqa: RUF012
    content_type = "application/json"

    def __init__(self, status: int, body: Any) -> None:
        self.status_code = status
        self._body = body

    def json(self) -> Any:
        return json.loads(self.text())

    def text(self, encoding: str | None = None) -> str:
        return self._body if isinstance(self._body, str) else json.dumps(self._body)

    def body(self) -> bytes:
        return self.text().encode()


def raised(error: Exception, *, launch: bool) -> CloudError:
    with pytest.raises(CloudError) as found, _as_ours(launch=launch):
        raise error
    return found.value


def connection(why: Exception) -> Exception:
    """As the transport raises it: what requests had, which had what urllib3 had."""
    import requests
    from azure.core.exceptions import ServiceRequestError
    from urllib3.exceptions import MaxRetryError

    inner = requests.exceptions.ConnectionError(MaxRetryError(None, "/", why))  # type: ignore[arg-type]
    return ServiceRequestError(inner, error=inner)


def never_sent() -> list[Exception]:
    from urllib3.exceptions import NewConnectionError, ProxyError, SSLError

    return [
        connection(NewConnectionError(None, "refused")),  # type: ignore[arg-type]
        connection(ProxyError("no proxy", OSError())),
        connection(SSLError(ssl.SSLCertVerificationError("self-signed"))),
    ]


def perhaps_sent() -> list[Exception]:
    from azure.core import exceptions as sdk
    from urllib3.exceptions import SSLError

    return [
        connection(SSLError(ssl.SSLEOFError("in the midst of it"))),
        sdk.ServiceResponseError("cut"),
        sdk.ServiceResponseTimeoutError("no answer"),
        sdk.IncompleteReadError("half an answer"),
        sdk.DecodeError("no JSON"),
        sdk.HttpResponseError(response=Answer(502, "<html>a gateway</html>")),
        sdk.DeserializationError("another form"),
        json.JSONDecodeError("a captive portal, with status 200", "<html>", 0),
    ]


def test_what_cannot_have_been_sent_is_no_unclear_launch() -> None:
    for error in never_sent():
        assert type(raised(error, launch=True)) is Unavailable, error


def test_what_may_have_been_sent_is_unclear_for_a_launch_and_a_failure_for_all_else() -> None:
    for error in perhaps_sent():
        assert type(raised(error, launch=True)) is Ambiguous, error
        assert type(raised(error, launch=False)) is Unavailable, error


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": "invalid_client", "error_description": "AADSTS7000215"}, AuthFailed),
        (401, {"error": {"code": "ExpiredAuthenticationToken"}}, AuthFailed),
        (429, {"error": "too_many"}, Throttled),
        (500, {}, Unavailable),
    ],
)
def test_a_token_that_cannot_be_had_is_no_mistake_of_a_job(
    status: int, body: Any, kind: type[CloudError]
) -> None:
    from azure.core.exceptions import ClientAuthenticationError

    error = ClientAuthenticationError("no token", response=Answer(status, body))
    assert type(raised(error, launch=True)) is kind


def test_no_credentials_at_all_are_told() -> None:
    from azure.identity import CredentialUnavailableError

    found = raised(CredentialUnavailableError("please log in"), launch=True)
    assert isinstance(found, AuthFailed)
    assert "please log in" in str(found)


def test_a_value_that_the_sdk_does_not_take_is_ours_to_mend() -> None:
    assert isinstance(raised(ValueError("no such thing"), launch=True), BadRequest)


def test_over_tls_the_clients_own_credential_is_used_and_nothing_is_repeated() -> None:
    calls = AzureCalls(subscription="s", endpoint_url="https://management.azure.com/")
    client = calls._client()
    assert client._config.credential_scopes == ["https://management.azure.com/.default"]
    assert type(client._config.authentication_policy).__name__ == "ARMChallengeAuthenticationPolicy"
    assert client._config.retry_policy.total_retries == 0
    client.close()


@pytest.mark.parametrize("kind", ["managed_identity", "default"])
def test_the_metadata_service_is_never_asked_through_a_proxy(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through none at all: of the requests library, the proxies that each request is sent with."""
    import requests
    from azure.core.exceptions import ClientAuthenticationError

    from spothop_master.clouds.azure.calls import METADATA, _credential

    for name in ("no_proxy", "NO_PROXY", "IDENTITY_ENDPOINT", "MSI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    sent: list[tuple[str, object]] = []

    def send(adapter: object, request: requests.PreparedRequest, **how: Any) -> Any:
        sent.append((str(request.url), (how.get("proxies") or {}).get("http")))
        raise requests.exceptions.ConnectionError("nobody")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    credential = _credential(kind, None)
    managed = next(
        each
        for each in getattr(credential, "credentials", [credential])
        if type(each).__name__ == "ManagedIdentityCredential"
    )
    with pytest.raises(ClientAuthenticationError):
        managed.get_token("https://management.azure.com/.default")
    assert {proxy for url, proxy in sent if METADATA in url} == {None}
