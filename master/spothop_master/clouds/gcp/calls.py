"""The calls to Google's APIs: JSON over HTTPS, a deadline on every request, and every failure as an
error of ours. The only module that imports google-auth, at the first call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Protocol

import httpx

from spothop_master.clouds.base import Ambiguous, AuthFailed, BadRequest, Unavailable
from spothop_master.clouds.clock import CloudClock
from spothop_master.clouds.gcp import errors

HOSTS: Mapping[str, str] = {
    "projects": "https://compute.googleapis.com/compute/v1/projects",
    "b": "https://storage.googleapis.com/storage/v1/b",
    "resources": "https://cloudresourcemanager.googleapis.com/v1/projects",
    "accounts": "https://iam.googleapis.com/v1/projects",
}
"""By the first part of a path: Compute Engine, buckets, permissions on the project, and service
accounts."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
CONNECT_S, READ_S = 5.0, 30.0
TOKEN_S = 5.0
"""For a token: google-auth asks three times, and a call with all of that takes a minute at most."""
CONNECTIONS = 32
"""Side by side."""
UNPROXIED = dict.fromkeys(("all://169.254.169.254", "all://metadata.google.internal"))
"""The metadata server, where the token of a VM's service account comes from: a proxy that the
environment names has another one, or none."""
PARTIAL = "returnPartialSuccess"
"""Asks an aggregated list for what there is, where a zone is away: without it the whole question
fails. Google's documents recommend it, and its clients had it for years; its newest description of
the API names it in words alone, so a refusal of it is no refusal of the question."""
PAGES = 1000
"""More than this of one answer are a provider that goes in circles."""

Answer = Mapping[str, Any]
_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What google-auth lets through where a file of credentials, or an answer about them, is odd."""


class Caller(Protocol):
    """What a driver needs of the API."""

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Answer | None = None,
        launch: bool = False,
    ) -> Any:
        """One request; `path` begins with one of `HOSTS`. Raises CloudError; a `launch` of which
        nobody knows whether it happened: Ambiguous."""

    def pages(self, path: str, *, params: Mapping[str, str] | None = None) -> Iterator[Any]:
        """One request a page; an aggregated list names the zones that do not answer. Raises
        CloudError."""

    def who(self) -> str:
        """Whose credentials these are. Raises AuthFailed, Unavailable."""

    @property
    def clock(self) -> CloudClock:
        """How far ours is ahead, by the answers so far."""


class Login(Protocol):
    """Where the header of a request comes from. Raises CloudError."""

    def headers(self) -> Mapping[str, str]: ...

    def renew(self) -> None:
        """What `headers` gave was refused."""

    def who(self) -> str: ...


class GcpCalls:
    """Thread-safe; repeats nothing by itself but what was refused for a token that is over."""

    def __init__(
        self,
        *,
        endpoint_url: str | None = None,
        login: Login | None = None,
        transport: httpx.BaseTransport | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """`endpoint_url` stands for all of Google's hosts; for tests, as are the others."""
        self._endpoint_url = endpoint_url
        self._transport = transport
        self._http: httpx.Client | None = None
        self._login = login or DefaultLogin(self._client)
        self._now = now
        self._clock = CloudClock()
        self._partial = True
        """Whether `PARTIAL` is taken, as far as it is known."""
        self._lock = threading.Lock()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Answer | None = None,
        launch: bool = False,
    ) -> Any:
        url = self._url(path)
        answer = self._send(method, url, params, body, launch=launch)
        if answer.status_code == 401:  # no launch happened; a token may end before its time
            self._login.renew()
            answer = self._send(method, url, params, body, launch=launch)
        content = _json(answer)
        if answer.is_success and content is not None:
            return content
        if answer.is_success:
            kind = Ambiguous if launch else Unavailable
            raise kind(f"{url}: an answer that is no JSON: {answer.text[:100]!r}")
        raise errors.of_answer(
            answer.status_code, content or {}, launch=launch, headers=answer.headers
        )

    def pages(self, path: str, *, params: Mapping[str, str] | None = None) -> Iterator[Any]:
        asked = dict(params or {})
        for _ in range(PAGES):
            page = self._page(path, asked)
            yield page
            if not page.get("nextPageToken"):
                return
            asked["pageToken"] = page["nextPageToken"]
        raise Unavailable(f"{path}: more than {PAGES} pages")

    def _page(self, path: str, asked: Mapping[str, str]) -> Any:
        if self._partial and "/aggregated/" in path:
            try:
                return self.call("GET", path, params={**asked, PARTIAL: "true"})
            except BadRequest as error:
                if PARTIAL not in str(error):
                    raise
                self._partial = False
        return self.call("GET", path, params=asked)

    def who(self) -> str:
        return self._login.who()

    @property
    def clock(self) -> CloudClock:
        return self._clock

    def _url(self, path: str) -> str:
        first, _, rest = path.lstrip("/").partition("/")
        url = f"{HOSTS[first]}/{rest}"
        if self._endpoint_url is None:
            return url
        return self._endpoint_url.rstrip("/") + url.removeprefix(f"https://{httpx.URL(url).host}")

    def _send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str] | None,
        body: Answer | None,
        *,
        launch: bool,
    ) -> httpx.Response:
        headers, asked_at = self._login.headers(), self._now()
        try:
            answer = self._client().request(method, url, params=params, json=body, headers=headers)
            self._clock.heard(answer.headers.get("date"), asked_at=asked_at, now=self._now())
            return answer
        except _UNSENT as error:
            raise Unavailable(_words(url, error), code=type(error).__name__) from error
        except httpx.HTTPError as error:
            kind = Ambiguous if launch else Unavailable
            raise kind(_words(url, error), code=type(error).__name__) from error

    def _client(self) -> httpx.Client:
        with self._lock:  # reads the authorities of TLS: not before it is needed
            if self._http is None:
                self._http = httpx.Client(
                    transport=self._transport,
                    timeout=httpx.Timeout(READ_S, connect=CONNECT_S, pool=CONNECT_S),
                    limits=httpx.Limits(max_connections=CONNECTIONS),
                    headers={"user-agent": "spothop"},
                    mounts=UNPROXIED,
                )
            return self._http


