"""An error for a user or an agent: a status, the fact, and the way out."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from spothop.wire import Problem
from spothop.wire.lifecycle import Word


class ApiError(Exception):
    """Raised anywhere below a request; answered as a `wire.Problem` or as a page."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        hint: str = "",
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.problem = Problem(error=error, message=message, hint=hint, field=field)


def no_such_job(message: str) -> ApiError:
    return ApiError(404, "no_such_job", message, "`spothop jobs --all` lists the ones you can see")


def known_state(text: str | None, states: Iterable[Word], thing: str) -> str | None:
    """The state that somebody asks for; raises ApiError for one that `thing` never has."""
    names = [state.value for state in states]
    if text is None or text in names:
        return text
    raise ApiError(
        422,
        "invalid_request",
        f"state: {reprlib.repr(text)} is no state of a {thing}",
        f"ask for one of {', '.join(names)}",
        field="state",
    )


def read_only(name: str) -> ApiError:
    return ApiError(
        403, "read_only", f"user {name!r} is a viewer", "ask an admin for a token that may write"
    )


def files_away(why: str) -> ApiError:
    """The bucket of bundles and logs does not answer as it should."""
    return ApiError(503, "files_away", f"the master's bucket says: {why}", "try again later")
