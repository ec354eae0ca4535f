"""What the agent must know again after a restart: `state.json`, replaced whole at every change.

The truth is in memory: a disk that takes nothing (full, or read-only) must not end the agent, least
of all at a notice. Then the file is behind, and written as soon as the disk takes it again. An
agent that dies meanwhile goes on from an older state, as if it had died earlier.

The session is in there before it is first used: the join token works only once, so a session that
is lost is a VM that is lost. The order of phases is the order of `Phase`.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spothop.wire import Assignment, SaveKind, Unprotected
from spothop_agent.notice_states import NOTICES, NoticeEvent, NoticeState
from spothop_agent.outbox import Saved
from spothop_agent.paths import write_atomic
from spothop_agent.reserve import MakeRoom, no_room, with_room

_log = logging.getLogger(__name__)


class Phase(IntEnum):
    """How far the present attempt has come; each is entered after its effect is complete."""

    ASSIGNED = 0
    PREPARED = 1
    FENCED = 2
    RESTORED = 3
    STARTED = 4
    EXITED = 5  # the exit is reported


class NoticeSeen(BaseModel):
    """A notice of this VM, all times CLOCK_MONOTONIC."""

    model_config = ConfigDict(frozen=True)

    event: str
    seen: float
    deadline: float
    """The announced one, or the promised grace period from `seen`."""
    announced: bool
    """The cloud itself named the deadline."""
    release_at: float | None = None
    """When the cloud is told at the latest, if all is saved by then, that it may take the VM; None
    where it does not listen."""
    state: NoticeState = NoticeState.SEEN
    request: str | None = None
    """The emergency save that was asked for."""

    @model_validator(mode="before")
    @classmethod
    def _with_state(cls, data: Any) -> Any:
        """What an agent of version 0.1.0 wrote has three booleans in place of the state."""
        if isinstance(data, dict) and "state" not in data and "acknowledged" in data:
            return {**data, "state": _state_of_flags(data)}
        return data

    @property
    def last_save_by(self) -> float:
        """When a last save has to be committed."""
        return self.deadline if self.release_at is None else self.release_at

    def takes(self, event: NoticeEvent) -> bool:
        """Whether `event` means anything in this state."""
        return self.state in NOTICES.sources(event)

    def after(self, event: NoticeEvent, **changes: Any) -> NoticeSeen:
        """The notice after `event`, with other fields changed. Raises IllegalTransition."""
        return self.model_copy(update={**changes, "state": NOTICES.after(self.state, event)})

    def covered_by(self, kind: SaveKind, made: float, *, began: float | None = None) -> bool:
        """Whether a backup handed over at `made` holds what there was at the notice.

        If a save was asked for, only an answer to that counts. If none was, the save must have
        begun after the notice, where that is known: a script that saves in the background may hand
        over a step from long before.
        """
        if made < self.seen:
            return False
        if self.request is not None:
            return kind is SaveKind.EMERGENCY
        return began is None or began >= self.seen


def _state_of_flags(flags: dict[str, Any]) -> NoticeState:
    if flags["acknowledged"]:
        return NoticeState.ACKNOWLEDGED
    if flags.get("covered"):
        return NoticeState.COMMITTED if flags.get("answered") else NoticeState.NOTHING_LEFT
    if flags.get("answered"):
        return NoticeState.ANSWERED
    return NoticeState.REQUESTED if flags.get("request") else NoticeState.UNREQUESTED


class State(BaseModel):
    """The content of state.json."""

    # no input in errors: they are logged, and the assignment holds the secrets of its storage
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    vm: str
    session: str
    sync_every_s: float
    assignment: Assignment
    phase: Phase = Phase.ASSIGNED
    prepared: tuple[str, ...] = ()
    """Parts of the preparation that are complete: bundle, setup, data."""
    may_fence: bool = False
    stop: str | None = None
    """Why the process is being ended by us."""
    stop_save: bool = False
    checked: bool = False
    """The process has called `check_save()`."""
    unprotected: Unprotected | None = None
    """As the master was told."""
    hung: bool = False
    """It is being ended because it hangs."""
    fenced_by: int | None = None
    fence_n: int | None = None
    restored_n: int | None = None
    restored_step: int = 0
    given_up: int = 0
    """Accepted backups that will not be committed."""
    committed: Saved | None = None
    """The newest save, by its content, that this attempt has committed."""
    committed_n: int | None = None
    """The newest chain entry of this attempt that is dealt with: an agent that is started again
    looks for its own entries above it only."""
    processes: dict[int, int] = Field(default_factory=dict)
    """Process id -> local rank of those that use the training API, in the order of their hellos."""
    training: tuple[int, ...] = ()
    """Process ids of those among them that train."""
    last_step: int | None = None
    saved_step: int = -1
    """Newest periodic or insurance save that was handed over."""
    save_s: float | None = None
    """What a save and a backup took here, as of the newest commit; see `Saves`."""
    backup_s: float | None = None
    oom_kills: int | None = None
    """The kernel's counter when the process started."""
    notice: NoticeSeen | None = None
    """The newest notice; it belongs to the VM and outlives an attempt."""
    heard_at: float | None = None
    """When the master last answered, some minutes old at most, in seconds of CLOCK_MONOTONIC."""
    ends_at: float | None = None
    """When the job is to be over, in seconds of CLOCK_BOOTTIME."""
    over: bool = False
    """The VM is released or gone for the master: an agent that is started again exits at once."""


class StateFile:
    """The state in memory, and on disk where the disk takes it."""

    def __init__(self, path: Path, make_room: MakeRoom = no_room) -> None:
        self._path = path
        self._make_room = make_room
        self._state: State | None = None
        self._behind_sync: bool | None = None
        """The file is older than the memory; whether what is missing was to be synced."""

    def load(self) -> bool:
        """True when there is a state from before. Raises ValueError when it cannot be read."""
        if not self._path.exists():
            return False
        self._state = State.model_validate_json(self._path.read_bytes())
        return True

    @property
    def known(self) -> bool:
        """There is a state: this VM has joined."""
        return self._state is not None

    @property
    def now(self) -> State:
        assert self._state is not None, "no state before the join"
        return self._state

    def put(self, state: State) -> None:
        """Durable even when the VM itself restarts; used at the join and for a new attempt."""
        self._write(state, sync=True)

    def set(self, **changes: Any) -> None:
        """Change some fields. Not synced: the emergency path must not wait for the disk."""
        self._write(self.now.model_copy(update=changes), sync=False)

    def _write(self, state: State, *, sync: bool) -> None:
        self._state = state
        sync = sync or self._behind_sync is True
        data = state.model_dump_json().encode()
        try:
            with_room(
                # The session is a secret.
                lambda: write_atomic(self._path, data, sync=sync, mode=0o600),
                self._make_room,
            )
        except OSError as error:
            if self._behind_sync is None:
                _log.warning("%s: %s; the state is kept in memory for now", self._path, error)
            self._behind_sync = sync
        else:
            self._behind_sync = None

    def flush(self) -> None:
        """Write what the disk has not taken; harmless at any time."""
        if self._behind_sync is not None:
            self._write(self.now, sync=False)

    def assign(self, assignment: Assignment, *, ends_at: float | None = None) -> None:
        """Begin a new attempt on this VM; the notice stays."""
        now = self.now
        self.put(
            State(
                vm=now.vm,
                session=now.session,
                sync_every_s=now.sync_every_s,
                assignment=assignment,
                may_fence=assignment.fence_now,
                notice=now.notice,
                heard_at=now.heard_at,
                ends_at=ends_at,
            )
        )
