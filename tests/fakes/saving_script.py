"""A training process that counts steps and saves, through the real training API; virtual time."""

from __future__ import annotations

import asyncio
import json
import math
import os
from dataclasses import dataclass
from typing import Any, Protocol

from fakes.fault_script import Save
from spothop.training.session import Session
from spothop_agent.paths import AttemptPaths
from spothop_agent.process import Exit

SAVE_S = 0.3
STEP_S = 0.5
EVERY = 6
"""So many steps between the saves that the script makes by itself."""
DATA = 200
"""Bytes of a checkpoint: so many times its step."""


class Surroundings(Protocol):
    """What the script needs of the VM that it runs on."""

    def now(self) -> float: ...
    def tell(self, text: str) -> None: ...
    def broken(self, why: str) -> Exception: ...
    async def thaw(self) -> None:
        """Wait while nothing may happen on this VM."""


@dataclass(frozen=True)
class Accepted:
    id: str
    step: int
    began: float
    at: float


class Training:
    """A `TrainingProcess`: a loop that counts steps and saves when it is asked to, or wants to."""

    def __init__(self, paths: AttemptPaths, job: Surroundings) -> None:
        self._paths = paths
        self._job = job
        self._task: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()
        self.session: Session | None = None
        self.pid: int | None = None
        self.ended: Exit | None = None
        self.ended_at = math.inf
        self.failed: Exception | None = None
        self.wants: list[Save] = []
        self.accepted: list[Accepted] = []
        self.steps: list[tuple[float, int]] = []
        """When which step was complete."""
        self.asked: dict[str, float] = {}

    # --- what the agent asks ---

    def start(self, command: str, env: dict[str, str]) -> None:
        if self.pid is None and self.ended is None:
            self.pid = os.getpid()
            self._task = asyncio.create_task(self._run())

    def exit(self) -> Exit | None:
        return self.ended

    def signal(self, number: int) -> None:
        self.end(Exit(code=None, signal=int(number)))

    def oom_kills(self) -> int | None:
        return 0

    # --- what happens ---

    def end(self, ended: Exit) -> None:
        """Also what its threads still had to hand over is gone."""
        if self.ended is None:
            self.ended, self.ended_at = ended, self._job.now()
            self._job.tell(f"the process ends: {ended}")
            for task in (self._task, *self._late):
                if task is not None and task is not asyncio.current_task():
                    task.cancel()

    def close(self) -> None:
        if self.session is not None:
            self.session.after_fork()

    def step_at(self, moment: float) -> int:
        return max((step for at, step in self.steps if at <= moment), default=0)

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        self.session = session = Session(
            str(self._paths.run), job_dir=str(self._paths.work), clock=now
        )
        try:
            while True:
                with session.step_context():
                    await asyncio.sleep(STEP_S)
                    await self._job.thaw()
                self.steps.append((now(), session.step))
                asked = session.check_save()
                if not session.step % EVERY:
                    self.wants.append(Save())
                if asked or self.wants:
                    late_s = self.wants.pop(0).late_s if self.wants else 0.0
                    await self._save(0.0 if asked else late_s)
        except SystemExit:
            self.end(Exit(code=0, signal=None))
        except Exception as error:  # the test looks at it
            self._job.tell(f"the script failed: {error!r}")
            self.failed = error
            self.end(Exit(code=1, signal=None))

    async def _save(self, late_s: float) -> None:
        assert self.session is not None
        now = asyncio.get_running_loop().time
        began, step = now(), self.session.step
        with self.session.saving() as save:
            name = f"ckpt-{step}-{len(self.accepted)}"
            (self._paths.work / name).write_bytes(content(step))
            await asyncio.sleep(SAVE_S)
            if not late_s:
                await self._job.thaw()
                self._hand_over(save, name, step, began)
                return

        async def later() -> None:
            await asyncio.sleep(late_s)
            await self._job.thaw()
            self._hand_over(save, name, step, began)

        task = asyncio.create_task(later())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _hand_over(self, save: Any, name: str, step: int, began: float) -> None:
        before = set(os.listdir(self._paths.outbox))
        save.backup(self._paths.work / name)
        [new] = [n for n in os.listdir(self._paths.outbox) if n not in before]
        now = asyncio.get_running_loop().time()
        meta = json.loads((self._paths.outbox / new / "meta.json").read_text())
        self.accepted.append(Accepted(new, step, began, now))
        self._job.tell(f"step {step} handed over as {new} ({meta['kind']}, {meta['request']})")
        if meta["request"] is not None:
            asked = int(meta["request"].rpartition("-")[2]) / 1000
            if meta["step"] < self.step_at(asked) or meta["step"] != step:
                raise self._job.broken(f"{meta} answers what was asked for later")


def content(step: int) -> bytes:
    return f"{step:08d}".encode() * (DATA // 8)
