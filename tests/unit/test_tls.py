"""Our own certificate authority, and who believes it."""

from __future__ import annotations

import asyncio
import random
import ssl
import stat
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from fakes.tls_server import TlsServer
from spothop.tls import fingerprint, trusting
from spothop_agent.master_link import MasterAway, MasterLink
from spothop_master import tls

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
NAMES = ["master.example", "10.0.0.5", "localhost"]


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def boottime(self) -> float:
        return 0.0


async def send_log(url: str, ca: str, target: Path) -> int:
    """A chunk of a log, and a bundle, by the agent's link."""
    link = MasterLink(url, clock=Clock(), rng=random.Random(0), ca=ca)
    try:
        await link.fetch_bundle("0" * 64, target)
        return await link.send_log(1, 0, b"x")
    finally:
        await link.close()


def test_the_agent_believes_the_authority_of_its_user_data_alone(tmp_path: Path) -> None:
    other = tls.ensure(tmp_path / "other", NAMES, now=NOW).ca_pem
    bundle = tmp_path / "bundle"
    with TlsServer(tmp_path / "tls", lambda method, path: b'{"next_offset": 7}') as server:
        ca = server.certificates.ca_pem
        assert asyncio.run(send_log(server.url, ca, bundle)) == 7
        assert bundle.read_bytes() == b'{"next_offset": 7}'
        for wrong in (other, ""):
            with pytest.raises(MasterAway, match="CERTIFICATE_VERIFY_FAILED"):
                asyncio.run(send_log(server.url, wrong, bundle))
    misnamed = TlsServer(tmp_path / "misnamed", lambda method, path: b"", ("other.example",))
    with misnamed, pytest.raises(MasterAway, match="IP address mismatch"):
        asyncio.run(send_log(misnamed.url, misnamed.certificates.ca_pem, bundle))


def test_what_is_no_certificate_is_an_error() -> None:
    with pytest.raises(ValueError, match="no certificate"):
        trusting("https://master", "nonsense")
    with pytest.raises(ValueError, match="PEM"):
        fingerprint("nonsense")
    assert trusting("https://master") is True
    assert isinstance(trusting("http://master", "nonsense"), ssl.SSLContext)


def test_authority_and_leaf_are_two_and_keys_are_private(tmp_path: Path) -> None:
    made = tls.ensure(tmp_path, NAMES, now=NOW)
    authority = x509.load_pem_x509_certificate(made.ca_pem.encode())
    leaf = x509.load_pem_x509_certificate(made.chain.read_bytes())
    leaf.verify_directly_issued_by(authority)
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca  # rustls: CaUsedAsEndEntity
    alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == ["master.example", "localhost"]
    assert [str(a) for a in alternatives.get_values_for_type(x509.IPAddress)] == ["10.0.0.5"]
    assert len(made.ca_pem) < 600
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "leaf.pem": 0o600}
    assert fingerprint(made.ca_pem) == f"sha256:{authority.fingerprint(SHA256()).hex()}"


@pytest.mark.parametrize(
    ("later", "names", "renewed"),
    [
        (timedelta(days=59), NAMES, False),
        (timedelta(days=61), NAMES, True),
        (timedelta(days=-2), NAMES, True),  # the clock was wrong
        (timedelta(), ["elsewhere.example"], True),
    ],
)
def test_the_leaf_is_renewed_in_time_and_the_authority_stays(
    tmp_path: Path, later: timedelta, names: list[str], renewed: bool
) -> None:
    before = tls.ensure(tmp_path, NAMES, now=NOW)
    chain = before.chain.read_bytes()
    after = tls.ensure(tmp_path, names, now=NOW + later)
    assert (after.chain.read_bytes() != chain) is renewed
    assert after.ca_pem == before.ca_pem


def test_vms_that_know_the_master_by_another_name_are_not_cut_off(tmp_path: Path) -> None:
    tls.ensure(tmp_path, NAMES, now=NOW)
    for number in range(tls.MOST_NAMES):
        tls.ensure(tmp_path, [f"{number}.example"], now=NOW)
        if number == 0:
            later = tls.ensure(tmp_path, ["0.example"], now=NOW + timedelta(days=80))
            leaf = x509.load_pem_x509_certificate(later.chain.read_bytes())
            found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            assert found.get_values_for_type(x509.DNSName)[:2] == ["0.example", "master.example"]
    last = x509.load_pem_x509_certificate((tmp_path / "leaf.pem").read_bytes())
    names = last.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert len([*names]) == tls.MOST_NAMES  # not for ever


def test_a_new_authority_has_a_new_leaf(tmp_path: Path) -> None:
    before = tls.ensure(tmp_path, NAMES, now=NOW)
    (tmp_path / "ca.pem").unlink()
    after = tls.ensure(tmp_path, NAMES, now=NOW)
    assert after.ca_pem != before.ca_pem
    authority = x509.load_pem_x509_certificate(after.ca_pem.encode())
    x509.load_pem_x509_certificate(after.chain.read_bytes()).verify_directly_issued_by(authority)


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "leaf.pem"])
def test_a_damaged_file_is_told_and_not_replaced(tmp_path: Path, name: str) -> None:
    tls.ensure(tmp_path, NAMES, now=NOW)
    (tmp_path / name).write_text("damaged")
    with pytest.raises(tls.TlsError, match="put its files back"):
        tls.ensure(tmp_path, ["another.example"], now=NOW)
    assert (tmp_path / name).read_text() == "damaged"


def test_an_authority_without_its_key_is_not_replaced(tmp_path: Path) -> None:
    before = tls.ensure(tmp_path, NAMES, now=NOW)
    (tmp_path / "ca.key").unlink()
    assert tls.ensure(tmp_path, NAMES, now=NOW) == before  # nothing is to be signed
    with pytest.raises(tls.TlsError, match=r"ca\.key.*put its files back"):
        tls.ensure(tmp_path, ["another.example"], now=NOW)
    assert (tmp_path / "ca.pem").read_text() == before.ca_pem


def test_a_key_that_a_crash_left_alone_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "ca.key").write_text("half an authority")
    tls.ensure(tmp_path, NAMES, now=NOW)


@pytest.mark.parametrize("name", ["a..b", f"{'a' * 64}.example"])
def test_a_url_with_a_wrong_name_is_told_and_no_folder_is_blamed(tmp_path: Path, name: str) -> None:
    with pytest.raises(tls.TlsError, match="is no name of a machine") as raised:
        tls.ensure(tmp_path, [name], now=NOW)
    assert "remove the folder" not in str(raised.value)


def test_names_are_those_by_which_it_is_reached() -> None:
    assert tls.names_of("https://m.example:8900", "0.0.0.0")[0] == "m.example"
    assert "0.0.0.0" not in tls.names_of("https://m.example", "0.0.0.0")
    assert tls.names_of("https://[::1]:1", "::")[0] == "::1"
