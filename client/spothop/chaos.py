"""Failures injected at named points, never by sleeping: for tests of the programs themselves.

A program calls `reach(point)` where a failure would hurt most; a test says what happens there:
raise, end the process, or change what surrounds it. Without a plan, a point costs one lookup in an
empty dict. The names of the points are each program's own.

`from_text` reads plans for a real process from a setting: it kills or pauses itself, once per
directory, so that the program started again gets past the point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path

ACTIONS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP}
"""After `pause` the test that waits for the marker file does something, and sends SIGCONT."""


class Chaos:
    """What happens at which point; each plan is carried out once."""

    def __init__(self, points: Collection[str]) -> None:
        self._points = points
        self._plans: dict[str, tuple[Callable[[], None], int]] = {}

    def at(self, point: str, act: Callable[[], None], *, nth: int = 1) -> None:
        """Do this the `nth` time that the program reaches the point.

        Raises ValueError for a point that no code reaches, and for an `nth` below 1.
        """
        if point not in self._points:
            known = ", ".join(sorted(self._points))
            raise ValueError(f"no chaos point {point!r}; there are {known}")
        if nth < 1:
            raise ValueError(f"no chaos at time {nth} of {point!r}; they count from 1")
        self._plans[point] = (act, nth)

    def reach(self, point: str) -> None:
        act, left = self._plans.pop(point, (None, 0))
        if act is None:
            return
        if left > 1:
            self._plans[point] = (act, left - 1)
        else:
            act()


def from_text(
    text: str, directory: Path, points: Collection[str], *, program: str | None = None
) -> Chaos:
    """Read `<point>=<action>` or `<point>@<n>=<action>` (the n-th time), several with commas.

    With a `program`, entries begin with its name and a colon, and those of others are left alone.
    Each strikes once per `directory`, which gets a marker file `chaos.<point>`. Raises ValueError
    for an unknown point or action.
    """
    chaos = Chaos(points)
    prefix = "" if program is None else f"{program}:"
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if not entry.startswith(prefix):
            continue
        place, _, action = entry.removeprefix(prefix).partition("=")
        number = ACTIONS.get(action)
        if number is None:
            known = " and ".join(ACTIONS)
            raise ValueError(f"no chaos action {action!r} in {entry!r}; there are {known}")
        point, _, nth = place.partition("@")
        chaos.at(point, _once(number, directory / f"chaos.{point}"), nth=int(nth or 1))
    return chaos


def _once(number: signal.Signals, marker: Path) -> Callable[[], None]:
    def act() -> None:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), number)

    return act
