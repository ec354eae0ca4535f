"""The training process as the agent sees it: through its wrapper's files, lock and process ids.

An agent may die while training is well, and the next one is not the parent of the process: it
cannot wait for it, and a process id alone proves nothing, because ids are used again. Two rules:

1. The wrapper's lock says whether the run is alive: the kernel frees it whatever kills the
   wrapper.
2. `exit.json` says how it ended, and it is there before the lock is free. A free lock without it
   means that the wrapper was killed, and that the status is unknown.
3. The end is told only when nothing of the attempt lives any more (`process_tree`). What does not
   end although it is killed is given up after a bound, and named.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spothop_agent import process_tree, wrapper
from spothop_agent.paths import AttemptPaths
from spothop_agent.reserve import MakeRoom, no_room, with_room
from spothop_agent.use import cpu_s

KILLED_CODE = 128 + signal.SIGKILL
"""What a shell makes of a child that got SIGKILL (POSIX, 2.8.2)."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How the process ended; neither code nor signal when the wrapper itself was killed."""

    code: int | None
    signal: int | None
    message: str = ""
    """What it said last, where it failed; or why nothing is known."""
    left: tuple[int, ...] = ()
    """Process ids that live on although they were killed."""

    @property
    def killed(self) -> bool:
        return self.signal == signal.SIGKILL or self.code == KILLED_CODE


class TrainingProcess(Protocol):
    """One per attempt. Every method may be called by an agent that did not start the process."""

    @property
    def pid(self) -> int | None:
        """The process id of the command's shell; None as long as it does not run."""

    def start(self, command: str, env: dict[str, str]) -> None:
        """Harmless when there is, or was, one. Raises OSError when it cannot be started."""

    def exit(self) -> Exit | None:
        """How it ended; None while it runs, or while its wrapper has not ended yet."""

    def signal(self, number: signal.Signals) -> None:
        """Send to the process's whole group."""

    def give_up(self) -> None:
        """It does not end although it was killed: from now on `exit` says so."""

    def oom_kills(self) -> int | None:
        """How often the kernel's out-of-memory killer has struck so far; None when it is silent."""

    def cpu_s(self) -> dict[int, float]:
        """CPU time of each of its processes that lives, by id; walks through /proc."""


