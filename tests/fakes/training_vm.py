"""What a training process sees of its VM: run and job directory, the agent's ends of the pipes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from spothop.training import pipes
from spothop.training.session import Session


class Clock:
    """Stands still until it is told to move; seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


class Vm:
    """A run directory, a job directory, and the agent's ends of the pipes."""

    def __init__(self, root: Path) -> None:
        self.run = root / "run"
        self.work = root / "work"
        self.outbox = self.run / "outbox"
        self.outbox.mkdir(parents=True)
        self.work.mkdir()
        self.clock = Clock()
        self.up = pipes.open_fifo(self.run / "up")
        self._down: dict[int, int] = {}
        self._sessions: list[Session] = []
        self._decoder = pipes.LineDecoder()

    def session(self, rank: int = 0, **options: Any) -> Session:
        """Each rank as a process of its own."""
        pid = os.getpid() + rank
        if rank not in self._down:
            self._down[rank] = pipes.open_fifo(self.run / f"down.{pid}")
        session = Session(
            str(self.run), job_dir=str(self.work), rank=rank, pid=pid, clock=self.clock, **options
        )
        self._sessions.append(session)
        return session

    def close(self) -> None:
        for session in self._sessions:
            session.after_fork()
        for fd in (self.up, *self._down.values()):
            os.close(fd)

    def received(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What came up since the last call, without the stamp."""
        messages = []
        try:
            while data := os.read(self.up, 65536):
                messages += self._decoder.feed(data)
        except BlockingIOError:
            pass
        assert self._decoder.garbage == 0
        stamps = {(msg.pop("rank"), msg.pop("pid")) for msg in messages}
        assert all(pid == os.getpid() + rank for rank, pid in stamps)
        return [msg for msg in messages if kind in (None, msg["t"])]

    def say(self, rank: int = 0, **msg: Any) -> None:
        os.write(self._down[rank], pipes.encode({"pid": os.getpid() + rank, **msg}))
        self.clock.move(0.01)  # past the limit on polling

    def want(
        self,
        request: str,
        kind: str = "insurance",
        at_step: int | None = None,
        rank: int = 0,
        ranks: tuple[int, ...] = (),
    ) -> None:
        """`ranks`: who is asked together."""
        pids = [os.getpid() + each for each in ranks]
        self.say(
            rank,
            t="save",
            request=request,
            kind=kind,
            at_step=at_step,
            deadline=None,
            ranks=pids,
        )

    def fill(self) -> None:
        """Nobody reads: the up pipe is full."""
        try:
            while True:
                os.write(self.up, b'{"t":"noise","rank":9,"pid":%d}\n' % (os.getpid() + 9))
        except BlockingIOError:
            pass

    def save(self, name: str = "ckpt.pt", text: str = "weights") -> Path:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def published(self) -> list[dict[str, Any]]:
        return [
            json.loads((folder / "meta.json").read_text())
            for folder in sorted(self.outbox.iterdir())
            if not folder.name.startswith(".")
        ]


def run_steps(vm: Vm, session: Session, count: int, seconds: float = 0.2) -> None:
    for _ in range(count):
        with session.step_context():
            vm.clock.move(seconds)
