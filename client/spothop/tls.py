"""Whom to believe that a server is the one that its address says."""

from __future__ import annotations

import hashlib
import ssl
from urllib.parse import urlsplit


def trusting(url: str, ca: str = "") -> ssl.SSLContext | bool:
    """What httpx takes as `verify` for this URL. `ca`: certificates in PEM that alone are trusted;
    empty: those of the system. Reading all of these takes 20 ms, so that is done for https only;
    for http the list is empty. Raises ValueError when `ca` holds no certificate."""
    if urlsplit(url).scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not ca:
        return True
    try:
        return ssl.create_default_context(cadata=ca)
    except ssl.SSLError as error:
        raise ValueError(f"no certificate in PEM: {error.reason or error}") from None


def fingerprint(pem: str) -> str:
    """Of the first certificate: `sha256:` and 64 hexadecimal digits, as browsers show them (with
    colons). Raises ValueError when there is none."""
    end = "-----END CERTIFICATE-----"
    first, found, _ = pem.partition(end)
    der = ssl.PEM_cert_to_DER_cert(first[first.find("-----BEGIN") :] + found)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"
