"""When to ask the training process for a save. Pure: times and steps are arguments.

Emergency saves are decided here, from what was measured on this VM; insurance saves follow the
master's directive, and after a save the agent goes on from `tau_s` by itself until a directive that
counts from this save arrives (the master may be away). Policy `static` needs no directive: it
counts steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spothop.durations import duration
from spothop.policy import emergency, parse, periodic
from spothop.policy.savetimes import RECENT
from spothop.policy.types import Measures
from spothop.wire import Insurance, PolicyParams, SaveKind

RANK_MARGIN_S = 0.25
"""Ranks report their steps at most every 100 ms; a common step has to lie beyond what they know."""
INSURANCE_ANSWER_S, EMERGENCY_ANSWER_S, UNMEASURED_ANSWER_S = 60.0, 10.0, 300.0
"""A request that was not answered for so long, or for `PATIENCE` times what a step and a save take,
is asked again: a script may have failed between `check_save()` and `backup()`, and without this it
would never be asked for anything more."""
PATIENCE, MAX_DOUBLINGS = 4, 6
LATE, LATE_S = 1.5, 1.0
"""The last save before a deadline is asked for this many times what one took before the moment at
which it must be committed, and so long: an upload may take longer than the one before."""
WEIGHT = 0.3
"""Weight of the newest measurement of a save or backup."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One save request, as it goes down the pipe. `deadline` is CLOCK_MONOTONIC."""

    request: str
    kind: SaveKind
    at_step: int | None
    """All of `ranks` save at their first check at or after it; None: there is only one process."""
    deadline: float | None
    reason: str
    ranks: tuple[int, ...] = ()
    """Process ids."""


@dataclass(frozen=True, kw_only=True)
class AtNotice:
    """The answer to a notice: what to ask for, if anything, and whether it should fit."""

    ask: Ask | None
    fits: bool
    reason: str


