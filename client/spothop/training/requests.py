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
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from spothop.training.agreement import Agreement


class SaveRequest:
    """A save that somebody wants: `at_step` None means at the next check. With a step it is wanted
    of several processes, `ranks`, by their process ids."""

    __slots__ = ("at_step", "id", "kind", "ranks")

    def __init__(self, id: str, kind: str, at_step: int | None, ranks: Sequence[int] = ()) -> None:
        self.id = id
        self.kind = kind
        self.at_step = at_step
        self.ranks = ranks

    def due(self, step: int) -> bool:
        return self.at_step is None or step >= self.at_step


class Begun:
    """A save that has begun: the request that it answers, the step that it holds, its moment.

    `exact`: the script said when it began, by `check_save()` or `saving()`. Else `at` is the end of
    the last step, and whatever else the script did since (an evaluation, say) lies in between.
    """

    __slots__ = ("at", "exact", "request", "step")

    def __init__(
        self, request: SaveRequest | None, step: int, at: float, *, exact: bool = True
    ) -> None:
        self.request = request
        self.step = step
        self.at = at
        self.exact = exact


UNKNOWN = 0.0
"""For when a save began of which only its step is known: before every request there is."""


class SaveRequests:
    """At most one request that waits, and at most one that is being answered.

    `missed` is told of a request that this process could not take, or for which it has decided that
    nobody saves: its id, and who has not taken it.
    """

    __slots__ = (
        "_agreement",
        "_asked_step",
        "_later",
        "_missed",
        "_newest",
        "_saving",
        "asked_at",
        "checked_step",
        "pending",
    )

    def __init__(
        self, agreement: Agreement, missed: Callable[[str, Sequence[int]], object]
    ) -> None:
        self._agreement = agreement
        self._missed = missed
        self.pending: SaveRequest | None = None
        """Waits for its check."""
        self._later: SaveRequest | None = None  # behind it, when all have agreed on that one
        self._saving: SaveRequest | None = None  # check_save() was true, backup() is to come
        self.asked_at = -1.0
        """When check_save() was true, until the backup that follows; -1 before and after."""
        self._asked_step = 0
        self.checked_step = -1
        """Newest step whose check was answered, by False or by a backup."""
        self._newest = ""  # its id: the same one again is no new one

    def take(self, msg: Mapping[str, Any]) -> None:
        """A request arrived. The newer one replaces the older one, but only an emergency
        replaces an emergency.

        With `at_step` all processes save at the first check of theirs at or after that step, or
        none does (see `agreement`). One that has had such a check already is too late.
        """
        request_id, kind, at_step = msg.get("request"), msg.get("kind"), msg.get("at_step")
        if not (isinstance(request_id, str) and isinstance(kind, str)):
            return
        if request_id == self._newest:
            return
        waits = self._later or self.pending
        if waits is not None and waits.kind == "emergency" != kind:
            return
        self._newest = request_id
        ranks = [pid for pid in msg.get("ranks") or () if isinstance(pid, int)]
        request = SaveRequest(
            request_id, kind, at_step if isinstance(at_step, int) else None, ranks
        )
        if request.at_step is not None and not self._joined(request):
            return
        if self.pending is not None and self._given_up(self.pending):
            self._later = None
            self.pending = request
        elif self.pending is None:
            self.pending = request
        else:
            self._later = request

    def _joined(self, request: SaveRequest) -> bool:
        assert request.at_step is not None
        if self.checked_step < request.at_step:
            try:
                self._agreement.join(request.id)
            except OSError:  # a full disk: as if it had not arrived
                return False
            return True
        if self._agreement.refuse(request.id) is None:
            self._missed(request.id, ())
        return False

    def _given_up(self, request: SaveRequest) -> bool:
        """Whether a newer one may replace it: not what all have agreed on."""
        return request.at_step is None or self._agreement.refuse(request.id) is None

    def begin(self, step: int, now: float) -> SaveRequest | None:
        """The request that is due at this check, whose save begins now; None when there is none."""
        request = self._due(step)
        self.checked_step = step
        if request is None:
            return None
        self._saving = request
        self._drop()
        self.asked_at, self._asked_step = now, step
        return request

    def _due(self, step: int) -> SaveRequest | None:
        """What a save of this step answers."""
        while (request := self.pending) is not None and request.due(step):
            if request.at_step is None:
                return request
            known, _ = self._agreement.decided(request.id)
            decided = self._agreement.decide(request.id, request.ranks, step)
            if decided is not None and decided >= step:
                return request if decided == step else None
            self._drop()
            if not known and decided is None:
                missing = self._agreement.missing(request.id, request.ranks)
                self._missed(request.id, missing)
        return None

    def settle(self, step: int) -> None:
        """Before a stop: what the others have saved, or nobody will, is waited for no longer."""
        request = self.pending
        if request is not None and request.at_step is not None:
            known, decided = self._agreement.decided(request.id)
            if known and (decided is None or decided < step):
                self._drop()

    def _drop(self) -> None:
        self.pending, self._later = self._later, None

    def answered(
        self, step: int, periodic_began: float, *, named: int | None = None, exact: bool = False
    ) -> Begun:
        """The save that a backup made now is of. `periodic_began`: when it began at the earliest
        where no check was true before it, and with `exact` just then; `named`: the step that the
        script says it holds."""
        saving = self._saving
        if named is not None and named != step:
            if saving is not None and self._asked_step == named:
                return Begun(saving, named, self.asked_at)
            return Begun(None, named, UNKNOWN)
        if saving is not None and self._asked_step != step:
            if named is None:
                return Begun(saving, self._asked_step, self.asked_at)
            saving = None
        if saving is not None:
            periodic_began, exact = self.asked_at, True
        return Begun(self._due(step) or saving, step, periodic_began, exact=exact)

    def claim(self, step: int, now: float) -> Begun:
        """A save begins now, of this step: the request that it answers is nobody else's."""
        begun = self.answered(step, now, exact=True)
        if begun.request is not None and begun.request is self.pending:
            self._drop()
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
        if begun.request is not None and begun.request is self.pending:
            self._drop()
        if begun.request is self._saving or begun.step >= self._asked_step:
            self._saving = None
            self.asked_at = -1.0
        self.checked_step = max(self.checked_step, begun.step)
