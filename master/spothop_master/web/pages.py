"""The status pages: jobs, one job, VMs, pools. Server-rendered, read-only, made from the views."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from spothop import figures
from spothop.durations import duration
from spothop.eventlog import EventFilter
from spothop.wire import EndReason, JobDetail, JobState
from spothop_master import pools
from spothop_master.notifier import News
from spothop_master.paging import PAGE, CursorText, cursor_of
from spothop_master.polling import poll
from spothop_master.problems import ApiError
from spothop_master.security import Principal, Role
from spothop_master.services import Services
from spothop_master.settings import Retention
from spothop_master.store import (
    event_views,
    job_lists,
    job_views,
    lookup,
    metrics,
    strays,
    vm_views,
)
from spothop_master.store.keyset import Page
from spothop_master.store.schema import Job
from spothop_master.web import chart, format, session

router = APIRouter(include_in_schema=False)
static = StaticFiles(directory=Path(__file__).parent / "static")

Viewer = Annotated[Principal, Depends(session.viewer)]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
"""Beside those that every answer has (`api/browsers`)."""

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(
    money=figures.money,
    duration=duration,
    size=figures.size,
    number=figures.number,
    exits=figures.exits_text,
    shown_state=figures.shown_state,
    moment=format.moment,
    clock=format.clock,
)
_templates.globals.update(
    between=format.between,
    saved=figures.saved,
    on_demand=figures.ON_DEMAND,
    lost_is_least=figures.lost_is_least,
    at_least=figures.AT_LEAST,
)

OLD_OFFER_S = 300.0
"""From this age on, a cloud's newest answer is shown with its age."""

LIVE_S = 25.0

RECENT = 100
"""Events, checkpoints and attempts on a job's page."""


@router.get("/", response_class=HTMLResponse)
def jobs_page(
    request: Request,
    user: Viewer,
    state: JobState | None = None,
    name: str = "",
    cursor: CursorText = None,
) -> HTMLResponse:
    services = _services(request)
    now = services.clock()
    wanted = job_lists.Wanted(
        owner_id=user.sees_owner, state=state.value if state else None, prefix=name
    )
    with services.db.read() as db:
        found = job_lists.job_page(
            db,
            wanted,
            now=now,
            storage_url=services.settings.storage_url,
            cursor=cursor_of(cursor),
            limit=PAGE,
        )
    asked: dict[str, Any] = {"state": wanted.state, "name": name}
    return _page(
        "jobs.html",
        user=user,
        jobs=found.page.items,
        now=now,
        counts={s.value: found.counts[s] for s in JobState if s in found.counts},
        total=found.total,
        **asked,
        **_neighbours("/", found.page, asked),
    )


