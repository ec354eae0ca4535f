"""The calls to Azure: one client, a deadline on every request, and every failure as an error of
ours. The only module that imports the SDK, at the first call."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from spothop_master.clouds.azure import errors
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    Throttled,
    Unavailable,
)

CONNECT_S, READ_S = 5, 30
METADATA = "169.254.169.254"
LAUNCH = "virtual_machines.begin_create_or_update"
DELETE = "virtual_machines.begin_delete"
CONSOLE = 65_536
"""Characters of a console that are kept."""
NO_SUCH = 204
"""The answer of `DELETE` about a VM that is not there."""


class Caller(Protocol):
    """What a driver needs of the SDK. Answers are JSON, with the names of Azure's REST API."""

    def call(self, operation: str, *args: Any, **params: Any) -> Any:
        """One request of an operation such as `virtual_machines.get`. What it begins is not waited
        for, and `LAUNCH` replaces nothing that is there; of `DELETE` the answer is the status.
        Raises CloudError."""

    def ask(self, method: str, path: str, *, version: str, **query: str) -> Iterator[Any]:
        """Each page of an answer, as it came: for listings, whose rows the SDK would make objects
        of (1 ms of CPU for each VM), and for APIs that its client does not have. Raises
        CloudError."""

    def fetch(self, url: str) -> str:
        """The end of a text that whoever has its address may read. Raises CloudError."""


