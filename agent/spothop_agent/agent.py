"""Wires the agent: joins, then one task per concern until the VM is released, over, or preempted.

A task that fails ends the agent, on purpose: everything that counts is on the disk, the VM's
supervisor starts the agent again, and the training process does not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from typing_extensions import assert_never

from spothop.chaos import Chaos
from spothop.wire import (
    AgentConfig,
    AnyDirective,
    AssignDirective,
    Assignment,
    FenceDirective,
    InsuranceDirective,
    JoinRequest,
    LogChunk,
    LogState,
    PhaseReport,
    ReleaseDirective,
    StopDirective,
    SyncRequest,
)
from spothop_agent import __version__, dead_man, staging
from spothop_agent.attempt import Attempt
from spothop_agent.checkpoint_store import CheckpointStore, OpenStore
from spothop_agent.clock import Clock
from spothop_agent.context import Context
from spothop_agent.logs import append_line, tell_boot
from spothop_agent.master_link import LinkError, MasterLink, Refused
from spothop_agent.notices import Acknowledge, Notices
from spothop_agent.paths import AgentPaths, AttemptPaths
from spothop_agent.process import Process, TrainingProcess
from spothop_agent.reserve import Reserve
from spothop_agent.retry import StorageRetrier
from spothop_agent.spool import Spool
from spothop_agent.state import Phase, State, StateFile
from spothop_agent.tasks import Background, cancel_all, first_end
from spothop_agent.threads import Threads
from spothop_agent.watch import Notice

FINAL_SYNC_S = 1.0
"""For the last sync and the rest of the log when the VM is being taken."""
OVER_PATIENCE_S = 2.0
"""From the stop to SIGTERM on a VM that is over for the master."""
OVER_S = 10.0
TEND_S = 1.0
"""How often the disk is looked after."""

OK = 0
"""Exit code: the VM is over for its master."""
REFUSED = 3
"""Exit code: the master does not take the join token; starting again does not help."""
ALONE = 4
"""Exit code: there is no master any more; the VM is to be shut down (`dead_man`)."""
STOPPED = 5
"""Exit code: SIGTERM, and the VM is not over. Its training goes on, and whoever stopped the agent
may only be about to start it again (a service manager after an upgrade of a library)."""

_log = logging.getLogger(__name__)


class Agent:
    """`watcher` makes the source of notices, given the promised grace period in seconds.

    `transport`, `open_store` and `make_process` are the ways out of the agent, to the master, the
    storage and the training process; tests put scripted ones in their place. `subreaper` says that
    this process adopts orphans: then all below it belongs to the attempt.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        clock: Clock,
        rng: random.Random,
        chaos: Chaos,
        base_env: Mapping[str, str],
        watcher: Callable[[float], AsyncIterator[Notice]],
        acknowledge: Acknowledge,
        transport: httpx.AsyncBaseTransport | None = None,
        open_store: OpenStore = CheckpointStore,
        make_process: Callable[[AttemptPaths], TrainingProcess] | None = None,
        subreaper: bool = False,
    ) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self._chaos = chaos
        self._base_env = base_env
        self._watcher = watcher
        self._acknowledge = acknowledge
        self._open_store = open_store
        self._make_process = make_process
        self._subreaper = subreaper
        self._paths = AgentPaths(Path(config.directory))
        self._reserve = Reserve(self._paths.reserve, config.reserve_bytes)
        self._state = StateFile(self._paths.state, self._reserve.release)
        self._link = MasterLink(
            config.master, clock=clock, rng=rng, ca=config.ca, transport=transport
        )
        self._spool = Spool(self._paths.spool, clock.boottime, self._reserve.release)
        self._threads = Threads()
        self._retrier = StorageRetrier(rng, threads=self._threads)
        self._next: Assignment | None = None
        self._news = asyncio.Event()
        """An assignment, or the release, has arrived."""
        self._released = asyncio.Event()
        self._alone: str | None = None
        """Why this VM ends itself."""
        self.leave = asyncio.Event()
        """Set by SIGTERM: the VM is being taken."""
        self._shipping = Background()
        self._shippers: list[asyncio.Task[None]] = []

    # --- the whole life -------------------------------------------------------------------------

    async def run(self) -> int:
        """The exit code. An unexpected error is written into the job's log, which the next agent
        ships, and raised."""
        try:
            return await self._run()
        except Exception as error:  # for the user to read; raised again
            self._note_failure(error)
            raise

    def _note_failure(self, error: Exception) -> None:
        if self._state.known:
            log = self._paths.attempt(self._state.now.assignment.attempt).log
            text = f"the agent failed ({type(error).__name__}: {error}); it is started again"
            append_line(log, text)

    async def _run(self) -> int:
        if not self._state.load():
            try:
                await self._join()
            except Refused as error:
                _log.error("join refused: %s", error)
                return REFUSED
            except asyncio.TimeoutError:
                _log.error("no master for %.0f s: this VM is of no use", self._config.away_s)
                return ALONE
        if self._state.now.over:
            return OK
        self._link.use_session(self._state.now.session)
        if (heard_at := self._state.now.heard_at) is not None:  # the VM may have been restarted
            self._link.heard_at = min(heard_at, self._link.heard_at)
        self._begin()
        await self._work()
        if self._alone is not None:
            return ALONE
        return OK if self._state.now.over else STOPPED

    async def _join(self) -> None:
        began = self._clock.monotonic()
        request = JoinRequest(
            token=self._config.token, agent_version=__version__, boot_s=self._clock.boottime()
        )
        reply = await asyncio.wait_for(self._link.join(request), self._config.away_s)
        assignment = reply.assignment
        # Before anything else: the token is used up, and without this session the VM is lost.
        self._state.put(
            State(
                vm=reply.vm,
                session=reply.session,
                sync_every_s=reply.sync_every_s,
                assignment=assignment,
                may_fence=assignment.fence_now,
                ends_at=self._end_of(assignment),
            )
        )
        duration_s = self._clock.monotonic() - began
        report = PhaseReport(phase="join", duration_s=duration_s)
        self._spool.add(assignment.attempt, report, key=f"{assignment.attempt}:phase-join")

    def _end_of(self, assignment: Assignment) -> float | None:
        """When its job is to be over, in seconds of CLOCK_BOOTTIME."""
        left_s = assignment.ends_in_s
        return None if left_s is None else self._clock.boottime() + left_s

    def _begin(self) -> None:
        """Make the attempt in the state file the current one."""
        assignment = self._state.now.assignment
        first = not assignment.resumes and self._state.now.phase < Phase.FENCED
        self._context = Context(
            assignment=assignment,
            agent_paths=self._paths,
            state_file=self._state,
            spool=self._spool,
            link=self._link,
            clock=self._clock,
            chaos=self._chaos,
            retrier=self._retrier,
            threads=self._threads,
            checkpoint_store=self._open_store(
                assignment,
                first=first,
                vm=self._state.now.vm,
                since=self._state.now.committed_n or self._state.now.fence_n,
            ),
            base_env=self._base_env,
        )
        self._retrier.on_failure = lambda text: self._context.tell_user(text, level="warning")
        self._attempt = Attempt(self._context, self._process(), self._rng)
        tell_boot(self._paths, self._context.paths.log)
        self._shippers.append(self._shipping.start(self._attempt.shipper.run()))
        for old in self._shippers[:-2]:
            old.cancel()

    def _process(self) -> TrainingProcess:
        paths = self._context.paths
        if self._make_process is not None:
            return self._make_process(paths)
        log_max = self._context.assignment.log_max
        return Process(
            paths, log_max=log_max, make_room=self._reserve.release, subreaper=self._subreaper
        )

    async def _work(self) -> None:
        grace_s = self._state.now.assignment.policy.grace_s
        self._notices = Notices(
            self._watcher(grace_s),
            self._acknowledge,
            self._final_sync,
            (self._context, self._attempt),
        )
        self._link.on_log = self._on_log
        link = self._link.run(self._spool, self._sync_request, self._on_directives)
        disk, logs = self._tend_disk(), self._shipping.failure()
        concerns = (self._attempts(), self._notices.run(), disk, logs)
        lasting = [asyncio.create_task(c) for c in concerns]
        ends = [
            asyncio.create_task(c)
            for c in (
                *(self._released.wait(), self._link.over.wait(), self.leave.wait()),
                self._be_deserted(),
            )
        ]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(link), *lasting, *ends]
        try:
            await first_end({*ends}, {*tasks})
            if self.leave.is_set():
                await self._final_sync()
            elif self._alone is not None:
                await self._end_alone(self._alone)
            else:
                await self._over()
        finally:
            await cancel_all([*tasks, *self._shippers])
            await self._link.close()

    async def _attempts(self) -> None:
        while True:
            await self._attempt.run()
            while self._next is None:
                self._news.clear()
                await self._news.wait()
            assignment, self._next = self._next, None
            await self._threads.disk(staging.set_aside, self._paths, self._context.paths)
            await self._threads.disk(shutil.rmtree, self._context.paths.work, ignore_errors=True)
            self._state.assign(assignment, ends_at=self._end_of(assignment))
            self._attempt.shipper.alight()
            self._begin()
            self._notices.hand_over(self._context, self._attempt)

    async def _tend_disk(self) -> None:
        while True:
            self._look_after_disk()
            await asyncio.sleep(TEND_S)

    def _look_after_disk(self) -> None:
        """Write what a full disk has not taken, keep the reserve, and tell of it."""
        self._state.flush()
        self._spool.flush()
        self._reserve.tend()
        for text in self._reserve.news():
            self._context.tell_user(text, level="warning")

    async def _be_deserted(self) -> None:
        """Returns when nobody but us will end this VM; `_alone` says why."""
        while True:
            ends_at = self._state.now.ends_at
            self._alone = dead_man.why_late(
                now=self._clock.boottime(), ends_at=ends_at
            ) or dead_man.why_lost(lost=self._link.lost.is_set())
            if self._alone is None and (why := self._why_silent()) is not None:
                await self._ask_once_more()
                self._alone = why if self._why_silent() is not None else None
            if self._alone is not None:
                return
            noted = self._state.now.heard_at
            if noted is None or self._link.heard_at - noted >= dead_man.NOTE_S:
                self._state.set(heard_at=self._link.heard_at)
            await asyncio.sleep(dead_man.LOOK_S)

    def _why_silent(self) -> str | None:
        return dead_man.why_silent(
            now=self._clock.monotonic(), heard=self._link.heard_at, away_s=self._config.away_s
        )

    async def _ask_once_more(self) -> None:
        with contextlib.suppress(LinkError, asyncio.TimeoutError):
            await asyncio.wait_for(
                self._link.sync(self._spool, self._sync_request(), self._on_directives),
                dead_man.LAST_ASK_S,
            )

    async def _end_alone(self, why: str) -> None:
        """Save and upload what can be, in a limited time."""
        _log.error("%s", why)
        self._context.tell_user(why, level="error")
        self._attempt.stop(why, save=self._state.now.phase is Phase.STARTED)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._attempt.over.wait(), dead_man.SAVE_S)
        self._state.set(over=True)
        await self._final_sync()

    async def _over(self) -> None:
        """Released, or over for the master: nothing may go on running."""
        if self._state.now.phase is Phase.STARTED:
            self._attempt.stop("the VM is over", save=False, patience_s=OVER_PATIENCE_S)
            await self._attempt.wait_ended(OVER_S)
        self._state.set(over=True)
        await self._final_sync()

    async def _final_sync(self) -> None:
        """A sync and the rest of the log, with short limits: the VM may be gone at any moment."""
        self._look_after_disk()  # what it has to tell comes with this sync or never
        try:
            await asyncio.wait_for(
                self._link.sync(self._spool, self._sync_request(), self._on_directives),
                FINAL_SYNC_S,
            )
        except (LinkError, asyncio.TimeoutError) as error:
            _log.info("last sync: %r", error)
        await self._attempt.shipper.flush(FINAL_SYNC_S)

    # --- the master -----------------------------------------------------------------------------

    def _sync_request(self) -> SyncRequest:
        rides = self._attempt.shipper.ride()
        return SyncRequest(
            vm=self._state.now.vm,
            attempt=self._attempt.number,
            heartbeat=self._attempt.heartbeat(),
            log=LogChunk.of(self._attempt.number, *rides) if rides else None,
        )

    def _on_log(self, state: LogState | None) -> None:
        if state is None:
            self._attempt.shipper.alight()
        elif state.attempt == self._attempt.number:
            self._attempt.shipper.landed(state.next_offset, follow=state.follow)

    def _on_directives(self, directives: list[AnyDirective]) -> None:
        for directive in directives:
            self._on_directive(directive)

    def _on_directive(self, directive: AnyDirective) -> None:
        """A directive says what the master wants now, so it may arrive any number of times."""
        number = self._attempt.number
        if isinstance(directive, ReleaseDirective):
            self._released.set()
        elif isinstance(directive, AssignDirective):
            if directive.assignment.attempt > number and self._next is None:
                self._next = directive.assignment
                self._news.set()
        elif directive.attempt != number:
            _log.info("%s of attempt %d is not for %d", directive.kind, directive.attempt, number)
        elif isinstance(directive, FenceDirective):
            self._attempt.allow_fence()
        elif isinstance(directive, InsuranceDirective):
            self._attempt.insure(directive.insurance)
        elif isinstance(directive, StopDirective):
            self._attempt.stop(directive.reason, save=directive.save)
        else:
            assert_never(directive)
