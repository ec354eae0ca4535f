"""Webhooks: what is signed, which addresses are spoken to, what an answer means."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import datetime, timezone

import httpx
import pytest

from spothop_master.webhooks import (
    DELIVERY,
    MOST_READ,
    SIGNATURE,
    Failed,
    Message,
    Sender,
    Target,
    Told,
    address_of,
)

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
PUBLIC = "93.184.216.34"
MESSAGE = Message(
    id="d1",
    at=NOW,
    told=Told(
        job="mnist-1",
        name="mnist",
        owner="ann",
        alarm="stale",
        reason="nothing is committed",
        over=False,
        since=NOW,
    ),
)
HOOK = Target(url="https://hooks.example.com:8443/a?b=c", secret="s3cret")


def answered(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(b""))


class Hook:
    """What is called, and its answer."""

    def __init__(self, answer: httpx.Response | Exception, *addresses: str) -> None:
        self.requests: list[httpx.Request] = []
        self.asked: list[str] = []
        self._answer = answer
        self._addresses = [*addresses] or [PUBLIC]
        self.send = Sender(
            clock=lambda: NOW,
            url="https://master",
            resolve=self._resolve,
            transport=httpx.MockTransport(self._handle),
        )

    def _resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self._addresses

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def verified(secret: str, header: str, body: bytes) -> bool:
    """The verifier of docs/alarms.md."""
    timestamp, mac = (part.partition("=")[2] for part in header.split(","))
    signed = timestamp.encode() + b"." + body
    return hmac.compare_digest(mac, hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest())


def test_a_message_is_signed_and_goes_to_the_address_that_was_looked_at() -> None:
    hook = Hook(answered(204))
    hook.send(HOOK, MESSAGE)
    (request,) = hook.requests
    assert (request.url.host, request.url.port) == (PUBLIC, 8443)
    assert request.url.raw_path == b"/a?b=c"
    assert request.headers["host"] == "hooks.example.com:8443"
    assert request.extensions["sni_hostname"] == "hooks.example.com"
    assert hook.asked == ["hooks.example.com"], "once: what it says later counts for nothing"
    header = request.headers[SIGNATURE]
    assert header.startswith(f"t={int(NOW.timestamp())},v1=")
    assert verified("s3cret", header, request.content)
    assert not verified("other", header, request.content)
    assert request.headers[DELIVERY] == json.loads(request.content)["id"] == "d1"


def test_a_body_for_slack_is_a_text() -> None:
    hook = Hook(answered(200))
    hook.send(Target(url="https://hooks.example.com", slack=True), MESSAGE)
    text = (
        "spothop: mnist-1: alarm stale begins: nothing is committed (https://master/jobs/mnist-1)"
    )
    assert json.loads(hook.requests[0].content) == {"text": text}
    assert SIGNATURE not in hook.requests[0].headers


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "::1", "fe80::1", "fd00::1", "fe80::1%eth0", "::"),
        *("::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "ff02::1", "fd00:ec2::254"),
    ],
)
def test_no_private_address_is_spoken_to(address: str) -> None:
    hook = Hook(answered(200), PUBLIC, address)
    with pytest.raises(Failed, match="private network") as failed:
        hook.send(HOOK, MESSAGE)
    assert failed.value.final
    assert hook.requests == []
    allowed = Target(url=HOOK.url, private=True)
    assert address_of(allowed.url, private=True, resolve=lambda host, port: [address])


@pytest.mark.parametrize("address", [PUBLIC, "2606:4700::1111", "64:ff9b::5db8:d822"])
def test_public_ones_are(address: str) -> None:
    hook = Hook(answered(200), address)
    hook.send(HOOK, MESSAGE)
    assert len(hook.requests) == 1


@pytest.mark.parametrize("url", ["ftp://a/b", "file:///etc/passwd", "https://", "http://a:b:c/"])
def test_what_is_no_address_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(Failed) as failed:
        Hook(answered(200)).send(Target(url=url, private=True), MESSAGE)
    assert failed.value.final


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        (answered(302, Location="http://127.0.0.1/"), False),
        (answered(500), False),
        (answered(410), True),
        (httpx.ConnectTimeout("slow"), False),
    ],
)
def test_anything_but_a_success_is_a_failure(
    answer: httpx.Response | Exception, final: bool
) -> None:
    hook = Hook(answer)
    with pytest.raises(Failed) as failed:
        hook.send(HOOK, MESSAGE)
    assert failed.value.final is final
    assert len(hook.requests) == 1, "no redirect is followed"


def test_little_is_read_of_an_answer_that_has_no_end() -> None:
    read = []

    def chunks():  # type: ignore[no-untyped-def]
        while True:
            read.append(1024)
            yield b"x" * 1024

    Hook(httpx.Response(200, content=chunks())).send(HOOK, MESSAGE)
    assert sum(read) <= MOST_READ + 2048


def test_a_name_that_nobody_knows_may_be_known_later() -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    with pytest.raises(Failed) as failed:
        address_of("https://nowhere.example", private=False, resolve=unknown)
    assert not failed.value.final