def _neighbours(path: str, page: Page[Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The addresses of the pages before and after this one, None where there is none."""

    def address(cursor: str | None) -> str | None:
        query = {**asked, "cursor": cursor}
        return f"{path}?{urlencode({k: v for k, v in query.items() if v})}" if cursor else None

    return {"newer": address(page.previous), "older": address(page.next)}


@router.get("/jobs/{ref}", response_class=HTMLResponse)
def job_page(request: Request, ref: str, user: Viewer) -> HTMLResponse:
    services = _services(request)
    now = services.clock()
    with services.db.read() as db:
        row = _job_row(db, ref, user)
        _, seen = _seen(services, db, row)
        url = services.settings.storage_url
        values = user.may_see_values(row.owner_id)
        job = job_views.job_detail(db, row, now=now, storage_url=url, env_values=values)
        news = EventFilter()
        events = [
            e for e in event_views.events(db, job.id, newest=True, limit=RECENT) if news.is_news(e)
        ]
        metric = _main_metric(job)
        series = metrics.metric_series(db, job.id, metric) if metric else []
    services.followers.looked(job.id, services.clock())
    return _page(
        "job.html",
        user=user,
        job=job,
        seen=seen,
        now=now,
        metric=metric,
        events=events[::-1],
        log_tail=services.logs.newest_tail(job.id, [each.number for each in job.attempts]),
        log_bytes=services.logs.bytes_of(job.id),
        thinned=_words_of_thinning(services.settings.retention, since=job.submitted_at, now=now),
        chart=chart.line_chart(series, _preempted_at(job)),
        lanes=_lanes(job, now),
        recent=RECENT,
    )


@router.get("/live/{ref}")
async def live(request: Request, ref: str, user: Viewer, seen: str = "") -> dict[str, str]:
    """Waits until the page of this job would say something else than it did at `seen`."""
    services = _services(request)

    def ask() -> tuple[str, str]:
        with services.db.read() as db:
            return _seen(services, db, _job_row(db, ref, user))

    _, now_seen = await poll(
        services,
        ask,
        enough=lambda found: found[1] != seen,
        topics=lambda found: [(news, found[0]) for news in News],
        wait_s=LIVE_S,
    )
    return {"seen": now_seen}


def _seen(services: Services, db: Session, job: Job) -> tuple[str, str]:
    """The job's id, and what changes with its page but for money and time."""
    url = services.settings.storage_url
    view = job_lists.job_view(db, job.id, now=services.clock(), storage_url=url)
    grown = services.logs.size(job.id, view.attempt) if view.attempt else 0
    return job.id, f"{job_lists.seen_of(view)}-{grown}"


def _job_row(db: Session, ref: str, user: Principal) -> Job:
    try:
        return lookup.find_job(db, ref, owner_id=user.sees_owner)
    except LookupError as error:
        raise ApiError(404, "no_such_job", str(error), "the list shows all you can see") from None


@router.get("/vms", response_class=HTMLResponse)
def vms_page(request: Request, user: Viewer, cursor: CursorText = None) -> HTMLResponse:
    services = _services(request)
    now = services.clock()
    with services.db.read() as db:
        listed = vm_views.vm_page(
            db, owner_id=user.sees_owner, now=now, cursor=cursor_of(cursor), limit=PAGE
        )
        found = strays.views(db) if user.role is Role.ADMIN else []
    links = _neighbours("/vms", listed, {})
    return _page("vms.html", user=user, vms=listed.items, strays=found, now=now, **links)


@router.get("/pools", response_class=HTMLResponse)
def pools_page(request: Request, user: Viewer) -> HTMLResponse:
    services = _services(request)
    rows = pools.pool_views(services)
    ages = {row.pool.cloud: row.offer_age_s for row in rows}
    old = {cloud: age_s for cloud, age_s in sorted(ages.items()) if age_s >= OLD_OFFER_S}
    return _page("pools.html", user=user, pools=rows, old=old)


@router.get("/login", response_class=HTMLResponse)
def login_page() -> HTMLResponse:
    return _page("login.html", user=None, wrong=False)


@router.post("/login")
async def login(request: Request) -> Response:
    return await session.log_in(request, refused=_login_refused)


@router.post("/logout")
async def logout(request: Request) -> Response:
    return await session.log_out(request)


def _login_refused() -> HTMLResponse:
    return _page("login.html", status=403, user=None, wrong=True)


def to_login() -> Response:
    return RedirectResponse("/login", status_code=303)


def error_page(error: ApiError) -> HTMLResponse:
    return _page("error.html", status=error.status, user=None, problem=error.problem)


def _words_of_thinning(retention: Retention, *, since: datetime, now: datetime) -> str:
    """What a curve that began at `since` lacks by now; empty while it lacks nothing."""
    full = timedelta(seconds=retention.metrics_full_s)
    if now - since < full:
        return ""
    return (
        f"thinned after {duration(retention.metrics_full_s)}: one value in ten, "
        f"after {duration(retention.metrics_tenth_s)} one in a hundred; the first, the last, "
        "the lowest and the highest stay"
    )


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _page(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    text = _templates.get_template(template).render(**values)
    return HTMLResponse(text, status_code=status, headers=HEADERS)


def _main_metric(job: JobDetail) -> str | None:
    """The loss where the script logs one, else the first metric by name."""
    named = sorted(job.metrics, key=lambda name: (name != "loss", "loss" not in name, name))
    return named[0] if named else None


def _preempted_at(job: JobDetail) -> list[int]:
    return [a.last_step for a in job.attempts if a.reason is EndReason.PREEMPTED and a.last_step]


def _lanes(job: JobDetail, now: datetime) -> list[chart.Lane]:
    return chart.timeline(
        job.attempts[-RECENT:],
        job.vms,
        job.checkpoints,
        start=job.submitted_at,
        end=job.ended_at or now,
    )
