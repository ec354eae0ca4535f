"""The application of a master: its routes and pages, and what runs as long as it does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from spothop.chaos import Chaos
from spothop_master.api import (
    agent,
    authority,
    checks,
    errors,
    guard,
    injections,
    inventory,
    jobs,
    logs,
    me,
    news,
    openapi,
    plan,
    pools,
    readyz,
    strays,
    vms,
    wishes,
)
from spothop_master.api import bundles as bundle_routes
from spothop_master.api import users as user_routes
from spothop_master.api.agents_only import AgentsOnly
from spothop_master.api.browsers import Browsers
from spothop_master.api.callers import Callers
from spothop_master.api.health import Health
from spothop_master.api.sync_calls import SyncCalls
from spothop_master.chaos import POINTS
from spothop_master.clouds.base import Cloud
from spothop_master.first_start import first_start
from spothop_master.problems import ApiError
from spothop_master.running import running_loops
from spothop_master.settings import MasterSettings
from spothop_master.web import pages
from spothop_master.web import session as web_session
from spothop_master.wiring import make_services

MACHINES = ("/api/", "/agent/")
"""Paths whose errors are JSON; people look at all others."""

ROUTES = (
    me,
    readyz,
    authority,
    plan,
    pools,
    bundle_routes,
    jobs,
    news,
    wishes,
    logs,
    vms,
    inventory,
    strays,
    checks,
    injections,
    user_routes,
    agent,
    pages,
)


def create_app(
    settings: MasterSettings,
    clouds: Mapping[str, Cloud],
    *,
    clock: Callable[[], datetime] | None = None,
    chaos: Chaos | None = None,
    executor: Executor | None = None,
    loops: bool = True,
    ca: str = "",
) -> FastAPI:
    """The whole master. `loops` False starts none of them: tests call them themselves;
    `executor` is where calls to clouds run (default: threads); `ca`, in PEM, vouches for its TLS.

    Nothing runs before the application's lifespan begins. Raises BadCatalogue.
    """
    services = make_services(
        settings,
        clouds,
        clock=clock,
        chaos=chaos or Chaos(POINTS),
        executor=executor,
        ca=ca,
        elects=loops,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(first_start, services)
        async with AsyncExitStack() as stack:
            stack.callback(services.db.close)
            stack.callback(services.agent_threads.close)
            stack.callback(services.user_threads.close)
            stack.callback(services.syncs.close)
            if loops:
                await stack.enter_async_context(running_loops(services))
            stack.callback(services.stop)
            announce: Callable[[], None] = getattr(app.state, "announce", lambda: None)
            announce()
            yield

    # /openapi.json describes the routes; the page that FastAPI makes of it loads scripts of others
    app = FastAPI(title="spothop master", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.services = services
    app.add_middleware(SyncCalls, syncs=services.syncs)  # inside the guard: it is added first
    app.add_middleware(Callers, services=services)
    app.add_middleware(Health, services=services)
    app.add_middleware(guard.Guard, limit_of=guard.limits(settings.max_body_bytes))
    if settings.agents_port is not None:
        app.add_middleware(AgentsOnly, port=settings.agents_port)
    app.add_middleware(Browsers, public_url=settings.public_url, cached="/static/")  # outermost
    for router in ROUTES:
        # as they are: `include_router` builds each a second time, in case it is given a prefix, and
        # at the first request, which then waits for that
        app.router.routes.extend(router.router.routes)
    app.mount("/static", pages.static)
    openapi.describe(app, taken=agent.TAKEN, version=version("spothop"))
    for kind in (ApiError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(web_session.NotLoggedIn, _on_not_logged_in)
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    problem = errors.of(error, request)
    wants_page = "text/html" in request.headers.get("accept", "")
    is_page = wants_page and not request.url.path.startswith(MACHINES)
    response: Response = pages.error_page(problem) if is_page else errors.answer(problem)
    if problem.status == 405:
        response.headers["Allow"] = errors.allowed(request)
    return response


async def _on_not_logged_in(request: Request, error: Exception) -> Response:
    return pages.to_login()
