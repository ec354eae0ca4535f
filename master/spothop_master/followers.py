"""Who reads a job's log as it comes: only then its agents send it sooner than with their syncs."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

LASTING = timedelta(seconds=15)
"""After a look at a log: somebody who follows looks again before, and a page that shows it, too."""


class Followers:
    """Thread-safe; in memory, because an agent that does not know sends its log all the same."""

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}
        self._lock = threading.Lock()

    def looked(self, job_id: str, now: datetime) -> None:
        """Somebody read the job's log."""
        with self._lock:
            self._until = {k: until for k, until in self._until.items() if until > now}
            self._until[job_id] = now + LASTING

    def follow(self, job_id: str, now: datetime) -> bool:
        until = self._until.get(job_id)
        return until is not None and now < until
