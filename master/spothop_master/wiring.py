"""Makes what the master consists of, and tells each part of the others."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.metadata import version

from spothop.catalog.table import read as read_catalogue
from spothop.chaos import Chaos
from spothop_master import files
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
from spothop_master.boot.agent_zip import AgentZips
from spothop_master.clock import SteadyClock
from spothop_master.clouds.base import Cloud, ListsByRegion
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.followers import Followers
from spothop_master.keys import Keys
from spothop_master.loops.booting import Booting
from spothop_master.loops.elected import Elected
from spothop_master.loops.news_of_others import NewsOfOthers
from spothop_master.loops.supervise import Supervisor
from spothop_master.notifier import News, Notifier
from spothop_master.services import Services
from spothop_master.settings import MasterSettings
from spothop_master.store.db import Database
from spothop_master.store.statistics import KeptStatistics

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


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What most parts of a master work with."""

    settings: MasterSettings
    clouds: Mapping[str, Cloud]
    db: Database
    clock: Callable[[], datetime]
    attention: dict[str, str]
    watcher: CloudWatcher
    heartbeats: Heartbeats
    directives: DirectiveCache
    sessions: Sessions


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
    shared = _shared(settings, clouds, keys, clock=clock, executor=executor)
    db, clock = shared.db, shared.clock
    elected, notifier = elected_of(settings, db, clock), notifier_of(db)
    attention = shared.attention
    bucket = files.bucket_of(settings)
    zips = AgentZips(settings.files / "agents", bucket=bucket)
    supervisor = supervisor_of(
        shared,
        chaos=chaos,
        executor=executor,
        attention=attention,
        booting=Booting(join_token=keys.join_token, zips=lambda: zips.current().by_tag, ca=ca),
        elected=elected if elects else None,
    )
    others = others_of(db, supervisor, notifier)
    threads = AgentThreads()
    statistics = KeptStatistics(settings, db.read, later=threads.background.later)
    limits, pace, followers = limits_of(settings), pace_of(settings, clock()), Followers()
    logs = files.logs_of(settings, bucket, db, clock, told=partial(_one, notifier, News.LOG))
    agent_logs = AgentLogs(db, shared.sessions, LogQuotas(db, logs, settings.quota, clock))
    syncs = syncs_of(
        shared,
        statistics=statistics,
        threads=threads,
        limits=limits,
        logs=agent_logs,
        followers=followers,
        pace=pace,
        knows_all=others.is_fresh,
    )
    return Services(
        attention=attention,
        settings=settings,
        keys=keys,
        db=db,
        clouds=clouds,
        watcher=shared.watcher,
        heartbeats=shared.heartbeats,
        directives=shared.directives,
        sessions=shared.sessions,
        statistics=statistics,
        agent_threads=threads,
        syncs=syncs,
        agent_logs=agent_logs,
        followers=followers,
        pace=pace,
        supervisor=supervisor,
        elected=elected,
        others=others,
        bundles=files.bundles_of(settings, bucket, db, clock),
        ca=ca,
        agent_zips=zips,
        logs=logs,
        limits=limits,
        notifier=notifier,
        clock=clock,
    )


def _shared(
    settings: MasterSettings,
    clouds: Mapping[str, Cloud],
    keys: Keys,
    *,
    clock: Callable[[], datetime] | None,
    executor: Executor | None,
) -> _Shared:
    """The database has the same clock where no other master works with it."""
    db = Database(settings.database_url, keys)
    if clock is not None or db.single_master:
        db.clock = clock = clock or SteadyClock()
    clock, attention = clock or SteadyClock(), dict[str, str]()
    return _Shared(
        settings=settings,
        clouds=clouds,
        db=db,
        clock=clock,
        attention=attention,
        watcher=watcher_of(settings, clouds, clock=clock, executor=executor, attention=attention),
        heartbeats=Heartbeats(clock()),
        directives=directive_cache(settings),
        sessions=Sessions(db),
    )


def supervisor_of(
    shared: _Shared,
    *,
    chaos: Chaos,
    executor: Executor | None,
    attention: MutableMapping[str, str],
    booting: Booting,
    elected: Elected | None,
) -> Supervisor:
    return Supervisor(
        shared.db,
        shared.clouds,
        shared.settings,
        watcher=shared.watcher,
        heartbeats=shared.heartbeats,
        directives=shared.directives,
        sessions=shared.sessions,
        clock=shared.clock,
        chaos=chaos,
        executor=executor,
        attention=attention,
        booting=booting,
        elected=elected,
    )


def syncs_of(
    shared: _Shared,
    *,
    statistics: KeptStatistics,
    threads: AgentThreads,
    limits: VmLimits,
    logs: AgentLogs,
    followers: Followers,
    pace: Pace,
    knows_all: Callable[[], bool],
) -> Syncs:
    """Two writers of what agents report: what a notice needs waits for no progress of others."""
    writer = partial(
        ProgressWriter, shared.db, shared.clock, names=limits.names, statistics=statistics
    )
    return Syncs(
        shared.db,
        shared.settings,
        sessions=shared.sessions,
        heartbeats=shared.heartbeats,
        directives=shared.directives,
        statistics=statistics,
        threads=threads,
        progress=writer(),
        notices=writer(name="agents-notices", urgent=True, rest_s=NOTICES_REST_S),
        limits=limits,
        logs=logs,
        followers=followers,
        pace=pace,
        clock=shared.clock,
        knows_all=knows_all,
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


def watcher_of(
    settings: MasterSettings,
    clouds: Mapping[str, Cloud],
    *,
    clock: Callable[[], datetime],
    executor: Executor | None,
    attention: MutableMapping[str, str],
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
        attention=attention,
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
