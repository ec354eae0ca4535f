"""The storage of one job as the agent uses it: the only module that calls `spothop.checkpoints`.

Synchronous; the callers run it in threads (`retry.StorageRetrier`) and repeat what fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from spothop.wire import Assignment, StorageSpec, spec_at
from spothop_agent.outbox import Entry as Accepted

if TYPE_CHECKING:
    from spothop.checkpoints import Ahead, Chain, Entry, FileRecord, Outline, Staged, Stores
    from spothop.storage import ObjectStore
    from spothop_agent.environment.shelf import Shelf
    from spothop_agent.near_stores import NearStores

OnProgress = Callable[[int, int], None]
Wanted = Callable[[], object]
INIT = "init"
"""Folder below the job's directory for plain files of `init_from`."""


@dataclass(frozen=True, kw_only=True)
class Restore:
    """What was put back: nothing when `path` is None; `path` is relative to the job's directory."""

    path: str | None
    step: int
    n: int | None
    rejected: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    """Below `path`, by the number of the part."""


class CheckpointStore:
    """Opens the store at its first use, in the thread of that call.

    `first`: nothing can be there yet. Later on a store that is not there is away, and must not be
    made anew: its empty chain would let the job begin again. `vm` is our id, for the fence. `since`
    is the chain entry of ours up to which an agent before us has dealt with all.

    The assignment may name several `stores`: the first one, `storage`, holds the chain, and what is
    uploaded goes to the nearest (`near_stores`).
    """

    def __init__(
        self,
        assignment: Assignment,
        *,
        first: bool = True,
        vm: str = "",
        since: int | None = None,
    ) -> None:
        self._assignment = assignment
        self._first = first
        self._vm = vm
        self._since = since

    @cached_property
    def _store(self) -> ObjectStore:
        from spothop.storage import StorageBadUrl, StorageUnavailable, open_store

        try:
            return open_store(self._assignment.storage, create=self._first)
        except StorageBadUrl as error:
            if self._first:
                raise
            raise StorageUnavailable(
                f"{error.message} any more", hint="mount it, or put it back"
            ) from error

    @cached_property
    def _specs(self) -> list[StorageSpec]:
        """Of all stores, the one that holds the chain first."""
        given = self._assignment.stores
        return [each.storage for each in given] if given else [self._assignment.storage]

    @cached_property
    def _stores(self) -> Stores:
        from spothop.checkpoints import Stores

        return Stores(self._store, self._specs)

    @cached_property
    def _near(self) -> NearStores:
        from spothop_agent.near_stores import NearStores

        return NearStores(self._assignment, self._stores)

    def measure(self) -> None:
        """How long an upload to each of several stores takes; an error of one is told as `news`."""
        self._near.measure()

    def news(self) -> list[str]:
        """What is to be told to the user about stores, once."""
        return self._near.news() if self._assignment.stores else []

    @cached_property
    def _chain(self) -> Chain:
        from spothop.checkpoints import Chain

        return Chain(self._store, self._assignment.job, since=self._since)

    @cached_property
    def environments(self) -> Shelf:
        """What `setup:` made on earlier VMs of the job."""
        from spothop.checkpoints.keys import job_prefix
        from spothop_agent.environment.shelf import Shelf

        return Shelf(self._store, job_prefix(self._assignment.job))

    def fetch_data(
        self,
        url: str,
        target: Path,
        on_progress: OnProgress | None = None,
        staged: Staged | None = None,
    ) -> int:
        """Copy a tree of the user's data; the number of files. It may be called again. `staged` has
        what is on this VM already."""
        from spothop.checkpoints import fetch_tree

        spec = spec_at(self._specs, url)
        return len(fetch_tree(spec, target, on_progress=on_progress, staged=staged))

    def fence(self) -> int:
        """Write this attempt's fence, or find it; its number.

        Raises Fenced; and StorageUnavailable where an earlier attempt must have left its fence and
        there is nothing: a folder whose disk is not mounted looks like that, and beginning again
        would lose the job's work.
        """
        from spothop.storage import StorageUnavailable

        if self._assignment.resumes and self._chain.is_empty():
            raise StorageUnavailable(
                f"nothing of job {self._assignment.job!r} is in {self._store.url} any more",
                hint="mount it, or put it back; or cancel the job and submit it anew",
            )
        return self._chain.fence(self._assignment.attempt, vm=self._vm).n

    def newest(self, before: int | None = None) -> int | None:
        """The number of the newest checkpoint in the chain, or below `before`; None: there is none,
        or nobody can read it."""
        from spothop.checkpoints import Chain, Entry

        chain = Chain(self._store, self._assignment.job)  # one of its own: another thread's call
        entries = (e for e in chain.newest_first(before) if not (isinstance(e, Entry) and e.fence))
        found = next(entries, None)
        return found.n if isinstance(found, Entry) else None

    def fetch_ahead(self, n: int, folder: Path, on_progress: OnProgress) -> Ahead | None:
        """Checkpoint `n` into a folder of its own, for a later `restore`. None where it is not
        whole: that is for the restore to tell. `on_progress` may raise, to end it."""
        from spothop.checkpoints import Ahead, Chain, Entry, restore

        entry = Chain(self._store, self._assignment.job).load(n)
        if not isinstance(entry, Entry):
            return None
        folder.mkdir(exist_ok=True)
        found = restore(self._store, [entry], folder, on_progress=on_progress, stores=self._stores)
        return Ahead(folder, entry, found.path) if found.path is not None else None

    def restore(
        self,
        work: Path,
        *,
        fence: int | None,
        on_progress: OnProgress,
        staged: Staged | None = None,
        ahead: Ahead | None = None,
    ) -> Restore:
        """The newest intact checkpoint before our fence (None: our own too); without one what
        `init_from` names."""
        from spothop.checkpoints import restore

        entries = self._chain.newest_first(before=fence)
        found = restore(
            self._store, entries, work, on_progress=on_progress, stores=self._stores, ahead=ahead
        )
        rejected = tuple(found.rejected)
        if found.entry is None:
            return self._init(work, rejected, on_progress, staged)
        return Restore(
            path=found.entry.root,
            step=found.step,
            n=found.entry.n,
            rejected=rejected,
            shards=_shards(found.entry),
        )

    def _init(
        self,
        work: Path,
        rejected: tuple[str, ...],
        on_progress: OnProgress,
        staged: Staged | None,
    ) -> Restore:
        """The input checkpoint; its steps are not this job's, which begins at 0. Raises
        ObjectMissing where there is none: to begin with nothing is not what was asked for."""
        from spothop.checkpoints import fetch_tree, restore_from_job
        from spothop.storage import ObjectMissing

        source = self._assignment.init_from
        if source is None:
            return Restore(path=None, step=0, n=None, rejected=rejected)
        if source.job is None:
            fetch_tree(source.storage, work / INIT, on_progress=on_progress, staged=staged)
            return Restore(path=INIT, step=0, n=None, rejected=rejected)
        others = source.others or ()
        found = restore_from_job(
            source.storage, source.job, work, others=others, on_progress=on_progress
        )
        if found.entry is None:
            raise ObjectMissing(
                f"init_from: job {source.job!r} has no checkpoint in {source.storage.url}",
                hint="wait for its first one, or leave init_from out",
            )
        rejected = (*rejected, *found.rejected)
        shards = _shards(found.entry)
        return Restore(path=found.entry.root, step=0, n=None, rejected=rejected, shards=shards)

    def committed(self, backup: str) -> Outline | None:
        """The chain entry of this backup, when an earlier agent has committed it."""
        return self._chain.find(self._assignment.attempt, backup)

    def upload(
        self,
        accepted: Accepted,
        on_progress: Callable[[int, int], None],
        still_wanted: Callable[[], object] = lambda: None,
        left_s: Callable[[], float | None] = lambda: None,
    ) -> list[FileRecord]:
        """Data first: nothing refers to it yet. What an earlier call has sent is not sent again.
        Of several stores it goes to the nearest that takes it, which the records name.
        `on_progress` and `still_wanted` may raise to end it; the latter is called from time to time
        whatever hangs. `left_s`: to this VM's announced end, None without a notice."""
        from spothop.checkpoints import Journal, upload

        meta = accepted.meta

        def send(
            store: ObjectStore, url: str, on_progress: OnProgress, still_wanted: Wanted
        ) -> list[FileRecord]:
            return upload(
                store,
                self._assignment.job,
                self._assignment.attempt,
                meta.step,
                meta.kind,
                accepted.payload,
                on_progress=on_progress,
                upload_id=accepted.id,
                url=url,
                journal=Journal(accepted.journal, store=url),
                still_wanted=still_wanted,
                left_s=left_s,
            )

        if not self._assignment.stores:
            return send(self._store, "", on_progress, still_wanted)
        return self._near.upload(send, on_progress, still_wanted, left_s)

    def commit(
        self,
        accepted: Accepted,
        files: list[FileRecord],
        parent: int | None,
        still_wanted: Callable[[], object] = lambda: None,
        seen: int | None = None,
    ) -> Entry:
        """Make it a checkpoint; the same backup twice is one entry. Raises Fenced, UnknownCommits
        where ours go on above `seen`, and what `still_wanted` raises."""
        meta = accepted.meta
        shards = {"shards": list(meta.shards)} if meta.shards else {}
        return self._chain.commit(
            self._assignment.attempt,
            step=meta.step,
            kind=meta.kind,
            files=files,
            root=meta.path,
            is_dir=meta.is_dir,
            meta={"delta_s": meta.delta_s, "request": meta.request, **shards},
            parent=parent,
            entry_id=accepted.id,
            still_wanted=still_wanted,
            seen=seen,
        )

    def prune(self) -> None:
        from spothop.checkpoints import prune

        job, keep = self._assignment.job, self._assignment.keep
        prune(self._store, job, keep, chain=self._chain, stores=self._stores)

    def upload_outputs(self, directory: Path, skipped: Callable[[str], None]) -> int:
        """The number of files that the job leaves to its user; `skipped` gets bad links."""
        from spothop.checkpoints import upload_outputs

        job, attempt = self._assignment.job, self._assignment.attempt
        return len(upload_outputs(self._store, job, attempt, directory, skipped=skipped))


def _shards(entry: Entry) -> tuple[str, ...]:
    return tuple(str(shard) for shard in entry.meta.get("shards") or ())


class OpenStore(Protocol):
    """Makes the store of an assignment: `CheckpointStore` itself, or a scripted one."""

    def __call__(
        self, assignment: Assignment, *, first: bool, vm: str, since: int | None
    ) -> CheckpointStore: ...
