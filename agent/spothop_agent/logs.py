"""Ships an attempt's log to the master, by offset, from a file that only grows.

The master names the offset that it wants next; whatever it has lost is sent again. At most one
chunk is in memory, and a pause after each full one leaves the line to the syncs and the backups.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from spothop.backoff import delay_s
from spothop_agent.master_link import LinkError

CHUNK = 256 * 1024
LOOK_S = 0.5
"""How often a quiet log is looked at."""
FULL_CHUNK_PAUSE_S = 0.1
"""At most 2.5 MB/s."""
BACKOFF_CAP_S = 15.0

_log = logging.getLogger(__name__)

Send = Callable[[int, bytes], Awaitable[int]]
"""offset, chunk -> the offset that the master wants next; raises LinkError."""


def append_line(path: Path, text: str) -> None:
    """A line of ours in the job's own log. A disk that does not take it ends nothing: what counts
    is reported, too."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, f"spothop: {text}\n".encode(errors="replace"))
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("%s: %s; not written: %s", path, error, text)


class LogShipper:
    """One per attempt; it starts at 0 and lets the master say where to go on."""

    def __init__(self, path: Path, send: Send, rng: random.Random) -> None:
        self._path = path
        self._send = send
        self._rng = rng
        self._offset = 0
        self._known = False
        """The master has named an offset since this agent started."""
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Ship for ever; ends by cancellation."""
        failures = 0
        while True:
            try:
                full = await self.ship()
                failures = 0
                await asyncio.sleep(FULL_CHUNK_PAUSE_S if full else LOOK_S)
            except (LinkError, OSError) as error:
                failures += 1
                _log.debug("log of %s: %s", self._path.parent.name, error)
                pause_s = delay_s(
                    failures, base_s=2 * LOOK_S, max_s=BACKOFF_CAP_S, jitter=self._rng.random()
                )
                await asyncio.sleep(pause_s)

    async def ship(self) -> bool:
        """Send the next chunk; True when there is more."""
        async with self._turn:
            chunk = self._chunk() if self._known else b""
            if self._known and not chunk:
                return False
            wanted = await self._send(self._offset, chunk)
            # A master may ask for what it has lost, but not for what is not there yet.
            self._offset = min(wanted, self._path.stat().st_size)
            first, self._known = not self._known, True
            return first or len(chunk) == CHUNK

    async def flush(self, within_s: float) -> None:
        """Send what there is; gives up when the master is away or the time is over."""
        try:
            await asyncio.wait_for(self._ship_all(), within_s)
        except (LinkError, OSError, asyncio.TimeoutError) as error:
            _log.info("log of %s is not complete yet: %r", self._path.parent.name, error)

    async def _ship_all(self) -> None:
        while await self.ship():
            pass

    def _chunk(self) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            return file.read(CHUNK)
