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
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.chaos import Chaos
from spothop.wire import ANY_ZONE, Pool
from spothop_master.agents.directive_cache import DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.sessions import Sessions
from spothop_master.chaos import POINTS
from spothop_master.clouds.base import Cloud, refused_by
from spothop_master.clouds.watcher import CloudWatcher, TooFast
from spothop_master.core.actions import Action, LaunchLost, LaunchVm, VmOver
from spothop_master.core.decide import decide
from spothop_master.core.due import due
from spothop_master.core.facts import Limits, Snapshot
from spothop_master.core.refusals import Scope
from spothop_master.core.watch import together
from spothop_master.loops.agenda import Agenda
from spothop_master.loops.apply import LaunchContext, apply, launch_all, plain_launches
from spothop_master.loops.booting import Booting, script_of
from spothop_master.loops.calls import REPEAT_AFTER_S, Effect, Launch, Terminate
from spothop_master.loops.effects import Effects, threads
from spothop_master.loops.elected import Elected
from spothop_master.loops.snapshot import (
    Observed,
    clouds_in_use,
    jobs_of_tokens,
    jobs_to_watch,
    snapshots_of,
)
from spothop_master.security import token_hash
from spothop_master.settings import MasterSettings
from spothop_master.store import dialects, elections, leases, refusals, transitions
from spothop_master.store.db import Database
from spothop_master.store.schema import Job

log = logging.getLogger(__name__)

ROUNDS = 50
"""At most so many decisions about one job in one transaction; more is a fault in the rules."""

LOOP = "supervise"

SILENCE = "silent VMs"
"""What an admin has to look at (`Services.attention`)."""

SCAN = timedelta(seconds=5)
"""How often the database is asked for jobs that nobody told of."""

TOGETHER = 50
"""Jobs whose facts are read together, and jobs that are written in one pass: what comes meanwhile
waits for the end of the pass."""

WRITTEN = 10
"""Jobs that are written in one transaction at most; so long reports of agents wait."""

CALLED = 100_000
"""Launches of which it is remembered that they were asked for here; the newest."""

LISTEN_S = 0.1
"""Between two looks, during a rest, at whether a cloud may be asked for its listing again."""


