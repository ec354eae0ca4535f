"""Runs the training process and records how it ended: `wrapper.py RUN_DIR WORK_DIR COMMAND`.

A program of its own, so that the process survives the agent and its exit status outlives whoever
started it (an agent that is started again cannot wait for it). Standard library only, and small:
one lives per training process. It holds an exclusive lock on `wrapper.lock` as long as it lives,
so that a second one for the same run directory does nothing, and the agent can tell whether it
lives without trusting a process id. What the process leaves behind is ended before `exit.json`
appears: once it is there, nothing of the run is alive.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

LOCK = "wrapper.lock"
EXIT = "exit.json"
PID = "trainer.pid"

LOCK_TRIES = 100
LOCK_PAUSE_S = 0.02
"""The agent takes the lock for an instant when it looks whether a wrapper lives."""
LEFTOVERS_S = 2.0
"""Time that children of an ended process get between SIGTERM and SIGKILL."""
PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>, Linux 3.4


def main(run_dir: str, work_dir: str, command: str) -> int:
    run = Path(run_dir)
    lock = _lock(run / LOCK)
    if lock is None or (run / EXIT).exists() or (run / PID).exists():
        return 0  # another wrapper has, or had, this run
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = _start(command, work_dir)
    _publish(run / PID, {"pid": child, "pgid": child, "wrapper": os.getpid()})
    _forward_sigterm(child)
    status = _wait(child)
    ended = time.monotonic()
    _end_leftovers(child)
    code = os.waitstatus_to_exitcode(status)
    _publish(
        run / EXIT,
        {
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "ended_monotonic": ended,
        },
    )
    return 0


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
    return None


def _start(command: str, work_dir: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        os.chdir(work_dir)
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    except OSError as error:
        os.write(2, f"spothop: the process did not start: {error}\n".encode())
    finally:
        os._exit(127)


def _forward_sigterm(child: int) -> None:
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, number)

    signal.signal(signal.SIGTERM, forward)


def _wait(child: int) -> int:
    """The status of `child`; orphans of it end here too and are reaped."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _end_leftovers(child: int) -> None:
    """End every descendant: as a subreaper we inherit each one whose parent has ended."""
    deadline = time.monotonic() + LEFTOVERS_S
    number = signal.SIGTERM
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(0.02)


def _children() -> list[int]:
    """Direct children, from /proc: `children` files need a kernel option, `stat` does not."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                # The name in parentheses may hold spaces and parentheses itself: proc(5).
                if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                    found.append(int(entry))
    return found


def _publish(path: Path, content: dict[str, object]) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(json.dumps(content))
    os.replace(aside, path)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
