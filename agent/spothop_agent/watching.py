"""Watches the training process: does it hang, and does anything protect its work?

Both are judged by pure rules (`hang`, `protection`) from what the process says and what becomes of
its saves. Nothing is judged while the process is being ended, and after a notice: then all that can
be done is being done.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import assert_never

from spothop.wire import ProtectionReport, Unprotected
from spothop_agent.context import Context
from spothop_agent.hang import Hang
from spothop_agent.protection import Protection
from spothop_agent.saves import Saves
from spothop_agent.state import Phase


class Watch:
    """One per attempt; `on_hang` gets the reason, once."""

    def __init__(self, context: Context, saves: Saves, on_hang: Callable[[str], None]) -> None:
        now, state, assignment = context.now(), context.state, context.assignment
        self._context = context
        self._saves = saves
        self._on_hang = on_hang
        # An agent that is started again hears neither the hello nor the first step.
        trained = bool(state.training)
        self._hang = Hang(
            after_s=assignment.hang_after_s,
            heard_at=now,
            hangs=assignment.hangs,
            began=trained,
            done=context.paths.done.exists(),
        )
        self._protection = Protection(
            after_s=assignment.unprotected_after_s,
            started_at=now,
            heard=bool(state.processes),
            trains_since=now if trained else None,
            checked=state.checked,
        )
        self._inherited = state.unprotected
        self._before = (saves.saved_step, state.committed_n)

    def heard(self, kind: str) -> None:
        """A message of the process, of this kind."""
        now = self._context.now()
        self._hang.heard(now, kind)
        self._protection.heard_of(kind, now)
        if self._protection.checked and not self._context.state.checked:
            self._context.state_file.set(checked=True)

    def restarted(self) -> None:
        """The process, or the script inside it, begins."""
        now = self._context.now()
        self._hang.restarted(now)
        self._protection.restarted(now)
        if self._context.state.checked:
            self._context.state_file.set(checked=False)

    def look(self, trouble: tuple[float | None, str]) -> None:
        """Called several times a second; `trouble` is that of the backups."""
        state = self._context.state
        self._hang.step_s = self._saves.step_s
        reason = self._hang.judge(self._context.now())
        if state.phase is not Phase.STARTED or state.stop is not None or state.notice is not None:
            return
        self._look_for_protection(trouble)
        if reason is not None:
            self._context.state_file.set(hung=True)
            if self._hang.done:
                self._context.tell_user(reason, level="warning")
            else:
                self._context.tell_user(f"the script hangs: {reason}", level="error")
            self._on_hang(reason)

    def _look_for_protection(self, trouble: tuple[float | None, str]) -> None:
        """Tell of a change, once."""
        now, saves = self._context.now(), self._saves
        self._protection.asks(saves.pending is not None or saves.unanswered > 0, now)
        found = self._protection.judge(
            now,
            failing_since=trouble[0],
            trouble=trouble[1],
            step_s=saves.step_s,
            save_s=saves.save_s or 0.0,
        )
        if found is not None or self._is_mended():
            self._inherited = None
        cause = found.cause if found is not None else self._inherited
        if cause is self._context.state.unprotected:
            return
        self._context.state_file.set(unprotected=cause)
        reason = found.reason if found is not None else ""
        self._context.report(ProtectionReport(cause=cause, reason=reason), urgent=True)
        self._context.note(f"unprotected: {reason}" if reason else "no longer unprotected")

    def _is_mended(self) -> bool:
        """What the agent before us told holds until the opposite is seen: our times began anew."""
        protection = self._protection
        match self._inherited:
            case None:
                return True
            case Unprotected.NO_CALLS:
                return protection.heard
            case Unprotected.NO_CHECK:
                return protection.checked
            case Unprotected.NO_SAVE:
                return self._saves.saved_step != self._before[0]
            case Unprotected.STORAGE:
                return self._context.state.committed_n != self._before[1]
            case _:
                assert_never(self._inherited)
