"""Fence and commit by conditional create: the chain of a job never forks (I2).

Everybody writes at newest + 1 and nowhere else, so numbers have no gaps and every number has one
winner. An attempt's first entry is its fence, and it commits only while the newest entry is its
own; so attempts never decrease along the chain, and the newest entry alone tells whether one is
fenced.

Ambiguity: a create that fails may have written. Its author reads the number back and knows its own
entry by `id`. A create that is still in flight can only win a number that nobody has taken, which
is a legal commit before whatever comes next. Whoever writes next may not know of it, and what he
writes may be older; so he says up to which entry he knows his own commits, and is told of the
others instead (`UnknownCommits`).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spothop.checkpoints import keys
from spothop.checkpoints.entry import (
    AnyEntry,
    AnyOutline,
    BadEntry,
    Entry,
    FileRecord,
    NewerFormat,
    Outline,
)
from spothop.checkpoints.parallel import for_each
from spothop.storage import (
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StorageError,
    StorageUnavailable,
)
from spothop.wire import SaveKind

_MAX_RACES = 100
_MAX_LEFT_OUT = 1000
_READERS = 16
_AT_ONCE = 64  # entries that are read before it is asked whether there are enough


class Fenced(Exception):
    """A newer attempt is in the chain, or another VM runs this very attempt: this one stops."""

    def __init__(self, job: str, attempt: int, by: int, *, vm: str = "") -> None:
        who = f"VM {vm!r}, which runs the same attempt and was first" if vm else f"attempt {by}"
        super().__init__(f"attempt {attempt} of job {job!r} is fenced by {who}; it must stop")
        self.by = by
        self.vm = vm
        """The other VM, where the attempt's number was used twice."""


class NotFencedIn(Exception):
    """A commit of an attempt that never wrote its fence: a fault of the caller."""


class UnknownCommits(Exception):
    """The attempt has committed more than the caller knows of: he has to take that in first."""

    def __init__(self, entries: Sequence[Outline]) -> None:
        super().__init__(f"entries {[entry.n for entry in entries]} are committed already")
        self.entries = entries
        """The oldest first."""


class ChainDamaged(StorageError):
    """The newest entry cannot be read: it may be a newer attempt's fence, so nothing is committed.

    A new attempt repairs the chain: it writes its fence above this entry.
    """


