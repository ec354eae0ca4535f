"""Runs the training process and records how it ended:
`wrapper.py RUN_DIR WORK_DIR LOG LOG_MAX GROUP COMMAND`.

A program of its own, so that the process survives the agent and its exit status outlives whoever
started it (an agent that is started again cannot wait for it). Standard library only, and small:
one lives per training process. It holds an exclusive lock on `wrapper.lock` as long as it lives,
so that a second one for the same run directory does nothing, and the agent can tell whether it
lives without trusting a process id. What the process leaves behind is ended before `exit.json`
appears: once it is there, nothing of the run is alive, except what it names as left.

What a full disk must not prevent:

1. The exit status. Its file is open and allocated before the process starts.
2. The end of the process. If the wrapper fails in any way, it takes the process with it.
3. The process's own prints. Its output comes through a pipe; what the log does not take is dropped,
   and the log says how much (`Log`). So a flood of output is slowed down to what the disk takes,
   and never fills it: the log holds at most LOG_MAX bytes, the newest.

The log is neither renamed nor cut: its offsets are how agent and master speak of it, and the agent
and `setup:` write into it too. Its beginning is given back to the disk as a hole (fallocate(2)), so
that every offset stays what it was.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import select
import signal
import sys
import time
from pathlib import Path

LOCK = "wrapper.lock"
EXIT = "exit.json"
PID = "trainer.pid"

LOCK_TRIES = 100
LOCK_PAUSE_S = 0.02
"""The agent takes the lock for an instant when it looks whether a wrapper lives."""
LEFTOVERS_S = 2.0
"""Time that children of an ended process get between SIGTERM and SIGKILL."""
GIVE_UP_S = 10.0
"""From SIGKILL until what still lives is given up: it is in uninterruptible sleep, as behind a dead
network disk or a driver that hangs, and may be so for ever."""
PUBLISH_S = 60.0
"""For the exit status, where a disk refuses even what is allocated (copy on write)."""
LOOK_S = 0.02
REMOVE_TRIES = 50
RECORD = 4096
"""Bytes allocated for each record: one block."""
READ = 1 << 16
LINE_S = 0.1
"""So long the beginning of a line waits for its rest: the agent writes lines of its own into the
same log, and an unbuffered print comes in pieces."""
TAIL = 1 << 14
WORDS = 280
"""Characters of the last words: with their escapes in JSON (12 bytes) they fit into the record."""
LAUNCHERS = re.compile(r"(\w+\.)*(ChildFailedError\b|CalledProcessError: Command '\['[^']*python)")
"""What torchrun and accelerate end with when a process of theirs has failed."""
BLOCK = 4096
F_SETPIPE_SZ, PIPE = 1031, 1 << 20  # <linux/fcntl.h>, Linux 2.6.35; what a plain user may have
"""So much may be printed while the disk, or we, do not go on, before the process has to wait."""
PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>, Linux 3.4
KEEP_SIZE, PUNCH_HOLE = 1, 2  # <linux/falloc.h>, Linux 2.6.38

_libc = ctypes.CDLL(None, use_errno=True)


def main(run_dir: str, work_dir: str, log: str, log_max: str, group: str, command: str) -> int:
    """`group` is the control group of the process; empty for none."""
    # From here on, and in the child until it is known, SIGTERM waits instead of being lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    run = Path(run_dir)
    lock = _lock(run / LOCK)
    if lock is None or (run / EXIT).exists() or (run / PID).exists():
        return 0  # another wrapper has, or had, this run
    allocate(run)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake = _wake_on_children()
    output, end = os.pipe()
    with contextlib.suppress(OSError):  # it is only a favour
        fcntl.fcntl(end, F_SETPIPE_SZ, PIPE)
    child, go = _start(command, work_dir, end, group)
    try:
        os.close(end)
        os.set_blocking(output, False)
        _publish(run / PID, _record(child, group))
        os.write(go, b"g")
        os.close(go)
        _forward_sigterm(child)
        pump = Pump(output, wake, Log(Path(log), int(log_max)))
        status = _wait(child, pump)
        ended = time.monotonic()
        left = _end_leftovers(pump, group)
        remove_group(group, tries=REMOVE_TRIES)
        pump.drain()
        code = os.waitstatus_to_exitcode(status)
        _publish(
            run / EXIT,
            {
                "code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "ended_monotonic": ended,
                "left": left,
                "last_words": last_words(pump.tail) if code else "",
            },
        )
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # nobody would watch over it any more
        raise
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


# --- the process --------------------------------------------------------------------------------


def _start(command: str, work_dir: str, output: int, group: str) -> tuple[int, int]:
    """The process, and a descriptor: the command begins when something is written there, so that
    it is on record before it does anything. Returns when the process leads its group: a signal to
    that group cannot miss it."""
    led, leads = os.pipe()
    may_go, go = os.pipe()
    child = os.fork()
    if child:
        os.close(leads)
        os.close(may_go)
        os.read(led, 1)
        os.close(led)
        return child, go
    try:
        os.close(go)
        os.setsid()
        if group:
            with contextlib.suppress(OSError):  # it is only one of the ways to find it
                Path(group, "cgroup.procs").write_text("0")
        os.close(leads)
        signal.set_wakeup_fd(-1)
        _ignore_nothing()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if not os.read(may_go, 1):
            os._exit(127)  # the wrapper is dead
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(work_dir)
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    except OSError as error:
        os.write(2, f"spothop: the process did not start: {error}\n".encode())
    finally:
        os._exit(127)


def _ignore_nothing() -> None:
    """What is ignored stays so in all that is started, and no shell can trap it: SIGPIPE, which
    Python ignores, and SIGTERM or SIGINT where whoever started the agent ignores them."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _wake_on_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # the default would not write to the pipe
    return wake


