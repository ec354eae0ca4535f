"""A checkpoint store that does what a test says, and keeps what it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fakes.virtual_time import Takes
from spothop.checkpoints import Ahead, Entry, Fenced, FileRecord, Staged
from spothop.storage.errors import StorageError
from spothop_agent.checkpoint_store import CheckpointStore, Restore
from spothop_agent.outbox import Entry as Accepted


class ScriptedStore(CheckpointStore):
    """`fail[step]` holds the errors of that step's next uploads, `fails[call]` those of the next
    calls of that name; the next upload of a step in `takes` lasts so many virtual seconds."""

    def __init__(self, *, job: str = "job-1", attempt: int = 1) -> None:
        self._job = job
        self._attempt = attempt
        self.fail: dict[int, list[StorageError]] = {}
        self.fails: dict[str, list[Exception]] = {}
        self.takes: dict[int, float] = {}
        self.commit_takes: dict[int, float] = {}
        self.fenced_by: int | None = None
        self.found = Restore(path=None, step=0, n=None)
        self.ahead: int | None = None
        self.ahead_takes = 0.0
        self.taken: Ahead | None = None
        self.skipped: list[str] = []
        self.steps: list[int] = []
        self.there: dict[str, Entry] = {}
        self.uploads: list[int] = []
        self.calls: list[str] = []
        self.told: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails.get(name):
            raise self.fails[name].pop(0)

    def fetch_data(
        self,
        url: str,
        target: Path,
        on_progress: Callable[[int, int], None] | None = None,
        staged: Staged | None = None,
    ) -> int:
        self._called("fetch_data")
        return 1

    def measure(self) -> None:
        self._called("measure")

    def news(self) -> list[str]:
        told, self.told = self.told, []
        return told

    def fence(self) -> int:
        self._called("fence")
        if self.fenced_by is not None:
            raise Fenced(self._job, self._attempt, self.fenced_by)
        return 1

    def newest(self, before: int | None = None) -> int | None:
        self._called("newest")
        return self.ahead

    def fetch_ahead(
        self, n: int, folder: Path, on_progress: Callable[[int, int], None]
    ) -> Ahead | None:
        self._called("fetch_ahead")
        if self.ahead_takes:
            raise Takes(
                self.ahead_takes, lambda: Ahead(folder, Entry(n=n, attempt=1, id=""), folder)
            )
        return Ahead(folder, Entry(n=n, attempt=1, id=""), folder)

    def restore(
        self,
        work: Path,
        *,
        fence: int | None,
        on_progress: Callable[[int, int], None],
        staged: Staged | None = None,
        ahead: Ahead | None = None,
    ) -> Restore:
        self.taken = ahead
        self._called("restore")
        on_progress(1, 1)
        return self.found

    def committed(self, backup: str) -> Entry | None:
        return self.there.get(backup)

    def upload(
        self,
        accepted: Accepted,
        on_progress: Callable[[int, int], None],
        still_wanted: Callable[[], object] = lambda: None,
        left_s: Callable[[], float | None] = lambda: None,
    ) -> list[FileRecord]:
        step = accepted.meta.step
        self.uploads.append(step)
        if self.fail.get(step):
            raise self.fail[step].pop(0)
        seconds = self.takes.pop(step, None)
        if seconds is not None:
            raise Takes(seconds, lambda: self._uploaded(on_progress))
        return self._uploaded(on_progress)

    def _uploaded(self, on_progress: Callable[[int, int], None]) -> list[FileRecord]:
        on_progress(1, 1)
        return []

    def commit(
        self,
        accepted: Accepted,
        files: list[FileRecord],
        parent: int | None,
        still_wanted: Callable[[], object] = lambda: None,
        seen: int | None = None,
    ) -> Entry:
        seconds = self.commit_takes.pop(accepted.meta.step, None)
        if seconds is not None:
            raise Takes(seconds, lambda: self._committed(accepted, still_wanted))
        return self._committed(accepted, still_wanted)

    def _committed(self, accepted: Accepted, still_wanted: Callable[[], object]) -> Entry:
        self._called("commit")
        still_wanted()
        if self.fenced_by is not None:
            raise Fenced(self._job, self._attempt, self.fenced_by)
        self.steps.append(accepted.meta.step)
        return Entry(
            n=len(self.steps) + 1,
            attempt=self._attempt,
            id=accepted.id,
            step=accepted.meta.step,
        )

    def prune(self) -> None:
        """Nothing lies anywhere."""

    def upload_outputs(self, directory: Path, skipped: Callable[[str], None]) -> int:
        self._called("upload_outputs")
        for text in self.skipped:
            skipped(text)
        return len(list(directory.iterdir()))
