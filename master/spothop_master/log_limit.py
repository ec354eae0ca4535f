"""A log that nobody can fill: of lines that are alike only so many a minute are written.

Whoever is not logged in may make us write a line for each connection; of an error in the event loop
there were a thousand traces a second, 255 MB of them.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

MOST = 20
"""Lines that are alike, in each window."""
WINDOW_S = 60.0
SHAPES = 10
"""Texts of one line of code that are told apart in a window; the rest of them are alike. Whoever
can choose the beginning of a text would otherwise have a new kind for each line."""
KINDS = 1000
"""Remembered; the one that was seen first is forgotten first."""


@dataclass
class _Window:
    since: float
    seen: int = 0
    shapes: set[str] = field(default_factory=set)
    """Only of a line of code as a whole."""


class LogLimit(logging.Filter):
    """For a handler. Lines are alike when the same line of code wrote them at the same level, with
    the same beginning."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: OrderedDict[tuple[str, int, int, str], _Window] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """The first line of a new window says how many the last one left out."""
        with self._lock:
            whole, _ = self._window(record, "")
            shape = str(record.msg)[:100]
            if shape not in whole.shapes and len(whole.shapes) >= SHAPES:
                shape = "..."
            whole.shapes.add(shape)
            window, left_out = self._window(record, shape)
            window.seen += 1
            written = window.seen <= MOST
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like this were left out)"
            record.args = None
        return written

    def _window(self, record: logging.LogRecord, shape: str) -> tuple[_Window, int]:
        """Of the text before values are put in (asyncio's handler has one line of code for all
        errors), and how many lines the one before it left out."""
        kind = (record.pathname, record.lineno, record.levelno, shape)
        window = self._windows.get(kind)
        if window is not None and 0 <= record.created - window.since < WINDOW_S:
            return window, 0
        left_out = max(0, window.seen - MOST) if window is not None else 0
        window = self._windows[kind] = _Window(record.created)
        self._windows.move_to_end(kind)
        if len(self._windows) > KINDS:
            self._windows.popitem(last=False)
        return window, left_out
