"""The agent's ends of the named pipes: reads `up`, writes `down.<process id>`. Never blocks."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from spothop.training.pipes import LineDecoder, encode, open_fifo, open_for_writing
from spothop_agent.paths import AttemptPaths

_log = logging.getLogger(__name__)

READ = 65536
WAITING = 64
"""Messages kept for a process whose pipe is full; older ones go, they are overtaken anyway."""


class Pipes:
    """`up` is one for all processes and stays open; an agent that is started again opens it anew
    and finds what nobody has read. Of `down` each process has its own, and holds it open; the agent
    opens it for each write, so that an end is noticed."""

    def __init__(self, paths: AttemptPaths, on_message: Callable[[dict[str, Any]], None]) -> None:
        self._paths = paths
        self._on_message = on_message
        self._decoder = LineDecoder()
        self._waiting: dict[int, list[bytes]] = {}
        self._older: dict[int, int] = {}  # process id -> rank of those that have `down.<rank>`
        self._up = open_fifo(paths.up)
        asyncio.get_running_loop().add_reader(self._up, self.read)

    def read(self) -> None:
        """Take in what is there, at most one buffer: the loop calls again."""
        try:
            data = os.read(self._up, READ)
        except BlockingIOError:
            return
        for message in self._decoder.feed(data):
            self._on_message(message)

    def drain(self) -> None:
        """Take in all that is there; after the process has ended nothing more comes."""
        while True:
            try:
                data = os.read(self._up, READ)
            except BlockingIOError:
                return
            for message in self._decoder.feed(data):
                self._on_message(message)

    def meet(self, pid: int, rank: int) -> None:
        """A process whose client package is older than this agent listens at the pipe of its rank:
        training outlives an agent that is replaced by a newer one."""
        older = not self._paths.down(pid).exists() and self._paths.down(rank).exists()
        if older:
            self._older[pid] = rank

    def _down(self, pid: int) -> Path:
        return self._paths.down(self._older.get(pid, pid))

    def send(self, pids: Iterable[int], message: dict[str, Any]) -> None:
        """Send to each of these processes."""
        for pid in pids:
            waiting = self._waiting.setdefault(pid, [])
            waiting.append(encode({**message, "pid": pid}))
            del waiting[:-WAITING]
        self.flush()

    def flush(self) -> None:
        """Write what waits; called again after a while when a pipe is full."""
        for pid, waiting in [*self._waiting.items()]:
            if waiting and not self._write(pid, waiting):
                del self._waiting[pid]

    def _write(self, pid: int, waiting: list[bytes]) -> bool:
        """False where that process has ended: what waits for it is for nobody."""
        try:
            descriptor = open_for_writing(self._down(pid))
        except OSError as error:  # no file handle left: the next flush tries again
            _log.warning("down.%d cannot be opened: %s", pid, error)
            return True
        if descriptor is None:
            return False
        try:
            while waiting:
                os.write(descriptor, waiting[0])
                del waiting[0]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return False
        finally:
            os.close(descriptor)
        return True

    def lives(self, pid: int) -> bool:
        """Whether this process has its pipe open: the kernel closes it whatever ends the
        process, in any namespace, and no other process ever opens it."""
        try:
            descriptor = open_for_writing(self._down(pid))
        except OSError:  # no file handle left: that says nothing of the process
            return True
        if descriptor is None:
            return False
        os.close(descriptor)
        return True

    def forget(self, pid: int) -> None:
        """It has ended."""
        self._waiting.pop(pid, None)
        self._older.pop(pid, None)
        with suppress(OSError):  # gone, or on a disk that has become read-only
            self._paths.down(pid).unlink()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._up)
        os.close(self._up)
