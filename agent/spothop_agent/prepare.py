"""From an assignment to a directory in which the process can start.

bundle, setup beside data, waiting for the fence, fence, restore; the newest checkpoint is fetched
beside all that comes before the fence (`ahead`). Each part that is complete is noted in
the state, so that an agent that is started again goes on behind it; a part that was cut off is done
again from its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from spothop.storage.errors import StorageDenied, StorageError
from spothop.training.resume import stamp
from spothop.wire import FencedInReport, PhaseReport, PreparedReport, RestoredReport
from spothop_agent import bundle, process_tree, staging
from spothop_agent.ahead import FetchingAhead
from spothop_agent.context import Context
from spothop_agent.environment.keeping import SetupCacheOfAttempt
from spothop_agent.master_link import LinkError, MasterAway, backoff_s
from spothop_agent.paths import write_atomic
from spothop_agent.resume import Note
from spothop_agent.staging import Pace
from spothop_agent.state import Phase
from spothop_agent.tasks import cancel_all
from spothop_agent.wrapper import TAIL, last_words, trim

SETUP_PID = "setup.pid"
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)

PARTS = ("bundle", "setup", "data")
DENIED_S = 120.0
"""A store that refuses a job which has had its storage before is believed after so long: roles and
policies reach all parts of a cloud only after a while."""
TRIM_EVERY_S = 0.02
"""A fast disk takes some 40 MB in that time."""
MIN_LOGGED_S = 0.05
"""Parts that take less time are left out of the job's log."""


class PreparationFailed(Exception):
    """`user`: the job's own part is at fault, and trying again cannot help."""

    def __init__(self, phase: str, message: str, *, user: bool) -> None:
        super().__init__(message)
        self.phase = phase
        self.user = user

    @classmethod
    def of_system(cls, phase: str, error: OSError) -> PreparationFailed:
        """Of a call of the operating system."""
        if error.errno == errno.E2BIG:
            return cls(phase, "`run`, `setup` or `env` is too long for a command line", user=True)
        return cls(phase, str(error), user=False)


@contextlib.contextmanager
def failures(phase: str) -> Iterator[None]:
    """What trying again cannot help ends the preparation. A storage that refuses is the user's to
    correct, in `data:` or `checkpoint:`: another VM would only find the same."""
    from spothop.checkpoints import Fenced

    try:
        yield
    except (PreparationFailed, Fenced):
        raise
    except StorageError as error:
        raise PreparationFailed(phase, str(error), user=True) from error
    except OSError as error:
        raise PreparationFailed.of_system(phase, error) from error
    except Exception as error:  # a bug: the user sees it, instead of an agent that only ends
        _log.exception("%s failed", phase)
        text = f"unexpected {type(error).__name__}: {error}"
        raise PreparationFailed(phase, text, user=False) from error