class Chain:
    """The chain of one job. Outlines of the entries once read are kept: they never change. The
    files of an entry are not, because they may be 100,000.

    `since` is the number of an entry of the attempt that is going on here, up to which everything
    is known to be dealt with: `find` and `commit` then read nothing below it.

    One object may be used from several threads.
    """

    def __init__(self, store: ObjectStore, job: str, *, since: int | None = None) -> None:
        self.store = store
        self.job = job
        self._folder = keys.chain_folder(job)
        self._known: dict[int, Outline] = {}
        self._since = since
        self._searched: int | None = None  # `find` has read its attempt's entries up to here

    # --- reading ---

    def entries(self, after: int = 0) -> list[AnyEntry]:
        """All entries above `after`, oldest first; unreadable ones as `BadEntry`.

        Raises `StorageUnavailable` and the like when the store does not answer: that is no damage.
        """
        return [self.load(n) for n in self._numbers(after)]

    def outlines(self, after: int = 0) -> list[AnyOutline]:
        """The same without the files, each read once, in parallel."""
        return self._read_all(self._sizes(after))

    def is_empty(self) -> bool:
        """Not even a fence was ever written, or all of it is gone."""
        return not self._numbers()

    def newest_number(self) -> int:
        """Of all entries; 0 without one."""
        return max(self._numbers(), default=0)

    def newest_first(self, before: int | None = None) -> Iterator[AnyEntry]:
        """Entries below `before` (default: all), each read only when it is asked for."""
        numbers = self._numbers()
        if before is not None:
            numbers = [n for n in numbers if n < before]
            above = range(max(numbers, default=0) + 1, before)
            numbers += above if len(above) <= _MAX_LEFT_OUT else []  # the listing is behind
        for n in reversed(numbers):
            yield self.load(n)

    # --- writing ---

    def fence(self, attempt: int, *, vm: str = "") -> Entry:
        """Write the fence of this attempt on the VM `vm`, or return it when it is there.

        An attempt runs on one VM. A number that was used twice, by a master that was put back to an
        older state for example, would have two VMs commit in turn: the fence names its VM, and the
        later one is refused. Raises `Fenced`.
        """
        entry_id = uuid.uuid4().hex
        for _ in range(_MAX_RACES):
            top, newest = self._top()
            if newest is not None and newest.attempt > attempt:
                raise Fenced(self.job, attempt, newest.attempt)
            if newest is not None and newest.attempt == attempt:
                return self._own_fence(attempt, vm)
            entry = Entry(n=top + 1, attempt=attempt, id=entry_id, fence=True, vm=vm)
            if self._create(entry):
                self._searched = entry.n  # its attempt's entries come after it
                return entry
        raise self._too_many_races()

    def find(self, attempt: int, entry_id: str) -> Outline | None:
        """The entry of this attempt with this id, when it is in the chain."""
        self._begin()
        if self._searched is None:
            deque(self._own(attempt), maxlen=0)
        else:
            self.outlines(after=self._searched)
        self._searched = max(self._known, default=0)
        known = list(self._known.values())
        return next((e for e in known if e.id == entry_id and e.attempt == attempt), None)

    def commit(
        self,
        attempt: int,
        *,
        step: int,
        kind: SaveKind,
        files: Sequence[FileRecord],
        root: str,
        is_dir: bool,
        meta: Mapping[str, Any],
        parent: int | None = None,
        entry_id: str | None = None,
        still_wanted: Callable[[], object] = lambda: None,
        seen: int | None = None,
    ) -> Entry:
        """Make a checkpoint of uploaded files. All of `files` must be durable by now.

        `still_wanted` is called before each try to write and may raise: a call that hung in the
        network must not commit an older step on top of what was committed without it.

        `seen` is the number of the newest entry that the caller knows of (None: he does not care).
        Where this attempt has committed above it, nothing is written and `UnknownCommits` raised:
        a commit whose answer was lost may be newer than this one, which would undo it at a restore.

        `parent` is the checkpoint that this attempt restored; it is used for its first commit,
        later ones follow their own predecessor. With a stable `entry_id` (such as the id in the
        outbox) the same commit repeated, by a restarted agent too, returns the entry that is there.
        Raises `Fenced`, `NotFencedIn`, `UnknownCommits`, `ChainDamaged` and the errors of storage.
        """
        if entry_id is not None and (there := self.find(attempt, entry_id)) is not None:
            return self._entry(there.n)
        entry_id = entry_id or uuid.uuid4().hex
        for _ in range(_MAX_RACES):
            newest = self._newest_of(attempt)
            if seen is not None and not newest.fence and newest.n > seen:
                raise UnknownCommits(self._commits_of(attempt, after=seen))
            still_wanted()
            entry = Entry(
                n=newest.n + 1,
                attempt=attempt,
                id=entry_id,
                step=step,
                kind=kind,
                files=tuple(files),
                parent=parent if newest.fence else newest.n,
                root=root,
                is_dir=is_dir,
                meta=dict(meta),
            )
            if self._create(entry):
                return entry
        raise self._too_many_races()

    # --- inside ---

    def _begin(self) -> None:
        """Take `since` for read, once; where it is unreadable or gone, all is looked at."""
        since, self._since = self._since, None
        if since is not None and isinstance(self._read(since), Outline):
            self._searched = since

    def _sizes(self, after: int = 0) -> dict[int, int]:
        """Number -> bytes of its JSON, in order.

        Numbers have no gaps: what a listing leaves out between others is asked for by its name.
        Else a checkpoint that a store lists late would be passed over, and its data deleted.
        """
        start = keys.chain_key(self.job, after)
        listed = self.store.scan(self._folder, after=start)
        numbers = ((keys.chain_number(info.key), info.size) for info in listed)
        found = {n: size for n, size in numbers if n is not None}
        if not found:
            return {}
        every: Sequence[int] = range(after + 1 if after else min(found), max(found) + 1)
        if len(every) - len(found) > _MAX_LEFT_OUT:  # somebody else's file has such a name
            every = sorted(found)
        return {n: found.get(n, 0) for n in every}

    def _numbers(self, after: int = 0) -> list[int]:
        return list(self._sizes(after))

    def _read_all(self, sizes: Mapping[int, int]) -> list[AnyOutline]:
        read: dict[int, AnyOutline] = {}

        def work(n: int) -> None:
            read[n] = self._read(n)

        unknown = [n for n in sizes if n not in self._known]
        if len(unknown) == 1:
            work(unknown[0])
        elif unknown:
            for_each(unknown, work, sizes.__getitem__, workers=_READERS)  # large ones one by one
        return [read.get(n) or self._known[n] for n in sizes]

    def _read(self, n: int) -> AnyOutline:
        if n in self._known:
            return self._known[n]
        entry = self.load(n)
        if isinstance(entry, BadEntry):
            return entry
        outline = self._known[n] = Outline.of(entry)
        return outline

    def _entry(self, n: int) -> Entry:
        """One that was read before. Raises StorageUnavailable where it is not there any more."""
        entry = self.load(n)
        if isinstance(entry, BadEntry):
            raise StorageUnavailable(f"{entry} of job {self.job!r}, which could be read before")
        return entry

    def load(self, n: int) -> AnyEntry:
        """Entry `n` with its files, read now; a missing one is a `BadEntry` too."""
        try:
            entry = self._parse(n)
        except ValueError:
            try:
                entry = self._parse(n)  # one bad read is no damage
            except ValueError as error:
                return BadEntry(n, str(error), newer=isinstance(error, NewerFormat))
        if entry.n != n:
            return BadEntry(n, f"it says that it is entry {entry.n}")
        return entry

    def _parse(self, n: int) -> Entry:
        """Raises ValueError for what is no entry; a missing one is none either."""
        try:
            return Entry.from_json(self.store.get(keys.chain_key(self.job, n)))
        except ObjectMissing:
            raise ValueError("it is missing") from None

    def _top(self) -> tuple[int, Outline | None]:
        """The highest number in use, and the newest entry that can be read.

        Unreadable ones above that entry count as numbers only: a fence is written above them.
        """
        self._begin()
        top = max(self._known, default=0)
        unread = self._numbers(after=top)
        for n in reversed(unread):
            if isinstance(entry := self._read(n), Outline):
                return unread[-1], entry
        return max([top, *unread]), self._known.get(top)

    def _newest_of(self, attempt: int) -> Outline:
        """The newest entry, which is this attempt's own; raises what forbids a commit."""
        top, newest = self._top()
        if newest is not None and newest.attempt > attempt:
            raise Fenced(self.job, attempt, newest.attempt)
        if top > (0 if newest is None else newest.n):
            raise ChainDamaged(
                f"entry {top} of job {self.job!r} is unreadable and may fence attempt {attempt}",
                hint="a new attempt fences above it and goes on",
            )
        if newest is None or newest.attempt < attempt:
            raise NotFencedIn(f"attempt {attempt} of job {self.job!r} has no fence in the chain")
        return newest

    def _commits_of(self, attempt: int, *, after: int) -> list[Outline]:
        found = (entry for entry in self.outlines(after) if isinstance(entry, Outline))
        return [entry for entry in found if entry.attempt == attempt and not entry.fence]

    def _create(self, entry: Entry) -> bool:
        """True when `entry` is in the chain, False when another entry has its number."""
        key = keys.chain_key(self.job, entry.n)
        try:
            self.store.create(key, entry.to_bytes())
        except ObjectExists:
            there = self._read(entry.n)
            if isinstance(there, BadEntry) and not self._numbers(after=entry.n - 1):
                # refused, and yet free: asking again at once would get the same answer
                raise StorageUnavailable(
                    f"the store says that {key!r} exists, and does not show it"
                ) from None
            if not isinstance(there, Outline) or there.id != entry.id:
                return False
        except StorageUnavailable:
            if not self._is_there(entry):
                raise
        self._known[entry.n] = Outline.of(entry)
        return True

    def _is_there(self, entry: Entry) -> bool:
        there = self._read(entry.n)
        return isinstance(there, Outline) and there.id == entry.id

    def _own_fence(self, attempt: int, vm: str) -> Entry:
        for outline in self._own(attempt):
            if outline.fence:
                if vm and outline.vm not in ("", vm):
                    raise Fenced(self.job, attempt, attempt, vm=outline.vm)
                return Entry(n=outline.n, attempt=attempt, id=outline.id, fence=True, vm=outline.vm)
        raise ChainDamaged(
            f"attempt {attempt} of job {self.job!r} has entries but no readable fence",
            hint="start a new attempt",
        )

    def _own(self, attempt: int) -> Iterator[Outline]:
        """This attempt's readable entries, newest first; read in parallel, because they may be
        many and an emergency save may wait for them."""
        sizes = self._sizes()
        numbers = list(sizes)
        while numbers:
            numbers, part = numbers[:-_AT_ONCE], numbers[-_AT_ONCE:]
            for entry in reversed(self._read_all({n: sizes[n] for n in part})):
                if isinstance(entry, Outline):
                    if entry.attempt == attempt:
                        yield entry
                    elif entry.attempt < attempt:
                        return

    def _too_many_races(self) -> StorageUnavailable:
        return StorageUnavailable(f"lost {_MAX_RACES} races for the chain of job {self.job!r}")
