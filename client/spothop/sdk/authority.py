"""Who vouches for a master with TLS of its own: a file, or a fingerprint.

A certificate is public, so the master gives it to everybody (`GET /ca`), also to whoever does not
believe it yet; that it is the right one is what the fingerprint says, which came another way. It is
kept in the home and not fetched again.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from pathlib import Path

import httpx

from spothop.sdk.errors import ClientError, Unreachable
from spothop.tls import fingerprint

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
_HINT = "the master prints the right one when it starts: set SPOTHOP_CA to it, or to the file"
TIMEOUT_S = 10.0


def find(url: str, ca: str, home: Path, *, transport: httpx.BaseTransport | None = None) -> str:
    """Certificates in PEM. `ca` is `sha256:` and the fingerprint (colons and capitals are taken
    too), or a file; "" gives "". Raises `ClientError`."""
    if not ca:
        return ""
    wanted = "sha256:" + ca[7:].replace(":", "").lower()
    if ca[:7].lower() != "sha256:":
        return _checked(_read(Path(ca).expanduser()), ca)
    if not _FINGERPRINT.fullmatch(wanted):
        raise ClientError(f"SPOTHOP_CA = {ca!r} is no fingerprint: 64 digits are missing", _HINT)
    kept = home / "ca" / f"{wanted[7:]}.pem"
    with contextlib.suppress(OSError):
        text = kept.read_text("ascii")
        if _fingerprint(text) == wanted:
            return text
    text = _fetch(url, transport)
    if (found := _fingerprint(text)) != wanted:
        raise ClientError(
            f"the master at {url} has the authority {found or 'of no certificate'}, not {wanted}",
            f"somebody may be in between; {_HINT}",
        )
    _keep(kept, text)
    return text


def _fetch(url: str, transport: httpx.BaseTransport | None) -> str:
    # whoever answers is believed nothing: the fingerprint is compared
    how = transport or httpx.HTTPTransport(verify=False)
    try:
        with httpx.Client(transport=how, timeout=TIMEOUT_S) as client:
            answer = client.get(f"{url.rstrip('/')}/api/v1/ca")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(
            f"cannot reach the master at {url}: {error}",
            "start one with `spothop master`, or set SPOTHOP_URL to where it runs",
        ) from None
    if answer.status_code == 404:
        raise ClientError(
            f"the master at {url} has no certificate authority of its own", "unset SPOTHOP_CA"
        )
    return answer.text


def _fingerprint(pem: str) -> str:
    try:
        return fingerprint(pem)
    except ValueError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, ValueError) as error:
        raise ClientError(f"SPOTHOP_CA = {path}: {error}", _HINT) from None


def _checked(pem: str, name: str) -> str:
    if not _fingerprint(pem):
        raise ClientError(f"SPOTHOP_CA = {name} holds no certificate in PEM", _HINT)
    return pem


def _keep(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # it is fetched again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        aside.write_text(text, "ascii")
        aside.replace(path)
