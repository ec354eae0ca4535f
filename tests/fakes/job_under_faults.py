"""One VM of a job whose saves meet faults: real agent, real training API, real chain; virtual time.

A script (a list of `Event`) is played against it. What is real: the agent with all its tasks, its
files and pipes, `sp`'s session, upload, commit, prune and restore. What is scripted: the storage's
line (`faulty_store`), the master's and the cloud's answers, the disk's read errors, and a training
loop that counts.

It watches what must hold at every moment and raises `Broken` with the story so far.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import random
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from obstore.store import MemoryStore

from fakes.agent_vm import BUNDLE, JOB, assignment
from fakes.blocking_calls import BlockingCallsLoop, InlinePool
from fakes.fake_master import JOIN_TOKEN, SESSION, VM, MasterScript
from fakes.fault_script import (
    Action,
    DiskFails,
    End,
    Event,
    Fails,
    KillAgent,
    MasterAway,
    Save,
    TakeBack,
    TakeOver,
)
from fakes.faulty_store import Fault, Faults, FaultyStore
from fakes.saving_script import Accepted, Training, content
from fakes.virtual_time import play
from spothop.checkpoints import Chain, Entry, restore
from spothop.checkpoints import keys as layout
from spothop.storage import RemoteStore
from spothop.wire import (
    AgentConfig,
    Assignment,
    Dialect,
    ExitedReport,
    FencedReport,
    MessageReport,
    PolicyParams,
    PreparationFailedReport,
    ReleaseDirective,
)
from spothop_agent.agent import Agent
from spothop_agent.chaos import from_text
from spothop_agent.checkpoint_store import CheckpointStore
from spothop_agent.paths import AgentPaths
from spothop_agent.process import Exit
from spothop_agent.refusals import FINAL_AFTER_S
from spothop_agent.state import Phase, State, StateFile
from spothop_agent.tasks import cancel_all
from spothop_agent.watch import Notice

RESTART_S = 1.0
"""Until the supervisor has started the agent again."""
SETTLES_S = 15.0
"""The script goes on so long when nothing fails any more."""
END_S = 3000.0
"""Virtual seconds after which everything must be over, once nothing fails any more."""
QUIET_S = 500.0
"""For calls that still hang in the line, when nobody waits for them any more."""


class Broken(AssertionError):
    """A promise was not kept."""


class JobUnderFaults:
    """Made inside the running loop."""

    def __init__(self, root: Path, *, part: int, seed: int = 1) -> None:
        self._part = part
        self._loop = asyncio.get_running_loop()
        self._root = root
        self._clock = ThreadsClock(self._loop)
        self._rng = random.Random(seed)
        self._raw = RemoteStore(MemoryStore(), "memory:///")
        self._faults = Faults(on_change=self._changed, kill=self.kill, log=self.tell)
        self._lines: list[FaultyStore] = []
        self.story: list[str] = []
        self.failure: Broken | None = None
        self._disk: list[DiskFails] = []
        self._frozen = asyncio.Event()
        self._frozen.set()
        self._snapshot: dict[Path, bytes | None] | None = None
        self._dying = asyncio.Event()
        self._whole: list[Entry] = []
        self.acknowledged: list[tuple[str, float]] = []
        self.notice: tuple[float, float] | None = None
        self._announced: list[Notice] = []
        self._new_notice = asyncio.Event()
        self.taken_over = False
        self._gone = False
        work = assignment(
            root / "unused", policy=PolicyParams(policy="thesis-always", grace_s=30.0), keep=1
        )
        self.master = MasterScript(work, BUNDLE, sync_every_s=2.0)
        self.paths = AgentPaths(root / "vm")
        self.paths.root.mkdir()
        state = State(vm=VM, session=SESSION, sync_every_s=2.0, assignment=work, may_fence=True)
        StateFile(self.paths.state).put(state.model_copy(update={"phase": Phase.PREPARED}))
        attempt = self.paths.attempt(1)
        attempt.make()
        attempt.outputs.mkdir(parents=True)
        self.training = Training(attempt, self)

    # --- the story ------------------------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def tell(self, text: str) -> None:
        self.story.append(f"{self._loop.time() - 1000:9.3f}  {text}")

    def broken(self, why: str) -> Broken:
        """To be raised; it counts even where somebody catches it."""
        log = self.paths.attempt(1).log
        text = log.read_text() if log.exists() else ""
        error = Broken("\n".join([why, "", *self.story, "", "the job's log:", text]))
        self.failure = self.failure or error
        return error

    # --- the agent ------------------------------------------------------------------------------

    def _agent(self) -> Agent:
        self._chaos = from_text("", self._root)
        return Agent(
            AgentConfig(
                master="http://master",
                token=JOIN_TOKEN,
                vm=VM,
                dialect=Dialect.AZURE,
                directory=str(self.paths.root),
            ),
            clock=self._clock,
            rng=self._rng,
            chaos=self._chaos,
            base_env={"PATH": "/bin"},
            watcher=self._watch,
            acknowledge=self._acknowledge,
            transport=self.master.transport,
            open_store=self._open_store,
            make_process=lambda paths: self.training,
        )

    async def _watch(self, grace_s: float) -> AsyncIterator[Notice]:
        seen = 0
        while True:
            while seen < len(self._announced):
                seen += 1
                yield self._announced[seen - 1]
            self._new_notice.clear()
            await self._new_notice.wait()

    async def _acknowledge(self, notice: Notice) -> bool:
        self.tell(f"acknowledged {notice.event}")
        self.acknowledged.append((notice.event, self._loop.time()))
        self._must_be_covered()
        return True

    def _open_store(self, work: Assignment, **known: Any) -> CheckpointStore:
        line = FaultyStore(self._raw, self._faults, self._loop, part=self._part)
        self._lines.append(line)
        store = CheckpointStore(work, **known)
        store.__dict__["_store"] = line
        return store

    async def supervise(self) -> None:
        """Keep an agent running, as a VM's supervisor does, until it leaves in peace."""
        while True:
            self._dying.clear()
            agent = asyncio.create_task(self._agent().run())
            killed = asyncio.create_task(self._dying.wait())
            try:
                await asyncio.wait({agent, killed}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await cancel_all([agent, killed])
                raise
            if not self._dying.is_set():
                killed.cancel()
                if agent.exception() is None:
                    return
                raise self.broken(f"the agent failed: {agent.exception()!r}") from agent.exception()
            else:
                agent.cancel()
                await asyncio.gather(agent, return_exceptions=True)
                self._put_back()
            for line in self._lines:
                line.dead = True
            await asyncio.sleep(RESTART_S)
            self.tell("the agent is started again")

    def kill(self) -> None:
        """What is on the disk now is what the next agent finds; what is on its way to the store
        may arrive, and nothing else of this agent has an effect."""
        if self._dying.is_set() or self._gone:
            return
        self.tell("the agent is killed")
        self._frozen.clear()
        disk, self._disk = self._disk, []
        self._snapshot = {path: _read(path) for path in _ours(self.paths.root)}
        self._disk = disk
        for line in self._lines:
            line.dead = True
        self._loop.call_soon_threadsafe(self._dying.set)

    def _put_back(self) -> None:
        assert self._snapshot is not None
        self._disk.clear()
        for path in reversed(_ours(self.paths.root)):
            if path not in self._snapshot:
                path.rmdir() if path.is_dir() else path.unlink()
        for path, data in self._snapshot.items():
            if data is None:
                path.mkdir(exist_ok=True)
            elif not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
        self._snapshot = None
        self._frozen.set()

    async def thaw(self) -> None:
        """The process does nothing at the very moment at which the agent's disk is put back."""
        await self._frozen.wait()

    # --- events ---------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        self.tell(repr(action))
        match action:
            case Save():
                self.training.wants.append(action)
            case Fails(kind, how, times):
                self._faults.waiting.append(Fault(kind, how, times))
            case KillAgent(None):
                self.kill()
            case KillAgent(point):
                self._chaos.at(point, self.kill)
            case End():
                self.training.end(Exit(code=0, signal=None))
            case TakeBack(left_s):
                self._take_back(left_s)
            case DiskFails():
                self._disk.append(action)
            case TakeOver():
                self._take_over()
            case MasterAway(seconds):
                self.master.away = True
                self._loop.call_later(seconds, setattr, self.master, "away", False)

    def _take_back(self, left_s: float) -> None:
        if self.notice is None:
            now = self._loop.time()
            self.notice = (now, now + left_s)
            notice = Notice(
                event="e", deadline_monotonic=now + left_s, kind="Preempt", detail="test"
            )
            self._announced.append(notice)
            self._new_notice.set()

    def _take_over(self) -> None:
        if not self.taken_over and self._chain():
            self.taken_over = True
            Chain(self._raw, JOB).fence(2)
            self._changed("the other attempt's fence")

    def _disk_error(self, path: object) -> None:
        """What a system call on a file in the outbox meets."""
        if isinstance(path, int) or "/payload" not in os.fspath(path):  # type: ignore[call-overload]
            return
        if "/outbox/" in os.fspath(path) and "/.tmp" not in os.fspath(path) and self._disk:  # type: ignore[call-overload]
            fails = self._disk.pop(0)
            if fails.skip:
                self._disk.insert(0, replace(fails, skip=fails.skip - 1))
                return
            if fails.times > 1:
                self._disk.insert(0, replace(fails, times=fails.times - 1))
            self.tell(f"    {errno.errorcode[fails.number]} for {path}")
            raise OSError(fails.number, os.strerror(fails.number), path)

    def patches(self) -> ExitStack:
        """The disk's errors, and pools whose threads come one after the other."""
        stack = ExitStack()
        for module, name in ((os, "stat"), (os, "open"), (io, "open")):
            real = getattr(module, name)

            def call(path: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
                self._disk_error(path)
                return real(path, *args, **kwargs)

            stack.enter_context(mock.patch.object(module, name, call))
        stack.enter_context(
            mock.patch("spothop.checkpoints.parallel.ThreadPoolExecutor", InlinePool)
        )
        return stack

    # --- what must hold -------------------------------------------------------------------------

    def _chain(self) -> list[Entry]:
        found = sorted(info.key for info in self._raw.scan(layout.chain_folder(JOB)))
        return [Entry.from_json(self._raw.get(key)) for key in found]

    def committed(self) -> list[Entry]:
        return [entry for entry in self._chain() if not entry.fence]

    def _changed(self, what: str) -> None:
        """After each write: the newest two checkpoints are whole, and nothing went backwards."""
        entries = self._chain()
        if [entry.n for entry in entries] != list(range(1, len(entries) + 1)):
            raise self.broken(f"after {what}: the chain has gaps or forks")
        checkpoints = [entry for entry in entries if not entry.fence]
        for entry in checkpoints[-2:]:
            if not self._is_whole(entry):
                raise self.broken(f"after {what}: {entry} is not whole")
        steps = [entry.step or 0 for entry in checkpoints]
        if steps != sorted(steps):
            raise self.broken(f"after {what}: the chain goes back: steps {steps}")
        if len({entry.id for entry in entries}) != len(entries):
            raise self.broken(f"after {what}: a save is committed twice")
        attempts = [entry.attempt for entry in entries]
        if attempts != sorted(attempts):
            raise self.broken(f"after {what}: a fenced attempt has written")

    def _is_whole(self, entry: Entry) -> bool:
        [record] = entry.files
        try:
            data = b"".join(self._raw.get(key) for key, _ in record.objects())
            return data == content(entry.step or 0)
        except Exception:  # whatever it is
            return False

    def _restores(self) -> None:
        checkpoints = self.committed()
        with tempfile.TemporaryDirectory() as place:
            found = restore(self._raw, Chain(self._raw, JOB).newest_first(), Path(place))
            if not checkpoints:
                if found.entry is not None:
                    raise self.broken("a restore of nothing")
                return
            if found.entry != checkpoints[-1] or found.path is None:
                raise self.broken(f"{checkpoints[-1]} is the newest, and {found.entry} restored")
            if found.path.read_bytes() != content(found.step):
                raise self.broken(f"{found.entry} has the content of another step")

    def _must_be_covered(self) -> None:
        """The cloud was told that it may take the VM."""
        assert self.notice is not None
        newest = max((entry.step or 0 for entry in self.committed()), default=0)
        if self.taken_over or (self.training.ended is not None and not self._uncommitted()):
            return
        if newest < self.training.step_at(self.notice[0]) and not self._excused():
            raise self.broken(f"acknowledged at step {newest}, which is from before the notice")

    def _uncommitted(self) -> list[Accepted]:
        """Accepted saves that are newer than the newest checkpoint."""
        newest = max((entry.step or 0 for entry in self.committed()), default=0)
        return [save for save in self.training.accepted if save.step > newest]

    def _excused(self) -> str:
        """What the user was told, where it says that saves are lost: a store may have the last word
        when it refuses for long after the end."""
        messages = self._reports(MessageReport)
        if odd := [m.text for m in messages if ": unexpected " in m.text]:
            raise self.broken(f"an error of no known class: {odd}")
        texts = [m.text for m in messages if m.level == "error"]
        lost = [text for text in texts if "could not be backed up" in text or "given up" in text]
        if lost and self.now() < self.training.ended_at + FINAL_AFTER_S:
            raise self.broken(f"a save was given up, and nothing was final: {lost}")
        return "; ".join(lost)

    def _reports(self, kind: Any) -> list[Any]:
        """What the master knows, and what waits to be sent."""
        journal = self.paths.spool / "journal"
        waiting = journal.read_text() if journal.exists() else ""
        found = list(self.master.reports(kind))
        for line in waiting.splitlines()[1:]:
            report = json.loads(line).get("report", {})
            if report.get("kind") == kind.model_fields["kind"].default:
                found.append(kind.model_validate(report))
        return found

    # --- the whole life -------------------------------------------------------------------------

    async def live(self, script: Sequence[Event]) -> None:
        supervisor = asyncio.create_task(self.supervise())
        try:
            player = asyncio.create_task(self._play(script))
            await asyncio.wait({supervisor, player}, return_when=asyncio.FIRST_COMPLETED)
            if supervisor.done():
                supervisor.result()
                player.cancel()
                await asyncio.gather(player, return_exceptions=True)
            else:
                await player
                await self._finish(supervisor)
        finally:
            self._gone = True
            for line in self._lines:
                line.dead = True
            supervisor.cancel()
            self.training.end(Exit(code=None, signal=9))
            await asyncio.gather(supervisor, return_exceptions=True)
            self.training.close()
            await asyncio.sleep(QUIET_S)
        self._excused()
        if self.failure is not None:
            raise self.failure
        self._restores()

    async def _play(self, script: Sequence[Event]) -> None:
        for event in script:
            await asyncio.sleep(event.after_s)
            if self.notice is not None and self._loop.time() >= self.notice[1]:
                return
            self.act(event.do)

    async def _finish(self, supervisor: asyncio.Task[None]) -> None:
        """Nothing more goes wrong. After a notice the VM ends at its deadline; else the script does
        at some time, and everything that it has handed over must be committed."""
        self._faults.waiting.clear()
        self._disk.clear()
        self.master.away = False
        if self.notice is not None:
            await asyncio.sleep(max(0.0, self.notice[1] - self._loop.time()))
            return
        self.tell("nothing fails any more")
        await asyncio.sleep(SETTLES_S)
        self.training.end(Exit(code=0, signal=None))
        over = asyncio.create_task(until_slowly(lambda: self._is_over() or supervisor.done()))
        try:
            await asyncio.wait_for(over, END_S)
        except asyncio.TimeoutError:
            raise self.broken("the attempt does not end") from None
        if supervisor.done():
            supervisor.result()
        self.master.directives = [ReleaseDirective()]
        self._at_the_end()
        await asyncio.wait({supervisor}, timeout=60.0)

    def _is_over(self) -> bool:
        if self._never_began():
            return True
        kinds = (ExitedReport, PreparationFailedReport)
        return any(self.master.reports(kind) for kind in kinds)

    def _never_began(self) -> bool:
        """Fenced before there was a process: that report is the last one."""
        return self.training.pid is None and bool(self.master.reports(FencedReport))

    def _at_the_end(self) -> None:
        if self.master.reports(PreparationFailedReport) or self._never_began():
            return  # nothing was ever saved
        [exited] = self.master.reports(ExitedReport)
        fenced = self.master.reports(FencedReport)
        if self._uncommitted() and not fenced and not (self._excused() and exited.uncommitted):
            raise self.broken(f"not committed, and nobody was told: {self._uncommitted()}")
        outbox = [n for n in os.listdir(self.paths.attempt(1).outbox) if not n.startswith(".")]
        if outbox and not fenced:
            raise self.broken(f"left in the outbox: {outbox}")
        if self.master.refused:
            raise self.broken(f"the master refused: {self.master.refused}")


class ThreadsClock:
    """Both clocks of a VM, read in any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.monotonic = self.boottime = loop.time


async def until_slowly(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  no wait costs real time here
        await asyncio.sleep(0.5)


def _ours(root: Path) -> list[Path]:
    """What the agent writes: all but pipes, and what the script is writing."""
    found = []
    for folder, names, files in os.walk(root):
        if folder.endswith("/work") or "/.tmp-" in folder:
            names.clear()
            continue
        names[:] = [name for name in names if not name.startswith(".tmp-")]
        found += [Path(folder, name) for name in names if not Path(folder, name).is_symlink()]
        found += [
            Path(folder, name) for name in files if stat.S_ISREG(Path(folder, name).lstat().st_mode)
        ]
    return found


def _read(path: Path) -> bytes | None:
    return None if path.is_dir() else path.read_bytes()


def live(script: Sequence[Event], *, part: int = 0) -> JobUnderFaults:
    """Play the script to its end; raises `Broken`. `part`: as `ObjectStore.part_size` says."""
    root = Path(tempfile.mkdtemp(prefix="spothop-faults-"))
    made: list[JobUnderFaults] = []

    async def scenario() -> None:
        job = JobUnderFaults(root, part=part)
        made.append(job)
        with job.patches():
            await job.live(script)

    try:
        play(scenario, BlockingCallsLoop, limit_s=5 * END_S)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return made[0]