@dataclass(kw_only=True)
class _Plan:
    """What one transaction decided about some jobs."""

    effects: list[Effect] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    """VMs that are."""
    settled: list[Snapshot] = field(default_factory=list)
    """Facts about which there is nothing more to decide, as they are after it."""


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
        repeat_after_s: Sequence[float] = REPEAT_AFTER_S,
        sleep: Callable[[float], None] = time.sleep,
        new_token: Callable[[], str] = lambda: secrets.token_hex(16),
        attention: MutableMapping[str, str] | None = None,
        booting: Booting | None = None,
        elected: Elected | None = None,
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
        self._attention = {} if attention is None else attention
        self._elected = elected
        """Who may decide; None: only this master."""
        self._led = True
        """It was this master's turn at the last look."""
        self._booting = booting or _booting_without_key(new_token())
        self._own: tuple[int, frozenset[str]] | None = None
        """The thread and the jobs that the loop writes about now."""
        self._asked: dict[str, datetime] = {}
        self._called: dict[str, None] = {}
        self._in_use: dict[str, None] = {}
        self._agenda = Agenda(heartbeats, self._rng.random)
        self._scan_at: datetime | None = None
        self._listed: dict[str, None] = {}
        self._troubled: set[str] = set()
        """Jobs of which the last pass failed: they come last, and no other job waits for them."""
        self._began = False
        self._effects = self._make_effects(executor, repeat_after_s, sleep)
        self._observed = Observed(
            watcher=watcher,
            heartbeats=heartbeats,
            asked=self._asked,
            called=self._called,
            limits=limits_of(settings),
            join_timeout_s=settings.join_timeout_s,
        )

        db.on_change(self._on_change)
        db.on_hurry(self._on_hurry)
        db.on_closed(lambda clouds: self._effects.closed())
        watcher.subscribe(
            listed=self._on_listing, offered=self._on_offers, throttled=self._on_throttled
        )

    def _make_effects(
        self,
        executor: Executor | None,
        repeat_after_s: Sequence[float],
        sleep: Callable[[float], None],
    ) -> Effects:
        """They call this loop back; without `executor` each cloud has threads of its own."""

        def executor_of(cloud: str) -> Executor:
            if executor is not None:
                return executor
            at_once = self._watcher.limits(cloud).calls_at_once
            return threads(cloud, self._settings.calls_at_once(cloud, at_once))

        return Effects(
            db=self._db,
            clouds=self._clouds,
            clock=self._clock,
            chaos=self._chaos,
            executor_of=executor_of,
            growth=lambda: limits_of(self._settings).growth(self._rng.random()),
            done=lambda job_id: self._on_change([job_id]),
            repeat_after_s=repeat_after_s,
            sleep=sleep,
            script=lambda config: script_of(self._db, config, self._booting),
        )

    # -- what happened; called in any thread -----------------------------------------------------

    def _on_change(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._directives.job_changed(job_id)
        self._effects.changed(job_ids)
        own = self._own
        if own is not None and own[0] == threading.get_ident():  # it looks until nothing is left
            job_ids = [job_id for job_id in job_ids if job_id not in own[1]]
        if job_ids:
            self._agenda.changed(job_ids)
            self.wake.set()

    def _on_hurry(self, job_ids: Iterable[str]) -> None:
        self._agenda.hurry(job_ids)
        self.wake.set()

    def _on_listing(self, tokens: Iterable[str]) -> None:
        """A listing came, in which the VMs with these tokens are not as in the one before."""
        self._listed.update(dict.fromkeys(tokens))
        if self._agenda.listed() or self._listed:
            self.wake.set()

    def _on_offers(self) -> None:
        if self._agenda.offered():
            self.wake.set()

    def _on_throttled(self, listing: TooFast) -> None:
        """Launches wait with it, in the account or the region that has the limit: nobody tells
        which of its requests it takes yet."""
        pool = Pool(cloud=listing.cloud, region=listing.region or "", zone=ANY_ZONE, vm="")
        refused = refused_by(listing.error)
        if listing.region is None:  # all of them were asked for at once
            refused = replace(refused, scope=Scope.ACCOUNT)
        growth = limits_of(self._settings).growth(self._rng.random())
        try:
            with self._db.begin() as session:
                refusals.throttled(
                    session,
                    pool,
                    refused,
                    asked_at=listing.asked_at,
                    growth=growth,
                    now=self._clock(),
                )
        except Exception:  # the database is away: the listing waits all the same
            log.exception("cloud %s: its throttle could not be written down", listing.cloud)

    # -- the loop --------------------------------------------------------------------------------

    def run_forever(self, stop: threading.Event) -> None:
        """Until `stop` is set; set `wake` after it. Never raises for one bad pass."""
        while not stop.is_set():
            try:
                self._turn()
            except elections.LostLoop as error:
                log.warning("%s; nothing was decided", error)
                self._led = False
            except Exception as error:  # a bug in one pass must not end the loop
                _report(error, "a supervise pass failed; the next one follows")
            self._rest()

    def _turn(self) -> None:
        """Look, where it is this master's turn; at every job, if it was not before."""
        leads = self._elected is None or self._elected.holds(LOOP)
        if leads and not self._led:
            self._heartbeats.listen_anew(self._clock())
            self._led = True
            self.run_once()
        elif leads:
            self.run_due()
        else:
            self._in_use.clear()
        self._led = leads

    def renew_leases(self) -> None:
        """Of the calls under way, in any thread, every second or so: a pass may take longer than a
        lease."""
        self._effects.renew()

    def anything_changed(self) -> None:
        """Other masters may have changed any job. Thread-safe."""
        self._directives.clear()
        self._scan_at = None
        self._agenda.all_changed()
        self.wake.set()

    def changed_elsewhere(self, job_ids: Iterable[str]) -> None:
        """Other masters changed these jobs. Thread-safe."""
        self._on_change(job_ids)

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
                leases.break_all(session, now=self._db.now(session))
        self._began = True
        self._scan_at = self._clock() + SCAN
        with self._db.read() as session:
            self._in_use = dict.fromkeys(clouds_in_use(session))
            found = jobs_to_watch(session)
        self._observed.only(found)
        self._troubled.intersection_update(found)
        self._tell_of_silence()
        return found

    def _tell_of_silence(self) -> None:
        silent, known = self._observed.silent(self._clock())
        if not together(silent, known):
            self._attention.pop(SILENCE, None)
        elif SILENCE not in self._attention:
            text = f"{silent} of {known} VMs fell silent together: none is ended for that"
            log.warning("%s; see whether agents can reach this master", text)
            self._attention[SILENCE] = text

    def _pass(self) -> None:
        if self._agenda:
            self._watcher.ask_offers()
        for cloud in [*self._in_use]:
            self._watcher.ask_listing(cloud)
        self._agenda.changed(self._jobs_listed())
        self._hurry()
        self._work(self._agenda.due(self._clock()), between=self._hurry)

    def _hurry(self) -> None:
        """Jobs with a new notice wait neither for looks at others nor for their decisions."""
        if hurried := self._agenda.take_hurried():
            self._work(hurried)

    def _work(self, due_now: Sequence[str], between: Callable[[], None] = lambda: None) -> None:
        """Look at these jobs, and write what is decided about them; `between` two portions."""
        work: list[Snapshot] = []
        for first in range(0, len(due_now), TOGETHER):
            work += self._look(due_now[first : first + TOGETHER])
            between()
        work.sort(key=lambda facts: (facts.job.id in self._troubled, _without_notice(facts)))
        hurried = {facts.job.id for facts in work if not _without_notice(facts)}
        for group in _groups(work[:TOGETHER]):
            try:
                self._act(group, urgent=group[0] in hurried)
            except elections.LostLoop:
                raise
            except Exception:  # whose fault is it? nothing was written of any of them
                for job_id in group:
                    self._try(job_id, lambda job: self._act([job]))
            between()
        if later := [facts.job.id for facts in work[TOGETHER:]]:
            self._agenda.changed(later)
            self.wake.set()

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

    def _look(self, job_ids: Sequence[str]) -> list[Snapshot]:
        """Without the write lock: most looks end here, with what the job waits for. The facts of
        those about which there is something to decide."""
        work: list[Snapshot] = []

        def look(*jobs: str) -> None:
            with self._db.read() as session:
                found = self._facts(session, jobs)
            for job_id, facts in found.items():
                if decide(facts):
                    work.append(facts)
                else:
                    self._wait(job_id, facts)

        try:
            look(*job_ids)
        except Exception:  # whose bug is it? those that were looked at are so again
            work.clear()
            for job_id in job_ids:
                self._try(job_id, look)
        return work

    def _try(self, job_id: str, step: Callable[[str], None]) -> None:
        try:
            step(job_id)
            return
        except elections.LostLoop:
            raise
        except (leases.StaleLease, transitions.StaleState) as error:
            log.info("%s; looking again at the next pass", error)
        except Exception as error:  # a bug in one job must not stop the others
            _report(error, f"job {job_id}: this pass failed; the next one follows")
            self._troubled.add(job_id)
        self._agenda.changed([job_id])

    def _wait(self, job_id: str, facts: Snapshot) -> None:
        """There is nothing to decide."""
        self._troubled.discard(job_id)
        waits_for = due(facts)
        self._agenda.plan(job_id, waits_for, now=facts.now)
        if waits_for is not None and waits_for.offers and self._watcher.offers() is not None:
            self._agenda.changed([job_id])  # they came before it said that it waits for them

    def _facts(self, session: Session, job_ids: Sequence[str]) -> dict[str, Snapshot]:
        return snapshots_of(
            session,
            job_ids,
            self._observed,
            jitter=self._rng.random,
            now=self._clock(),
            lease_now=self._db.now(session),
        )

    def _decide(self, session: Session, job_id: str) -> tuple[Snapshot, list[Action]]:
        facts = self._facts(session, [job_id])[job_id]
        return facts, decide(facts)

    def _act(self, job_ids: Sequence[str], *, urgent: bool = False) -> None:
        """Decide and write until nothing is left to decide; then the effects that this needs."""
        self._chaos.reach("before_plan")
        self._own = (threading.get_ident(), frozenset(job_ids))
        try:
            plan = self._plan(job_ids, urgent=urgent)
        finally:
            self._own = None
        for vm_id in plan.over:
            self._sessions.forget(vm_id)
            self._heartbeats.forget(vm_id)
            self._directives.forget(vm_id)
            self._asked.pop(vm_id, None)
        asked = [effect.vm for effect in plan.effects if isinstance(effect, Terminate)]
        self._asked.update(dict.fromkeys(asked, self._clock()))
        called = [effect.vm for effect in plan.effects if isinstance(effect, Launch)]
        self._called.update(dict.fromkeys(called))
        for vm_id in [*self._called][:-CALLED]:
            del self._called[vm_id]
        launches = [effect.cloud for effect in plan.effects if isinstance(effect, Launch)]
        self._in_use.update(dict.fromkeys(launches))
        for facts in plan.settled:
            self._wait(facts.job.id, facts)
        if launches:
            self._chaos.reach("vm_row_committed")
        self._effects.start(plan.effects)

    def _plan(self, job_ids: Sequence[str], *, urgent: bool) -> _Plan:
        """One transaction: reading again, under the lock, costs the same for several jobs as for
        one. Raises what one of them raises, and then nothing is written of any."""
        plan, pending = _Plan(), sorted(job_ids)
        with self._db.begin(urgent=urgent) as session:
            if self._elected is not None:
                self._elected.guard(session, LOOP)
            leases.lock_all(session, pending)
            rows = session.scalars(select(Job).where(Job.id.in_(pending))).all()
            for _ in range(ROUNDS):
                found = self._facts(session, pending)
                pending, launches = [], False
                plain: list[tuple[Snapshot, list[LaunchVm]]] = []
                for job_id, facts in found.items():
                    actions = decide(facts)
                    if not actions:
                        plan.settled.append(facts)
                        continue
                    pending.append(job_id)
                    if launches and (facts.back_offs or facts.quota):
                        continue  # that launch may be the one that is let through
                    launches |= any(isinstance(action, LaunchVm) for action in actions)
                    if alone := plain_launches(facts, actions):
                        plain.append((facts, alone))
                    else:
                        self._write(session, facts, actions, plan)
                self._launch(session, plain, plan)
                if not pending:
                    del rows  # the session finds them by their ids as long as somebody keeps them
                    return plan
            raise RuntimeError(f"jobs {pending}: no end of decisions")

    def _write(
        self, session: Session, facts: Snapshot, actions: Sequence[Action], plan: _Plan
    ) -> None:
        for action in actions:
            log.info("job %s: %s", facts.job.id, action)
            context = self._launch_context(self._db.now(session))
            plan.effects += apply(session, facts, action, context, now=facts.now)
            session.flush()
        ended = (VmOver, LaunchLost)
        plan.over += [action.vm for action in actions if isinstance(action, ended)]

    def _launch(
        self, session: Session, wanted: Sequence[tuple[Snapshot, list[LaunchVm]]], plan: _Plan
    ) -> None:
        for facts, actions in wanted:
            for action in actions:
                log.info("job %s: %s", facts.job.id, action)
        if wanted:
            now, context = wanted[0][0].now, self._launch_context(self._db.now(session))
            plan.effects += launch_all(session, wanted, context, now=now)

    def _launch_context(self, lease_now: datetime) -> LaunchContext:
        return LaunchContext(
            lease_now=lease_now,
            owner=self._settings.owner,
            master_url=self._settings.agents_url,
            new_token=self._new_token,
            join_token=self._booting.join_token,
            ca=self._booting.ca,
            away_s=self._settings.dead_man_s,
            offers=self._watcher.offers() or {},
            heartbeats=self._heartbeats,
        )


def _booting_without_key(secret: str) -> Booting:
    """Of this process alone; for clouds whose VMs boot no image."""
    return Booting(join_token=lambda vm: token_hash(f"{secret} {vm}"), zips=dict)


def _report(error: Exception, what: str) -> None:
    """With its trace, unless it only is that the database does not answer."""
    if dialects.is_away(error) or dialects.is_conflict(error):
        log.warning("%s: the database says: %s", what, dialects.in_words(error))
    else:
        log.error(what, exc_info=error)


def _groups(work: Sequence[Snapshot]) -> list[list[str]]:
    """The jobs that are written in one transaction: those with notices, which come in swarms and
    are in a hurry. Of others, what the cloud answers to one is known when the next is decided."""
    alone = [[facts.job.id] for facts in work if _without_notice(facts)]
    noticed = [facts.job.id for facts in work if not _without_notice(facts)]
    return [noticed[at : at + WRITTEN] for at in range(0, len(noticed), WRITTEN)] + alone


def _without_notice(facts: Snapshot) -> bool:
    """False, which sorts first, where time runs out."""
    return not any(attempt.notice_at for attempt in facts.living)


def limits_of(settings: MasterSettings) -> Limits:
    return Limits(
        suspect_after_s=settings.suspect_after_syncs * settings.sync_every_s,
        silent_after_s=settings.silent_after_s,
        silent_together_s=settings.silent_together_s,
        fence_margin_s=settings.fence_margin_s,
        stop_timeout_s=settings.stop_timeout_s,
        stop_save_s=settings.stop_save_s,
        backoff_base_s=settings.backoff_base_s,
        backoff_max_s=settings.backoff_max_s,
        avoid_s=settings.avoid_s,
        user_vms=settings.quota.vms,
    )
