"""Named points at which a test may end or pause the agent; nothing happens there otherwise.

In order: before_fence, after_fence, before_restore, during_restore, after_restore, after_start,
before_upload, during_upload, after_upload, before_commit, after_commit, after_report (of a commit:
spooled, and the backup still lies in the outbox), after_exit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

POINTS = frozenset(
    {
        *("before_fence", "after_fence", "before_restore", "during_restore", "after_restore"),
        *("before_upload", "during_upload", "after_upload"),
        *("before_commit", "after_commit", "after_report"),
        *("after_start", "after_exit"),
    }
)

ACTIONS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP}


class Chaos:
    """Calls the hook set for a point when the agent reaches it."""

    def __init__(self) -> None:
        self._hooks: dict[str, Callable[[], None]] = {}

    def at(self, point: str, hook: Callable[[], None]) -> None:
        """Raises ValueError for a point that no code reaches."""
        if point not in POINTS:
            raise ValueError(f"no chaos point {point!r}; there are {', '.join(sorted(POINTS))}")
        self._hooks[point] = hook

    def reach(self, point: str) -> None:
        hook = self._hooks.get(point)
        if hook is not None:
            hook()


def from_text(text: str, directory: Path) -> Chaos:
    """Read `agent:<point>=<action>`, several with commas; entries of other programs are left alone.

    `kill` is SIGKILL, `pause` SIGSTOP: whoever waits for the marker file does something and sends
    SIGCONT. Each strikes once per agent directory, so that the restarted agent gets past the point.
    Raises ValueError for another action.
    """
    chaos = Chaos()
    for entry in filter(None, text.split(",")):
        program, _, rest = entry.strip().partition(":")
        if program != "agent":
            continue
        point, _, action = rest.partition("=")
        number = ACTIONS.get(action)
        if number is None:
            raise ValueError(f"no chaos action {action!r} in {entry!r}; there are kill and pause")
        chaos.at(point, _once(number, directory / f"chaos.{point}"))
    return chaos


def _once(number: signal.Signals, marker: Path) -> Callable[[], None]:
    def hook() -> None:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), number)

    return hook
