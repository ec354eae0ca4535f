"""Requests to Google's APIs: credentials, deadlines, and failures as errors of ours. The network is
httpx's own mock, google-auth is the real one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from spothop_master.clouds.base import (
    CALL_DEADLINE_S,
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    Unavailable,
)
from spothop_master.clouds.gcp.calls import CONNECT_S, READ_S, TOKEN_S, GcpCalls

PATH = "/projects/p/zones/z/instances"
Handle = Callable[[httpx.Request], httpx.Response]


class Login:
    def __init__(self) -> None:
        self.renewed = 0

    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.renewed}"}

    def renew(self) -> None:
        self.renewed += 1

    def who(self) -> str:
        return "me"


def calls(handle: Handle, **more: Any) -> GcpCalls:
    return GcpCalls(**{"login": Login(), "transport": httpx.MockTransport(handle), **more})


def raising(error: Exception) -> Handle:
    def handle(request: httpx.Request) -> httpx.Response:
        raise error

    return handle


@pytest.mark.parametrize(
    ("error", "launch", "other"),
    [
        (httpx.ConnectError("refused"), Unavailable, Unavailable),
        (httpx.ConnectTimeout("slow"), Unavailable, Unavailable),
        (httpx.PoolTimeout("busy"), Unavailable, Unavailable),
        (httpx.ProxyError("no"), Unavailable, Unavailable),
        (httpx.ReadTimeout("slow"), Ambiguous, Unavailable),
        (httpx.WriteError("cut"), Ambiguous, Unavailable),
        (httpx.RemoteProtocolError("cut"), Ambiguous, Unavailable),
        (httpx.DecodingError("odd"), Ambiguous, Unavailable),
    ],
)
def test_only_what_cannot_have_been_sent_says_so(
    error: Exception, launch: type[CloudError], other: type[CloudError]
) -> None:
    for is_launch, kind in ((True, launch), (False, other)):
        with pytest.raises(CloudError) as raised:
            calls(raising(error)).call("POST", PATH, body={}, launch=is_launch)
        assert type(raised.value) is kind
        assert raised.value.code == type(error).__name__


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"\xff"])
def test_an_answer_that_is_no_json_is_unclear(content: bytes) -> None:
    asked = calls(lambda request: httpx.Response(200, content=content))
    with pytest.raises(Ambiguous):
        asked.call("POST", PATH, body={}, launch=True)
    with pytest.raises(Unavailable):
        asked.call("GET", PATH)


def test_a_token_that_was_refused_is_renewed_once() -> None:
    seen = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200 if len(seen) == 2 else 401, json={})

    asked = calls(handle)
    assert asked.call("POST", PATH, body={}, launch=True) == {}
    assert seen == ["Bearer 0", "Bearer 1"]
    with pytest.raises(AuthFailed):
        asked.call("POST", PATH, body={}, launch=True)
    assert len(seen) == 4


def test_every_request_has_a_deadline_and_none_is_repeated() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(503, json={})

    with pytest.raises(Ambiguous):
        calls(handle).call("POST", PATH, body={}, launch=True)
    [request] = seen
    assert request.extensions["timeout"] == {
        "connect": CONNECT_S,
        "read": READ_S,
        "write": READ_S,
        "pool": CONNECT_S,
    }
    assert str(request.url) == f"https://compute.googleapis.com/compute/v1{PATH}"


def test_pages_are_followed_and_never_for_ever() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        page = int(request.url.params.get("pageToken", "0"))
        more = {"nextPageToken": str(page + 1)} if page < 2 else {}
        return httpx.Response(200, json={"page": page, **more})

    assert [each["page"] for each in calls(handle).pages(PATH)] == [0, 1, 2]
    circle = calls(lambda request: httpx.Response(200, json={"nextPageToken": "x"}))
    with pytest.raises(Unavailable, match="pages"):
        list(circle.pages(PATH))


# --- credentials ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    return (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


@pytest.fixture
def account(private_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key of a service account, where google-auth looks first."""
    key = {
        "type": "service_account",
        "project_id": "my-project",
        "private_key_id": "1",
        "private_key": private_key,
        "client_email": "master@my-project.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.example/token",
    }
    file = tmp_path / "key.json"
    file.write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    return file


def google(token: httpx.Response, seen: list[httpx.Request]) -> Handle:
    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return token if request.url.host == "oauth2.example" else httpx.Response(200, json={})

    return handle


def test_the_default_credentials_get_one_token_for_many_requests(account: Path) -> None:
    seen: list[httpx.Request] = []
    token = httpx.Response(200, json={"access_token": "secret", "expires_in": 3600})
    asked = GcpCalls(transport=httpx.MockTransport(google(token, seen)))
    for _ in range(3):
        asked.call("GET", PATH)
    assert [request.url.host for request in seen] == ["oauth2.example"] + [
        "compute.googleapis.com"
    ] * 3
    assert {request.headers["authorization"] for request in seen[1:]} == {"Bearer secret"}
    assert seen[0].extensions["timeout"]["read"] <= TOKEN_S
    assert asked.who() == "master@my-project.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(400, json={"error": "invalid_grant"}), AuthFailed),
        (httpx.Response(200, json={}), AuthFailed),
        (httpx.Response(503, json={"error": "server_error"}), Unavailable),
    ],
)
def test_credentials_that_nobody_takes_never_reach_compute_engine(
    account: Path, answer: httpx.Response, kind: type[CloudError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda seconds: None)
    seen: list[httpx.Request] = []
    asked = GcpCalls(transport=httpx.MockTransport(google(answer, seen)))
    with pytest.raises(CloudError) as raised:
        asked.call("POST", PATH, body={}, launch=True)
    assert type(raised.value) is kind
    assert {request.url.host for request in seen} == {"oauth2.example"}
    assert len(seen) * TOKEN_S + READ_S < CALL_DEADLINE_S


def test_a_key_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(AuthFailed, match=r"nowhere\.json"):
        GcpCalls().call("GET", PATH)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"type": "odd"}', '{"type": "service_account"}']
)
def test_a_key_that_cannot_be_read_is_no_fault_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    file = tmp_path / "key.json"
    if content:
        file.write_text(content)
    else:
        file.mkdir()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(AuthFailed):
        GcpCalls().call("GET", PATH)


def test_google_auth_is_imported_at_the_first_call() -> None:
    code = (
        "import sys; from spothop_master.clouds.gcp.making import make; "
        "from spothop_master.clouds.gcp.driver import GcpCloud; "
        "from spothop_master.clouds.gcp.config import GcpConfig; "
        "GcpCloud(GcpConfig(project='my-project', regions=['us-central1'])).limits; "
        "sys.exit(any(name.startswith('google') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_bad_request_is_one() -> None:
    told = {"error": {"message": "no such field", "errors": [{"reason": "invalid"}]}}
    with pytest.raises(BadRequest, match="no such field"):
        calls(lambda request: httpx.Response(400, json=told)).call("GET", PATH)


@pytest.mark.parametrize("host", ["169.254.169.254", "metadata.google.internal"])
def test_the_metadata_server_is_never_asked_through_a_proxy(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    client = GcpCalls()._client()
    direct = client._transport
    assert client._transport_for_url(httpx.URL(f"http://{host}/")) is direct
    assert client._transport_for_url(httpx.URL("http://elsewhere.test/")) is not direct