class Process:
    """The real one, through its wrapper."""

    def __init__(
        self,
        paths: AttemptPaths,
        *,
        log_max: int,
        make_room: MakeRoom = no_room,
        subreaper: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`subreaper`: this process adopts orphans, and all below it is of the attempt."""
        self._paths = paths
        self._subreaper = subreaper
        self._clock = clock
        self._ending_since: float | None = None
        self._given_up = False
        self._log_max = log_max
        self._make_room = make_room
        self._wrapper: subprocess.Popen[bytes] | None = None

    def start(self, command: str, env: dict[str, str]) -> None:
        """Start the wrapper, in its own session so that it outlives the agent. Harmless when there
        is, or was, one."""
        paths = self._paths
        group = ""
        if not (paths.run / wrapper.PID).exists():
            with_room(lambda: wrapper.allocate(paths.run), self._make_room)
            group = process_tree.make_group(paths.run)
        arguments = [*map(str, (paths.run, paths.work, paths.log, self._log_max)), group, command]
        # A SIGTERM before the wrapper is ready waits until it is: a mask is inherited.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            with open(paths.log, "ab") as log:
                # -I and -S: nothing of the job's environment reaches the wrapper's own imports.
                self._wrapper = subprocess.Popen(
                    [sys.executable, "-I", "-S", wrapper.__file__, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def pid(self) -> int | None:
        """The process id of the command's shell; None as long as it does not run."""
        content = self._read(wrapper.PID)
        return None if content is None else int(content["pid"])

    def exit(self) -> Exit | None:
        """How it ended; None while it runs, or while its wrapper has not ended yet."""
        if self._wrapper_lives():
            return self._abandoned() if self._given_up else None
        left = self._end_rest()
        if left and not self._patience_is_over():
            return None
        content = self._read(wrapper.EXIT)
        if content is not None:
            words = str(content.get("last_words", ""))
            return Exit(code=content["code"], signal=content["signal"], message=words, left=left)
        message = "the wrapper of the training process was killed, so its status is unknown"
        return Exit(code=None, signal=None, message=message, left=left)

    def give_up(self) -> None:
        self._given_up = True

    def _abandoned(self) -> Exit:
        own = (self._read(wrapper.PID) or {}).get("wrapper")
        left = tuple(seen.pid for seen in self._rest() if seen.pid != own)
        message = "the training process does not end although it was killed, and is given up"
        return Exit(code=None, signal=None, message=message, left=left)

    def cpu_s(self) -> dict[int, float]:
        return cpu_s(seen.pid for seen in self._rest())

    def _rest(self) -> list[process_tree.Seen]:
        below = os.getpid() if self._subreaper else None
        return process_tree.of_attempt(self._paths.run, self._read(wrapper.PID), below=below)

    def _end_rest(self) -> tuple[int, ...]:
        """Kill what is left, and say what that was; called until there is nothing, so that nobody
        waits here for what may never end."""
        group = process_tree.group_of(self._read(wrapper.PID))
        if not (rest := self._rest()):
            wrapper.remove_group(group)
            return ()
        process_tree.end_group(group)
        for seen in rest:
            process_tree.kill(seen)
        if self._subreaper:
            process_tree.reap(but=self._wrapper.pid if self._wrapper is not None else None)
        return tuple(seen.pid for seen in rest)

    def _patience_is_over(self) -> bool:
        now = self._clock()
        if self._ending_since is None:
            self._ending_since = now
        return now - self._ending_since > wrapper.GIVE_UP_S

    def signal(self, number: signal.Signals) -> None:
        """Send to the process's whole group; to its wrapper as long as there is none."""
        content = self._read(wrapper.PID)
        if content is None:
            if self._wrapper is not None:
                self._wrapper.send_signal(number)
        elif process_tree.leader(content) is not None:  # else the id may be somebody else's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(content["pgid"]), number)

    def oom_kills(self) -> int | None:
        return oom_kills()

    def _wrapper_lives(self) -> bool:
        if self._wrapper is not None and self._wrapper.poll() is None:
            return True
        # Not ours, or ours found another one at work.
        try:
            descriptor = os.open(self._paths.run / wrapper.LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            # Two agents may have allocated it: what lies behind the record is no part of it.
            content = json.loads((self._paths.run / name).read_text().rstrip("\0"))
        except FileNotFoundError:
            return None
        return content if isinstance(content, dict) else None


def oom_kills() -> int | None:
    """How often the kernel's out-of-memory killer has struck in our control group, or on this VM
    where groups do not count it; None when the kernel tells neither."""
    for path in (_memory_events(), Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return None


def _memory_events() -> Path:
    """`memory.events` of our group (cgroup v2); a path that is not there without one."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup") / line[3:].lstrip("/") / "memory.events"
    return Path("/sys/fs/cgroup/memory.events")


def environment(
    base: dict[str, str],
    extra: dict[str, str],
    *,
    paths: AttemptPaths,
    job: str,
    attempt: int,
    lib: Path,
) -> dict[str, str]:
    """What setup and process get: the VM's environment without our own settings, the agent's
    interpreter first on PATH, the client package importable, the job's `env`, and our variables."""
    env = {name: value for name, value in base.items() if not name.startswith("SPOTHOP_")}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env |= extra
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH", ""), str(lib)]))
    env |= {
        "PYTHONUNBUFFERED": env.get("PYTHONUNBUFFERED", "1"),  # the log is read while it runs
        "SPOTHOP_RUN_DIR": str(paths.run),
        "SPOTHOP_JOB_DIR": str(paths.work),
        "SPOTHOP_JOB": job,
        "SPOTHOP_ATTEMPT": str(attempt),
        "SPOTHOP_OUTPUTS": str(paths.outputs),
    }
    return env


def link_client(lib: Path, package: Path) -> None:
    """Make `lib/spothop` point at the client package, and at nothing else beside it."""
    lib.mkdir(parents=True, exist_ok=True)
    link = lib / "spothop"
    if not link.is_symlink():
        with contextlib.suppress(FileExistsError):
            link.symlink_to(package, target_is_directory=True)
