"""How long steps and the loading of data between them take, and how long the first step waited.

A phase ends where the next one begins: starting at the first enter; data loading runs from an exit
to the next enter, less the saves in between. Times are CLOCK_MONOTONIC, seconds. Standard library
only: imported by every script.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class StepTimes:
    """Times of the steps since the last report."""

    __slots__ = (
        "_began_at",
        "_count",
        "_entered_at",
        "_excluded_s",
        "_in_steps_s",
        "_loading_s",
        "exited_at",
        "save_from",
        "started",
    )

    def __init__(self, began_at: float, *, now: float) -> None:
        """`began_at`: when the process, and with it its starting phase, began."""
        self._began_at = began_at
        self._entered_at: float | None = None  # None outside a step
        self._excluded_s = 0.0  # saves since the last exit: they are not data loading
        self._count = 0
        self._in_steps_s = self._loading_s = 0.0
        self.exited_at = now
        self.save_from = now
        """A periodic save that is handed over now began here at the earliest."""
        self.started = False
        """The first step was entered."""

    def enter(self, now: float, asked_at: float) -> float | None:
        """A step begins; returns the seconds of the starting phase at the first one.

        `asked_at`: when check_save() was true without a backup since.
        """
        self._entered_at = now
        if not self.started:
            self.started = True
            self._excluded_s = 0.0
            return now - self._began_at
        if asked_at > self.exited_at:  # asked to save, but another rank does it
            self._loading_s += asked_at - self.exited_at
        else:
            self._loading_s += now - self.exited_at - self._excluded_s
        self._excluded_s = 0.0
        return None

    def exit(self, now: float) -> None:
        """A step is completed. Raises RuntimeError where none was entered."""
        if self._entered_at is None:
            raise RuntimeError("exit_step() without enter_step(); or use `with step_context():`")
        self._count += 1
        self._in_steps_s += now - self._entered_at
        self._entered_at = None
        self.exited_at = self.save_from = now

    def saved(self, began: float, ended: float) -> None:
        """A save ran from `began` until it was handed over."""
        self._excluded_s += ended - max(began, self.exited_at)
        self.save_from = ended

    def message(self, step: int) -> dict[str, Any] | None:
        """What goes up: means over the steps since `clear()`; None where there was no step."""
        if not self._count:
            return None
        return {
            "t": "steps",
            "step": step,
            "count": self._count,
            "step_s": round(self._in_steps_s / self._count, 9),
            "load_s": round(max(0.0, self._loading_s) / self._count, 9),
        }

    def clear(self) -> None:
        self._count = 0
        self._in_steps_s = self._loading_s = 0.0
