"""Ends the training process: a stop in its pipe, then SIGTERM, then SIGKILL. One that does not end
then is given up: the kernel may never let it go.

The first to ask gives the reason. It is kept in the state, so that an agent that is started again
goes on stopping. A process that has never said hello cannot be asked, and gets SIGTERM at once.

Where the stop is to end with a save, the process is given what that takes: some steps until it
hears of it, and then what it says itself (`heard`), which follows how often its script checks. Both
are bounded. Who asks again without a save, such as a user who cannot wait, ends that.
"""

from __future__ import annotations

import asyncio
import signal

from spothop.wire import SaveKind
from spothop_agent.context import Context
from spothop_agent.process import TrainingProcess
from spothop_agent.saves import Saves
from spothop_agent.state import Phase
from spothop_agent.tasks import Background
from spothop_agent.trainer import Trainer

STOP_S = 12.0
"""From a stop in the pipe to SIGTERM; the training API waits up to 10 s for a pending save."""
STOP_STEPS = 3
"""A stop is heard at a step's beginning: this many steps are added."""
STOP_SAVES = 2
"""Where it ends with a save: so many times what one takes in the process is added."""
WAITS_MOST_S = 600.0
"""A process may say that it waits so long for its next check (`training.session`), no longer."""
LOOK_S = 1.0
"""How often it is looked whether the time for the stop is another one by now."""
TERMINATE_S = 5.0
"""From SIGTERM to SIGKILL."""
GIVE_UP_S = 20.0
"""From SIGKILL until the process is given up; more than its wrapper needs for what it left."""


class Stopping:
    """One per attempt. `ended` is set by whoever sees that the process is over."""

    def __init__(self, context: Context, process: TrainingProcess, saves: Saves) -> None:
        self._context = context
        self._process = process
        self._saves = saves
        self._trainer: Trainer | None = None
        self._ending = Background()
        self._began = False
        self._until = 0.0
        """CLOCK_MONOTONIC: then SIGTERM follows."""
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()

    def begin(self, trainer: Trainer) -> None:
        """From now on there may be a process to end."""
        self._trainer = trainer

    def stop(self, reason: str, *, save: bool, patience_s: float | None = None) -> None:
        """End the process, or the preparation. Repeating it is harmless."""
        if self.ended.is_set() or self._context.state.phase is Phase.EXITED:
            return
        if self._context.state.stop is None:
            self._context.state_file.set(stop=reason, stop_save=save)
            self._context.note(f"stopping: {reason}")
        elif self._context.state.stop_save and not save:
            self._context.state_file.set(stop_save=False)
            self._context.note(f"stopping without a save: {reason}")
            least_s = STOP_S if patience_s is None else patience_s
            self._until = min(self._until, self._context.now() + least_s)
        self.asked.set()
        if self._trainer is not None and not self._began:
            self._began = True
            self._ending.start(self._end_process(self._trainer, patience_s))

    def heard(self, wait_s: float) -> None:
        """The process has heard the stop, and waits so long for the save to begin."""
        if self._context.state.stop_save and wait_s >= 0:  # NaN is not
            margin_s = STOP_S + STOP_SAVES * self._saves.takes_s
            until = self._context.now() + min(wait_s, WAITS_MOST_S) + margin_s
            self._until = max(self._until, until)

    async def _end_process(self, trainer: Trainer, patience_s: float | None) -> None:
        """Ask, then SIGTERM, then SIGKILL, then give up."""
        state, now = self._context.state, self._context.now()
        if trainer.known:
            kind = SaveKind.INSURANCE if state.notice is None else SaveKind.EMERGENCY
            ask = self._saves.last_save(f"stopping: {state.stop}", kind=kind, now=now)
            if state.stop_save and ask is not None:
                trainer.ask(ask)
            trainer.stop(state.stop or "")
            if patience_s is None:
                patience_s = STOP_S + STOP_STEPS * self._saves.step_s
                patience_s += STOP_SAVES * self._saves.takes_s if state.stop_save else 0.0
            self._until = now + patience_s
            if await self._ends_in_time():
                return
            if self._context.state.stop_save and self._saves.pending is not None:
                waited_s = self._context.now() - now
                self._context.tell_user(
                    f"no save within {waited_s:.0f} s of the stop: the script is ended without one",
                    level="warning",
                )
        self._process.signal(signal.SIGTERM)
        if not await self._ends_within(TERMINATE_S):
            self._process.signal(signal.SIGKILL)
            if not await self._ends_within(GIVE_UP_S):
                self._process.give_up()

    async def _ends_in_time(self) -> bool:
        """The moment may move while it is waited for."""
        while True:
            left_s = self._until - self._context.now()
            last = left_s <= LOOK_S
            if await self._ends_within(max(0.0, left_s) if last else LOOK_S):
                return True
            if last and self._until - self._context.now() <= LOOK_S:
                return False

    async def _ends_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.ended.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    async def wait_ended(self, seconds: float) -> None:
        """Wait for the process to be over, but no longer than this."""
        if self._trainer is not None:
            await self._ends_within(seconds)

    async def cancel(self) -> None:
        """End a stop under way: the process is over, or this agent ends."""
        await self._ending.cancel()

    async def failure(self) -> None:
        """Never returns; raises what a stop fails with."""
        await self._ending.failure()
