"""The client's settings, read once from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from spothop.sdk.errors import ClientError

DEFAULT_URL = "http://127.0.0.1:8900"


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Where the master is, and who we are to it."""

    url: str = DEFAULT_URL
    """SPOTHOP_URL: base URL of the master."""
    token: str | None = field(default=None, repr=False)
    """SPOTHOP_TOKEN; else, for a URL of this machine, the token that a local master wrote."""
    home: Path = Path("~/.spothop")
    """SPOTHOP_HOME: what the client and a local master keep on this machine."""
    master_home: Path = Path("~/.spothop/master")
    """SPOTHOP_MASTER_HOME, by default `master` in the home: where a local master's token is."""
    ca: str = ""
    """SPOTHOP_CA: who vouches for the master's TLS, `sha256:<fingerprint>` or a PEM file; "" for
    whoever this system trusts. For a URL of this machine, the authority of a local master."""


def read_settings(
    environment: Mapping[str, str] = os.environ,  # noqa: TID251  the client's one settings reader
) -> ClientSettings:
    """Read the environment; a variable that is empty counts as unset. Raises `ClientError`."""
    url = environment.get("SPOTHOP_URL", "").strip().rstrip("/") or DEFAULT_URL
    home = _folder("SPOTHOP_HOME", environment.get("SPOTHOP_HOME") or ClientSettings.home)
    master_home = _folder(
        "SPOTHOP_MASTER_HOME", environment.get("SPOTHOP_MASTER_HOME") or home / "master"
    )
    token = environment.get("SPOTHOP_TOKEN", "").strip()
    if not token and _is_loopback(url):  # another host must not be handed this master's token
        token = _local_token(master_home / "admin.token")
    ca = environment.get("SPOTHOP_CA", "").strip()
    local = master_home / "tls" / "ca.pem"
    if not ca and url.startswith("https:") and _is_loopback(url) and local.is_file():
        ca = str(local)
    return ClientSettings(url=url, home=home, master_home=master_home, token=token or None, ca=ca)


def _is_loopback(url: str) -> bool:
    """A URL that cannot be parsed is none; whoever uses it says so."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _folder(name: str, path: str | Path) -> Path:
    """With `~` and `~user` expanded. Raises `ClientError`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ClientError(f"{name}: {str(path)!r}: no such home", f"set {name} to a path") from None


def _local_token(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
