"""Wires the master: database, loops, routes, pages."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.metadata import version

from apscheduler.executors.pool import ThreadPoolExecutor as SchedulerThreads
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from spothop.catalog.table import read as read_catalogue
from spothop.chaos import Chaos
from spothop_master import home
from spothop_master.agents.agent_logs import AgentLogs
from spothop_master.agents.directive_cache import DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.limits import Buckets, VmLimits
from spothop_master.agents.log_quotas import LogQuotas
from spothop_master.agents.pace import Pace
from spothop_master.agents.progress import ProgressWriter
from spothop_master.agents.sessions import Sessions
from spothop_master.agents.syncs import Syncs
from spothop_master.agents.threads import AgentThreads
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
from spothop_master.boot.agent_zip import AgentZips
from spothop_master.bundles import Bundles
from spothop_master.chaos import POINTS
from spothop_master.clock import SteadyClock, utc_now
from spothop_master.clouds.base import Cloud, ListsByRegion
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.followers import Followers
from spothop_master.keys import Keys
from spothop_master.logs import Logs
from spothop_master.loops.alarms import Alarms
from spothop_master.loops.booting import Booting
from spothop_master.loops.contacts import Contacts
from spothop_master.loops.elected import Elected
from spothop_master.loops.inject import Injector
from spothop_master.loops.news_of_others import NewsOfOthers
from spothop_master.loops.prices import Prices
from spothop_master.loops.retention import Retention
from spothop_master.loops.supervise import Supervisor
from spothop_master.loops.sweep import Sweep, hold_limits
from spothop_master.notifier import News, Notifier
from spothop_master.problems import ApiError
from spothop_master.security import new_api_token
from spothop_master.services import Services
from spothop_master.settings import MasterSettings
from spothop_master.store import installation, sealing, summaries, users
from spothop_master.store import vms as vm_rows
from spothop_master.store.db import Database
from spothop_master.store.statistics import KeptStatistics
from spothop_master.web import pages
from spothop_master.web import session as web_session
from spothop_master.webhooks import Sender

log = logging.getLogger(__name__)

THREADS = 16
"""In which clouds are asked."""

SYNCS_PER_ANSWER = 11.5
"""Syncs of one VM that are answered with the directives that were read once, if nothing changes."""

NOTICES_REST_S = 0.02
"""After several notices at once, so that more of a swarm come together."""

FALLBACK_S, FALLBACK_OF_OTHERS_S = 10.0, 1.0
"""After so long a long poll asks again without having been woken: for what only time changes, and
for what other masters write."""

FOLLOW_S = 0.05
"""By so much at most the clock is set, every few seconds, after that of the database's server."""

LOOPS = 6
"""Slow loops that the scheduler starts, each in a thread while it works; and one for each cloud, so
that a cloud that hangs delays no other one."""

TRIM_S = 60.0
"""How often old rows of the feed go."""

LEASES_S = 1.0
"""How often leases are looked at that have to be renewed."""

FIRST_RETENTION = timedelta(minutes=1)
"""From the start, when there is most to do."""