def rows(pages: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Of a listing."""
    for page in pages:
        yield from page.get("value", ())


class AzureCalls:
    """Thread-safe; repeats nothing by itself."""

    def __init__(
        self,
        *,
        subscription: str,
        endpoint_url: str,
        credential: str = "default",
        client_id: str | None = None,
        token: Callable[[], str] = lambda: "none",
    ) -> None:
        """`token` is for an endpoint without TLS, as in tests, to which the SDK sends none."""
        self._subscription = subscription
        self._endpoint = endpoint_url.rstrip("/")
        self._credential = credential
        self._client_id = client_id
        self._token = token
        self._made: Any = None
        self._lock = threading.Lock()

    def call(self, operation: str, *args: Any, **params: Any) -> Any:
        if ".begin_" in operation:
            params["polling"] = False
        with _as_ours(launch=operation == LAUNCH):
            if operation == LAUNCH:
                from azure.core import MatchConditions

                params["match_condition"] = MatchConditions.IfMissing
            if operation == DELETE:
                params["cls"] = _status
            answer = self._find(operation)(*args, **params)
            return _plain(answer.result() if ".begin_" in operation else answer)

    def ask(self, method: str, path: str, *, version: str, **query: str) -> Iterator[Any]:
        with _as_ours():
            from azure.core.exceptions import HttpResponseError
            from azure.core.rest import HttpRequest

            url: str | None = self._endpoint + path
            asked: Mapping[str, str] | None = {"api-version": version, **query}
            while url:
                request = HttpRequest(method, url, params=asked)
                answer = self._client().send_request(request)
                if answer.status_code >= 400:
                    raise HttpResponseError(response=answer)
                page = answer.json() if answer.content else {}
                yield page
                url, asked = page.get("nextLink") if isinstance(page, dict) else None, None

    def fetch(self, url: str) -> str:
        try:
            answer = httpx.get(url, timeout=READ_S)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise Unavailable(f"{type(error).__name__} of {urlsplit(url).netloc}") from error
        return answer.text[-CONSOLE:]

    def _find(self, operation: str) -> Callable[..., Any]:
        group, _, name = operation.partition(".")
        found: Callable[..., Any] = getattr(getattr(self._client(), group), name)
        return found

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> Any:
        from azure.mgmt.compute import ComputeManagementClient

        plain = self._endpoint.startswith("http://")
        how = {"authentication_policy": _header(self._token)} if plain else {}
        return ComputeManagementClient(
            object() if plain else _credential(self._credential, self._client_id),
            self._subscription,
            base_url=self._endpoint,
            credential_scopes=[f"{self._endpoint}/.default"],
            connection_timeout=CONNECT_S,
            read_timeout=READ_S,
            retry_total=0,
            raw_response_hook=_not_registered,
            user_agent="spothop",
            **how,
        )


def _not_registered(answer: Any) -> None:
    """Before the SDK registers a resource provider in the subscription, and waits for that without
    a limit: whether to is an admin's decision, and no thread of ours waits so."""
    response = answer.http_response
    if response.status_code == 409:
        response.read()
        if "MissingSubscriptionRegistration" in response.text():
            from azure.core.exceptions import HttpResponseError

            raise HttpResponseError(response=response)


def _status(answer: Any, *_: Any) -> int:
    return int(answer.http_response.status_code)


def _plain(answer: Any) -> Any:
    return answer.as_dict() if hasattr(answer, "as_dict") else answer


def _header(token: Callable[[], str]) -> Any:
    """A policy that sends a token to whomever: the SDK's own insists on TLS."""
    from azure.core.pipeline.policies import SansIOHTTPPolicy

    class Header(SansIOHTTPPolicy):  # type: ignore[misc]
        def on_request(self, request: Any) -> None:
            request.http_request.headers["Authorization"] = f"Bearer {token()}"

    return Header()


def _credential(kind: str, client_id: str | None) -> Any:
    import azure.identity as identity

    # The metadata service, where the token of a VM's identity comes from: a proxy that the
    # environment names has another one, or none. What needs no proxy by the environment stays so.
    direct = {"no_proxy": ",".join(filter(None, (getproxies().get("no"), METADATA)))}
    match kind:
        case "managed_identity":
            return identity.ManagedIdentityCredential(client_id=client_id, proxies=direct)
        case "cli":
            return identity.AzureCliCredential()
        case "environment":
            return identity.EnvironmentCredential()
        case "workload_identity":
            return identity.WorkloadIdentityCredential(client_id=client_id)
        case _:
            return identity.DefaultAzureCredential(
                managed_identity_client_id=client_id, proxies=direct
            )


@contextmanager
def _as_ours(*, launch: bool = False) -> Iterator[None]:
    """The SDK's exceptions as CloudError. After a request was sent, a launch may have happened."""
    from azure.core import exceptions as sdk

    unclear = Ambiguous if launch else Unavailable
    try:
        yield
    except sdk.ClientAuthenticationError as error:
        raise _of_identity(error) from error
    except sdk.HttpResponseError as error:
        answer, name = error.response, type(error).__name__
        if answer is None:
            raise unclear(errors.words("", str(error)), code=name) from error
        raise errors.of_answer(
            answer.status_code, answer.headers, _body(answer), launch=launch
        ) from error
    except sdk.ServiceRequestError as error:
        kind = Unavailable if _is_unsent(error) else unclear
        raise kind(str(error), code=type(error).__name__) from error
    except (sdk.AzureError, sdk.DeserializationError, JSONDecodeError) as error:
        # such as no answer in time, or one that is none
        raise unclear(str(error), code=type(error).__name__) from error
    except ValueError as error:  # such as a parameter that the model does not know
        raise BadRequest(str(error), code=type(error).__name__) from error


def _of_identity(error: Any) -> CloudError:
    """Azure's 401, or what azure-identity was answered when it asked for a token: then ours was
    never sent."""
    if error.response is not None:
        answer = error.response
        found = errors.of_answer(answer.status_code, answer.headers, _body(answer))
        if isinstance(found, (AuthFailed, Throttled, Unavailable)):
            return found
    return AuthFailed(errors.words("", str(error)), code=type(error).__name__)


def _is_unsent(error: BaseException) -> bool:
    """There was no connection, or no certificate was found good. Of other failures of TLS nobody
    tells whether they were before the request or after it."""
    from urllib3 import exceptions as network

    unsent = (network.NewConnectionError, network.ConnectTimeoutError, network.ProxyError)
    seen, waiting = set[int](), [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (*unsent, ssl.SSLCertVerificationError)):
            return True
        if id(each) not in seen:
            seen.add(id(each))
            kept = [getattr(each, name, None) for name in ("inner_exception", "reason")]
            links = (each.__cause__, each.__context__, *kept, *each.args)
            waiting += [link for link in links if isinstance(link, BaseException)]
    return False


def _body(response: Any) -> Any:
    try:
        return response.json()
    except Exception:  # whatever else a gateway sends in place of JSON
        return {}
