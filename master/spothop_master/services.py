"""What the routes need, made once by `wiring.make_services` and found at ``app.state.services``."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from spothop_master.agents.agent_logs import AgentLogs
from spothop_master.agents.directive_cache import DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.limits import VmLimits
from spothop_master.agents.pace import Pace
from spothop_master.agents.sessions import Sessions
from spothop_master.agents.syncs import Syncs
from spothop_master.agents.threads import AgentThreads
from spothop_master.boot.agent_zip import AgentZips
from spothop_master.bundles import BundleStore
from spothop_master.clouds.base import Cloud
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.failed_logins import FailedLogins
from spothop_master.followers import Followers
from spothop_master.keys import Keys
from spothop_master.lanes import UserThreads
from spothop_master.logs import LogStore
from spothop_master.loops.elected import Elected
from spothop_master.loops.news_of_others import NewsOfOthers
from spothop_master.loops.supervise import Supervisor
from spothop_master.notifier import Notifier
from spothop_master.probes import Probes
from spothop_master.security import Principal
from spothop_master.settings import MasterSettings
from spothop_master.store import users
from spothop_master.store.db import Database
from spothop_master.store.statistics import KeptStatistics


@dataclass(frozen=True, kw_only=True)
class Services:
    """One of each per master."""

    settings: MasterSettings
    keys: Keys
    db: Database
    clouds: Mapping[str, Cloud]
    watcher: CloudWatcher
    heartbeats: Heartbeats
    directives: DirectiveCache
    sessions: Sessions
    statistics: KeptStatistics
    agent_threads: AgentThreads
    syncs: Syncs
    agent_logs: AgentLogs
    followers: Followers
    pace: Pace
    supervisor: Supervisor
    elected: Elected
    others: NewsOfOthers
    bundles: BundleStore
    agent_zips: AgentZips
    ca: str
    """In PEM, who vouches for this master's TLS; "" where nobody has to be told."""
    logs: LogStore
    notifier: Notifier
    clock: Callable[[], datetime]
    limits: VmLimits
    probes: Probes = field(default_factory=Probes)
    user_threads: UserThreads = field(default_factory=UserThreads)
    failed_logins: FailedLogins = field(default_factory=FailedLogins)
    attention: dict[str, str] = field(default_factory=dict)
    """What an admin has to look at, by subject; `/healthz` names the subjects."""
    random: Callable[[], float] = random.random
    """Uniform in [0, 1): only for jitter."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the master is asked to end: long polls answer at once."""

    def spread(self) -> float:
        """Between 0.75 and 1: what a wait is multiplied by that many others began together with."""
        return 0.75 + 0.25 * self.random()

    def stop(self) -> None:
        """The master is to end; harmless when repeated."""
        self.stopping.set()
        self.notifier.tell_all()

    def wake(self) -> None:
        """Let the supervise loop look now instead of at its next turn. A change of a job's rows
        does that by itself (`store/changes`); this is for what is in no row."""
        self.supervisor.wake.set()

    def whose(self, token: str) -> Principal | None:
        """The user of an API token. Reads the database: call it from a thread."""
        with self.db.read() as session:
            return users.whose(session, token, now=self.clock())

    def logged_in(self, secret: str) -> Principal | None:
        """The user of a browser that logged in. Reads the database: call it from a thread."""
        with self.db.read() as session:
            return users.logged_in(session, secret, now=self.clock())
