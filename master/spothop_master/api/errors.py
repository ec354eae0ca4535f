"""Every error of the REST API is answered as a `wire.Problem`: the fact, the field, the way out."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from spothop.jobfile import JobFileError
from spothop.wire import Problem
from spothop_master.api.guard import TOO_LARGE, TOO_LARGE_HINT
from spothop_master.problems import ApiError

AUTHENTICATE = {"WWW-Authenticate": "Bearer"}  # RFC 9110, section 11.6.1: a 401 carries it

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For `responses` of a route or router: the errors that it answers, so that /openapi.json tells
    them. A route that answers another one fails the tests of the answers."""
    return {s: {"model": Problem, "description": "A problem"} for s in statuses}


def of(error: Exception, request: Request) -> ApiError:
    """What the caller is answered for an exception of a route."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return invalid(error.errors())
    if isinstance(error, HTTPException):
        return _of_http(error, request)
    raise error


def answer(error: ApiError) -> JSONResponse:
    """As JSON, with the headers that its status asks for."""
    headers = dict(AUTHENTICATE) if error.status == 401 else {}
    if error.retry_after_s is not None:  # whole seconds: RFC 9110, section 10.2.3
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return JSONResponse(error.problem.model_dump(), status_code=error.status, headers=headers)


def allowed(request: Request) -> str:
    """The methods that a path takes, for `Allow`, which a 405 carries (RFC 9110, section 15.5.6).
    Starlette names those of the first route of a path alone."""
    routes, scope = request.app.router.routes, {**request.scope}
    full = (
        method
        for method in METHODS
        if any(r.matches({**scope, "method": method})[0] is Match.FULL for r in routes)
    )
    return ", ".join(full)


def invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """From what pydantic says of a request; the first error counts, the rest are named."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return not_json((first.get("ctx") or {}).get("error", first["msg"]))
    where, *names = [str(part) for part in first["loc"]] or [""]
    path = ".".join(names) or where
    given = first.get("input")
    # a job file may hold secrets, also one that came as text
    hidden = first["type"] == "missing" or ("spec" in names and isinstance(given, (str, list)))
    value = "" if hidden else f" {reprlib.repr(given)}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return ApiError(
        422,
        "invalid_request",
        f"{path}:{value} {first['msg'].lower()}{more}",
        f"correct {path!r}; /openapi.json describes what each route takes",
        field=path,
    )


def not_json(reason: object) -> ApiError:
    return ApiError(422, "invalid_request", f"the body is not JSON: {reason}", "send JSON")


def bad_job_file(error: JobFileError) -> ApiError:
    """All problems in the message, the first one's field and hint as the answer's own."""
    first = error.problems[0]
    return ApiError(422, "bad_job_file", str(error), first.hint, field=first.field or None)


def _of_http(error: HTTPException, request: Request) -> ApiError:
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 400 and isinstance(error.__cause__, (ValueError, RecursionError)):
        return not_json(error.__cause__)  # FastAPI's answer where JSON's own error did not come
    if error.status_code == 404:
        return ApiError(
            404, "no_such_route", f"{asked} is no route", "/openapi.json lists the routes"
        )
    if error.status_code == 405:
        return ApiError(
            405, "wrong_method", f"{asked}: this route takes another method", "see /openapi.json"
        )
    if error.status_code == 413:
        return ApiError(413, TOO_LARGE, str(error.detail), TOO_LARGE_HINT)
    return ApiError(error.status_code, "refused", f"{asked}: {error.detail}", "see /openapi.json")
