"""A training process that a test plays: what it says in the pipe, hears, saves, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spothop.training.pipes import LineDecoder, encode, open_fifo
from spothop.wire import SaveKind
from spothop_agent.paths import AttemptPaths
from spothop_agent.process import Exit

PID = 4711


class ScriptedProcess:
    """A `TrainingProcess`. `dies_of` says which signals end it; `clock` is CLOCK_MONOTONIC."""

    def __init__(self, paths: AttemptPaths, clock: Callable[[], float]) -> None:
        self._paths = paths
        self._clock = clock
        self._decoder: dict[int, LineDecoder] = {}
        self._descriptors: dict[Path, int] = {}
        self._finalizers: dict[Path, weakref.finalize[..., ScriptedProcess]] = {}
        self._backups = 0
        self.pid: int | None = None
        self.ended: Exit | None = None
        self.starts: list[tuple[str, dict[str, str]]] = []
        self.fails_to_start: OSError | None = None
        self.signals: list[tuple[float, signal.Signals]] = []
        self.dies_of = {signal.SIGTERM, signal.SIGKILL}
        self.killed_by_kernel: int | None = 0
        self.used_s = 0.0
        """CPU time so far."""

    # --- what the agent asks --------------------------------------------------------------------

    def start(self, command: str, env: dict[str, str]) -> None:
        if self.fails_to_start is not None:
            raise self.fails_to_start
        self.starts.append((command, env))
        self.pid = PID

    def exit(self) -> Exit | None:
        return self.ended

    def signal(self, number: signal.Signals) -> None:
        self.signals.append((self._clock(), number))
        if number in self.dies_of:
            self.end(Exit(code=None, signal=number))

    def give_up(self) -> None:
        self.end(Exit(code=None, signal=None, message="given up", left=(PID,)))

    def cpu_s(self) -> dict[int, float]:
        return {PID: self.used_s}

    def oom_kills(self) -> int | None:
        return self.killed_by_kernel

    # --- what the process does ------------------------------------------------------------------

    def say(self, t: str, *, rank: int = 0, pid: int = PID, **fields: Any) -> None:
        """Write one message into the up pipe; from the first one on its own pipe is open."""
        self._open(self._paths.down(pid))
        self.say_raw(encode({"t": t, "rank": rank, "pid": pid, **fields}))

    def say_raw(self, data: bytes) -> None:
        os.write(self._open(self._paths.up), data)

    def _open(self, path: Path) -> int:
        """Both ends stay open as long as the process lives: what nobody has read waits."""
        if path not in self._descriptors:
            descriptor = self._descriptors[path] = open_fifo(path)
            self._finalizers[path] = weakref.finalize(self, os.close, descriptor)
        return self._descriptors[path]

    def steps(self, step: int, *, count: int = 1, step_s: float = 0.1) -> None:
        self.say("steps", step=step, count=count, step_s=step_s, load_s=0.0)

    def gone(self, pid: int) -> None:
        """One of its processes has ended."""
        self._finalizers.pop(self._paths.down(pid))()
        del self._descriptors[self._paths.down(pid)]

    def heard(self, pid: int = PID) -> list[dict[str, Any]]:
        """What came down the pipe since the last look."""
        descriptor = self._open(self._paths.down(pid))
        decoder = self._decoder.setdefault(pid, LineDecoder())
        messages: list[dict[str, Any]] = []
        try:
            while True:
                messages += decoder.feed(os.read(descriptor, 65536))
        except BlockingIOError:
            return messages

    def hand_over(
        self,
        step: int,
        kind: SaveKind = SaveKind.PERIODIC,
        *,
        request: str | None = None,
        part: tuple[int, int] | None = None,
        pid: int = PID,
    ) -> str:
        """Publish a backup in the outbox, as `sp.backup()` does, and ring the bell."""
        self._backups += 1
        name = f"{self._backups:020d}-{pid}"
        folder = self._paths.outbox / f".tmp-{name}"
        (folder / "payload").mkdir(parents=True)
        text = "data" if part is None else f"shard {part[0]} of step {step}"
        (folder / "payload" / "c").write_text(text)
        meta = {"v": 1, "id": name, "name": "c", "path": "c", "is_dir": False, "step": step}
        meta |= {"kind": kind.value, "request": request, "delta_s": 0.1, "mono": self._clock()}
        if part is not None:
            meta |= {"part": part[0], "parts": part[1]}
        (folder / "meta.json").write_text(json.dumps(meta))
        folder.rename(self._paths.outbox / name)
        self.say("backup", id=name)
        return name

    def end(self, ended: Exit) -> None:
        if self.ended is None:
            self.ended = ended
