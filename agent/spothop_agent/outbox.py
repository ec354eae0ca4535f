"""Backups that the training process handed over, in order of acceptance, and which one is next.

The process publishes each by a rename (see `spothop.training.outbox`), so the directory is the
truth; the agent deletes one when it is committed or given up. What to do next is decided purely.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from spothop.wire import Finite, SaveKind, Seconds, Whole

_log = logging.getLogger(__name__)

COMMIT_S = 0.3
"""For the chain entry of an upload that is complete: two requests."""
UNDER_WAY = 48 << 20
"""Bytes that may be under way at once (`storage.remote.BUDGET`). They arrive together on a line
that they share, so that a slow and steady one is silent for as long as it needs for them."""
BAD = ".bad-"
"""Prefix of what is no backup: kept for people, not looked at again."""
GONE = ".gone-"
"""Prefix of what is being deleted."""


class Meta(BaseModel):
    """meta.json; unknown keys are left alone, because a newer client may write more."""

    model_config = ConfigDict(frozen=True)

    v: int
    id: str
    name: str
    path: str
    is_dir: bool
    step: Whole
    kind: SaveKind
    request: str | None
    delta_s: Seconds
    exact: bool = True
    """`delta_s` is the time of the save; else it took at most that."""
    began: float | None = None
    """When the save began (CLOCK_MONOTONIC); 0 where only its step is known."""
    mono: Finite
    part: int | None = None
    """Which shard this is of a save of several processes; None for a whole save."""
    parts: int | None = None
    shards: tuple[str, ...] = ()
    """Of a save that was joined: the place of each shard below `path`."""


@dataclass(frozen=True)
class Entry:
    """One accepted backup."""

    folder: Path
    meta: Meta
    size: int
    """Bytes, all files together."""

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def payload(self) -> Path:
        return self.folder / "payload" / self.meta.name

    @property
    def journal(self) -> Path:
        """What of the payload is in the store; it goes with the entry."""
        return self.folder / "uploaded.jsonl"

    def set_aside(self) -> Path:
        """Out of sight in one step, so that a crash in the middle leaves no torn entry. Returns
        what is to be deleted then: a tree may be large."""
        aside = self.folder.with_name(f"{GONE}{self.id}")
        os.replace(self.folder, aside)
        return aside


@dataclass(frozen=True)
class Saved:
    """What one save holds, as far as its order among the others goes; kept in state.json."""

    id: str
    step: int
    began: float | None
    """CLOCK_MONOTONIC; 0 where only the step is known."""

    @classmethod
    def of(cls, entry: Entry) -> Saved:
        meta = entry.meta
        return cls(entry.id, meta.step, meta.mono if meta.began is None else meta.began)

    def older_than(self, other: Saved) -> bool:
        """A restore takes the newest entry of the chain, so what is older must not be committed
        behind it. The order of acceptance is not that of the contents: a save in the background is
        handed over late. Neither is that of the steps: a script may have gone back."""
        if self.step == other.step:
            return self.id < other.id
        if self.began and other.began and self.began != other.began:
            return self.began < other.began  # pragma: no mutate: they differ
        return self.step < other.step  # pragma: no mutate: they differ


@dataclass(frozen=True)
class Torn:
    """A published folder that is no backup; the message says what is wrong with it."""

    id: str
    message: str


def names(outbox: Path) -> list[str]:
    """Ids of what is published, in order of acceptance."""
    return sorted(entry.name for entry in os.scandir(outbox) if not entry.name.startswith("."))


def is_tree(outbox: Path, name: str) -> bool:
    """Whether `read` walks through many files: not in the event loop then."""
    try:
        with os.scandir(outbox / name / "payload") as entries:
            return any(entry.is_dir() for entry in entries)
    except OSError:  # `read` says what is wrong with it
        return False


def read(outbox: Path, name: str) -> Entry | Torn | None:
    """One entry; a torn one is put aside, so that it is reported once. None when the system does
    not let it be read now (no file handle left, an input error): look again."""
    folder = outbox / name
    try:
        meta = Meta.model_validate_json((folder / "meta.json").read_bytes())
        payload = folder / "payload" / meta.name
        if Path(meta.name).name != meta.name or _is_dir(payload) != meta.is_dir:
            raise ValueError(f"payload/{meta.name} is not what meta.json says")
        return Entry(folder, meta, _size(payload))
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        os.replace(folder, outbox / f"{BAD}{name}")
        return Torn(name, f"backup {name} is torn and was skipped: {_first_line(error)}")
    except OSError as error:
        _log.warning("backup %s cannot be read now: %s", name, error)
        return None


def leftovers(outbox: Path) -> list[Path]:
    """What an earlier agent was about to delete."""
    return [Path(e.path) for e in os.scandir(outbox) if e.name.startswith(GONE)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to back up now. `superseded` wait, and go when what overtook them is committed."""

    next: Entry | None
    superseded: tuple[Entry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Upload:
    """The upload under way: which entry, and how many of its bytes are through."""

    id: str
    done: int


def plan(
    queue: list[Entry],
    *,
    left_s: float | None,
    backup_s: float | None,
    bytes_per_s: float | None = None,
    current: Upload | None = None,
    stalled_s: Mapping[str, float] | None = None,
) -> Plan:
    """The oldest entry, unless an emergency save waits behind it and time is short.

    Then it is the newest entry whose upload still fits, counted from where it stands. So an upload
    that is almost done is not broken off for an emergency save that cannot make it. Where none fits
    it is the one that has the least left to do. What is older than the chosen one is overtaken: an
    entry in the chain that is younger by number but older by step would undo it at the restore.

    `left_s` is the time to the announced end (None without a notice), `bytes_per_s` the rate of
    this VM's uploads, `backup_s` what a backup took elsewhere (both None when nothing was measured:
    then every notice is short, and the emergency save goes first), `stalled_s` for how long nothing
    of a backup moved, by its id.
    """
    if not queue:
        return Plan(next=None)
    last = max(
        (i for i, entry in enumerate(queue) if entry.meta.kind is SaveKind.EMERGENCY), default=0
    )
    if last == 0 or left_s is None:
        return Plan(next=queue[0])
    waiting = queue[: last + 1]
    stalled = stalled_s or {}
    if bytes_per_s is not None:
        needs_s = [_left_of(entry, current) / bytes_per_s + COMMIT_S for entry in waiting]
        stalled = {
            entry.id: max(0.0, stalled[entry.id] - min(entry.size, UNDER_WAY) / bytes_per_s)
            for entry in waiting
            if entry.id in stalled
        }
    elif backup_s is not None:
        needs_s = [backup_s] * len(waiting)
    else:
        return _overtaking(queue, last)
    # what hung is expected to hang as long again
    needs_s = [s + stalled.get(entry.id, 0.0) for s, entry in zip(needs_s, waiting, strict=True)]
    if sum(needs_s) < left_s:
        return Plan(next=queue[0])
    fitting = [i for i, needed in enumerate(needs_s) if needed < left_s]
    least = min(range(len(needs_s)), key=lambda i: (needs_s[i], -i))
    return _overtaking(queue, max(fitting, default=least))


def _left_of(entry: Entry, current: Upload | None) -> int:
    done = current.done if current is not None and current.id == entry.id else 0
    return max(0, entry.size - done)


def _overtaking(queue: list[Entry], index: int) -> Plan:
    return Plan(next=queue[index], superseded=tuple(queue[:index]))


def to_evict(queue: list[Entry], *, free: int) -> Entry | None:
    """The backup to give up so that the next save finds room, or None.

    The next save is expected to be as large as the newest one. Periodic saves go first, oldest
    first; the newest entry never goes, and neither does an emergency save.
    """
    if not queue or free > queue[-1].size:
        return None
    for kind in (SaveKind.PERIODIC, SaveKind.INSURANCE):
        for entry in queue[:-1]:
            if entry.meta.kind is kind:
                return entry
    return None


def _is_dir(path: Path) -> bool:
    """Raises OSError. `Path.is_dir` is False for an input error too, from Python 3.14 on: a save
    that cannot be read now would count as torn."""
    return stat.S_ISDIR(os.stat(path).st_mode)


def _size(path: Path) -> int:
    if not _is_dir(path):
        return path.stat().st_size
    size = 0
    for folder, _, files in os.walk(path, onerror=_raise):
        for name in files:
            status = os.lstat(os.path.join(folder, name))
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


def _raise(error: OSError) -> None:
    raise error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