class DefaultLogin:
    """Google's application default credentials: GOOGLE_APPLICATION_CREDENTIALS, what
    `gcloud auth application-default login` wrote, or the service account of this VM
    (https://cloud.google.com/docs/authentication/application-default-credentials)."""

    def __init__(self, client: Callable[[], httpx.Client]) -> None:
        self._client = client
        self._credentials: Any = None
        self._lock = threading.Lock()

    def headers(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        with self._lock:
            credentials = self._known()
            if not credentials.valid:
                self._refresh()
            credentials.apply(found)
        return found

    def renew(self) -> None:
        with self._lock:
            self._refresh()

    def who(self) -> str:
        with self._lock:
            known = self._known()
        told = getattr(known, "service_account_email", None) or getattr(known, "account", None)
        return str(told or type(known).__name__)

    def _known(self) -> Any:
        if self._credentials is None:
            import google.auth
            from google.auth import exceptions

            try:
                self._credentials, _ = google.auth.default(scopes=[SCOPE], request=self._request)
            except (exceptions.GoogleAuthError, *_UNREADABLE) as error:
                raise AuthFailed(errors.words("", str(error)), code=type(error).__name__) from error
        return self._credentials

    def _refresh(self) -> None:
        from google.auth import exceptions

        try:
            self._known().refresh(self._request)
        except exceptions.GoogleAuthError as error:
            away = isinstance(error, exceptions.TransportError) or error.retryable
            kind = Unavailable if away else AuthFailed
            raise kind(errors.words("", str(error)), code=type(error).__name__) from error
        except _UNREADABLE as error:
            raise AuthFailed(errors.words("", str(error)), code=type(error).__name__) from error

    def _request(
        self,
        url: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **more: Any,
    ) -> Any:
        """google-auth's way to the network (`google.auth.transport.Request`)."""
        from google.auth import exceptions

        try:
            answer = self._client().request(
                method, url, content=body, headers=headers, timeout=min(timeout or TOKEN_S, TOKEN_S)
            )
        except httpx.HTTPError as error:
            raise exceptions.TransportError(_words(url, error)) from error
        return _Answer(answer)


class _Answer:
    """As google-auth reads it (`google.auth.transport.Response`)."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.headers = answer.headers
        self.data = answer.content


def _json(answer: httpx.Response) -> dict[str, Any] | None:
    if not answer.content:  # as of a DELETE of Cloud Storage
        return {}
    try:
        content = answer.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _words(url: str, error: Exception) -> str:
    return f"{httpx.URL(url).host}: {error or type(error).__name__}"
