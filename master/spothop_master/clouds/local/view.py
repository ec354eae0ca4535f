"""What a VM that runs as another user sees of this machine's files. Standard library only.

What it must guarantee:

1. Nothing that is for the master's user alone can be read or changed: the VM's processes have
   another user id, no capability, and no way to one (PR_SET_NO_NEW_PRIVS).
2. The master's home, other VMs and other jobs' checkpoints are not there at all, whatever their
   modes: empty folders are mounted over them.
3. What the VM needs stands under the same path as outside, also below a folder that is closed to
   others, such as an interpreter in /root: such a folder is covered too, and what is needed is
   mounted into the cover.
4. Its temporary files and its shared memory are its own.

All of it happens in the VM's mount namespace, before its user id is changed. Roads not taken: a
user namespace (the master is root here, so it would give nothing but a fake root in the VM);
mounts with mapped ids (Linux 5.12, not for all file systems).

Sources: mount(2), path_resolution(7), prctl(2), credentials(7).
"""

from __future__ import annotations

import compileall
import errno
import importlib.util
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spothop_master.clouds.local import namespaces

PACKAGES = ("spothop", "spothop_agent")
"""What an agent is made of."""
TEMPORARY = ("/tmp", "/var/tmp")
MEMORY = "/dev/shm"
_COVER = b"size=1m,mode=755"


@dataclass(frozen=True, kw_only=True)
class View:
    """Absolute paths. What does not exist is left out."""

    uid: int
    """User and group of the VM's processes."""
    hidden: Sequence[Path]
    """Covered, but for what is below and named elsewhere."""
    needed: Sequence[Path]
    """Interpreter and packages."""
    reads: Sequence[Path]
    """What the job reads; not shown where a link leads there, because a job may make links."""
    writes: Sequence[Path]
    """What is the VM's own: see `give`."""
    temporary: Path | None
    """Stands at /tmp and /var/tmp; None: nothing does."""


def give(folder: Path, uid: int) -> None:
    """Make the folder, with all that is in it, the user's. Raises OSError.

    A folder that is the user's already is left as it is: it may hold links by now, set to lead us
    astray. So may the folders above it, if one of them is the user's."""
    _refuse_links_of(uid, folder)
    folder.mkdir(parents=True, exist_ok=True)
    if os.lstat(folder).st_uid == uid:
        return
    # The folder itself last: who is killed on the way has not given it yet.
    for _, names, files, above in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in (*names, *files):
            os.chown(name, uid, uid, dir_fd=above, follow_symlinks=False)
        os.chown(above, uid, uid)


def _refuse_links_of(uid: int, path: Path) -> None:
    for part in (path, *path.parents):
        with suppress(FileNotFoundError):
            known = os.lstat(part)
            if stat.S_ISLNK(known.st_mode) and known.st_uid == uid:
                raise OSError(errno.ELOOP, "a link that a job has made is on the way", str(part))


def interpreter() -> list[Path]:
    """Where this interpreter, its packages and the agent's own lie; links on the way included."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    found |= {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    program = sys.executable
    while os.path.islink(program):
        program = os.path.join(os.path.dirname(program), os.readlink(program))
        found.add(os.path.dirname(os.path.normpath(program)))
    for package in PACKAGES:
        if (spec := importlib.util.find_spec(package)) is not None:
            found.update(spec.submodule_search_locations or ())
    return [Path(path) for path in sorted(found | {os.path.realpath(path) for path in found})]


def compile_agent() -> None:
    """Compile what the agent is made of, once: its user may not write beside it, and would do it
    again on every VM."""
    if sys.dont_write_bytecode:
        return
    before = os.umask(0o022)
    try:
        for package in PACKAGES:
            if (spec := importlib.util.find_spec(package)) is not None:
                for folder in spec.submodule_search_locations or ():
                    compileall.compile_dir(folder, quiet=2)
    finally:
        os.umask(before)


def enter(view: View) -> None:
    """For process 1 of a VM, in a mount namespace of its own. Raises OSError."""
    before = os.umask(0o022)
    kept = {path: (_open(path), True) for path in view.needed if path.exists()}
    kept |= {path: (fd, False) for path in view.reads if (fd := _open_plain(path)) is not None}
    kept |= {path: (_open(path), True) for path in view.writes}
    temporary = None if view.temporary is None else _open(view.temporary)
    covers = {path for path in view.hidden if path.is_dir()}
    covers |= {above for path in kept if (above := _closed(path)) is not None}
    for path in sorted({*kept, *covers, *map(Path, TEMPORARY), Path(MEMORY)}, key=_depth):
        if str(path) in TEMPORARY:
            if temporary is not None and path.is_dir():
                namespaces.bind(temporary, path)
        elif str(path) == MEMORY:
            if path.is_dir():
                namespaces.mount_tmpfs(path, b"mode=1777")
        else:
            if path in covers:
                path.mkdir(parents=True, exist_ok=True)
                namespaces.mount_tmpfs(path, _COVER)
            if path in kept:
                fd, writable = kept[path]
                _place(path, fd)
                namespaces.bind(fd, path, writable=writable)
    for fd in (temporary, *(fd for fd, _ in kept.values())):
        if fd is not None:
            os.close(fd)
    os.umask(before)


def become(uid: int) -> None:
    """Another user, for good. Raises OSError."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    namespaces.gain_no_privileges()


def refusal(uid: int) -> str | None:
    """Why no VM can run as this user; None when it can. Called inside namespaces of its own, in a
    process that is there for nothing else. Raises OSError."""
    needed = interpreter()
    enter(View(uid=uid, hidden=(), needed=needed, reads=(), writes=(), temporary=None))
    become(uid)
    closed = unreadable(needed)
    return None if closed is None else f"{closed} cannot be read by other users"


def unreadable(paths: Iterable[Path]) -> Path | None:
    """The first of these, or the interpreter, that this process cannot use."""
    if not os.access(sys.executable, os.R_OK | os.X_OK):
        return Path(sys.executable)
    for path in paths:
        inner = path / "__init__.py"
        if not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK):
            return path
        if inner.exists() and not os.access(inner, os.R_OK):
            return inner
    return None


def _open(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _open_plain(path: Path) -> int | None:
    """None where there is nothing, or a link on the way."""
    try:
        fd = _open(path)
    except OSError:
        return None
    if os.readlink(f"/proc/self/fd/{fd}") == str(path):
        return fd
    os.close(fd)
    return None


def _closed(path: Path) -> Path | None:
    """The outermost folder above that others may not pass."""
    for above in reversed(path.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return None


def _place(path: Path, fd: int) -> None:
    """Something to mount upon."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        path.mkdir()
    else:
        path.touch()


def _depth(path: Path) -> int:
    return len(path.parts)
