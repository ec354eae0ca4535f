"""The phases of one attempt, from its assignment to its end: prepare, start, train, drain, report.

The order at the end: the process is over -> every accepted backup is committed or given up ->
outputs -> log -> the exit is reported. An agent that is started again goes on from the state's
phase.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import spothop
from spothop.wire import Heartbeat, Insurance, SaveKind, StartedReport, UseReport
from spothop_agent.backups import Backups
from spothop_agent.context import Context
from spothop_agent.logs import LogShipper
from spothop_agent.notice_states import SAVED
from spothop_agent.prepare import Preparation, PreparationFailed
from spothop_agent.process import TrainingProcess, environment, link_client
from spothop_agent.reporting import Reporting, how_it_ended
from spothop_agent.saves import Ask, AtNotice, Saves
from spothop_agent.state import Phase
from spothop_agent.stopping import Stopping
from spothop_agent.tasks import cancel_all, first_end
from spothop_agent.trainer import Trainer
from spothop_agent.use import EVERY_S, Sample, Use, gpu_share
from spothop_agent.watching import Watch

POLL_S = 0.1
"""How often the exit is looked for."""
HANG_PATIENCE_S = 2.0
"""From the stop to SIGTERM for a process that hangs: it will hardly hear the stop."""
TICK_S = 0.25
"""How often the outbox is looked at without a message about it, and insurance is considered."""


class Attempt:
    """`run` returns when the exit is reported; it may be called in any phase."""

    def __init__(self, context: Context, process: TrainingProcess, rng: random.Random) -> None:
        self._context = context
        context.paths.make()
        if context.assignment.setup_cache is not None:
            context.paths.share_work(context.agent_paths.work)
        link_client(context.agent_paths.lib, Path(spothop.__file__).parent)
        state, assignment = context.state, context.assignment
        self._env = environment(
            dict(context.base_env),
            assignment.env,
            paths=context.paths,
            job=assignment.job,
            attempt=assignment.attempt,
            lib=context.agent_paths.lib,
        )
        self._preparation = Preparation(context, self._env, rng)
        self._process = process
        self._saves = Saves(
            params=assignment.policy, attempt=assignment.attempt, started=context.now()
        )
        self._saves.saved_step, self._saves.step = state.saved_step, state.last_step
        if state.backup_s is not None:  # an agent before us has measured
            self._saves.save_s, self._saves.backup_s = state.save_s, state.backup_s
        self._watch = Watch(context, self._saves, self._end_of_hang)
        self._trainer: Trainer | None = None
        self._backups: Backups | None = None
        self._stopping = Stopping(context, process, self._saves)
        self.covered = asyncio.Event()
        """After a notice: there is nothing (more) to save."""
        self.over = asyncio.Event()
        """`run` has come to its end: nothing more can be committed."""
        self.shipper = LogShipper(context.paths.log, self._send_log, rng, limit=assignment.log_max)
        self._reporting = Reporting(context, process, self.shipper)

    async def _send_log(self, offset: int, chunk: bytes) -> int:
        return await self._context.link.send_log(self._context.attempt, offset, chunk)

    @property
    def number(self) -> int:
        return self._context.attempt

    def heartbeat(self) -> Heartbeat:
        alive = self._context.state.phase is Phase.STARTED and not self._stopping.ended.is_set()
        waiting = self._backups.waiting if self._backups is not None else 0
        return Heartbeat(step=self._saves.step, pending_saves=waiting, trainer_alive=alive)

    # --- requests from outside ------------------------------------------------------------------

    def allow_fence(self) -> None:
        if not self._context.state.may_fence:
            self._context.state_file.set(may_fence=True)
        self._preparation.may_fence.set()

    def insure(self, insurance: Insurance) -> None:
        self._saves.insurance = insurance

    def stop(self, reason: str, *, save: bool, patience_s: float | None = None) -> None:
        """End the process, or the preparation. Repeating it is harmless."""
        self._stopping.stop(reason, save=save, patience_s=patience_s)

    async def wait_ended(self, seconds: float) -> None:
        """Wait for the process to be over, but no longer than this."""
        await self._stopping.wait_ended(seconds)

    def on_notice(self, event: str, deadline: float) -> AtNotice:
        """Ask for the emergency save; without a process there is nothing to save."""
        phase = self._context.state.phase
        if phase is Phase.EXITED:
            self.covered.set()
            return AtNotice(ask=None, fits=True, reason="there is nothing to save")
        if phase < Phase.STARTED:
            self.covered.set()
            self.stop(f"notice {event} before the training process started", save=False)
            reason = "the training process has not started: there is nothing to save"
            return AtNotice(ask=None, fits=False, reason=reason)
        if self._trainer is None or self._stopping.ended.is_set():
            reason = "the training process is over: only its accepted backups are left"
            return AtNotice(ask=None, fits=True, reason=reason)
        self._trainer.refresh()
        answer = self._saves.at_notice(event, deadline, now=self._context.now())
        if answer.ask is not None:
            self._trainer.ask(answer.ask)
        return answer

    def resume_notice(self, request: str, deadline: float) -> None:
        """Repeat the request of an earlier agent; the process takes the same id as one request."""
        if self._trainer is None or self._stopping.ended.is_set():
            return
        ask = Ask(
            request=request,
            kind=SaveKind.EMERGENCY,
            at_step=None,
            deadline=deadline,
            reason="repeated after a restart of the agent",
        )
        self._trainer.ask(self._saves.resume(ask, now=self._context.now()))

    @property
    def saves_for_notice(self) -> bool:
        """An emergency save is asked for, or accepted backups are on their way."""
        pending = self._saves.pending
        asked = pending is not None and pending.kind is SaveKind.EMERGENCY
        return asked or (self._backups is not None and self._backups.waiting > 0)

    @property
    def _saving(self) -> bool:
        """Something is asked for, or on its way; from any thread."""
        waiting = self._backups is not None and self._backups.waiting > 0
        return waiting or self._saves.pending is not None

    @property
    def has_made_its_last_save(self) -> bool:
        """The one before the deadline: what is trained after it is lost."""
        return self._saves.asked_late and not self.saves_for_notice

    def _late_save(self, backups: Backups) -> Ask | None:
        """The last one before the deadline, where the first was in time and training goes on."""
        notice = self._context.state.notice
        if notice is None or notice.state not in SAVED or self._stopping.asked.is_set():
            return None
        return self._saves.late(
            notice.last_save_by,
            deadline=notice.deadline,
            now=self._context.now(),
            uploading=backups.waiting > 0,
        )

    # --- the life -------------------------------------------------------------------------------

    async def run(self) -> None:
        phase = self._context.state.phase
        if phase < Phase.STARTED and not await self._prepared():
            self._context.state_file.set(phase=Phase.EXITED)
        elif phase < Phase.EXITED:
            await self._train()
        self.covered.set()
        self.over.set()
        self._context.link.wake()

    async def _prepared(self) -> bool:
        """True when the process may start; else the end is reported."""
        from spothop.checkpoints import Fenced

        assignment, state = self._context.assignment, self._context.state
        again = ", started again" if state.prepared else ""
        self._context.note(
            f"attempt {assignment.attempt} of job {assignment.job} on {state.vm}{again}"
        )
        try:
            if await self._unless_stopped():
                return True
        except PreparationFailed as failed:
            await self._reporting.failed(failed)
            return False
        except Fenced as fenced:
            if fenced.vm:  # nobody else will tell why
                self._context.tell_user(str(fenced), level="error")
            self._reporting.fenced(fenced.by)
            return False
        await self._reporting.never_started()
        return False

    async def _unless_stopped(self) -> bool:
        """Prepare; False when a stop came first."""
        if self._context.state.stop is not None:
            return False
        work = asyncio.create_task(self._preparation.run())
        stop = asyncio.create_task(self._stopping.asked.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return False
            await work
            return not self._stopping.asked.is_set()
        finally:
            await cancel_all([work, stop])

    async def _train(self) -> None:
        backups = Backups(
            self._context,
            self._saves,
            on_covered=self.covered.set,
            on_fenced=lambda: self.stop("a newer attempt has taken over", save=False),
        )
        trainer = Trainer(
            self._context,
            self._saves,
            backups.look,
            backups.resume.ask,
            self._restarted,
            self._watch.heard,
            self._stopping.heard,
        )
        self._backups, self._trainer = backups, trainer
        self._stopping.begin(trainer)
        failures = (self._stopping.failure(), backups.resume.failure())
        keeping = self._context.errands()
        keeping.start("setup_cache", self._preparation.setup_cache.keep(lambda: self._saving))
        lasting = (backups.run(), self._tick(), self._measure_use(), *failures)
        tasks = [asyncio.create_task(work) for work in lasting]
        end = asyncio.create_task(self._to_the_end(backups, trainer))
        try:
            # A failing task ends the agent. The next agent takes over; training is not affected.
            await first_end({end}, {*tasks})
        finally:
            await cancel_all([*tasks, end])
            await self._stopping.cancel()
            await keeping.cancel()
            await backups.resume.cancel()
            trainer.pipes.close()

    async def _to_the_end(self, backups: Backups, trainer: Trainer) -> None:
        self._saves.start_step = self._context.state.restored_step
        if self._context.state.phase < Phase.STARTED:
            try:
                await self._start()
            except OSError as error:
                await self._reporting.failed(PreparationFailed.of_system("start", error))
                self._context.state_file.set(phase=Phase.EXITED)
                return
            self._saves.saved_at = self._context.now()  # insurance is armed at the start
            self._watch.restarted()
        if self._context.state.stop is not None:
            self.stop(self._context.state.stop, save=self._context.state.stop_save)
        while (ended := self._process.exit()) is None:  # noqa: ASYNC110  another process's file
            await asyncio.sleep(POLL_S)
        self._stopping.ended.set()
        self._context.chaos.reach("after_exit")
        self._context.note(f"the process ended: {how_it_ended(ended)}; backing up what is left")
        if ended.left:
            self._context.tell_user(
                f"these processes do not end although they were killed: {ended.left}; the kernel"
                " does not let them go (state D in ps), and what they hold may stay in use",
                level="warning",
            )
        trainer.pipes.drain()
        await backups.drain()
        await backups.resume.close()
        if self._reporting.succeeds(ended):
            await self._preparation.setup_cache.clear()
        await self._reporting.exited(ended, step=self._saves.step)
        self._context.state_file.set(phase=Phase.EXITED)

    async def _start(self) -> None:
        self._context.state_file.set(oom_kills=self._process.oom_kills())
        self._process.start(self._context.assignment.run, self._env)
        while self._process.pid is None and self._process.exit() is None:  # noqa: ASYNC110  as below
            await asyncio.sleep(0.01)
        self._context.chaos.reach("after_start")
        pid = self._process.pid
        if pid is not None:
            self._context.report(StartedReport(pid=pid), key="started", urgent=True)
        self._context.state_file.set(phase=Phase.STARTED)

    async def _tick(self) -> None:
        assert self._trainer is not None
        assert self._backups is not None
        while True:
            self._trainer.pipes.flush()
            self._trainer.refresh()
            self._trainer.pipes.drain()  # a hello comes before what that process hands over
            self._backups.look()
            ask = self._saves.due(self._context.now(), uploading=self._backups.waiting > 0)
            ask = ask or self._late_save(self._backups)
            if ask is not None and self._trainer.known and not self._stopping.ended.is_set():
                self._trainer.ask(ask)
            if not self._stopping.ended.is_set():
                self._watch.look(self._backups.trouble)
            await asyncio.sleep(TICK_S)

    async def _measure_use(self) -> None:
        """Tell when the process begins to use next to nothing of its VM, and when that is over."""
        use, context = Use(), self._context
        while True:
            await asyncio.sleep(EVERY_S)
            if not context.assignment.wants_use or self._stopping.asked.is_set():
                continue
            cpu_s = await context.threads.disk(self._process.cpu_s)
            gpu = await context.threads.disk(gpu_share)
            if not use.measured(Sample(at=context.now(), cpu_s=cpu_s, gpu=gpu)):
                continue
            since = use.idle_since
            idle_s = None if since is None else context.now() - since
            context.report(UseReport(idle_s=idle_s, reason=use.reason))

    def _restarted(self, at: float) -> None:
        """The script was started again inside the attempt."""
        assert self._backups is not None
        self._watch.restarted()
        self._backups.restarted(at)

    def _end_of_hang(self, reason: str) -> None:
        self.stop(reason, save=False, patience_s=HANG_PATIENCE_S)
