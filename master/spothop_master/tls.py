"""TLS without a proxy in front: a small certificate authority of our own, and a leaf from it.

Why two certificates: rustls, which obstore and uv use, refuses an authority as a server's
certificate (`CaUsedAsEndEntity`), so one that signs itself would do for some clients only. Whoever
trusts the authority, which VMs get with their user data, is not touched when the leaf is renewed.

    <home>/tls/ca.pem, ca.key    10 years; the key signs leaves and nothing else
    <home>/tls/leaf.pem          90 days, renewed 30 days before its end, and when the master has
                                 a new name; its key, itself and the authority in one file, so that
                                 a crash leaves no two that do not fit

A leaf keeps the names that the one before had: VMs go on at the address that they were told.

Keys are readable by their user alone. EC keys (P-256), which keep the PEM of the authority below
600 bytes: it travels in user data, of which AWS takes 16 KiB.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spothop_master.home import publish

CA_LIFE = timedelta(days=3653)
LEAF_LIFE = timedelta(days=90)
RENEW_BEFORE = timedelta(days=30)
MOST_NAMES = 20
SKEW = timedelta(hours=1)
"""Certificates count from so long ago: clocks of new VMs may be behind."""


class TlsError(Exception):
    """What lies in the folder cannot be used; the message says why and the way out."""


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """What a server needs."""

    ca_pem: str
    chain: Path
    """The leaf with its key, and the authority."""
    not_after: datetime
    """Of the leaf."""


def names_of(public_url: str, host: str) -> list[str]:
    """By which names and addresses this master is reached."""
    wanted = [urlsplit(public_url).hostname or "", host, "localhost", "127.0.0.1", "::1"]
    return [*dict.fromkeys(name for name in wanted if name and not _is_wildcard(name))]


def ensure(folder: Path, names: Collection[str], *, now: datetime) -> Certificates:
    """Authority and leaf as they should be now, made where they are not. Raises TlsError."""
    wanted = [_alternative(name) for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ca_pem, ca_key = folder / "ca.pem", folder / "ca.key"
        if (
            not ca_pem.exists()
        ):  # without its key alone it stays: another cuts off all that trust it
            _make_authority(ca_pem, ca_key, now=now)
        authority = x509.load_pem_x509_certificate(ca_pem.read_bytes())
        chain = folder / "leaf.pem"
        earlier = _alternatives_of(chain) if chain.exists() else []
        if not {*wanted} <= {*earlier} or _is_due(chain, authority, now=now):
            known = [*dict.fromkeys([*wanted, *earlier])][:MOST_NAMES]
            _make_leaf(chain, authority, _load_key(ca_key), known, now=now)
        leaf = x509.load_pem_x509_certificate(chain.read_bytes())
        text = ca_pem.read_text("ascii")
    except (OSError, ValueError, TypeError) as error:
        raise TlsError(
            f"{folder}: {error}; put its files back, or remove the folder: a new authority is made,"
            " which clients and browsers then have to be told of, and running VMs do not know"
        ) from None
    return Certificates(ca_pem=text, chain=chain, not_after=leaf.not_valid_after_utc)


def _is_due(chain: Path, authority: x509.Certificate, *, now: datetime) -> bool:
    leaf = x509.load_pem_x509_certificate(chain.read_bytes())
    return (
        now > leaf.not_valid_after_utc - RENEW_BEFORE
        or now < leaf.not_valid_before_utc
        or leaf.issuer != authority.subject
    )


def _alternatives_of(chain: Path) -> list[x509.GeneralName]:
    leaf = x509.load_pem_x509_certificate(chain.read_bytes())
    return [*leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


def _make_authority(pem: Path, key_path: Path, *, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = _name(f"spothop {serial % 16**8:08x}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(subject, subject, key, serial, now=now, until=now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    publish(key_path, _key_text(key), mode=0o600)
    publish(pem, _text(certificate), mode=0o644)


def _make_leaf(
    chain: Path,
    authority: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    names: Collection[x509.GeneralName],
    *,
    now: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + LEAF_LIFE, authority.not_valid_after_utc)
    builder = _builder(
        _name("spothop master"),
        authority.subject,
        key,
        x509.random_serial_number(),
        now=now,
        until=until,
    )
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    leaf = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(server, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    publish(chain, _key_text(key) + _text(leaf) + _text(authority), mode=0o600)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    serial: int,
    *,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - SKEW)
        .not_valid_after(until)
        .add_extension(own, critical=False)
    )


def _usage(**named: bool) -> x509.KeyUsage:
    every = [
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ]
    return x509.KeyUsage(**{name: named.get(name, False) for name in every})


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name.encode("idna").decode("ascii"))
    except ValueError as error:
        raise TlsError(f"{name!r} is no name of a machine ({error}); correct the URL") from None


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name} is no EC key")
    return key


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode("ascii")


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
