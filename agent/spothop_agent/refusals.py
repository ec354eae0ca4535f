"""A store that refuses, or a disk that cannot be read: since when, how often, and what is told.

The payload is the only copy (I12), so no refusal gives a save up while the process trains: it is
told loudly at first, and again from time to time. A store that refuses for long after the end has
the last word, because a VM that only waits costs money for ever.
"""

from __future__ import annotations

import logging

from spothop.storage.errors import SourceUnreadable, StorageError
from spothop_agent.context import Context
from spothop_agent.retry import in_words

FINAL_AFTER_S = 300.0
"""A store that refuses for so long after the process has ended has the last word: the save is
given up, and the job is no success. While the process trains, no refusal gives a save up."""
REMIND_EVERY_S = 600.0
"""A refusal that lasts is told again."""


_log = logging.getLogger(__name__)


class Refusals:
    """All since the last commit."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._since: float | None = None
        self._reminded_at = 0.0
        self._told: set[str] = set()  # ids of saves
        self.count = 0
        """In a row."""
        self.trouble = ""
        """The last error, while nothing goes through."""
        self.failing_since: float | None = None
        """When that began."""
        self.draining_at: float | None = None
        """When the process ended."""

    def clear(self) -> None:
        """A save was committed."""
        self._since, self.count, self.trouble = None, 0, ""
        self.failing_since = None

    def failed(self, error: Exception) -> None:
        """Nothing goes through: of whatever kind, and perhaps for a moment only."""
        self.trouble = in_words(error)
        if self.failing_since is None:
            self.failing_since = self._context.now()

    def is_final(self, error: Exception, *, of: str) -> bool:
        """Whether to give up the save `of` this id now; tells the user what the store or the disk
        says, first and then from time to time. Others may be committed between."""
        now, text = self._context.now(), in_words(error)
        self.failed(error)
        if not isinstance(error, (StorageError, OSError)):
            _log.error("backup %s", of, exc_info=error)
        if self._since is None:
            self._since = now
            if of not in self._told:
                self._reminded_at = -REMIND_EVERY_S
        over_at = self.draining_at
        if over_at is not None and now - max(self._since, over_at) >= FINAL_AFTER_S:
            return True
        if now - self._reminded_at >= REMIND_EVERY_S:
            self._reminded_at = now
            self._told.add(of)
            self._context.tell_user(
                f"{_what(error)}: {text}; it is kept on this VM and tried again, but a preemption"
                " now would lose it",
                level="error",
            )
        return False


def _what(error: Exception) -> str:
    if isinstance(error, (SourceUnreadable, OSError)):
        return "a save cannot be read"
    if isinstance(error, StorageError):
        return "the storage refuses this job's saves"
    return "a save cannot be backed up"
