"""What a script that is started again inside its attempt goes on from: the newest accepted save.

A script may restart itself (execv, torchrun's or accelerate's own restart). What it restored is
then renamed away by `backup()`, or half overwritten by the process that died. Three rules:

1. The newest accepted save is at hand at any time: in the outbox until its commit, in `run/kept`
   after it, and in the store where the disk had no room for that copy. There is one copy at most
   beside those that wait in the outbox, and none as soon as a newer save is accepted.
2. An accepted save that is not committed yet is as good as the memory of the process: only this VM
   goes on from it. If the VM is lost first, the next attempt resumes from the chain (I1), and comes
   by the same steps to the same state (I11). Its payload is copied, never linked: the script may
   write into what it gets, and the upload must not see that. A committed one is moved.
3. A process gets an answer to its question only when the save lies in its place, and the note
   `restored.json` says which one it is and how it looked there (see `spothop.training.resume`).
4. Beside a process that trains nothing is replaced: it may be writing its next save there, and
   would hand over what was put in its place. So one that only evaluates finds what lies there, as
   it would without spothop, and the newest save where nothing does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from spothop.storage.errors import StorageError
from spothop.training.resume import stamp
from spothop_agent.context import Context
from spothop_agent.outbox import Entry, Saved
from spothop_agent.paths import AttemptPaths, write_atomic
from spothop_agent.tasks import Background

ANSWERED = 64
"""Questions whose answer the note remembers: as many processes may ask at once."""
TRIES = 3
"""A commit moves the payload while it is copied: once, so the second try finds it."""
LOOKS, LOOK_AGAIN_S = 600, 0.1
"""For what was handed over just before, and cannot be read yet."""
ASIDE = ".spothop-resume-"

_log = logging.getLogger(__name__)


class Note(BaseModel):
    """restored.json."""

    model_config = ConfigDict(frozen=True)

    path: str | None = None
    """Relative to the job's directory; None where nothing was restored or accepted."""
    step: int = 0
    id: str | None = None
    """Of the backup; None for what was restored at the start."""
    began: float | None = None
    name: str = ""
    shards: tuple[str, ...] = ()
    """Below `path`, by the number of the part, where several processes saved one each."""
    stamp: str | None = None
    """Of what the agent put in place; None as long as it lies elsewhere."""
    answered: tuple[str, ...] = ()
    error: str = ""

    def write(self, paths: AttemptPaths) -> None:
        write_atomic(paths.restored, self.model_dump_json().encode())

    @property
    def saved(self) -> Saved | None:
        return None if self.id is None else Saved(self.id, self.step, self.began)


def read_note(paths: AttemptPaths) -> Note:
    """Raises ValueError when it cannot be parsed."""
    if not paths.restored.exists():
        return Note()
    return Note.model_validate_json(paths.restored.read_bytes())


