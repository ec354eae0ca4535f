"""What protects people's browsers: headers on every answer, and no POST from other sites.

A page of another site may let a browser send a form to this master, with its cookie. Browsers tell
where such a request comes from (`Sec-Fetch-Site`, older ones `Origin`); programs send neither, and
carry their token themselves. The rule is that of Go's `http.CrossOriginProtection`.
Source: W3C Fetch Metadata Request Headers; RFC 6454 (Origin).

Plain ASGI, as `guard` is.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spothop.wire import Problem
from spothop_master.api.guard import answer

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110, section 9.2.1)."""

NOSNIFF = (b"x-content-type-options", b"nosniff")
NO_STORE = (b"cache-control", b"no-store")


class Browsers:
    """ASGI middleware. `public_url`: where users reach the master; `cached`: path prefix of files
    that hold nothing of any user."""

    def __init__(self, app: ASGIApp, *, public_url: str, cached: str) -> None:
        self._app = app
        self._public = urlsplit(public_url).netloc.lower()
        self._cached = cached

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        keeps = scope["path"].startswith(self._cached)

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", [])]
                names = {name.lower() for name, _ in headers}
                wanted = [NOSNIFF] if keeps else [NOSNIFF, NO_STORE]
                headers += [header for header in wanted if header[0] not in names]
                message = {**message, "headers": headers}
            await send(message)

        if scope["method"] not in SAFE and self._is_foreign(Headers(scope=scope)):
            await answer(protected, 403, _FOREIGN)
            return
        await self._app(scope, receive, protected)

    def _is_foreign(self, headers: Headers) -> bool:
        if site := headers.get("sec-fetch-site"):
            return site not in ("same-origin", "none")
        if (origin := headers.get("origin")) is None:
            return False
        known = (headers.get("host", "").lower(), self._public)
        try:
            return (urlsplit(origin).netloc.lower() or "null") not in known
        except ValueError:  # no address at all
            return True


_FOREIGN = Problem(
    error="cross_site",
    message="a page of another site sent this request",
    hint="use the master's own pages, or a program with a token",
)
