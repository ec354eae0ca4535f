"""Ships an attempt's log to the master, by offset, from a file that only grows.

The master names the offset that it wants next; whatever it has lost is sent again. At most one
chunk is in memory, and a pause after each full one leaves the line to the syncs and the backups.

A log that grows slowly rides in the syncs (`ride`), because a call of its own costs the master as
much as a sync does. It is sent by itself while somebody reads along, when more has come than rides
in one sync, and to a master that takes none with its syncs.

A log that is longer than its limit loses its beginning: a hole is left there (`wrapper.trim`), and
all offsets stay. What was lost before it was shipped is one line in the master's log, which says
how much. From there on the master's offsets and ours differ; `Gaps` knows by how much.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from pydantic import RootModel, ValidationError

from spothop.backoff import delay_s
from spothop.eventlog import AGENT_LINE
from spothop.wire import RIDE_BYTES
from spothop_agent.master_link import LinkError
from spothop_agent.paths import AgentPaths, write_atomic
from spothop_agent.wrapper import first_data, trim

CHUNK = 256 * 1024
LOOK_S = 0.5
"""How often a quiet log is looked at."""
FOLLOW_S = 2.0
"""At most so often it is sent by itself for somebody who reads along."""
FULL_CHUNK_PAUSE_S = 0.1
"""At most 2.5 MB/s."""
BACKOFF_CAP_S = 15.0

BOOT_BYTES = 64 * 1024
GAPS = 100
"""So many are remembered; a master that has lost more gets the rest as one gap."""

_log = logging.getLogger(__name__)

Send = Callable[[int, bytes], Awaitable[int]]
"""offset, chunk -> the offset that the master wants next; raises LinkError."""


def append_line(path: Path, text: str) -> None:
    """A line of ours in the job's own log. A disk that does not take it ends nothing: what counts
    is reported, too."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, f"{AGENT_LINE}{text}\n".encode(errors="replace"))
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("%s: %s; not written: %s", path, error, text)


def tell_boot(paths: AgentPaths, log: Path) -> None:
    """What the VM did before its agent ran becomes the beginning of its first attempt's log, once:
    the newest `BOOT_BYTES` of it."""
    told = paths.root / "boot.told"
    if told.exists() or not paths.boot_log.exists():
        return
    try:
        text = paths.boot_log.read_bytes()[-BOOT_BYTES:].decode(errors="replace")
        told.touch()
    except OSError as error:
        _log.warning("%s: %s", paths.boot_log, error)
        return
    append_line(log, f"\n{AGENT_LINE}".join(text.splitlines()))


