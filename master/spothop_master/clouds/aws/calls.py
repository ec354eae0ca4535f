"""The calls to AWS: one client for each service and region, a deadline on every request, and every
failure as an error of ours. The only module that imports the SDK, at the first call."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from spothop_master.clouds.aws import errors
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    Throttled,
    Unavailable,
)

CONNECT_S, READ_S = 5, 30
CONNECTIONS = 32
"""Side by side, to one service in one region."""


class Caller(Protocol):
    """What a driver needs of the SDK."""

    def call(self, service: str, region: str, operation: str, **params: Any) -> Any:
        """One request. Raises CloudError."""

    def pages(self, service: str, region: str, operation: str, **params: Any) -> Iterator[Any]:
        """One request a page. Raises CloudError."""


class AwsCalls:
    """Thread-safe; repeats nothing by itself."""

    def __init__(
        self,
        *,
        profile: str | None = None,
        endpoint_url: str | None = None,
        session: Callable[[], Any] | None = None,
    ) -> None:
        """`session` makes the SDK's session in place of `boto3.Session`."""
        self._profile = profile
        self._endpoint_url = endpoint_url
        self._make_session = session
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def call(self, service: str, region: str, operation: str, **params: Any) -> Any:
        with _as_ours(operation):
            return getattr(self._client(service, region), operation)(**params)

    def pages(self, service: str, region: str, operation: str, **params: Any) -> Iterator[Any]:
        with _as_ours(operation):
            paginator = self._client(service, region).get_paginator(operation)
            yield from paginator.paginate(**params)

    def _client(self, service: str, region: str) -> Any:
        with self._lock:  # sessions are for one thread at a time, clients for many
            client = self._clients.get((service, region))
            if client is None:
                client = self._clients[service, region] = self._make(service, region)
            return client

    def _make(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config

        if self._session is None:
            make = self._make_session or (lambda: boto3.Session(profile_name=self._profile))
            self._session = make()
        return self._session.client(
            service,
            region_name=region,
            endpoint_url=self._endpoint_url,
            config=Config(
                connect_timeout=CONNECT_S,
                read_timeout=READ_S,
                retries={"total_max_attempts": 1},
                max_pool_connections=CONNECTIONS,
                user_agent_extra="spothop",
            ),
        )


@contextmanager
def _as_ours(operation: str) -> Iterator[None]:
    """The SDK's exceptions as CloudError. After a request was sent, a launch may have happened."""
    from botocore import exceptions as sdk
    from botocore import xform_name
    from botocore.parsers import ResponseParserError

    launch = operation == "run_instances"
    unclear = Ambiguous if launch else Unavailable
    try:
        yield
    except sdk.ClientError as error:
        if xform_name(error.operation_name) != operation:
            raise _of_identity(error.response) from error
        raise errors.of_answer(error.response, launch=launch) from error
    except _of_credentials() as error:
        raise AuthFailed(str(error), code=type(error).__name__) from error
    except sdk.SSLError as error:
        kind = Unavailable if _in_handshake(error) else unclear
        raise kind(str(error), code=type(error).__name__) from error
    except (
        sdk.EndpointConnectionError,
        sdk.ConnectTimeoutError,
        sdk.ProxyConnectionError,
    ) as error:  # nothing was sent
        raise Unavailable(str(error), code=type(error).__name__) from error
    except (
        sdk.HTTPClientError,
        sdk.ConnectionError,
        sdk.IncompleteReadError,
        ResponseParserError,
    ) as error:
        raise unclear(str(error), code=type(error).__name__) from error
    except sdk.BotoCoreError as error:  # such as a parameter that the model does not know
        raise BadRequest(str(error), code=type(error).__name__) from error
    except RuntimeError as error:
        if not str(error).startswith(_STILL_EXPIRED):
            raise
        raise AuthFailed(str(error), code="CredentialRetrievalError") from error
    except (OSError, ValueError) as error:  # of requests the SDK has errors of its own
        text = f"the SDK cannot read the credentials that it was told of: {error}"
        raise AuthFailed(text, code="CredentialRetrievalError") from error


_STILL_EXPIRED = "Credentials were refreshed, but"
"""The SDK has no exception of its own for a role or metadata service that hands out old ones."""


def _of_credentials() -> tuple[type[Exception], ...]:
    """They could not be had: nothing was sent."""
    from botocore import exceptions as sdk

    return (
        sdk.NoCredentialsError,
        sdk.PartialCredentialsError,
        sdk.CredentialRetrievalError,
        sdk.UnknownCredentialError,
        sdk.RefreshWithMFAUnsupportedError,
        sdk.ProfileNotFound,
        sdk.ConfigNotFound,
        sdk.ConfigParseError,
        sdk.InvalidConfigError,
        sdk.SSOError,
        sdk.LoginError,
        sdk.TokenRetrievalError,
        sdk.NoAuthTokenError,
        sdk.MetadataRetrievalError,
    )


def _of_identity(answer: Any) -> CloudError:
    """What a request answered that the SDK made by itself, for credentials: ours was never sent."""
    error = errors.of_answer(answer)
    if isinstance(error, (Throttled, Unavailable, AuthFailed)):
        return error
    return AuthFailed(str(error), code=error.code)


def _in_handshake(error: BaseException) -> bool:
    """No certificate was found good, so no request was sent. Of any other failure of TLS nobody
    tells when it was."""
    seen, waiting = set[int](), [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ssl.SSLCertVerificationError):
            return True
        if id(each) not in seen:
            seen.add(id(each))
            kept = getattr(each, "kwargs", {}).get("error")
            links = (each.__cause__, each.__context__, kept, *each.args)
            waiting += [link for link in links if isinstance(link, BaseException)]
    return False
