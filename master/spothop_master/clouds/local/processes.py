"""Finding and ending process trees by /proc. Standard library only.

Two ways to know what belongs to a VM. *Descendants*: whose chain of parents leads to a process of
ours; complete, because supervisor and init are child subreapers, but only while one of them lives.
*Marked*: whose environment names the VM; works without any ancestor, to clean up a VM whose
supervisor was killed. Not taken: cgroups, which need rights that a plain user has not.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from spothop_master.clouds.local.disk import MARKER

_PAUSE_S = 0.005


def descendants(root: int) -> list[int]:
    """Children of `root`, their children and so on; zombies are left out."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for pid in _pids():
        found = _stat(pid)
        if found is None:
            continue
        state, parent = found
        children.setdefault(parent, []).append(pid)
        if state in "ZX":
            dead.add(pid)
    below = [root]
    for pid in below:
        below.extend(children.get(pid, ()))
    return [pid for pid in below[1:] if pid not in dead]


def marked(vm_id: str) -> list[int]:
    """Processes that were started with this VM's marker; zombies have no environment any more."""
    wanted = f"{MARKER}={vm_id}".encode()
    found = []
    for pid in _pids():
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(pid)
    return found


def kill_until_gone(find: Callable[[], Iterable[int]], *, within_s: float) -> list[int]:
    """SIGKILL what `find` finds until it finds nothing; returns what outlived the deadline.

    Again and again, because a process may fork while its parent is killed. Reaps own children.
    """
    deadline = time.monotonic() + within_s
    while True:
        left = [pid for pid in find() if pid != os.getpid()]
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def reap() -> list[tuple[int, int]]:
    """Collect every child that ended: (process id, wait status)."""
    ended = []
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent; None when the process is gone (proc(5), /proc/pid/stat)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses and blanks included.
    state, parent = text[text.rindex(b")") + 2 :].split()[:2]
    return state.decode(), int(parent)
