"""The training process's end of the pipes: messages up that never wait, messages down if any.

Nothing here blocks. Control messages queue (bounded, the oldest go first) while the pipe is full,
and are tried again with every later call. No thread waits for the lock: one that finds it taken
leaves its message in the queue for the thread that holds it. Standard library only: imported by
every script.
"""

from __future__ import annotations

import os
import select
from _thread import allocate_lock
from collections import deque

from spothop.training import pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

QUEUE = 256
"""Control messages kept while the pipe is full."""
READ_SIZE = 65536


class Channel:
    """Pipe `up` of a run directory, and `down.<process id>`; made when missing. The agent sees by
    the open end of the latter that this process lives."""

    __slots__ = ("_decoder", "_down", "_lock", "_poller", "_queue", "_stamp", "_up", "pid")

    def __init__(self, *, rank: int, pid: int) -> None:
        self.pid = pid
        self._stamp: dict[str, Any] = {"rank": rank, "pid": pid}
        self._queue: deque[bytes] = deque(maxlen=QUEUE)
        self._lock = allocate_lock()
        self._decoder = pipes.LineDecoder()
        self._poller: select.poll | None = None  # made with the pipes: Windows has none
        self._up = self._down = -1

    def open(self, run_dir: str) -> None:
        """Open both pipes and drain `down`: what lies there was for an earlier process.

        Raises OSError; the channel keeps what it could open, and is idle in the other direction.
        """
        self._up = pipes.open_fifo(os.path.join(run_dir, "up"))
        self._down = pipes.open_fifo(os.path.join(run_dir, f"down.{self.pid}"))
        poller = self._poller = select.poll()
        poller.register(self._down, select.POLLIN)
        while poller.poll(0):
            os.read(self._down, READ_SIZE)

    def send(self, msg: dict[str, Any]) -> None:
        """Queue a control message and send what the pipe takes."""
        self._queue.append(pipes.encode(msg | self._stamp))
        self.flush()

    def offer(self, msg: dict[str, Any]) -> bool:
        """Send now or not at all, behind the queue; False when the pipe is full.

        Raises MessageTooLong.
        """
        line = pipes.encode(msg | self._stamp)
        return self.flush() and self._write(line)

    def flush(self) -> bool:
        """Send what is queued; True when nothing is left."""
        if not self._queue:
            return True
        if not self._lock.acquire(False):
            return False
        try:
            while self._queue and self._write(self._queue[0]):
                self._queue.popleft()
            return not self._queue
        finally:
            self._lock.release()

    def receive(self) -> list[dict[str, Any]]:
        """Messages for this process that have arrived; a quarter of a microsecond if none."""
        if self._poller is None or not self._poller.poll(0) or not self._lock.acquire(False):
            return []
        try:
            messages = self._decoder.feed(os.read(self._down, READ_SIZE))
        except OSError:  # another reader was quicker
            return []
        finally:
            self._lock.release()
        return [msg for msg in messages if msg.get("pid") == self.pid]

    def close(self) -> None:
        """Close both pipes; sends fail and nothing arrives from here on."""
        for fd in (self._up, self._down):
            if fd >= 0:
                os.close(fd)
        self._up = self._down = -1
        self._poller = None

    def _write(self, line: bytes) -> bool:
        try:
            os.write(self._up, line)
        except OSError:  # full, or there is none
            return False
        return True
