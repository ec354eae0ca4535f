"""One request to the master, and what every kind of wrong answer means for the user."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from spothop.sdk.errors import ApiError, ClientError, NotSpothop, TooNew, Unreachable
from spothop.tls import trusting
from spothop.wire import Problem

ANSWER_S = 30.0
CONNECT_S = 5.0
CONNECT_RETRIES = 2
LONGEST_NAME = 200
"""Of what a job or VM is asked for by; ids have 80 characters at most."""

T = TypeVar("T")


class Http:
    """A connection to the master's REST API."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ca: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        _check_url(self.url)
        strange = next((c for c in token or "" if not (c.isascii() and c.isprintable())), None)
        if strange is not None:
            raise ClientError(
                f"the token holds {strange!r}, a character that no token has", _TOKEN_HINT
            )
        self._client = httpx.Client(
            base_url=self.url + "/api/v1",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport
            or httpx.HTTPTransport(retries=CONNECT_RETRIES, verify=trusting(self.url, ca)),
        )

    def close(self) -> None:
        self._client.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int | float] | None = None,
        body: BaseModel | dict[str, Any] | None = None,
        content: Iterable[bytes] | None = None,
        wait_s: float = 0.0,
        allow: tuple[int, ...] = (),
    ) -> httpx.Response:
        """The answer with a status of 2xx or one of `allow`; raises `ClientError`.

        `wait_s` is how long the master may hold the answer back (a long poll).
        """
        payload = body.model_dump(mode="json") if isinstance(body, BaseModel) else body
        try:
            request = self._client.build_request(
                method,
                path,
                params=params,
                json=payload,
                content=content,
                timeout=httpx.Timeout(ANSWER_S + wait_s, connect=CONNECT_S),
            )
        except (httpx.InvalidURL, ValueError) as error:  # lone surrogates, NaN, a URL too long
            raise ClientError(
                f"{method} {path} {reprlib.repr(params or {})} cannot be sent: {error}",
                "give Unicode text and finite numbers",
            ) from None
        try:
            answer = self._client.send(request)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except httpx.DecodingError as error:
            raise NotSpothop(f"the answer of {self.url} is garbled: {error}", _URL_HINT) from None
        if answer.is_success or answer.status_code in allow:
            return answer
        raise self._refusal(answer)

    def read(self, type_: type[T], answer: httpx.Response) -> T:
        """The answer's JSON as this type.

        Raises `TooNew` for a value of a newer master, and `NotSpothop` when it is something else.
        """
        try:
            return TypeAdapter(type_).validate_json(answer.content)
        except ValidationError as error:
            raise _too_new(error) or self._not_spothop(answer) from None

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        reason = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            return Unreachable(
                f"nobody whom this machine trusts vouches for {self.url}: {reason}",
                "if its master has an authority of its own (--tls auto), set SPOTHOP_CA to the "
                "fingerprint that it prints when it starts",
            )
        if isinstance(error, httpx.TimeoutException):
            return Unreachable(
                f"no answer from {self.url} in time ({reason})",
                "see whether the master is busy or the network slow; then try again",
            )
        return Unreachable(
            f"cannot reach the master at {self.url}: {reason}",
            "start one with `spothop master`, or set SPOTHOP_URL to where it runs",
        )

    def _refusal(self, answer: httpx.Response) -> ClientError:
        try:
            problem = Problem.model_validate_json(answer.content)
        except ValidationError:
            return self._not_spothop(answer)
        hint = problem.hint or (_TOKEN_HINT if answer.status_code == 401 else "")
        return ApiError(
            problem.message,
            hint,
            status=answer.status_code,
            error=problem.error,
            field=problem.field,
        )

    def _not_spothop(self, answer: httpx.Response) -> NotSpothop:
        kind = answer.headers.get("content-type", "no content type").split(";")[0]
        what = f"{answer.request.url} answered {answer.status_code} with {kind}"
        if answer.is_redirect:
            what = f"{answer.request.url} redirects to {answer.headers.get('location')}"
            return NotSpothop(what, "set SPOTHOP_URL to the final address, https if it is that")
        if answer.status_code in (502, 503, 504):
            return NotSpothop(
                f"{what}: a proxy without a master behind it",
                "see whether the master runs; then try again",
            )
        return NotSpothop(
            f"{what}: not a spothop master that this client understands",
            f"{_URL_HINT}; or install the client version that the master has",
        )


def _too_new(error: ValidationError) -> TooNew | None:
    """Everything is in its place, but some states or kinds have names that we do not know."""
    wrong = error.errors(include_url=False)
    if any(each["type"] != "enum" for each in wrong):
        return None
    first = wrong[0]
    field = ".".join(str(part) for part in first["loc"])
    return TooNew(
        f"the master's answer says {field} = {_REPR.repr(first['input'])}, "
        "which this client does not know",
        "update the client: install the version that the master has",
    )


def _check_url(url: str) -> None:
    """Raises `ClientError`, also for what httpx lets through and the system's resolver does not."""
    shown = _REPR.repr(url)
    try:
        parsed = httpx.URL(url)
        usable = parsed.scheme in ("http", "https") and bool(parsed.host)
        _ = urlsplit(url).port
        parsed.raw_host.decode("ascii").encode("idna")
    except (httpx.InvalidURL, ValueError) as error:
        raise ClientError(f"{shown} is not a URL: {error}", _URL_HINT) from None
    if not usable:
        raise ClientError(f"{shown} is not an http(s) URL", _URL_HINT)


_REPR = reprlib.Repr()
_REPR.maxstring = 200
_URL_HINT = "set SPOTHOP_URL to the master's address, such as http://127.0.0.1:8900"
_TOKEN_HINT = (
    "set SPOTHOP_TOKEN; a local master wrote its token to <home>/master/admin.token, "
    "which is used by itself when SPOTHOP_URL is of this machine"
)


def part(name: str) -> str:
    """One path segment: a name may hold nearly anything, `..` and slashes included."""
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise ClientError(
            f"no job or VM can be called {reprlib.repr(name)}: "
            f"names and ids are printable and have at most {LONGEST_NAME} characters",
            "`spothop jobs --all` and `spothop vms` list those that there are",
        )
    return quote(name, safe="").replace(".", "%2E") or "%20"
