"""`data:` and files of `init_from` on this VM: told while they come, and kept for the next attempt.

An attempt that ends leaves its data: it is moved aside (`set_aside`), the next one takes out of it
what is still the same (`spothop.checkpoints.staged`), and the rest is deleted when that one has all
it needs, or as soon as the disk is full. So the disk never holds more than what one attempt has
fetched and the next one is fetching.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spothop.figures import size
from spothop_agent.checkpoint_store import INIT
from spothop_agent.paths import AgentPaths, AttemptPaths

if TYPE_CHECKING:
    from spothop.checkpoints import Staged

T = TypeVar("T")

FOLDERS = ("data", INIT)
"""Of the job's directory: what a fetch has filled."""
NOTES = "staged.jsonl"
TELL_EVERY_S = 10.0


def set_aside(paths: AgentPaths, attempt: AttemptPaths) -> None:
    """Before the job's directory of an attempt that is over is deleted. May be killed anywhere, and
    called again: what is lost of it is fetched again."""
    left = [attempt.work / name for name in FOLDERS if _is_folder(attempt.work / name)]
    if not left:
        return
    discard(paths)
    with suppress(OSError):
        paths.staged.mkdir(parents=True)
        for folder in left:
            folder.rename(paths.staged / folder.name)
        (attempt.root / NOTES).rename(paths.staged / NOTES)


def discard(paths: AgentPaths) -> None:
    """Delete what no fetch has taken."""
    shutil.rmtree(paths.staged, ignore_errors=True)


def of_attempt(paths: AgentPaths, attempt: AttemptPaths) -> Staged:
    from spothop.checkpoints import Staged

    earlier = {"earlier": paths.staged, "earlier_notes": paths.staged / NOTES}
    return Staged(attempt.work, attempt.root / NOTES, **earlier)


def with_room(paths: AgentPaths, fetch: Callable[[], T]) -> T:
    """What `fetch` returns; where the disk is full of what was set aside, that gives way."""
    try:
        return fetch()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not paths.staged.exists():
            raise
        discard(paths)
        return fetch()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


class Pace:
    """Bytes of one fetch and how fast they come, as a callback of progress in any thread, one call
    at a time. `note` gets a line every `TELL_EVERY_S`."""

    def __init__(
        self,
        what: str,
        note: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._note = note
        self._clock = clock
        self._began = self._told = clock()
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        self.done, now = done, self._clock()
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self._note(f"{self._what}: {size(done)} of {size(total)}, {self._rate(done)}")

    def told(self, staged: Staged) -> str:
        """At the end: how much, how long, how fast."""
        fetched = max(self.done - staged.reused_bytes, 0)
        took_s = self._clock() - self._began
        text = f"{size(fetched)} fetched in {took_s:.1f} s ({self._rate(fetched)})"
        if staged.reused_files:
            kept = f"{staged.reused_files} files with {size(staged.reused_bytes)}"
            text += f", {kept} were on this VM already"
        return text

    @property
    def is_long(self) -> bool:
        """It went on for so long that it is worth an event."""
        return self._told > self._began

    def _rate(self, count: int) -> str:
        return f"{size(count / max(self._clock() - self._began, 1e-3))}/s"
