"""A master with TLS of its own, as it is served: both libraries of clients, and a renewal."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import httpx
import pytest

from fakes.fake_cloud import FakeClock, FakeCloud
from fakes.served_master import ServedMaster, served_master
from spothop_master import serving, tls
from spothop_master.settings import MasterSettings

NOW = datetime.now(timezone.utc)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedMaster]:
    with served_master(tmp_path_factory.mktemp("home")) as master:
        yield master


def leaf_at(url: str, ca: str) -> bytes:
    """The certificate that the server shows, in DER."""
    context = ssl.create_default_context(cadata=ca)
    with httpx.Client(verify=context) as client, client.stream("GET", f"{url}/healthz") as answer:
        assert answer.status_code == 200
        shown = answer.extensions["network_stream"].get_extra_info("ssl_object")
        found: bytes = shown.getpeercert(True)
        return found


def test_it_vouches_for_itself_and_its_cookies_are_secure(
    served: ServedMaster,
) -> None:
    url, settings = served.url, served.settings
    ca = httpx.get(f"{url}/api/v1/ca", verify=False).text  # what the fingerprint is compared with
    assert ca == (settings.home / "tls" / "ca.pem").read_text()
    token = (settings.home / "admin.token").read_text().strip()
    with httpx.Client(verify=ssl.create_default_context(cadata=ca), base_url=url) as client:
        answer = client.post("/login", data={"token": token})
        assert answer.status_code == 303
        assert "secure" in answer.headers["set-cookie"].lower()


def test_rustls_takes_it_too(served: ServedMaster) -> None:
    """obstore and uv use it; it refuses an authority as the certificate of a server."""
    from obstore.store import HTTPStore

    options = {"root_certificate": served.ca}
    store = HTTPStore(served.url, client_options=options)  # type: ignore[arg-type]
    assert bytes(store.get("healthz").bytes()).startswith(b'{"status"')


def test_a_renewed_leaf_is_served_without_a_restart(
    served: ServedMaster,
) -> None:
    url, settings, context, ca = served.url, served.settings, served.context, served.ca
    before = leaf_at(url, ca)
    serving.renew(settings, context, NOW + timedelta(days=1))
    assert leaf_at(url, ca) == before
    serving.renew(settings, context, NOW + tls.LEAF_LIFE - tls.RENEW_BEFORE + timedelta(days=1))
    # counts from the future on, so nobody here would take it; the server shows it all the same
    with pytest.raises(httpx.ConnectError, match="not yet valid"):
        leaf_at(url, ca)


def test_a_renewal_that_fails_is_logged_and_the_old_leaf_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = MasterSettings(home=tmp_path, tls="auto")
    context = serving.context(settings, NOW)
    assert context is not None
    (tmp_path / "tls" / "ca.pem").write_text("damaged")
    serving.renew(settings, context, NOW)
    assert "cannot be renewed" in caplog.text


def test_vms_that_would_look_for_the_master_on_themselves_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = FakeCloud(clock=FakeClock())
    settings = MasterSettings(home=tmp_path)
    serving.warn_unreachable(settings, {"fake": cloud})
    assert caplog.text == ""  # its VMs are on this machine
    cloud.boots_images = True
    serving.warn_unreachable(settings, {"fake": cloud})
    assert "VMs of fake cannot reach this machine" in caplog.text
    caplog.clear()
    reached = MasterSettings(home=tmp_path, public_url="https://spothop.example")
    serving.warn_unreachable(reached, {"fake": cloud})
    assert caplog.text == ""


def test_without_tls_of_its_own_a_proxys_authority_may_be_named(tmp_path: Path) -> None:
    made = tls.ensure(tmp_path / "company", ["x"], now=NOW)
    company = tmp_path / "company" / "ca.pem"
    assert serving.context(MasterSettings(home=tmp_path), NOW) is None
    assert serving.authority(MasterSettings(home=tmp_path), NOW) == ""
    assert serving.authority(MasterSettings(home=tmp_path, tls_ca=company), NOW) == made.ca_pem
    with pytest.raises(tls.TlsError, match="certificates in PEM"):
        serving.authority(MasterSettings(home=tmp_path, tls_ca=tmp_path / "none"), NOW)
