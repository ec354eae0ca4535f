"""TLS of a master that has no proxy in front: which addresses need it, and its renewal.

A leaf is renewed while the master runs: a new one is loaded into the context of the server, which
uses it for the connections that come from then on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from urllib.parse import urlsplit

from spothop.tls import fingerprint
from spothop_master import tls
from spothop_master.clouds.base import Cloud
from spothop_master.settings import MasterSettings

LOOK_S = 3600.0
"""How often the leaf's end is looked at."""

log = logging.getLogger(__name__)


class PublicRefused(Exception):
    """Nobody should listen there like this; the message says why and the way out."""


def refuse_public(settings: MasterSettings) -> None:
    """Raises `PublicRefused` for an address that others reach, unless there is TLS or the settings
    insist, and for a URL that contradicts the TLS."""
    for name, url in (("public_url", settings.public_url), ("agents_url", settings.agents_url)):
        if settings.tls == "auto" and urlsplit(url).scheme != "https":
            raise PublicRefused(
                f"{name} = {url}: with tls = auto this master speaks https only; "
                "write https:// in it"
            )
    if is_loopback(settings.host) or settings.insecure_public or settings.tls == "auto":
        return
    if urlsplit(settings.public_url).scheme == "https":
        log.warning(
            "host = %s has no TLS: see that nobody but the proxy of %s reaches port %d",
            settings.host,
            settings.public_url,
            settings.port,
        )
        return
    raise PublicRefused(
        f"host = {settings.host}: others could read tokens on this address, which has no TLS; "
        "add --tls auto, or --public-url https://... if a proxy with TLS is in front, or insist "
        "with --insecure-public"
    )


def warn_unreachable(settings: MasterSettings, clouds: Mapping[str, Cloud]) -> None:
    """Say so where VMs of a cloud would look for this master on themselves."""
    elsewhere = sorted(name for name, cloud in clouds.items() if cloud.limits.boots_images)
    if elsewhere and is_loopback(urlsplit(settings.agents_url).hostname or ""):
        log.warning(
            "%s: VMs of %s cannot reach this machine by that; name an address of it with "
            "--public-url (docs/bootstrap.md)",
            settings.agents_url,
            ", ".join(elsewhere),
        )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def authority(settings: MasterSettings, now: datetime) -> str:
    """In PEM, who vouches for this master's certificate; "" where systems know that by themselves,
    or there is no TLS. Raises `TlsError`."""
    if settings.tls == "auto":
        return _certificates(settings, now).ca_pem
    if settings.tls_ca is None:
        return ""
    try:
        text = settings.tls_ca.read_text("ascii")
        fingerprint(text)
    except (OSError, ValueError) as error:
        raise tls.TlsError(
            f"tls_ca = {settings.tls_ca}: {error}; name a file with certificates in PEM"
        ) from None
    return text


def context(settings: MasterSettings, now: datetime) -> ssl.SSLContext | None:
    """For the server; None without TLS of our own. Raises `TlsError`."""
    if settings.tls != "auto":
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(_certificates(settings, now).chain)
    return made


async def keep_renewed(
    settings: MasterSettings, served: ssl.SSLContext, clock: Callable[[], datetime]
) -> None:
    """For as long as the server runs."""
    while True:
        await asyncio.sleep(LOOK_S)
        renew(settings, served, clock())


def renew(settings: MasterSettings, served: ssl.SSLContext, now: datetime) -> None:
    """Let the server use the leaf that is right now. A failure is logged: the old one still counts
    for a month."""
    try:
        served.load_cert_chain(_certificates(settings, now).chain)
    except (tls.TlsError, OSError) as error:
        log.error("the certificate of this master cannot be renewed: %s", error)


def _certificates(settings: MasterSettings, now: datetime) -> tls.Certificates:
    names = {
        name: None
        for url in (settings.public_url, settings.agents_url)
        for name in tls.names_of(url, settings.host)
    }
    return tls.ensure(settings.home / "tls", list(names), now=now)
