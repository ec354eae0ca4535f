"""One attempt with everything scripted around it: storage, process, master, and the time.

Made inside the running loop (see `fakes.virtual_time.play`). `again()` is the agent that is started
after this one died: it has the same disk and the same process, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any, TypeVar

from fakes.agent_vm import BUNDLE, assignment
from fakes.fake_master import SESSION, VM, MasterScript
from fakes.scripted_process import ScriptedProcess
from fakes.scripted_store import ScriptedStore
from fakes.virtual_time import LoopClock, until
from spothop.wire import AnyReport
from spothop_agent.attempt import Attempt
from spothop_agent.chaos import from_text
from spothop_agent.context import Context
from spothop_agent.master_link import MasterLink
from spothop_agent.notice_states import NoticeState
from spothop_agent.paths import AgentPaths
from spothop_agent.process import Exit
from spothop_agent.retry import StorageRetrier
from spothop_agent.spool import Spool
from spothop_agent.state import Phase, State, StateFile
from spothop_agent.threads import Threads

T = TypeVar("T", bound=AnyReport)

OK = Exit(code=0, signal=None)


class AttemptHarness:
    """`changes` are those of the assignment; `state` those of state.json before the start."""

    def __init__(
        self,
        root: Path,
        *,
        state: dict[str, Any] | None = None,
        process: ScriptedProcess | None = None,
        **changes: object,
    ) -> None:
        self._root = root
        clock, rng = LoopClock(), random.Random(1)
        work = assignment(root / "storage", **changes)
        self.master = MasterScript(work, BUNDLE)
        paths = AgentPaths(root / "vm")
        paths.root.mkdir(exist_ok=True)
        state_file = StateFile(paths.state)
        if not state_file.load():
            first = State(vm=VM, session=SESSION, sync_every_s=1.0, assignment=work)
            state_file.put(first.model_copy(update={"may_fence": work.fence_now, **(state or {})}))
        link = MasterLink("http://master", clock=clock, rng=rng, transport=self.master.transport)
        link.use_session(SESSION)
        self.store = ScriptedStore(attempt=work.attempt)
        self.context = Context(
            assignment=state_file.now.assignment,
            agent_paths=paths,
            state_file=state_file,
            spool=Spool(paths.spool, clock.boottime),
            link=link,
            clock=clock,
            chaos=from_text("", root),
            retrier=StorageRetrier(rng),
            threads=Threads(),
            checkpoint_store=self.store,
            base_env={"PATH": "/bin"},
        )
        if state_file.now.phase >= Phase.PREPARED:
            self.context.paths.outputs.mkdir(parents=True, exist_ok=True)
        self.rng = rng
        self.process = process or ScriptedProcess(self.context.paths, clock.monotonic)
        self.attempt = Attempt(self.context, self.process, rng)
        self._running: asyncio.Task[None] | None = None

    # --- the attempt ----------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Let the attempt run beside the scenario."""
        self._running = asyncio.create_task(self.attempt.run())
        return self._running

    async def training(self, *, step: int | None = 1) -> AttemptHarness:
        """Run until the process has started and, unless `step` is None, has said this step."""
        self.start()
        await until(lambda: self.state.phase is Phase.STARTED)
        if step is not None:
            self.process.say("hello", v=1)
            self.process.steps(step, count=step)
            await until(lambda: self.attempt.heartbeat().step == step)
        return self

    async def over(self, ended: Exit | None = OK) -> None:
        """The process ends like this, if it is given; returns when the attempt is over."""
        if ended is not None:
            self.process.end(ended)
        assert self._running is not None
        await self._running
        await self.context.link.close()

    async def die(self) -> None:
        """The agent is killed: nothing of it runs on."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self.context.link.close()

    def again(self) -> AttemptHarness:
        """The agent that is started again after `die`."""
        return AttemptHarness(self._root, process=self.process)

    # --- what tests ask -------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.context.state

    @property
    def notice_state(self) -> NoticeState | None:
        return self.state.notice.state if self.state.notice is not None else None

    def on_disk(self) -> State:
        """What an agent that is started now would read."""
        file = StateFile(self.context.agent_paths.state)
        assert file.load()
        return file.now

    def reports(self, kind: type[T]) -> list[T]:
        return [e.report for e in self.context.spool.batch() if isinstance(e.report, kind)]

    def kinds(self) -> list[str]:
        return [e.report.kind for e in self.context.spool.batch()]

    def log(self) -> str:
        return self.context.paths.log.read_text()