class Resume:
    """One per attempt. `look` takes in what was handed over just now."""

    def __init__(self, context: Context, look: Callable[[], object]) -> None:
        self._context = context
        self._paths = context.paths
        self._look = look
        self._lock = asyncio.Lock()
        self._tasks = Background()
        self._note = read_note(self._paths)
        self._kept_bytes = 0
        self._told = False
        self._written = True
        for name in self._kept():
            if name != self._note.id:
                self._remove(self._paths.kept / name)
            else:
                self._kept_bytes = _size(self._paths.kept / name)

    # --- what happens to saves ------------------------------------------------------------------

    def accepted(self, entry: Entry) -> None:
        """A save was taken over; if it is the newest, the copy of the one before goes."""
        saved = Saved.of(entry)
        newest = self._note.saved
        if newest is not None:
            self._tell_of_two(newest, saved)
        if newest is not None and (saved.id == newest.id or saved.older_than(newest)):
            return
        for name in self._kept():
            self._remove(self._paths.kept / name)
        meta = entry.meta
        note = Note(
            path=meta.path,
            name=meta.name,
            step=saved.step,
            id=saved.id,
            began=saved.began,
            shards=meta.shards,
            answered=self._note.answered,
        )
        self._set(note)

    def _tell_of_two(self, first: Saved, second: Saved) -> None:
        """Once, that two processes which train have each handed over a whole save of one step. The
        training API refuses that where it knows their ranks."""
        pids = {name.rpartition("-")[2] for name in (first.id, second.id)}
        training = {str(pid) for pid in self._context.state.training}
        if self._told or first.step != second.step or len(pids & training) < 2:
            return
        self._told = True
        self._context.tell_user(
            f"two processes have each handed over a checkpoint of step {first.step}, and a restore"
            " takes one only: where each saves a part, call backup(..., shard=True) in all of them,"
            " else save in one of them",
            level="error",
        )

    def keep(self, entry: Entry) -> bool:
        """It is committed: its payload leaves the outbox, and is kept where it is the newest. False
        where it is to be deleted."""
        if entry.id != self._note.id:
            return False
        try:
            self._paths.kept.mkdir(exist_ok=True)
            os.replace(entry.folder, self._paths.kept / entry.id)
        except OSError as error:  # a full disk has no room for a folder: it is in the store
            _log.warning("no copy of %s is kept: %s", entry.id, error)
            return False
        self._kept_bytes = entry.size
        return True

    def make_room(self, free: int) -> bool:
        """The copy goes before any save does: it is in the store too. `free`: bytes. True when it
        goes."""
        if not self._written:
            self._set(self._note)
        for name in self._kept():
            if free > self._kept_bytes:
                continue
            self._remove(self._paths.kept / name)
            self._context.note(
                f"the disk is nearly full ({max(free, 0) >> 20} MiB free): the copy of step"
                f" {self._note.step} for a restart of the script is deleted; it is in the storage"
            )
            return True
        return False

    async def close(self) -> None:
        """The process is over: nobody is started again in this attempt."""
        await self.cancel()
        await self._context.threads.disk(shutil.rmtree, self._paths.kept, ignore_errors=True)

    async def cancel(self) -> None:
        """This agent ends: the next one hears the questions again."""
        await self._tasks.cancel()

    # --- a process asks -------------------------------------------------------------------------

    def ask(self, token: str, beside: bool) -> None:
        """Answer in the background; the same question twice is answered once. `token` begins with
        the process id. `beside`: another process trains. Raises ValueError for another token."""
        asker = int(token.partition("-")[0])
        if token in self._note.answered:
            return
        self._spawn(self._answer(token, asker, beside))

    async def _answer(self, token: str, asker: int, beside: bool) -> None:
        async with self._lock:
            if token in self._note.answered:
                return
            for _ in range(LOOKS):  # a large tree is walked through first
                if self._look():
                    break
                await asyncio.sleep(LOOK_AGAIN_S)
            self._drop_torn(asker)
            error = ""
            try:
                await self._put_back(beside)
            except (StorageError, OSError) as failure:
                error = str(failure)
                self._context.tell_user(
                    f"the save of step {self._note.step} cannot be put back: {error}", level="error"
                )
            answered = (*self._note.answered, token)[-ANSWERED:]
            self._set(self._note.model_copy(update={"answered": answered, "error": error}))

    def _drop_torn(self, asker: int) -> None:
        """What a process was handing over when it ended: `backup()` never returned, nothing of it
        was accepted, and it would lie there for ever."""
        for name in os.listdir(self._paths.outbox):
            pid = name.rpartition("-")[2]
            if not name.startswith(".tmp-") or not pid.isdecimal():
                continue
            if int(pid) == asker or not _lives(int(pid)):
                self._remove(self._paths.outbox / name)

    async def _put_back(self, beside: bool) -> None:
        while (note := self._note).path is not None:
            place = self._paths.work / note.path
            if note.stamp is None or await self._context.threads.disk(stamp, place) != note.stamp:
                from_where = await self._get(note, place, beside)
                if not from_where:
                    return
                note = self._note if self._note.id in (note.id, None) else note
                if note.path is None:
                    return
                looks = await self._context.threads.disk(stamp, self._paths.work / note.path)
                self._context.note(f"put back: step {note.step} at {note.path}, {from_where}")
                if self._note is note:
                    self._set(note.model_copy(update={"stamp": looks}))
                    return
            elif self._note is note:
                return

    async def _get(self, note: Note, place: Path, beside: bool) -> str:
        """Put it there; in words where it came from, empty where something lies there that must not
        be replaced."""
        for _ in range(TRIES):
            try:
                return await self._context.threads.disk(self._local, note, place, beside)
            except FileExistsError:
                if not beside:
                    raise
                return ""
            except FileNotFoundError as error:
                _log.info("step %d is moved meanwhile: %s", note.step, error)
        if beside:  # a download takes long, and ends by replacing what lies there
            raise OSError("this VM has no copy of it any more, and another process trains")
        return await self._fetch()

    def _local(self, note: Note, place: Path, beside: bool) -> str:
        """In a thread. Raises FileNotFoundError where this VM has it no more, or not there, and
        FileExistsError where something lies in its place that must not be replaced."""
        if beside and os.path.lexists(place):
            raise FileExistsError(place)
        if note.id is None:
            raise FileNotFoundError("restored from the storage")
        waits = self._paths.outbox / note.id / "payload" / note.name
        if os.path.lexists(waits):
            put(waits, place, copy=True, replace=not beside)
            return "a copy of what is being uploaded"
        kept = self._paths.kept / note.id
        # Beside one that trains it stays as it is: what lies in place is overwritten soon.
        put(kept / "payload" / note.name, place, copy=beside, replace=not beside)
        if not beside:
            shutil.rmtree(kept, ignore_errors=True)
        return "from this VM"

    async def _fetch(self) -> str:
        store = self._context.checkpoint_store
        found = await self._context.retrier.call(
            store.restore, self._paths.work, fence=None, on_progress=lambda done, total: None
        )
        for text in found.rejected:
            self._context.note(f"restore: {text}")
        same = found.path == self._note.path and found.step == self._note.step
        note = Note(
            path=found.path,
            step=found.step,
            shards=found.shards,
            answered=self._note.answered,
        )
        if same:
            note = self._note
        elif found.path is None:
            self._context.tell_user(
                f"the save of step {self._note.step} is lost, and nothing was committed before it:"
                " the script begins anew",
                level="error",
            )
        self._set(note)
        return "from the storage"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)

    async def failure(self) -> None:
        """Never returns; raises what an answer fails with: the process would wait for it."""
        await self._tasks.failure()

    # --- small things ---------------------------------------------------------------------------

    def _set(self, note: Note) -> None:
        """What a full disk does not take is written later: nobody who trains needs it."""
        self._note = note
        try:
            note.write(self._paths)
        except OSError as error:
            if self._written:
                _log.warning("the note of step %d cannot be written: %s", note.step, error)
            self._written = False
        else:
            self._written = True

    def _kept(self) -> list[str]:
        """At most one; what is being deleted is none."""
        try:
            return [name for name in os.listdir(self._paths.kept) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def _remove(self, folder: Path) -> None:
        """Out of sight at once, so that nobody takes half of it."""
        aside = folder.with_name(f".gone-{folder.name.removeprefix('.gone-')}")
        try:
            os.replace(folder, aside)
        except OSError as error:  # a disk that has become read-only
            _log.warning("%s stays: %s", folder, error)
            return

        async def delete() -> None:
            await self._context.threads.disk(shutil.rmtree, aside, ignore_errors=True)

        self._spawn(delete())


def put(source: Path, place: Path, *, copy: bool, replace: bool = True) -> None:
    """Put `source` where `place` is, in one step; what lies there goes, or FileExistsError is
    raised. Raises OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in place.parent.glob(f"{ASIDE}*"):
        shutil.rmtree(left, ignore_errors=True)
    aside = place.parent / f"{ASIDE}{os.getpid()}"
    aside.mkdir()
    try:
        fresh = aside / "new"
        if not copy:
            shutil.move(source, fresh)
        elif source.is_dir():
            _copy_tree(source, fresh)
        else:
            shutil.copy2(source, fresh)
        if not replace and os.path.lexists(place):  # looked at last: copying takes long
            raise FileExistsError(place)
        if os.path.lexists(place) and (place.is_dir() or fresh.is_dir()):
            os.rename(place, aside / "old")
        os.replace(fresh, place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy_tree(source: Path, fresh: Path) -> None:
    try:
        shutil.copytree(source, fresh, symlinks=True)
    except shutil.Error as error:
        if os.path.lexists(source):
            raise
        raise FileNotFoundError(f"{source} is gone") from error


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
