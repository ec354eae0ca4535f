"""One VM's folder, as driver and supervisor share it. Standard library only.

spec.json     written once by the driver, before the folder appears under its name
state.json    what list() says; replaced atomically by the lock's holder alone
control.json  what the driver asks for; replaced atomically under the cloud's lock
doorbell      FIFO: one byte says that control.json changed
lock          flock, held by the supervisor for life
console.log   what supervisor, init and agent print
disk/         the VM's disk: agent.json and the agent's directory; wiped at the end
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

MARKER = "SPOTHOP_LOCAL_VM"
"""Environment variable that every process of a VM is started with; its value is the VM's id."""

_MOST_WORDS = 64 * 1024
"""Bytes that are read of what a VM's agent has written down."""

LOCK_FD = 3
"""The supervisor is born with its lock held on this descriptor."""


@dataclass(frozen=True, kw_only=True)
class VmSpec:
    """What the driver decided at the launch; everything the supervisor needs. Seconds."""

    id: str
    token: str
    """The client token of the launch."""
    pool: dict[str, Any]
    tags: dict[str, str]
    requested_at: str
    dialect: str
    grace_s: float
    allocation_s: float
    boot_s: float
    user_data: dict[str, Any]
    """The agent's configuration, as `spothop.wire.AgentConfig` writes it."""
    command: list[str]
    """Starts the agent; `--config FILE` is appended."""
    isolation: str
    """auto | users | namespaces | processes"""
    uid: int = 0
    """Of `users`: what the VM runs as."""
    hidden: list[str] = field(default_factory=list)
    """Of `users`: folders that the VM does not see."""
    reads: list[str] = field(default_factory=list)
    """Of `users`: folders of the job's that stay, for reading."""
    writes: list[str] = field(default_factory=list)
    """Of `users`: folders that are given to the VM."""
    forward: list[int]
    """Ports of this machine's loopback that the VM reaches under the same number."""
    script: dict[str, float | None] | None
    """A preemption planned at the launch: `after_s` from running on, and `notice_s`."""
    fails: str = ""
    """Accepted and never made: `ends`, or `stays` until it is terminated."""


class VmFolder:
    """Paths and file operations of one VM."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.json"
        self.state = path / "state.json"
        self.control = path / "control.json"
        self.doorbell = path / "doorbell"
        self.lock = path / "lock"
        self.console = path / "console.log"
        self.disk = path / "disk"

    @property
    def id(self) -> str:
        return self.path.name

    def ring(self) -> None:
        """Wake the supervisor; one that does not listen yet reads control.json when it does."""
        try:
            fd = os.open(self.doorbell, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return
            raise
        try:
            with suppress(BlockingIOError):  # full: it has been rung already
                os.write(fd, b"!")
        finally:
            os.close(fd)

    def write_spec(self, spec: VmSpec) -> None:
        write_json(self.spec, asdict(spec))

    def read_spec(self) -> VmSpec:
        return VmSpec(**read_json(self.spec))

    def write_state(self, state: str, **facts: Any) -> None:
        """Replace the state, keeping the facts that are not named here."""
        before = read_json(self.state) if self.state.exists() else {}
        write_json(self.state, before | facts | {"state": state})

    def wipe(self) -> None:
        """Remove the VM's disk, read-only directories included.

        Raises OSError when something cannot be removed.
        """
        _remove_groups(self.disk)
        with suppress(FileNotFoundError):
            try:
                shutil.rmtree(self.disk)
            except (OSError, RecursionError):  # closed folders, or thousands in each other
                _flatten(self.disk)
                shutil.rmtree(self.disk)


def _remove_groups(disk: Path) -> None:
    """Remove the control groups that the VM's agent made for its attempts, and could not remove
    because it was killed: on a real VM they would end with it. Only empty ones can be removed."""
    for record in disk.glob("agent/attempts/*/run/group.json"):
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            group = Path(str(json.loads(_own_words(record)).get("group") or ""))
            if group.name.startswith("spothop-") and (group / "cgroup.procs").exists():
                for path, _, _ in os.walk(group, topdown=False):
                    os.rmdir(path)


def _own_words(path: Path) -> bytes:
    """Of a small file that our user wrote. A job may have put anything in its place: a pipe that
    nobody writes to, a link to a device. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        known = os.fstat(fd)
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another one's record", str(path))
        return os.read(fd, _MOST_WORDS)
    finally:
        os.close(fd)


def _flatten(tree: Path) -> None:
    """Open every folder below, and move it to the top: then nothing is deep, whatever a job made.
    Raises OSError."""
    tree.chmod(stat.S_IRWXU)
    prefix, count = f".flat-{secrets.token_hex(8)}-", 0
    top = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = _folders_in(top)
        for name in names:  # grows
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                for below in _folders_in(fd):
                    count += 1
                    names.append(f"{prefix}{count}")
                    os.rename(below, names[-1], src_dir_fd=fd, dst_dir_fd=top)
            finally:
                os.close(fd)
    finally:
        os.close(top)


def _folders_in(fd: int) -> list[str]:
    """Opened for us: who moves a folder has to write into it."""
    with os.scandir(fd) as entries:
        found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in found:
        os.chmod(name, stat.S_IRWXU, dir_fd=fd)
    return found


def write_json(path: Path, value: Any) -> None:
    """Atomic publish: write aside, sync, rename. For its owner only: it may hold a token."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """A file that `write_json` made."""
    value = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[int | None]:
    """Hold an exclusive flock on the file; yields its descriptor, or None when it is taken.

    Each call opens the file anew, so that threads of one process exclude each other as well.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)


def timestamp(seconds: float) -> str:
    """Unix time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()