class Preparation:
    """`may_fence` is set by the fence directive, or from the start."""

    def __init__(self, context: Context, env: dict[str, str], rng: random.Random) -> None:
        self._context = context
        self._env = env
        self._rng = rng
        self.setup_cache = SetupCacheOfAttempt(context, env)
        self.may_fence = asyncio.Event()
        if context.state.may_fence:
            self.may_fence.set()

    async def run(self) -> None:
        """Raises PreparationFailed, and Fenced when a newer attempt is in the chain."""
        ahead = FetchingAhead(self._context)
        try:
            await self._run(ahead)
        finally:
            await ahead.close()

    async def _run(self, ahead: FetchingAhead) -> None:
        if self._context.state.phase < Phase.FENCED:
            ahead.start()
        if self._context.state.phase < Phase.PREPARED:
            await self._part("bundle", self._bundle)
            await self._side_by_side(
                self._part("setup", self._setup), self._part("data", self._data)
            )
            self._context.report(PreparedReport(), key="prepared", urgent=True)
            self._context.state_file.set(phase=Phase.PREPARED)
        if self._context.state.phase < Phase.FENCED:
            async with self._phase("waiting"):
                await self.may_fence.wait()
            with failures("fence"):
                await self._fence()
        if self._context.state.phase < Phase.RESTORED:
            async with self._phase("restore"):
                await self._restore(ahead)

    async def _side_by_side(self, *parts: Coroutine[Any, Any, None]) -> None:
        """The first failure ends the others; of two, that of the first one is told."""
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await cancel_all([*tasks])

    async def _part(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        if name in self._context.state.prepared:
            return
        async with self._phase(name):
            await work()
        done = {*self._context.state.prepared, name}
        self._context.state_file.set(prepared=tuple(part for part in PARTS if part in done))

    @asynccontextmanager
    async def _phase(self, name: str) -> AsyncIterator[None]:
        began = self._context.now()
        with failures(name):
            yield
        duration_s = self._context.now() - began
        self._context.report(PhaseReport(phase=name, duration_s=duration_s), key=f"phase-{name}")
        if duration_s >= MIN_LOGGED_S:
            self._context.note(f"{name}: {duration_s:.1f} s")

    # --- the parts ------------------------------------------------------------------------------

    async def _bundle(self) -> None:
        assignment, paths = self._context.assignment, self._context.paths
        if assignment.setup_cache is not None:  # another attempt's may lie there
            await self._context.threads.disk(_remove, paths.work)
        if not paths.work.exists():
            archive = paths.root / "bundle.tar.gz"
            await self._fetch_bundle()
            try:
                await self._context.threads.disk(bundle.verify, archive, assignment.bundle)
                await self._context.threads.disk(bundle.unpack, archive, paths.work)
            except bundle.BundleError as error:
                raise PreparationFailed("bundle", str(error), user=True) from error
            archive.unlink()
        paths.outputs.mkdir(exist_ok=True)

    async def _fetch_bundle(self) -> None:
        target = self._context.paths.root / "bundle.tar.gz"
        failures = 0
        while True:
            try:
                return await self._context.link.fetch_bundle(
                    self._context.assignment.bundle, target
                )
            except MasterAway as error:
                failures += 1
                self._context.note(f"bundle: {error}")
                await asyncio.sleep(backoff_s(failures, self._rng))
            except LinkError as error:
                raise PreparationFailed("bundle", str(error), user=False) from error

    async def _setup(self) -> None:
        script = self._context.assignment.setup
        if not script.strip():
            return
        self._end_setup()  # one that an earlier agent has left running
        if await self.setup_cache.restore():
            return
        began = self._context.now()
        await self._run_setup(script)
        await self.setup_cache.look(self._context.now() - began)

    async def _run_setup(self, script: str) -> None:
        begins = self._log_size()
        with open(self._context.paths.log, "ab") as log:  # noqa: ASYNC230  a local disk
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-e", "-c", script),
                cwd=self._context.paths.work,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        record = json.dumps(process_tree.identity(process.pid)).encode()
        write_atomic(self._context.paths.run / SETUP_PID, record)
        code: int | None = None
        trimming = asyncio.create_task(self._trim())
        try:
            code = await process.wait()
        finally:
            await cancel_all([trimming])
            if code != 0:  # after a success, what it has left in the background may be wanted
                self._end_setup()
        (self._context.paths.run / SETUP_PID).unlink(missing_ok=True)
        if code != 0:
            ended = f"exit code {code}" if code > 0 else f"signal {-code}"
            words = await self._context.threads.disk(self._said_since, begins)
            text = f"{words} ({ended})" if words else f"`setup:` ended with {ended}"
            raise PreparationFailed("setup", text, user=True)

    def _log_size(self) -> int:
        try:
            return self._context.paths.log.stat().st_size
        except OSError:
            return 0

    def _said_since(self, offset: int) -> str:
        """What `setup:` said last, from the log behind `offset`."""
        with contextlib.suppress(OSError), open(self._context.paths.log, "rb") as log:
            log.seek(max(offset, self._log_size() - TAIL))
            return last_words(log.read(TAIL))
        return ""

    async def _trim(self) -> None:
        """Keep the log below its limit while `setup:` writes into it, whatever the master does: it
        is shipped more slowly than it can be written, and not at all while the master is away."""
        while True:
            with contextlib.suppress(OSError), open(self._context.paths.log, "r+b") as log:  # noqa: ASYNC230  a local disk
                trim(log.fileno(), self._context.assignment.log_max)
            await asyncio.sleep(TRIM_EVERY_S)

    def _end_setup(self) -> None:
        """End the script and what it left in the background; what an earlier boot left is gone."""
        run = self._context.paths.run
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads((run / SETUP_PID).read_text())
            (run / SETUP_PID).unlink()
            for seen in process_tree.of_attempt(run, record, below=None):
                process_tree.kill(seen)

    async def _data(self) -> None:
        for folder, url in self._context.assignment.data.items():
            context, target = self._context, self._context.paths.work / "data" / folder
            pace = Pace(f"data/{folder}", context.note)
            staged = staging.of_attempt(context.agent_paths, context.paths)
            fetch = partial(context.checkpoint_store.fetch_data, url, target, pace, staged)
            count = await self._stored(staging.with_room, context.agent_paths, fetch)
            told = f"data: {count} files from {url} in data/{folder}, {pace.told(staged)}"
            (context.tell_user if pace.is_long else context.note)(told)

    async def _stored(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The answer of the store, which may be refused for a while where an attempt before us has
        had it. Raises StorageError."""
        began, refusals = self._context.now(), 0
        while True:
            try:
                return await self._context.retrier.call(function, *args, **kwargs)
            except StorageDenied as error:
                waited_s = self._context.now() - began
                if not self._context.assignment.resumes or waited_s >= DENIED_S:
                    raise
                refusals += 1
                if refusals == 1:
                    self._context.tell_user(
                        f"the storage refuses this VM, which earlier ones of the job could use:"
                        f" {error}; trying on for {DENIED_S / 60:.0f} min",
                        level="warning",
                    )
            await self._context.retrier.pause_slowly(refusals)

    async def _fence(self) -> None:
        self._context.chaos.reach("before_fence")
        n = await self._stored(self._context.checkpoint_store.fence)
        self._context.chaos.reach("after_fence")
        self._context.report(FencedInReport(n=n), key="fenced_in", urgent=True)
        self._context.state_file.set(phase=Phase.FENCED, fence_n=n)

    async def _restore(self, ahead: FetchingAhead) -> None:
        chaos = self._context.chaos
        chaos.reach("before_restore")
        fence = self._context.state.fence_n
        assert fence is not None
        work, store = self._context.paths.work, self._context.checkpoint_store
        pace = Pace("restore", self._context.note)
        staged = staging.of_attempt(self._context.agent_paths, self._context.paths)

        def on_progress(done: int, total: int) -> None:
            chaos.reach("during_restore")
            pace(done, total)

        restore = partial(
            store.restore,
            work,
            fence=fence,
            on_progress=on_progress,
            staged=staged,
            ahead=await ahead.files(fence),
        )
        found = await self._stored(staging.with_room, self._context.agent_paths, restore)
        chaos.reach("after_restore")
        await self._context.threads.disk(staging.discard, self._context.agent_paths)
        if found.path is not None:
            looks = await self._context.threads.disk(stamp, work / found.path)
            note = Note(path=found.path, step=found.step, shards=found.shards, stamp=looks)
            note.write(self._context.paths)
        for text in found.rejected:
            self._context.note(f"restore: {text}")
        report = RestoredReport(step=found.step, n=found.n, rejected=list(found.rejected))
        self._context.report(report, key="restored")
        what = f"step {found.step} from {found.path}" if found.path else "nothing, from the start"
        how = f", {pace.told(staged)}" if pace.done else ""
        self._context.note(f"restored: {what}{how}")
        self._context.state_file.set(
            phase=Phase.RESTORED, restored_n=found.n, restored_step=found.step
        )


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
