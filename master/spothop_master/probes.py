"""Tries storages out while a user waits for the answer.

A storage may hang for minutes (a dead network disk, a firewall that drops packets). So each one is
tried in a thread of its own, which is waited for no longer than a deadline. A system call that
hangs cannot be ended; so there are only so many of them, and none keeps the master from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from spothop import storageoptions
from spothop.wire import StorageSpec

DEADLINE_S = 12.0
"""Well below what a client waits for an answer (`spothop.sdk.http.ANSWER_S`)."""
AT_ONCE = 8


class ProbeTimeout(Exception):
    """There was no answer in time, or too many others have none yet."""


class Probes:
    """`try_out(spec)` may block and raise; nothing of it runs in the caller's thread."""

    def __init__(
        self,
        try_out: Callable[[StorageSpec], None] | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        at_once: int = AT_ONCE,
    ) -> None:
        self._try_out = try_out or _try_out
        self._deadline_s = deadline_s
        self._slots = threading.BoundedSemaphore(at_once)

    def run(self, spec: StorageSpec) -> None:
        """Raises what `try_out` raises, a `StorageError`; and ProbeTimeout."""
        if not self._slots.acquire(timeout=self._deadline_s):
            raise ProbeTimeout("too many storages are being tried out already")
        answer: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                self._try_out(spec)
            except Exception as error:  # whatever it is: raised where it is waited for
                answer.put(error)
            else:
                answer.put(None)
            finally:
                self._slots.release()

        threading.Thread(target=work, name="probe", daemon=True).start()
        try:
            found = answer.get(timeout=self._deadline_s)
        except queue.Empty:
            raise ProbeTimeout(f"it did not answer within {self._deadline_s:.0f} s") from None
        if found is not None:
            raise found


def _try_out(spec: StorageSpec) -> None:
    from spothop.storage import open_store, probe  # obstore takes its time to load

    credentials = storageoptions.credentials_of(spec.url, spec.options)
    probe(open_store(spec, quick=True), credentials=credentials)