@dataclass
class Saves:
    """What is known of one attempt's steps and saves, and which request waits for its answer."""

    params: PolicyParams
    attempt: int
    started: float
    """CLOCK_MONOTONIC; insurance is armed when the process starts."""
    ranks: set[int] = field(default_factory=set)
    """Process ids of those that train."""
    world: int = 1
    """As many there will be at least, as the launcher has said."""
    step: int | None = None
    pending: Ask | None = None
    asked_at: float = 0.0
    """When that was asked for."""
    unanswered: int = 0
    """Requests in a row that nobody answered: a script that never checks is asked less and less."""
    saved_at: float = 0.0
    """When the last periodic or insurance save was handed over; before one, the start."""
    saved_step: int = -1
    start_step: int = 0
    """What was restored: `static` counts from there until something is saved."""
    insurance: Insurance | None = None
    emergency_at: float = -math.inf
    """When an emergency save was last handed over, and which step."""
    emergency_step: int = -1
    save_s: float | None = None
    """Of saves whose beginning is known; see `policy.savetimes`."""
    save_bounds_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Of the newest others, which took at most so long."""
    backup_s: float | None = None
    asked_late: bool = False
    """Asked for the last save before the deadline."""
    _own: deque[int] = field(default_factory=lambda: deque(maxlen=periodic.KEPT))
    """Steps at which the script saved by itself."""
    _spent: int = -1
    """Step of the directive that was in force at the newest save: it counted from an older one."""
    _misses: int = 0
    _missing: set[int] = field(default_factory=set)
    _silent: set[int] = field(default_factory=set)
    _step_sum: float = 0.0
    _step_count: int = 0

    def __post_init__(self) -> None:
        self.saved_at = self.started
        self.save_s, self.backup_s = self.params.save_s, self.params.backup_s

    # --- what was seen --------------------------------------------------------------------------

    def stepped(self, step: int, *, count: int, step_s: float) -> None:
        self.step = step if self.step is None else max(self.step, step)
        self._step_sum += step_s * count
        self._step_count += count

    def restarted(self) -> None:
        """The script was started again inside the attempt: its step may be an earlier one, and is
        known again with its first steps. A request that waits is sent anew by `Trainer`."""
        self.step = None
        self._forget_misses()
        if self.pending is not None and self.pending.at_step is not None:
            self.asked_at = -math.inf  # that step is another one now: ask anew as soon as possible

    def _forget_misses(self) -> None:
        self._misses = 0
        self._missing, self._silent = set(), set()

    def accepted(
        self,
        kind: SaveKind,
        step: int,
        *,
        request: str | None,
        delta_s: float,
        exact: bool = True,
        now: float,
    ) -> None:
        """`backup()` took a save over, after `delta_s` or, not `exact`, at most that. Periodic and
        insurance saves re-arm the insurance."""
        if delta_s > 0 and exact:  # 0 where only the step of a save is known, not when it began
            self.save_s = _blend(self.save_s, delta_s)
        elif delta_s > 0:
            self.save_bounds_s.append(delta_s)
        self.unanswered = 0
        if self.pending is not None and self.pending.request == request:
            self.pending = None
            self._misses = 0
            self._missing = set()
        self.step = step if self.step is None else max(self.step, step)
        if kind is SaveKind.PERIODIC:
            self._own.append(step)
        if kind is not SaveKind.EMERGENCY:
            self.saved_at, self.saved_step = now, step
            self._spent = self.insurance.at_step if self.insurance is not None else -1
            if self.pending is not None and self.pending.kind is SaveKind.INSURANCE:
                self.pending = None  # this save is as good
        else:
            self.emergency_at, self.emergency_step = now, step

    def committed(self, backup_s: float) -> None:
        self.backup_s = _blend(self.backup_s, backup_s)

    def missed(
        self, request: str, step: int, *, now: float, missing: Sequence[int] = ()
    ) -> Ask | None:
        """Nobody saves for this request, because a process had passed its step, or because those
        of `missing` have not taken it. Asked again for a step twice as far ahead each time. Who is
        missing twice in a row does not train any more, and is not waited for."""
        if self.pending is None or self.pending.request != request:
            return None
        old = self.pending
        self.step = step if self.step is None else max(self.step, step)
        self._misses += 1
        self._silent |= self._missing & set(missing)
        self._missing = set(missing)
        ahead = self._margin() * 2 ** min(self._misses, MAX_DOUBLINGS)
        self.pending = replace(
            old,
            request=self._id(old.kind, now),
            at_step=self.step + ahead,
            ranks=self._asked_of(),
        )
        return self.pending

    def _asked_of(self) -> tuple[int, ...]:
        return tuple(sorted(self.ranks - self._silent))

    # --- decisions ------------------------------------------------------------------------------

    def due(self, now: float, *, uploading: bool) -> Ask | None:
        """An insurance save, when one is due and none is on its way; and again a request that
        nobody has answered."""
        if self.pending is not None:
            return self._again(now)
        if uploading or self.step is None:
            return None
        reason = self._due_reason(now)
        if reason is None:
            return None
        return self._ask(SaveKind.INSURANCE, now, deadline=None, reason=reason)

    def _again(self, now: float) -> Ask | None:
        """Under a new id: the process takes the same one for the same request."""
        old, waited_s = self.pending, now - self.asked_at
        assert old is not None
        if waited_s < self._answer_s(old.kind) or (old.deadline is not None and now > old.deadline):
            return None
        if self.step is None and self._together:
            return None
        self.pending = None
        self.unanswered += 1
        if old.kind is not SaveKind.EMERGENCY and self.step is None:
            return None
        why = "after a restart" if math.isinf(waited_s) else f"no answer for {waited_s:.0f} s"
        reason = f"asked again, {why}: {old.reason.split(': ')[-1]}"
        return self._ask(old.kind, now, deadline=old.deadline, reason=reason)

    def _answer_s(self, kind: SaveKind) -> float:
        emergency = kind is SaveKind.EMERGENCY
        least = EMERGENCY_ANSWER_S if emergency else INSURANCE_ANSWER_S
        save_s = self.save_s if self.save_s is not None else self._save_at_most_s
        if save_s is not None:
            answer_s = max(least, PATIENCE * (self.step_s + save_s))
        else:
            answer_s = 3 * least if emergency else UNMEASURED_ANSWER_S
        return answer_s * 2.0 ** min(self.unanswered, MAX_DOUBLINGS)

    def resume(self, ask: Ask, *, now: float) -> Ask:
        """A request of an agent before us waits for its answer. Several processes are asked anew:
        its step is not known any more."""
        if self._together:
            return self._ask(ask.kind, now, deadline=ask.deadline, reason=ask.reason)
        self.pending, self.asked_at = ask, now
        return ask

    def _due_reason(self, now: float) -> str | None:
        assert self.step is not None
        if self.step <= self.saved_step or self._switched_off():
            return None
        if self._static_every is not None:
            done = self.step - max(self.saved_step, self.start_step)
            return f"every {self._static_every} steps" if done >= self._static_every else None
        if now - self.saved_at < self.params.min_interval_s:
            return None
        directive = self.insurance
        if directive is not None and self._counts_from_newest(directive):
            return directive.reason if self.step >= directive.at_step else None
        tau_s = directive.tau_s if directive is not None else self.params.first_tau_s
        saved = max(self.saved_step, self.start_step)
        own = periodic.next_save(self._own, saved) if self._spreads else None
        if own is None or self.step_s <= 0:
            if now - self.saved_at < tau_s:
                return None
            return f"{tau_s:.1f} s since the last save, and no newer directive of the master"
        least = math.ceil(self.params.min_interval_s / self.step_s)
        if self.step < periodic.due(saved, tau_s / self.step_s, own, least=max(1, least)):
            return None
        return f"spread evenly up to your own save at step {own}, and no newer directive"

    def _counts_from_newest(self, directive: Insurance) -> bool:
        """False for one that the master made before it knew of the newest save."""
        return directive.at_step > max(self.saved_step, self._spent)

    @property
    def _spreads(self) -> bool:
        return self.params.policy == "notice-aware"

    def _switched_off(self) -> bool:
        """`none` never insures; `thesis` does not where the notice suffices (chapter 4: insurance
        is off when T + delta + beta < G). Even against a directive: it may be an old one."""
        if self.params.policy == "none":
            return True
        return self.params.policy == "thesis" and self._known and self._fits(self.params.grace_s)[0]

    def at_notice(self, event: str, deadline: float, *, now: float) -> AtNotice:
        """Ask for an emergency save at once, even where it is not expected to fit: the chain makes
        a late one harmless. (Policy `thesis` does not: algorithm 1 saves only where it fits.) A
        second notice while one is being asked for changes nothing."""
        fits, reason = self._fits(deadline - now)
        if self.params.policy == "thesis" and self._known and not fits:
            return AtNotice(ask=None, fits=False, reason=f"policy thesis asks for none: {reason}")
        if self.pending is not None and self.pending.kind is SaveKind.EMERGENCY:
            return AtNotice(ask=None, fits=fits, reason=f"already asked for; {reason}")
        ask = self._ask(SaveKind.EMERGENCY, now, deadline=deadline, reason=f"notice {event}")
        self.asked_late = False
        return AtNotice(ask=ask, fits=fits, reason=reason)

    def late(self, by: float, *, deadline: float, now: float, uploading: bool) -> Ask | None:
        """One more emergency save, as late as it fits `by` a moment: training went on after the
        first one, whose time is known by now. Only where that was longer than the save takes."""
        if self.asked_late or self.pending is not None or uploading or self.step is None:
            return None
        need_s = self._last_save_s
        fits = need_s < by - now <= LATE * need_s + LATE_S
        if not fits or self.step <= self.emergency_step or now - self.emergency_at <= need_s:
            return None
        self.asked_late = True
        reason = f"{deadline - now:.1f} s to the deadline: what was trained since the last save"
        return self._ask(SaveKind.EMERGENCY, now, deadline=deadline, reason=reason)

    @property
    def _last_save_s(self) -> float:
        """From the request to the commit."""
        steps = self._margin() + 1 if self._together else 1
        return steps * self.step_s + self.takes_s + (self.backup_s or 0.0) + self.params.margin_s

    @property
    def takes_s(self) -> float:
        """One save in the process, at most where that is all that is known; 0 before any."""
        return (self.save_s if self.save_s is not None else self._save_at_most_s) or 0.0

    def last_save(
        self, reason: str, *, kind: SaveKind = SaveKind.INSURANCE, now: float
    ) -> Ask | None:
        """A save before the process is ended by us; None when one is being asked for."""
        if self.pending is not None and self.pending.kind in (kind, SaveKind.EMERGENCY):
            return None
        return self._ask(kind, now, deadline=None, reason=reason)

    def _fits(self, left_s: float) -> tuple[bool, str]:
        decision = emergency(self.measures(left_s))
        if self._known:
            return decision.fits, decision.reason
        most = self._save_at_most_s if self.save_s is None else None
        bound = f", but took at most {duration(most)}" if most is not None else ""
        return decision.fits, f"{decision.reason} (no save was measured yet{bound})"

    def measures(self, grace_s: float) -> Measures:
        """What this VM knows; M and R are the master's and play no part in the emergency rule."""
        return Measures(
            step_s=self.step_s,
            save_s=self.save_s or 0.0,
            backup_s=self.backup_s or 0.0,
            mttp_s=math.inf,
            restart_s=0.0,
            grace_s=max(grace_s, 0.0),
            margin_s=self.params.margin_s,
        )

    @property
    def _save_at_most_s(self) -> float | None:
        return min(self.save_bounds_s, default=None)

    @property
    def _known(self) -> bool:
        return self.save_s is not None and self.backup_s is not None

    @property
    def _static_every(self) -> int | None:
        return parse(self.params.policy)[1]

    @property
    def step_s(self) -> float:
        """Mean step time so far, or what earlier attempts measured."""
        if self._step_count:
            return self._step_sum / self._step_count
        return self.params.step_s or 0.0

    def _ask(self, kind: SaveKind, now: float, *, deadline: float | None, reason: str) -> Ask:
        at_step = None
        self.asked_at = now
        if self._together:
            at_step = (self.step or 0) + self._margin()
        self.pending = Ask(
            request=self._id(kind, now),
            kind=kind,
            at_step=at_step,
            deadline=deadline,
            reason=reason,
            ranks=self._asked_of() if self._together else (),
        )
        return self.pending

    @property
    def _together(self) -> bool:
        return len(self.ranks) > 1 or self.world > 1

    def _margin(self) -> int:
        return max(2, math.ceil(RANK_MARGIN_S / self.step_s) if self.step_s else 2)

    def _id(self, kind: SaveKind, now: float) -> str:
        """Never used twice in an attempt, not even by an agent that was started again."""
        return f"{kind.value}-{self.attempt}-{int(now * 1000)}"


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)