class LogShipper:
    """One per attempt; it starts at 0 and lets the master say where to go on."""

    def __init__(self, path: Path, send: Send, rng: random.Random, *, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._gaps = Gaps(path.with_name("log.gaps"))
        self._send = send
        self._rng = rng
        self._offset = 0
        self._known = False
        """The master has named an offset since this agent started."""
        self._turn = asyncio.Lock()
        self._rides = False
        """In the syncs, of which this master takes it."""
        self._follow = False

    def ride(self) -> tuple[int, bytes] | None:
        """The offset and the bytes that go with the next sync. None: nothing, or they go by
        themselves."""
        if not self._rides or self._turn.locked() or self._backlog() > RIDE_BYTES:
            return None
        try:
            chunk = self._chunk(RIDE_BYTES) if self._known else b""
        except OSError as error:
            _log.debug("log of %s: %s", self._path.parent.name, error)
            return None
        return (self._offset, chunk) if chunk or not self._known else None

    def landed(self, next_offset: int | None, *, follow: bool) -> None:
        """What a sync's answer says of the log, whether any of it rode there or not."""
        self._rides, self._follow = True, follow
        if next_offset is not None:
            with suppress(OSError):  # of a log that is not there yet
                self._go_on_at(next_offset)

    def alight(self) -> None:
        """The syncs speak of another attempt from now on: what is left goes by itself."""
        self._rides = self._follow = False

    async def run(self) -> None:
        """Ship for ever; ends by cancellation."""
        failures = 0
        while True:
            try:
                self._trim()
                full = self._goes_by_itself() and await self.ship()
                failures = 0
                rest_s = FOLLOW_S if self._rides else LOOK_S
                await asyncio.sleep(FULL_CHUNK_PAUSE_S if full else rest_s)
            except (LinkError, OSError) as error:
                failures += 1
                _log.debug("log of %s: %s", self._path.parent.name, error)
                pause_s = delay_s(
                    failures, base_s=2 * LOOK_S, max_s=BACKOFF_CAP_S, jitter=self._rng.random()
                )
                await asyncio.sleep(max(pause_s, getattr(error, "retry_after_s", 0.0)))

    async def ship(self) -> bool:
        """Send the next chunk; True when there is more."""
        async with self._turn:
            chunk = self._chunk() if self._known else b""
            if self._known and not chunk:
                return False
            before, first = self._offset, not self._known
            end = self._go_on_at(await self._send(before, chunk))
            return first or before != self._offset < end

    def _goes_by_itself(self) -> bool:
        return not self._rides or self._follow or self._backlog() > RIDE_BYTES

    def _backlog(self) -> int:
        """Bytes that the master does not have yet."""
        try:
            return self._gaps.end(self._path.stat().st_size) - self._offset
        except OSError:
            return 0

    def _go_on_at(self, wanted: int) -> int:
        """A master may ask for what it has lost, but not for what is not there yet: the end."""
        end = self._gaps.end(self._path.stat().st_size)
        self._offset, self._known = min(wanted, end), True
        return end

    async def flush(self, within_s: float) -> None:
        """Send what there is; gives up when the master is away or the time is over."""
        try:
            await asyncio.wait_for(self._ship_all(), within_s)
        except (LinkError, OSError, asyncio.TimeoutError) as error:
            _log.info("log of %s is not complete yet: %r", self._path.parent.name, error)

    async def _ship_all(self) -> None:
        while True:
            try:
                if not await self.ship():
                    return
            except LinkError as error:
                if error.retry_after_s <= 0:
                    raise
                await asyncio.sleep(error.retry_after_s)  # the master wants it, but later

    def _trim(self) -> None:
        """The wrapper does that for the process; this is for what `setup:` prints."""
        with open(self._path, "r+b") as file:
            trim(file.fileno(), self._limit)

    def _chunk(self, most: int = CHUNK) -> bytes:
        """What comes at the offset that the master wants: of our log, or the line of a gap."""
        line, at = self._gaps.place(self._offset)
        if line:
            return line[:most]
        with open(self._path, "rb") as file:
            file.seek(at)
            data = file.read(most)
            # Looked at after the reading: it may have become a hole before.
            there = first_data(file.fileno(), at)
            if not data or there == at:
                return data
            file.seek(there)
            first_line = file.read(CHUNK).find(b"\n") + 1
        self._gaps.add(self._offset, there + first_line, lost=there + first_line - at)
        _log.warning("%s: %d bytes are lost", self._path, there + first_line - at)
        return self._gaps.place(self._offset)[0]


class Gaps:
    """What the master's log lacks of ours, by the master's offsets; kept in a file.

    Each is (the master's offset, ours behind the gap, the line that stands for it there).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gaps: list[tuple[int, int, str]] = []
        with suppress(OSError, ValidationError):
            self._gaps = _GapsFile.model_validate_json(path.read_bytes()).root

    def place(self, offset: int) -> tuple[bytes, int]:
        """What is to be sent at the master's `offset`: the rest of a line, or ours from there."""
        for at, ours, line in reversed(self._gaps):
            if at <= offset:
                text = line.encode()
                return text[offset - at :], ours + max(offset - at - len(text), 0)
        return b"", offset

    def end(self, size: int) -> int:
        """The master's offset behind the end of our log, which has this size."""
        if not self._gaps:
            return size
        at, ours, line = self._gaps[-1]
        return at + len(line.encode()) + size - ours

    def add(self, at: int, ours: int, *, lost: int) -> None:
        """At the master's offset `at` our log goes on at `ours`, which is behind all it had."""
        line = f"\nspothop: {lost} bytes of output are missing here: logs.max is reached\n"
        before = [gap for gap in self._gaps if gap[0] < at]
        self._gaps = [*before[1 - GAPS :], (at, ours, line)]
        with suppress(OSError):  # of a full disk; then only an agent that is started again errs
            write_atomic(self._path, _GapsFile(self._gaps).model_dump_json().encode())


class _GapsFile(RootModel[list[tuple[int, int, str]]]):
    pass