def _forward_sigterm(child: int) -> None:
    def forward(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, number)

    signal.signal(signal.SIGTERM, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _wait(child: int, pump: "Pump") -> int:
    """The status of `child`; orphans of it end here too and are reaped."""
    while True:
        for pid, status in _reap():
            if pid == child:
                return status
        pump.turn(None)


def _reap() -> list[tuple[int, int]]:
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended.append(found)
    return ended


def _end_leftovers(pump: "Pump", group: str) -> list[int]:
    """End every descendant: as a subreaper we inherit each one whose parent has ended. Returns
    those that SIGKILL does not end, because the kernel does not let them go."""
    deadline = time.monotonic() + LEFTOVERS_S
    while True:
        _reap()
        left = sorted({*_children(), *group_processes(group)})
        now = time.monotonic()
        if not left or now > deadline + GIVE_UP_S:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if now <= deadline else signal.SIGKILL)
        if now > deadline and group:
            kill_group(group)
        pump.turn(LOOK_S)


def group_processes(group: str) -> list[int]:
    """In a control group and those below it; ended ones are not in it."""
    found = []
    for path, _, _ in os.walk(group) if group else ():
        with contextlib.suppress(OSError, ValueError):
            found += [int(pid) for pid in Path(path, "cgroup.procs").read_text().split()]
    return found


def remove_group(group: str, *, tries: int = 1) -> None:
    """Remove it, and those below it; one that is not empty stays. A process that is just ending is
    not listed in it any more, and still holds it for a moment: hence `tries`."""
    for left in reversed(range(tries if group else 0)):
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        if not left or not os.path.exists(group):
            return
        time.sleep(LOOK_S)


