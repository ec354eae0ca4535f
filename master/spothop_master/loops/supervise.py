"""The supervise loop: for each job load -> decide -> write intents; clouds are called beside it.

Loading, deciding and writing intents is one transaction. What needs a cloud is an effect on one VM,
started after the commit (`loops.effects`): neither other jobs wait for it nor its own, whose facts
say that it is under way. What came of it is a change of the job like any other.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from spothop.chaos import Chaos
from spothop_master.agents.directive_cache import DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.sessions import Sessions
from spothop_master.chaos import POINTS
from spothop_master.clouds.base import Cloud
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.core.actions import Action, VmOver
from spothop_master.core.decide import decide
from spothop_master.core.due import due
from spothop_master.core.facts import Limits, Snapshot
from spothop_master.loops.agenda import Agenda
from spothop_master.loops.apply import LaunchContext, apply
from spothop_master.loops.effects import Effect, Effects, Launch, Terminate, threads
from spothop_master.loops.snapshot import (
    Observed,
    clouds_in_use,
    jobs_of_tokens,
    jobs_to_watch,
    snapshot_of,
)
from spothop_master.settings import MasterSettings
from spothop_master.store import leases, transitions
from spothop_master.store.db import Database

log = logging.getLogger(__name__)

ROUNDS = 50
"""At most so many decisions about one job in one transaction; more is a fault in the rules."""

SCAN = timedelta(seconds=5)
"""How often the database is asked for jobs that nobody told of."""

LISTEN_S = 0.1
"""Between two looks, during a rest, at whether a cloud may be asked for its listing again."""


class Supervisor:
    """Thread-safe where it says so; `run_once` is called by one thread at a time."""

    def __init__(
        self,
        db: Database,
        clouds: Mapping[str, Cloud],
        settings: MasterSettings,
        *,
        watcher: CloudWatcher,
        heartbeats: Heartbeats,
        directives: DirectiveCache,
        sessions: Sessions,
        clock: Callable[[], datetime],
        chaos: Chaos | None = None,
        executor: Executor | None = None,
        rng: random.Random | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self.wake = threading.Event()
        """Set it (from any thread) to let the loop look at once at what has changed."""
        self._db = db
        self._clouds = clouds
        self._settings = settings
        self._watcher = watcher
        self._heartbeats = heartbeats
        self._directives = directives
        self._sessions = sessions
        self._clock = clock
        self._chaos = chaos or Chaos(POINTS)
        self._rng = rng or random.Random()  # only for jitter
        self._new_token = new_token
        self._asked: dict[str, datetime] = {}
        self._in_use: dict[str, None] = {}
        self._agenda = Agenda(heartbeats, self._rng.random)
        self._scan_at: datetime | None = None
        self._listed: dict[str, None] = {}
        self._began = False
        self._effects = Effects(
            db=db,
            clouds=clouds,
            clock=clock,
            chaos=self._chaos,
            executor_of=lambda cloud: executor or threads(cloud, settings.calls_at_once(cloud)),
            growth=lambda: limits_of(settings).growth(self._rng.random()),
            done=lambda job_id: self._on_change([job_id]),
        )
        self._observed = Observed(
            watcher=watcher, heartbeats=heartbeats, asked=self._asked, limits=limits_of(settings)
        )

        db.on_change(self._on_change)
        watcher.subscribe(listed=self._on_listing, offered=self._on_offers)

    # -- what happened; called in any thread -----------------------------------------------------

    def _on_change(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._directives.job_changed(job_id)
        self._agenda.changed(job_ids)
        self.wake.set()

    def _on_listing(self, tokens: Iterable[str]) -> None:
        """A listing came, in which the VMs with these tokens are not as in the one before."""
        self._listed.update(dict.fromkeys(tokens))
        if self._agenda.listed() or self._listed:
            self.wake.set()

    def _on_offers(self) -> None:
        if self._agenda.offered():
            self.wake.set()

    # -- the loop --------------------------------------------------------------------------------

    def run_forever(self, stop: threading.Event) -> None:
        """Until `stop` is set; set `wake` after it. Never raises for one bad pass."""
        while not stop.is_set():
            try:
                self.run_due()
            except Exception:  # a bug in one pass must not end the loop
                log.exception("a supervise pass failed; the next one follows")
            self._rest()

    def _rest(self) -> None:
        """Until the next pass is due or something wakes us, such as a listing with news in it: a VM
        that ended without notice is seen as soon as its cloud lets us ask."""
        left_s = self._settings.supervise_every_s
        while not self.wake.wait(min(left_s, LISTEN_S)) and left_s > LISTEN_S:
            left_s -= LISTEN_S
            for cloud in [*self._in_use]:
                self._watcher.ask_listing(cloud)
        self.wake.clear()

    def run_due(self) -> None:
        """Look at the jobs that changed and those whose time has come; what needs a cloud goes on
        in threads."""
        self._effects.renew()
        if self._scan_at is None or not timedelta() < self._scan_at - self._clock() <= SCAN:
            self._agenda.know(self._scan())
        self._pass()

    def run_once(self) -> None:
        """Look at every job, whatever it waits for."""
        self._agenda.changed(self._scan())
        self._pass()

    def _scan(self) -> list[str]:
        """The jobs that are not over, or have VMs."""
        if not self._began and self._db.single_master:
            with self._db.begin() as session:
                leases.break_all(session, now=self._clock())
        self._began = True
        self._scan_at = self._clock() + SCAN
        with self._db.read() as session:
            self._in_use = dict.fromkeys(clouds_in_use(session))
            return jobs_to_watch(session)

    def _pass(self) -> None:
        if self._agenda:
            self._watcher.ask_offers()
        for cloud in [*self._in_use]:
            self._watcher.ask_listing(cloud)
        self._agenda.changed(self._jobs_listed())
        for job_id in self._agenda.due(self._clock()):
            try:
                self._look(job_id)
                continue
            except (leases.StaleLease, transitions.StaleState) as error:
                log.info("%s; looking again at the next pass", error)
            except Exception:  # and a bug in one job must not stop the others
                log.exception("job %s: this pass failed; the next one follows", job_id)
            self._agenda.changed([job_id])

    def _jobs_listed(self) -> list[str]:
        """Of the VMs that listings have told something new of."""
        tokens = [*self._listed]
        if not tokens:
            return []
        with self._db.read() as session:
            found = jobs_of_tokens(session, tokens)
        for token in tokens:  # not before: if the database is away, nobody tells them again
            self._listed.pop(token, None)
        return found

    def close(self) -> None:
        """Wait for calls under way; their results are written."""
        self._effects.close()

    # -- one job ---------------------------------------------------------------------------------

    def _look(self, job_id: str) -> None:
        if self._has_work(job_id):
            self._effects.start(self._plan(job_id))
            self._agenda.changed([job_id])

    def _has_work(self, job_id: str) -> bool:
        """Without the write lock: most looks end here, with what the job waits for."""
        now = self._clock()
        with self._db.read() as session:
            facts, actions = self._decide(session, job_id)
        if not actions:
            waits_for = due(facts)
            self._agenda.plan(job_id, waits_for, now=now)
            if waits_for is not None and waits_for.offers and self._watcher.offers() is not None:
                self._agenda.changed([job_id])  # they came before it said that it waits for them
        return bool(actions)

    def _decide(self, session: Session, job_id: str) -> tuple[Snapshot, list[Action]]:
        facts = snapshot_of(
            session, job_id, self._observed, jitter=self._rng.random(), now=self._clock()
        )
        return facts, decide(facts)

    def _plan(self, job_id: str) -> list[Effect]:
        """Decide and write until nothing is left to decide; the effects that this needs."""
        self._chaos.reach("before_plan")
        now = self._clock()
        effects: list[Effect] = []
        over: list[str] = []
        with self._db.begin() as session:
            leases.lock(session, job_id)
            for _ in range(ROUNDS):
                facts, actions = self._decide(session, job_id)
                if not actions:
                    break
                for action in actions:
                    log.info("job %s: %s", job_id, action)
                    effects += apply(session, facts, action, self._launch_context(), now=now)
                    session.flush()
                over += [action.vm for action in actions if isinstance(action, VmOver)]
                asked = [effect.vm for effect in effects if isinstance(effect, Terminate)]
                self._asked.update(dict.fromkeys(asked, now))
            else:
                raise RuntimeError(f"job {job_id}: no end of decisions, the last was {actions}")
        for vm_id in over:
            self._sessions.forget(vm_id)
            self._heartbeats.forget(vm_id)
            self._directives.forget(vm_id)
            self._asked.pop(vm_id, None)
        launches = [effect for effect in effects if isinstance(effect, Launch)]
        self._in_use.update(dict.fromkeys(effect.cloud for effect in launches))
        if launches:
            self._chaos.reach("vm_row_committed")
        return effects

    def _launch_context(self) -> LaunchContext:
        return LaunchContext(
            owner=self._settings.owner,
            master_url=self._settings.public_url,
            new_token=self._new_token,
            offers=self._watcher.offers() or {},
            heartbeats=self._heartbeats,
        )


def limits_of(settings: MasterSettings) -> Limits:
    return Limits(
        suspect_after_s=settings.suspect_after_syncs * settings.sync_every_s,
        silent_after_s=settings.silent_after_s,
        join_timeout_s=settings.join_timeout_s,
        fence_margin_s=settings.fence_margin_s,
        stop_timeout_s=settings.stop_timeout_s,
        backoff_base_s=settings.backoff_base_s,
        backoff_max_s=settings.backoff_max_s,
        avoid_s=settings.avoid_s,
    )
