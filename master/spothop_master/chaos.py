"""Failures injected at named points, never by sleeping.

The loops call `reach(point)`; a test says what happens there: raise, kill the process, or change
the fake cloud. Without a plan, a point costs one look into an empty mapping.

The setting `chaos` (SPOTHOP_MASTER_CHAOS), such as `after_launch=kill,after_apply@2=kill`, does it
to a real master: the first, or the second, time it comes there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

POINTS = ("before_plan", "vm_row_committed", "after_launch", "after_apply", "after_terminate")


class Chaos:
    """What happens at which point; each plan is carried out once."""

    def __init__(self) -> None:
        self._plans: dict[str, Callable[[], None]] = {}

    def at(self, point: str, act: Callable[[], None]) -> None:
        """Raises ValueError for a point that no code reaches."""
        if point not in POINTS:
            raise ValueError(f"no chaos point {point!r}; there are {', '.join(POINTS)}")
        self._plans[point] = act

    def reach(self, point: str) -> None:
        act = self._plans.pop(point, None)
        if act is not None:
            act()


def from_text(text: str, directory: Path) -> Chaos:
    """Read `<point>=kill` or `<point>@<n>=kill` (the n-th time), several with commas.

    A kill happens once per directory, so that the restarted master gets past the point. Raises
    ValueError for an unknown point, and for another action than `kill`.
    """
    chaos = Chaos()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        place, _, action = entry.partition("=")
        point, _, times = place.partition("@")
        if action != "kill":
            raise ValueError(f"no chaos action {action!r} in {entry!r}; there is `kill`")
        _arm(chaos, point, int(times or 1), directory / f"chaos.{point}")
    return chaos


def _arm(chaos: Chaos, point: str, left: int, marker: Path) -> None:
    def act() -> None:
        if left > 1:
            _arm(chaos, point, left - 1, marker)
            return
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    chaos.at(point, act)
