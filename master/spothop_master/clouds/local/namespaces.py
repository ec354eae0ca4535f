"""The few Linux calls that Python lacks (os.unshare and os.setns came with 3.12), by ctypes.

Sources: unshare(2), setns(2), mount(2), prctl(2), pid_namespaces(7), netdevice(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_MS_NOSUID_NODEV = 2 | 4
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MS_REC_BIND = 0x4000 | 0x1000
_MS_REMOUNT_BIND_READ_ONLY = 0x20 | 0x1000 | 1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_IFF_UP_LOOPBACK_RUNNING = 0x1 | 0x8 | 0x40

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process (PR_SET_CHILD_SUBREAPER)."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """SIGKILL for this process when its parent dies; a fork does not inherit it."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


@contextmanager
def children_in_new_pid_namespace() -> Iterator[None]:
    """The first fork inside is process 1 of a new PID namespace; afterwards all is as before.

    While it holds, no thread can be started (pid_namespaces(7)).
    """
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        _check(_libc.unshare(_CLONE_NEWPID), "unshare(CLONE_NEWPID)")
        yield
        _check(_libc.setns(own, _CLONE_NEWPID), "setns(CLONE_NEWPID)")
    finally:
        os.close(own)


def enter_own_mounts_and_network() -> None:
    """For process 1 of a PID namespace: a /proc of its own, System V's shared memory too, and a
    network with only `lo`, up."""
    kinds = _CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWIPC
    _check(_libc.unshare(kinds), "unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC)")
    _check(_libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "mount(/, private)")
    _check(_libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV_NOEXEC, None), "mount(/proc)")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.pack("16sH14x", b"lo", _IFF_UP_LOOPBACK_RUNNING)
        fcntl.ioctl(control, _SIOCSIFFLAGS, flags)


def mount_tmpfs(path: Path, options: bytes) -> None:
    """An empty file system in memory. Raises OSError."""
    target = os.fsencode(path)
    result = _libc.mount(b"tmpfs", target, b"tmpfs", _MS_NOSUID_NODEV, options)
    _check(result, f"mount(tmpfs, {path})")


def bind(fd: int, path: Path, *, writable: bool = True) -> None:
    """What is open as `fd` stands at `path`, too. Needs a /proc. Raises OSError."""
    source, target = f"/proc/self/fd/{fd}".encode(), os.fsencode(path)
    _check(_libc.mount(source, target, None, _MS_REC_BIND, None), f"mount(bind, {path})")
    if not writable:
        flags = _MS_REMOUNT_BIND_READ_ONLY
        _check(_libc.mount(None, target, None, flags, None), f"mount(read-only, {path})")


def gain_no_privileges() -> None:
    """From now on no program gives more rights, whatever its file's mode (PR_SET_NO_NEW_PRIVS)."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def add_loopback_address(number: int, address: str) -> None:
    """Give `lo` one more IPv4 address, as the alias `lo:<number>`; without iproute2."""
    name = f"lo:{number}".encode()
    request = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFADDR, request)


def available() -> bool:
    """May this process make such namespaces?"""
    return refusal() is None


def refusal(also: Callable[[], str | None] = lambda: None) -> str | None:
    """Why this process may not make such namespaces; None when it may. Tried out in a child, about
    10 ms; with `also` called inside, which may say no, too.

    Being root does not tell: containers often withhold CAP_SYS_ADMIN, or the mount of /proc.
    Forks, so call it only while there is one thread.
    """
    if os.geteuid() != 0:
        return "the master does not run as root"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_try_out(writer, also))
    os.close(writer)
    with open(reader, "rb") as words:
        said = words.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if said or os.waitstatus_to_exitcode(status) != 0:
        return said or "it ended without a word"
    return None


def _try_out(writer: int, also: Callable[[], str | None]) -> int:
    try:
        with children_in_new_pid_namespace():
            first = os.fork()
            if first == 0:
                os._exit(_try_out_inside(writer, also))
        _, status = os.waitpid(first, 0)
        return os.waitstatus_to_exitcode(status)
    except OSError as error:
        os.write(writer, str(error).encode())
        return 1


def _try_out_inside(writer: int, also: Callable[[], str | None]) -> int:
    try:
        enter_own_mounts_and_network()
        add_loopback_address(0, "169.254.169.254")
        refused = also()
    except OSError as error:
        refused = str(error)
    os.write(writer, (refused or "").encode())
    return 1 if refused else 0
