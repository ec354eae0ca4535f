"""One backup worker and all it needs, over a scripted storage. Made inside the running loop."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from fakes.agent_vm import assignment
from fakes.scripted_store import ScriptedStore
from fakes.virtual_time import LoopClock
from spothop.chaos import Chaos
from spothop.wire import SaveKind
from spothop_agent.backups import Backups
from spothop_agent.chaos import POINTS
from spothop_agent.context import Context
from spothop_agent.master_link import MasterLink
from spothop_agent.notice_states import NoticeEvent, NoticeState
from spothop_agent.paths import AgentPaths
from spothop_agent.retry import StorageRetrier
from spothop_agent.saves import Saves
from spothop_agent.spool import Spool
from spothop_agent.state import NoticeSeen, State, StateFile
from spothop_agent.threads import Threads


class Room:
    """One worker and all that it needs; made inside the running loop."""

    def __init__(
        self, root: Path, *, backup_s: float | None = None, retry_s: float = 0.001
    ) -> None:
        """`retry_s`: virtual seconds between two tries of a call of the storage."""
        clock, rng = LoopClock(), random.Random(1)
        paths = AgentPaths(root)
        work = assignment(root / "storage")
        state = StateFile(paths.state)
        state.put(State(vm="v", session="s", sync_every_s=1.0, assignment=work))
        self.store = ScriptedStore()
        self.context = Context(
            assignment=work,
            agent_paths=paths,
            state_file=state,
            spool=Spool(paths.spool, clock.boottime),
            link=MasterLink("http://127.0.0.1:1", clock=clock, rng=rng),
            clock=clock,
            chaos=Chaos(POINTS),
            retrier=StorageRetrier(rng, first_s=retry_s, cap_s=retry_s),
            threads=Threads(),
            checkpoint_store=self.store,
            base_env={},
        )
        self.context.paths.make()
        self.saves = Saves(params=work.policy, attempt=1, started=clock.monotonic())
        self.saves.backup_s = backup_s
        self.covered: list[str] = []

    def worker(self) -> Backups:
        return Backups(
            self.context,
            self.saves,
            on_covered=lambda: self.covered.append("covered"),
            on_fenced=lambda: self.covered.append("fenced"),
        )

    def put(
        self,
        step: int,
        kind: SaveKind = SaveKind.PERIODIC,
        *,
        number: int | None = None,
        began: float | None = None,
    ) -> str:
        """`number`: its place in the order of acceptance, if that is not the order of steps."""
        now = self.context.now()
        name = f"{step if number is None else number:020d}-1"
        folder = self.context.paths.outbox / name
        (folder / "payload").mkdir(parents=True)
        (folder / "payload" / "c").write_text("data")
        meta = {"v": 1, "id": name, "name": "c", "path": "c", "is_dir": False, "step": step}
        meta |= {"kind": kind.value, "request": None, "delta_s": 0.1, "mono": now, "began": began}
        (folder / "meta.json").write_text(json.dumps(meta))
        return name

    def notice(self, left_s: float = 30.0, request: str | None = None) -> None:
        now = self.context.now()
        seen = NoticeSeen(event="e", seen=now, deadline=now + left_s, announced=True)
        event = NoticeEvent.DECLINE if request is None else NoticeEvent.REQUEST
        seen = seen.after(event, request=request)
        self.context.state_file.set(notice=seen)
        self.context.retrier.hurry.set()

    @property
    def notice_state(self) -> NoticeState:
        notice = self.context.state.notice
        assert notice is not None
        return notice.state

    def told(self, kind: type[Any]) -> list[Any]:
        reports = [e.report for e in self.context.spool.batch()]
        return [report for report in reports if isinstance(report, kind)]


async def drained(room: Room, backups: Backups) -> None:
    task = asyncio.create_task(backups.run())
    await backups.drain()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await room.context.link.close()
