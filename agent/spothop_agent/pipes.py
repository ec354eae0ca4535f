"""The agent's ends of the named pipes: reads `up`, writes `down.<rank>`. Never blocks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from spothop.training.pipes import LineDecoder, encode, open_fifo
from spothop_agent.paths import AttemptPaths

READ = 65536
WAITING = 64
"""Messages kept for a rank whose pipe is full; older ones go, they are overtaken anyway."""


class Pipes:
    """Both ends stay open over the life of the process; an agent that is started again opens them
    anew and finds in `up` what nobody has read."""

    def __init__(self, paths: AttemptPaths, on_message: Callable[[dict[str, Any]], None]) -> None:
        self._paths = paths
        self._on_message = on_message
        self._decoder = LineDecoder()
        self._down: dict[int, int] = {}
        self._waiting: dict[int, list[bytes]] = {}
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

    def send(self, ranks: dict[int, int], message: dict[str, Any]) -> None:
        """Send to each rank, with its process id."""
        for rank, pid in ranks.items():
            waiting = self._waiting.setdefault(rank, [])
            waiting.append(encode({**message, "pid": pid}))
            del waiting[:-WAITING]
        self.flush()

    def flush(self) -> None:
        """Write what waits; called again after a while when a pipe is full."""
        for rank, waiting in self._waiting.items():
            while waiting:
                try:
                    os.write(self._descriptor(rank), waiting[0])
                except BlockingIOError:
                    break
                del waiting[0]

    def _descriptor(self, rank: int) -> int:
        if rank not in self._down:
            self._down[rank] = open_fifo(self._paths.down(rank))
        return self._down[rank]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._up)
        for descriptor in (self._up, *self._down.values()):
            os.close(descriptor)
