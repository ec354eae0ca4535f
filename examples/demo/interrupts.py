"""What Ctrl-C does: the first interrupts the demo, later ones never cut its cleanup short."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, kill, and a closed terminal."""


class Interrupts:
    """Inside the context the first signal raises KeyboardInterrupt; what follows is cleanup.

    Raised once at most: a cleanup that it hits in the middle can be run again, to its end. A signal
    that was ignored from the start (nohup, a background job) stays ignored.
    """

    def __init__(self) -> None:
        self._cleaning = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """From here on there is only cleanup left."""
        self._cleaning = True

    def _arrived(self, signum: int, frame: FrameType | None) -> None:
        if not self._cleaning:
            self._cleaning = True
            raise KeyboardInterrupt