MACHINES = ("/api/", "/agent/")
"""Paths whose errors are JSON; people look at all others."""


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
    machines = (
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
    )
    routers = (*machines, pages)
    for router in routers:
        # as they are: `include_router` builds each a second time, in case it is given a prefix, and
        # at the first request, which then waits for that
        app.router.routes.extend(router.router.routes)
    app.mount("/static", pages.static)
    openapi.describe(app, taken=agent.TAKEN, version=version("spothop"))
    for kind in (ApiError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(web_session.NotLoggedIn, _on_not_logged_in)
    return app


def make_services(
    settings: MasterSettings,
    clouds: Mapping[str, Cloud],
    *,
    clock: Callable[[], datetime] | None,
    chaos: Chaos,
    executor: Executor | None,
    ca: str = "",
    elects: bool = True,
) -> Services:
    """`elects` False: nobody asks whose turn it is to supervise."""
    keys = Keys(settings.key_file)
    db = Database(settings.database_url, keys)
    if clock is not None or db.single_master:
        db.clock = clock = clock or SteadyClock()
    clock = clock or SteadyClock()
    elected = elected_of(settings, db, clock)
    notifier = notifier_of(db)
    heartbeats, directives, sessions = Heartbeats(clock()), directive_cache(settings), Sessions(db)
    watcher = watcher_of(settings, clouds, clock=clock, executor=executor)
    attention: dict[str, str] = {}
    zips = AgentZips(settings.files / "agents")
    supervisor = Supervisor(
        db,
        clouds,
        settings,
        watcher=watcher,
        heartbeats=heartbeats,
        directives=directives,
        sessions=sessions,
        clock=clock,
        chaos=chaos,
        executor=executor,
        attention=attention,
        booting=Booting(join_token=keys.join_token, zips=lambda: zips.current().by_tag, ca=ca),
        elected=elected if elects else None,
    )
    others = others_of(db, supervisor, notifier)
    threads = AgentThreads()
    statistics = KeptStatistics(settings, db.read, later=threads.background.later)
    limits = limits_of(settings)
    writer = partial(ProgressWriter, db, clock, names=limits.names, statistics=statistics)
    progress, notices = writer(), writer(name="agents-notices", urgent=True, rest_s=NOTICES_REST_S)
    pace = pace_of(settings, clock())
    logs = logs_of(settings, notifier)
    followers = Followers()
    agent_logs = AgentLogs(db, sessions, LogQuotas(db, logs, settings.quota, clock))
    syncs = Syncs(
        db,
        settings,
        sessions=sessions,
        heartbeats=heartbeats,
        directives=directives,
        statistics=statistics,
        threads=threads,
        progress=progress,
        notices=notices,
        limits=limits,
        logs=agent_logs,
        followers=followers,
        pace=pace,
        clock=clock,
        knows_all=others.is_fresh,
    )
    return Services(
        attention=attention,
        settings=settings,
        keys=keys,
        db=db,
        clouds=clouds,
        watcher=watcher,
        heartbeats=heartbeats,
        directives=directives,
        sessions=sessions,
        statistics=statistics,
        agent_threads=threads,
        syncs=syncs,
        agent_logs=agent_logs,
        followers=followers,
        pace=pace,
        supervisor=supervisor,
        elected=elected,
        others=others,
        bundles=Bundles(settings.files / "bundles", limit=settings.max_bundle_bytes),
        ca=ca,
        agent_zips=zips,
        logs=logs,
        limits=limits,
        notifier=notifier,
        clock=clock,
    )


def elected_of(settings: MasterSettings, db: Database, clock: Callable[[], datetime]) -> Elected:
    """Where there may be several masters, `clock` follows the database's."""

    def told_time(now: datetime) -> None:
        if isinstance(clock, SteadyClock) and db.clock is None:
            clock.follow(now, at_most_s=FOLLOW_S)

    return Elected(
        db,
        name=f"{socket.gethostname()}:{settings.port}",
        url=settings.beside_url,
        version=version("spothop"),
        clock=clock,
        loops=settings.loops,
        told_time=told_time,
    )


def others_of(db: Database, supervisor: Supervisor, notifier: Notifier) -> NewsOfOthers:
    """Whoever keeps something of a job hears that another master changed it."""

    def changed(jobs: frozenset[str]) -> None:
        supervisor.changed_elsewhere(jobs)
        notifier.tell(News.ROWS, jobs)

    def anything() -> None:
        supervisor.anything_changed()
        notifier.tell_all()

    return NewsOfOthers(db, changed=changed, anything=anything)


def limits_of(settings: MasterSettings) -> VmLimits:
    return VmLimits(
        reports=Buckets(settings.max_reports_per_s),
        logs=Buckets(settings.max_log_bytes_per_s),
        syncs=Buckets(settings.max_syncs_per_s),
    )


def pace_of(settings: MasterSettings, now: datetime) -> Pace:
    every_s, silent_after_s = settings.sync_every_s, settings.silent_after_s
    return Pace(now, random.random, every_s=every_s, silent_after_s=silent_after_s)


def logs_of(settings: MasterSettings, notifier: Notifier) -> Logs:
    told = partial(_one, notifier, News.LOG)
    return Logs(settings.files / "logs", limit=settings.max_log_bytes, on_append=told)


def watcher_of(
    settings: MasterSettings,
    clouds: Mapping[str, Cloud],
    *,
    clock: Callable[[], datetime],
    executor: Executor | None,
) -> CloudWatcher:
    """The one reader of the clouds; in threads of its own, unless `executor` is given. Raises
    BadCatalogue."""
    regions = [each.regions() for each in clouds.values() if isinstance(each, ListsByRegion)]
    threads = THREADS + sum(map(len, regions))  # one that hangs takes none of the others
    return CloudWatcher(
        clouds,
        settings.owner,
        executor=executor or ThreadPoolExecutor(threads, thread_name_prefix="watcher"),
        clock=clock,
        rng=random.Random(),  # only for jitter
        offers_every_s=settings.prices_every_s,
        catalogue=read_catalogue(settings.catalog),
    )


def notifier_of(db: Database) -> Notifier:
    """It hears of every commit of this master."""
    notifier = Notifier(fallback_s=FALLBACK_S if db.single_master else FALLBACK_OF_OTHERS_S)
    db.on_news(partial(notifier.tell, News.ROWS), partial(notifier.tell, News.PROGRESS))
    return notifier


def _one(notifier: Notifier, news: News, job: str) -> None:
    notifier.tell(news, [job])


def directive_cache(settings: MasterSettings) -> DirectiveCache:
    """An answer serves the syncs of a while."""
    return DirectiveCache(timedelta(seconds=SYNCS_PER_ANSWER * settings.sync_every_s))


@asynccontextmanager
async def running_loops(services: Services) -> AsyncIterator[None]:
    """Supervise in a thread of its own, which its event wakes; the slow ones by the scheduler: of
    turns that are late one is made up for, and no two of one loop run at the same time."""
    settings, clock = services.settings, services.clock
    supervise = threading.Thread(
        target=services.supervisor.run_forever, args=(services.stopping,), name="supervise"
    )
    scheduler = AsyncIOScheduler(
        timezone=timezone.utc,
        # its own default cancels what runs when the master ends, and writes traces of that
        executors={"default": SchedulerThreads(max_workers=LOOPS + len(services.clouds))},
        # late is better than never: a machine may be busy for longer than the default's one second
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
    )
    sweep = Sweep(
        services.db,
        services.clouds,
        services.watcher,
        clock,
        limits=hold_limits(settings),
        attention=services.attention,
    )
    prices = Prices(services.db, services.watcher)
    injector = Injector(services.db, services.clouds, clock, wake=services.wake)
    contacts = Contacts(services.db, services.heartbeats, clock)
    sender = Sender(clock=clock, url=settings.public_url)
    alarms = Alarms(services.db, settings, clock, send=sender, rand=services.random)
    elected, stop = services.elected, services.stopping
    threads = [
        supervise,
        threading.Thread(
            target=elected.run, args=(stop, services.supervisor.wake.set), name="elected"
        ),
        threading.Thread(target=services.others.run, args=(stop,), name="news-of-others"),
    ]
    retention = Retention(
        services.db,
        settings,
        logs=services.logs,
        bundles=services.bundles,
        sessions=services.sessions,
        clock=clock,
        rest=services.stopping.wait,
        agent_zips=services.agent_zips,
    )
    scheduler.add_job(
        elected.only_here("retention", retention.run_once),
        "interval",
        seconds=settings.retention.every_s,
        next_run_time=utc_now() + FIRST_RETENTION,
    )
    for run, every_s in (
        *(
            (elected.only_here("sweep", partial(sweep.sweep, cloud)), settings.sweep_every_s)
            for cloud in services.clouds
        ),
        (elected.only_here("prices", prices.run_once), settings.supervise_every_s),
        (elected.only_here("inject", injector.run_once), settings.supervise_every_s),
        (elected.only_here("alarms", alarms.run_once), settings.alarms_every_s),
        (contacts.run_once, settings.sync_every_s),
        (services.supervisor.renew_leases, LEASES_S),
        (elected.only_here("retention", services.others.trim), TRIM_S),
    ):
        scheduler.add_job(run, "interval", seconds=every_s, next_run_time=utc_now())
    for thread in threads:
        thread.start()
    scheduler.start()
    try:
        yield
    finally:
        services.stop()
        services.wake()
        scheduler.shutdown(wait=False)
        for thread in threads:
            await run_in_threadpool(thread.join)
        await run_in_threadpool(services.supervisor.close)
        await run_in_threadpool(services.watcher.close)


def first_start(services: Services) -> None:
    """Migrate, read or make the master key, tell of VMs whose cloud is not configured any more, and
    make user `admin` where there is none. Raises `MigrationRefused`, `KeyFileError`.

    The token's file comes before its user: a master killed in between makes both anew.
    """
    services.db.migrate()
    _set_clock(services)
    open_keys(services.db, services.keys)
    _fill_summaries(services)
    now = services.clock()
    regions = {name: cloud.limits.regions for name, cloud in services.clouds.items()}
    with services.db.begin() as session:
        vm_rows.note_clouds(session, regions, now=now)
    with services.db.read() as session:
        if users.has_admin(session):
            return
    token = new_api_token()
    home.publish(services.settings.home / home.ADMIN_TOKEN, f"{token}\n", mode=0o600)
    with services.db.begin() as session:
        users.ensure_admin(session, token=token, now=now)


def open_keys(db: Database, keys: Keys) -> None:
    """Read or make the key file, and encrypt what an earlier release, or an older key, has written.
    A rotation that was interrupted is finished. Raises `KeyFileError`."""
    keys.open(keys_in_use(db))
    encrypt_with_newest(db)
    if keys.rotating and {*keys_in_use(db)} <= {keys.newest_id}:
        keys.keep_newest()
        log.info("the rotation of the master key is finished: the older keys are gone")


def _set_clock(services: Services) -> None:
    """After that of the database's server, which all masters share."""
    if isinstance(services.clock, SteadyClock) and services.db.clock is None:
        with services.db.read() as session:
            services.clock.follow(services.db.now(session))


def keys_in_use(db: Database) -> list[str]:
    """Ids of those that every master of this database needs."""
    with db.read() as session:
        own = installation.key_in_use(session)
        return sorted({*sealing.keys_in_use(session), *([own] if own else [])})


def encrypt_with_newest(db: Database) -> int:
    """Jobs whose secrets an earlier release, or an older key, has written; how many it were."""
    count, after = 0, ""
    while True:
        with db.begin() as session:
            more, last = sealing.renew(session, after)
        count += more
        if last is None:
            break
        after = last
    with db.read() as session:
        newest, known = sealing.newest_key(session), installation.key_in_use(session)
    if newest != known:
        with db.begin() as session:
            installation.use_key(session, newest)
    if count:
        db.forget_log()
        log.info("encrypted the secrets of %d jobs with the newest key", count)
        if copies := db.copies():
            log.warning(
                "copies of the database from before may hold them readable; delete these when you "
                "need no way back: %s",
                ", ".join(map(str, copies)),
            )
    return count


def _fill_summaries(services: Services) -> None:
    """Of the jobs of a release that had none; a portion in each transaction."""
    while True:
        with services.db.begin() as session:
            if not summaries.fill(session):
                return


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
