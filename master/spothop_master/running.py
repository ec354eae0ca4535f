"""The loops of a running master: threads, and what the scheduler starts."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta, timezone
from functools import partial

from apscheduler.executors.pool import ThreadPoolExecutor as SchedulerThreads
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from starlette.concurrency import run_in_threadpool

from spothop_master.clock import utc_now
from spothop_master.loops.alarms import Alarms
from spothop_master.loops.contacts import Contacts
from spothop_master.loops.inject import Injector
from spothop_master.loops.prices import Prices
from spothop_master.loops.retention import Retention
from spothop_master.loops.sweep import Sweep, hold_limits
from spothop_master.services import Services
from spothop_master.webhooks import Sender

LOOPS = 6
"""Slow loops that the scheduler starts, each in a thread while it works; and one for each cloud, so
that a cloud that hangs delays no other one."""

TRIM_S = 60.0
"""How often old rows of the feed go."""

LEASES_S = 1.0
"""How often leases are looked at that have to be renewed."""

FIRST_RETENTION = timedelta(minutes=1)
"""From the start, when there is most to do."""


@asynccontextmanager
async def running_loops(services: Services) -> AsyncIterator[None]:
    """Supervise in a thread of its own, which its event wakes; the slow ones by the scheduler."""
    threads, scheduler = threads_of(services), scheduler_of(services)
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


def threads_of(services: Services) -> list[threading.Thread]:
    """Not started yet; each ends soon after `services.stopping` is set."""
    stop, supervisor, elected = services.stopping, services.supervisor, services.elected
    return [
        threading.Thread(target=supervisor.run_forever, args=(stop,), name="supervise"),
        threading.Thread(target=elected.run, args=(stop, supervisor.wake.set), name="elected"),
        threading.Thread(target=services.others.run, args=(stop,), name="news-of-others"),
    ]


def scheduler_of(services: Services) -> AsyncIOScheduler:
    """With the slow loops: of turns that are late one is made up for, and no two of one loop run at
    the same time. Not started yet."""
    scheduler = AsyncIOScheduler(
        timezone=timezone.utc,
        # its own default cancels what runs when the master ends, and writes traces of that
        executors={"default": SchedulerThreads(max_workers=LOOPS + len(services.clouds))},
        # late is better than never: a machine may be busy for longer than the default's one second
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
    )
    scheduler.add_job(
        services.elected.only_here("retention", retention_of(services).run_once),
        "interval",
        seconds=services.settings.retention.every_s,
        next_run_time=utc_now() + FIRST_RETENTION,
    )
    for run, every_s in turns(services):
        scheduler.add_job(run, "interval", seconds=every_s, next_run_time=utc_now())
    return scheduler


def turns(services: Services) -> list[tuple[Callable[[], object], float]]:
    """What runs from the start on, and every how many seconds."""
    settings, clock, elected = services.settings, services.clock, services.elected
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
    return [
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
    ]


def retention_of(services: Services) -> Retention:
    return Retention(
        services.db,
        services.settings,
        logs=services.logs,
        bundles=services.bundles,
        sessions=services.sessions,
        clock=services.clock,
        rest=services.stopping.wait,
        agent_zips=services.agent_zips,
    )
