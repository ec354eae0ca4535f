"""Trusting a master by the fingerprint of its authority."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import httpx
import pytest

from fakes.tls_server import TlsServer
from spothop.sdk import authority
from spothop.sdk.client import Client
from spothop.sdk.errors import ClientError, Unreachable
from spothop.sdk.settings import read_settings
from spothop.tls import fingerprint
from spothop_master import tls

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
URL = "https://master.example"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tls.ensure(tmp_path_factory.mktemp("tls"), ["x"], now=NOW).ca_pem


def giving(pem: str, asked: list[str]) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, text=pem) if pem else httpx.Response(404)

    return httpx.MockTransport(answer)


def test_an_authority_with_the_right_fingerprint_is_kept(pem: str, tmp_path: Path) -> None:
    asked: list[str] = []
    shown = fingerprint(pem).upper()
    with_colons = "SHA256:" + ":".join(shown[7:][i : i + 2] for i in range(0, 64, 2))
    for ca in (fingerprint(pem), with_colons):
        found = authority.find(URL, ca, tmp_path, transport=giving(pem, asked))
        assert found == pem
    assert asked == ["https://master.example/api/v1/ca"]


def test_another_authority_is_refused_and_not_kept(pem: str, tmp_path: Path) -> None:
    wanted = "sha256:" + "0" * 64
    with pytest.raises(ClientError, match="has the authority sha256:") as refused:
        authority.find(URL, wanted, tmp_path, transport=giving(pem, []))
    assert "somebody may be in between" in refused.value.hint
    assert not list(tmp_path.rglob("*.pem"))


def test_a_kept_file_that_was_changed_is_fetched_again(pem: str, tmp_path: Path) -> None:
    ca = fingerprint(pem)
    kept = tmp_path / "ca" / f"{ca[7:]}.pem"
    kept.parent.mkdir()
    kept.write_text("changed")
    assert authority.find(URL, ca, tmp_path, transport=giving(pem, [])) == pem
    assert kept.read_text() == pem


@pytest.mark.parametrize(
    ("ca", "problem"), [("sha256:12", "no fingerprint"), ("/no/such/file", "No such file")]
)
def test_what_is_no_authority_is_told(ca: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=problem):
        authority.find(URL, ca, tmp_path)
    with pytest.raises(ClientError, match="has no certificate authority"):
        authority.find(URL, "sha256:" + "0" * 64, tmp_path, transport=giving("", []))


def test_a_file_is_taken_as_it_is(pem: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(pem)
    assert authority.find(URL, str(file), tmp_path) == pem
    file.write_text("nothing")
    with pytest.raises(ClientError, match="no certificate"):
        authority.find(URL, str(file), tmp_path)


def test_a_master_of_this_machine_is_believed_by_its_home(tmp_path: Path) -> None:
    local = tmp_path / "tls" / "ca.pem"
    local.parent.mkdir()
    local.write_text("x")
    environ = {"SPOTHOP_MASTER_HOME": str(tmp_path), "SPOTHOP_URL": "https://127.0.0.1:1"}
    assert read_settings(environ).ca == str(local)
    assert read_settings({**environ, "SPOTHOP_URL": "https://master.example"}).ca == ""
    assert read_settings({**environ, "SPOTHOP_CA": "sha256:1"}).ca == "sha256:1"


def test_the_client_talks_to_whom_the_fingerprint_names(tmp_path: Path) -> None:
    body = b""

    def answer(method: str, path: str) -> bytes:
        return body if path == "/api/v1/ca" else b"[]"

    with TlsServer(tmp_path / "tls", answer) as server:
        body = server.certificates.ca_pem.encode()
        with Client(server.url, None) as client, pytest.raises(Unreachable, match="vouches"):
            client.pools()
        ca = authority.find(server.url, fingerprint(body.decode()), tmp_path)
        with Client(server.url, None, ca=ca) as client:
            assert client.pools() == []
