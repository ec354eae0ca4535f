"""What this process is asked to save, and which request a backup answers.

A request counts from when it arrives to when a backup answers it. A backup answers only what was
asked before its save began, or could have been: `check_save()` true marks the beginning, and what
arrives later is answered too only if no step was completed since, because a save at the next check
would hold the same state.

Step, moment and request belong to the save, not to the process: a save that runs in the background
is handed over when training is many steps further. Two things tell which save a backup is of: the
`Save` that `begin_save` gave for it, or the step that the script names. With neither it is the one
that check_save() asked for, else one that began after the last step.

Everything here is in memory and waits for nothing. Times are CLOCK_MONOTONIC, seconds. Standard
library only: imported by every script.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class SaveRequest:
    """A save that somebody wants: `at_step` None means at the next check."""

    __slots__ = ("at_step", "id", "kind")

    def __init__(self, id: str, kind: str, at_step: int | None) -> None:
        self.id = id
        self.kind = kind
        self.at_step = at_step

    def due(self, step: int) -> bool:
        return self.at_step is None or step >= self.at_step


class Begun:
    """A save that has begun: the request that it answers, the step that it holds, its moment."""

    __slots__ = ("at", "request", "step")

    def __init__(self, request: SaveRequest | None, step: int, at: float) -> None:
        self.request = request
        self.step = step
        self.at = at


UNKNOWN = 0.0
"""For when a save began of which only its step is known: before every request there is."""


class SaveRequests:
    """At most one request that waits, and at most one that is being answered."""

    __slots__ = ("_asked_step", "_newest", "_saving", "asked_at", "checked_step", "pending")

    def __init__(self) -> None:
        self.pending: SaveRequest | None = None
        """Waits for its check."""
        self._saving: SaveRequest | None = None  # check_save() was true, backup() is to come
        self.asked_at = -1.0
        """When check_save() was true, until the backup that follows; -1 before and after."""
        self._asked_step = 0
        self.checked_step = -1
        """Newest step whose check was answered, by False or by a backup."""
        self._newest = ""  # its id: the same one again is no new one

    def take(self, msg: Mapping[str, Any], step: int) -> str | None:
        """A request arrived. The newer one replaces the older one, but only an emergency
        replaces an emergency.

        With `at_step` every rank saves at its first check at or after that step. A rank that has
        had such a check already would save another step than the rest: the id of the request that
        it missed is returned.
        """
        request_id, kind, at_step = msg.get("request"), msg.get("kind"), msg.get("at_step")
        if not (isinstance(request_id, str) and isinstance(kind, str)):
            return None
        if request_id == self._newest:
            return None
        if self.pending is not None and self.pending.kind == "emergency" != kind:
            return None
        self._newest = request_id
        if isinstance(at_step, int) and self.checked_step >= at_step:
            return request_id
        self.pending = SaveRequest(request_id, kind, at_step if isinstance(at_step, int) else None)
        return None

    def begin(self, step: int, now: float) -> SaveRequest | None:
        """The request that is due at this check, whose save begins now; None when there is none."""
        request = self.pending
        if request is None or not request.due(step):
            self.checked_step = step
            return None
        self._saving, self.pending = request, None
        self.asked_at, self._asked_step = now, step
        return request

    def answered(self, step: int, periodic_began: float, *, named: int | None = None) -> Begun:
        """The save that a backup made now is of. `periodic_began`: when it began at the earliest
        where no check was true before it; `named`: the step that the script says it holds."""
        saving = self._saving
        if named is not None and named != step:
            if saving is not None and self._asked_step == named:
                return Begun(saving, named, self.asked_at)
            return Begun(None, named, UNKNOWN)
        if saving is not None and self._asked_step != step:
            if named is None:
                return Begun(saving, self._asked_step, self.asked_at)
            saving = None
        began = periodic_began if saving is None else self.asked_at
        if self.pending is not None and self.pending.due(step):
            return Begun(self.pending, step, began)
        return Begun(saving, step, began)

    def claim(self, step: int, now: float) -> Begun:
        """A save begins now, of this step: the request that it answers is nobody else's."""
        begun = self.answered(step, now)
        if begun.request is self.pending:
            self.pending = None
        if begun.request is self._saving:
            self._saving = None
            self.asked_at = -1.0
        return begun

    def again(self, begun: Begun) -> None:
        """Its save failed: the request waits again, unless a newer one does."""
        if begun.request is not None and self.pending is None:
            self.pending = begun.request

    def end(self, begun: Begun) -> None:
        """Its backup is handed over."""
        if begun.request is self.pending:
            self.pending = None
        if begun.request is self._saving or begun.step >= self._asked_step:
            self._saving = None
            self.asked_at = -1.0
        self.checked_step = max(self.checked_step, begun.step)
