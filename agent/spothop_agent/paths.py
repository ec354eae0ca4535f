"""Where everything lies on the VM's disk, and how a file there is replaced.

<agent dir>/state.json, spool/, reserve, lib/spothop -> the client package
<agent dir>/boot.log, boot.told   what was before the agent, and that the log of an attempt has it
<agent dir>/attempts/<n>/work/    the job's directory, or a link to
<agent dir>/work/                 it, where what `setup:` makes is kept (`environment`)
<agent dir>/attempts/<n>/run/     $SPOTHOP_RUN_DIR: pipes, outbox, exit.json
<agent dir>/attempts/<n>/staged.jsonl   what was fetched into work/, and how it looked
<agent dir>/staged/               what the attempt before had fetched, until the next one has all
<agent dir>/attempts/<n>/log      output of setup and of the process
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from spothop.training.pipes import open_fifo


@dataclass(frozen=True)
class AttemptPaths:
    """The run directory of one attempt."""

    root: Path

    @property
    def work(self) -> Path:
        """The job's directory."""
        place = self.root / "work"
        return Path(os.path.realpath(place)) if place.is_symlink() else place

    def share_work(self, place: Path) -> None:
        """Let the job's directory lie at `place` (absolute), which is the same for all attempts:
        what `setup:` makes may hold the path that it was made at."""
        link = self.root / "work"
        if not os.path.lexists(link):
            self.root.mkdir(parents=True, exist_ok=True)
            link.symlink_to(place)

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def outputs(self) -> Path:
        return self.work / "outputs"

    @property
    def up(self) -> Path:
        return self.run / "up"

    def down(self, pid: int) -> Path:
        return self.run / f"down.{pid}"

    @property
    def asked(self) -> Path:
        return self.run / "asked"

    @property
    def outbox(self) -> Path:
        return self.run / "outbox"

    @property
    def restored(self) -> Path:
        return self.run / "restored.json"

    @property
    def kept(self) -> Path:
        return self.run / "kept"

    @property
    def done(self) -> Path:
        return self.run / "done"

    def make(self) -> None:
        """Make the folders, and the pipe as long as there is room for it; the work directory
        appears only when the bundle is unpacked."""
        self.outbox.mkdir(parents=True, exist_ok=True)
        if not self.log.exists():  # a disk that has become read-only takes no touch
            self.log.touch()
        os.close(open_fifo(self.up))


@dataclass(frozen=True)
class AgentPaths:
    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def reserve(self) -> Path:
        return self.root / "reserve"

    @property
    def boot_log(self) -> Path:
        """What the VM's user data wrote before there was an agent."""
        return self.root / "boot.log"

    @property
    def staged(self) -> Path:
        return self.root / "staged"

    @property
    def lib(self) -> Path:
        return self.root / "lib"

    @property
    def work(self) -> Path:
        """Of whichever attempt shares it (`AttemptPaths.share_work`)."""
        return self.root / "work"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.root / "attempts" / str(number))


def write_atomic(path: Path, data: bytes, *, sync: bool = False, mode: int = 0o644) -> None:
    """Write aside, rename. Whoever reads `path` sees the old or the new content.

    Without `sync` the content survives the death of the process but not of the VM; that is enough
    for everything that is worth nothing without its VM, and a sync may block for seconds while a
    checkpoint is being written to the same disk. Raises OSError; `path` is then as it was.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()  # half of it takes room, and nobody else would remove it
        raise
