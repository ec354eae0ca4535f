"""An error for a user or an agent: a status, the fact, and the way out."""

from __future__ import annotations

from spothop.wire import Problem


class ApiError(Exception):
    """Raised anywhere below a request; answered as a `wire.Problem` or as a page."""

    def __init__(
        self, status: int, error: str, message: str, hint: str = "", *, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(error=error, message=message, hint=hint, field=field)


def no_such_job(message: str) -> ApiError:
    return ApiError(404, "no_such_job", message, "`spothop jobs --all` lists the ones you can see")


def read_only(name: str) -> ApiError:
    return ApiError(
        403, "read_only", f"user {name!r} is a viewer", "ask an admin for a token that may write"
    )
