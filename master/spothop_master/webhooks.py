"""Messages to webhooks: what they say, how they are signed, and which addresses are spoken to.

A webhook of a user makes the master send a request to an address of the user's choice, from inside
the master's network. So: http and https only; the name is resolved once, every address that it has
must be a public one, and the connection goes to that very address, so that a name that changes
between check and call gains nothing; no redirect is followed and no proxy is asked; the time and
what is read of the answer are bounded, and nothing of the answer is shown but its status.

The signature is an HMAC-SHA256 over `<timestamp>.<body>`, as Stripe's webhooks have it: a message
that is repeated later is refused by who looks at its timestamp.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

import httpx

TIMEOUT_S = 10.0
"""For the connection, and for each part of the exchange."""
MOST_READ = 4096
"""Bytes of an answer."""
SIGNATURE = "X-Spothop-Signature"
DELIVERY = "X-Spothop-Delivery"

Resolve = Callable[[str, int], list[str]]
"""Host and port -> addresses."""


class Failed(Exception):
    """The webhook was not told; `final`: another try cannot help."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


@dataclass(frozen=True, kw_only=True)
class Target:
    url: str
    secret: str = ""
    """Empty: not signed."""
    slack: bool = False
    """The body is one that Slack, and what takes its messages, shows as a text."""
    private: bool = False
    """It may be in a private network."""


@dataclass(frozen=True, kw_only=True)
class Told:
    job: str
    name: str
    owner: str
    alarm: str
    reason: str
    over: bool
    since: datetime


@dataclass(frozen=True, kw_only=True)
class Message:
    id: str
    at: datetime
    told: Told


def body_of(message: Message, *, slack: bool, url: str = "") -> bytes:
    """`url` of the master, for links."""
    told = message.told
    if slack:
        state = "is over" if told.over else f"begins: {told.reason}"
        link = f" ({url}/jobs/{told.job})" if url else ""
        return json.dumps(
            {"text": f"spothop: {told.job}: alarm {told.alarm} {state}{link}"}
        ).encode()
    return json.dumps(
        {
            "id": message.id,
            "event": "alarm_over" if told.over else "alarm",
            "at": message.at.isoformat(),
            "job": told.job,
            "name": told.name,
            "owner": told.owner,
            "alarm": told.alarm,
            "reason": told.reason,
            "since": told.since.isoformat(),
            "url": f"{url}/jobs/{told.job}" if url else "",
        }
    ).encode()


def signature(secret: str, body: bytes, *, timestamp: int) -> str:
    mac = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"t={timestamp},v1={mac.hexdigest()}"


def address_of(url: str, *, private: bool, resolve: Resolve) -> tuple[str, str, int]:
    """Address, name and port to speak to. Raises `Failed`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise Failed(f"no URL: {error}", final=True) from None
    if parts.scheme not in ("http", "https") or not host:
        raise Failed("no http or https URL", final=True)
    port = port or (443 if parts.scheme == "https" else 80)
    try:
        found = resolve(host, port)
    except OSError as error:
        raise Failed(f"{host}: {error}") from None
    if not found:
        raise Failed(f"{host}: it has no address")
    if not private and not all(_is_public(address) for address in found):
        text = f"{host} is an address of a private network; SPOTHOP_MASTER_ALARM_PRIVATE_TARGETS"
        raise Failed(f"{text} allows that", final=True)
    return found[0], host, port


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return inner.is_global and not inner.is_multicast
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
            return inner.is_global and not inner.is_multicast
    return ip.is_global and not ip.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: an IPv4 address is in its last 32 bits."""


def resolved(host: str, port: int) -> list[str]:
    """Every address of the name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Sender:
    """Tells one webhook; may be called from any thread."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime],
        url: str = "",
        resolve: Resolve = resolved,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self._url = url
        self._resolve = resolve
        self._transport = transport

    def __call__(self, target: Target, message: Message) -> None:
        """Raises `Failed`."""
        address, host, port = address_of(target.url, private=target.private, resolve=self._resolve)
        there = httpx.URL(target.url)
        body = body_of(message, slack=target.slack, url=self._url)
        headers = {
            "Host": there.netloc.decode("ascii"),
            "Content-Type": "application/json",
            DELIVERY: message.id,
        }
        if target.secret:
            now = int(self._clock().timestamp())
            headers[SIGNATURE] = signature(target.secret, body, timestamp=now)
        try:
            with (
                httpx.Client(
                    transport=self._transport,
                    timeout=TIMEOUT_S,
                    follow_redirects=False,
                    trust_env=False,  # a proxy would resolve the name anew
                ) as client,
                client.stream(
                    "POST",
                    there.copy_with(host=address, port=port),
                    content=body,
                    headers=headers,
                    extensions={"sni_hostname": host},
                ) as answer,
            ):
                read = 0
                for chunk in answer.iter_raw():
                    read += len(chunk)
                    if read > MOST_READ:
                        break
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Failed(f"{host}: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise Failed(f"{host} answered {status}", final=status == 410)