def kill_group(group: str) -> None:
    """SIGKILL to all of it at once (Linux 5.14), or else to each."""
    try:
        Path(group, "cgroup.kill").write_text("1")
    except OSError:
        for pid in group_processes(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Direct children, from /proc: `children` files need a kernel option, `stat` does not."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if int(_stat(int(entry))[1]) == os.getpid():
                    found.append(int(entry))
    return found


def _stat(pid: int) -> list[str]:
    """From the state on. The name in parentheses may hold spaces and parentheses too: proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _record(child: int, group: str) -> dict[str, object]:
    """With what makes the process id one of a kind: the boot, and when the process started."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = int(_stat(child)[19])
    return {
        "pid": child,
        "pgid": child,
        "wrapper": os.getpid(),
        "boot": boot,
        "started": started,
        "group": group,
    }


# --- the records --------------------------------------------------------------------------------


def allocate(run: Path) -> None:
    """Make the files in which the records will be written. The agent does it, too, because it can
    make room. Raises OSError."""
    for name in (PID, EXIT):
        descriptor = os.open(_aside(run / name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RECORD)
        finally:
            os.close(descriptor)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _publish(path: Path, content: dict[str, object]) -> None:
    """Whole or not at all; what was allocated needs no room, and a refusal is not the last word."""
    data = json.dumps(content).encode()
    deadline = time.monotonic() + PUBLISH_S
    while True:
        try:
            descriptor = os.open(_aside(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(descriptor, data, 0)
                os.ftruncate(descriptor, len(data))
            finally:
                os.close(descriptor)
            os.replace(_aside(path), path)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
        else:
            return


# --- the log ------------------------------------------------------------------------------------


class Pump:
    """Moves what the process prints into the log, and wakes up when a child ends."""

    def __init__(self, output: int, wake: int, log: "Log") -> None:
        self._output: int | None = output
        self._wake = wake
        self._log = log
        self._line = b""
        """The beginning of a line."""
        self.tail = b""
        """The newest output, for `last_words`."""

    def turn(self, patience_s: float | None) -> None:
        """Wait for output or a child's end, no longer than this, and move one piece."""
        sources = [self._wake] if self._output is None else [self._wake, self._output]
        if self._line:
            patience_s = LINE_S if patience_s is None else min(patience_s, LINE_S)
        ready, _, _ = select.select(sources, [], [], patience_s)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, READ)
        if self._output in ready:
            self._move()
        elif not ready:
            self._end_line()

    def drain(self) -> None:
        """Move what is there; whoever still holds the other end is not waited for."""
        while self._move():
            pass
        self._end_line()

    def _move(self) -> bool:
        if self._output is None:
            return False
        try:
            data = os.read(self._output, READ)
        except BlockingIOError:
            return False
        if not data:
            self._output = None
            self._end_line()
            return False
        self.tail = (self.tail + data)[-TAIL:]
        whole = 1 + max(data.rfind(b"\n"), data.rfind(b"\r"))  # a progress bar has no end of line
        if not whole and len(self._line) + len(data) > READ:
            whole = len(data)
        if whole:
            self._log.write(self._line + data[:whole])
            self._line = b""
        self._line += data[whole:]
        return True

    def _end_line(self) -> None:
        if self._line:
            self._log.write(self._line)
            self._line = b""


class Log:
    """The job's log: at most `limit` bytes of it, the newest, take room on the disk.

    What cannot be written is counted, and told in the log before the next thing that can. Never
    raises: the process must not notice.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._limit = limit
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._dropped = 0

    def write(self, data: bytes) -> None:
        if self._dropped:
            text = f"\nspothop: {self._dropped} bytes of output are missing here: no room on disk\n"
            if not self._written(text.encode() + data):
                self._dropped += len(data)
                return
            self._dropped = 0
        elif not self._written(data):
            self._dropped += len(data)

    def _written(self, data: bytes) -> bool:
        """Whether it is in the log, or at least its beginning."""
        if not trim(self._file, self._limit):
            return False
        try:
            return _write_all(self._file, data)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return self._written_over_older(data)
            return False

    def _written_over_older(self, data: bytes) -> bool:
        """The newest lines say why it goes wrong: they are worth more than the oldest."""
        size = os.fstat(self._file).st_size
        try:
            return trim(self._file, (size - first_data(self._file)) // 2) and _write_all(
                self._file, data
            )
        except OSError:
            return False


def last_words(tail: bytes) -> str:
    """What a program that failed said last: the line that names the exception of its last
    traceback, else its last line. One line of plain text, shortened; empty when it said nothing.
    A launcher's own traceback (torchrun, accelerate) says only that a process of its has failed:
    that process's counts, where it has one."""
    lines = [_plain(line) for line in tail.decode("utf-8", "replace").splitlines()]
    begins = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    named = [name for begin in begins if (name := _exception_of(lines, begin))]
    own = [name for name in named if not LAUNCHERS.match(name)]
    said = (own or named)[-1:] or [line.strip() for line in lines if line.strip()][-1:]
    return said[0][:WORDS] if said else ""


def _exception_of(lines: list[str], begin: int) -> str:
    """The line that ends the traceback which begins there."""
    prefix = lines[begin].partition("Traceback")[0]  # such as "[rank0]: "
    for line in lines[begin + 1 :]:
        line = line.removeprefix(prefix)
        if line.strip() and not line.startswith((" ", "\t", "|", "+")):
            return line.strip()
    return ""


def _plain(line: str) -> str:
    """Without colours and other control characters."""
    line = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", line)
    return "".join(c for c in line if c.isprintable() or c == "\t")


def _write_all(descriptor: int, data: bytes) -> bool:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return True


def first_data(descriptor: int, start: int = 0) -> int:
    """The first offset from `start` on that is no hole; the end of the file where none is left."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError:  # ENXIO: nothing behind `start`; or a file system that knows no holes
        size = os.fstat(descriptor).st_size
        return start if start < size else size


def trim(descriptor: int, limit: int) -> bool:
    """Give the beginning of a log back to the disk where more than `limit` bytes are there; half
    of them stay. False when it is too long and the file system cannot do that."""
    size = os.fstat(descriptor).st_size
    if size <= limit:
        return True
    first = first_data(descriptor)
    if size - first <= limit:
        return True
    end = (size - limit // 2) // BLOCK * BLOCK
    if end <= first:
        return True
    return _punch(descriptor, first, end)


def _punch(descriptor: int, start: int, end: int) -> bool:
    """Give these bytes back to the disk; False where the file system cannot."""
    fallocate = getattr(_libc, "fallocate64", None) or _libc.fallocate  # glibc; musl has one
    offset, length = ctypes.c_int64(start), ctypes.c_int64(end - start)
    return bool(fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, offset, length) == 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
