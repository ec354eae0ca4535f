"""Which processes belong to an attempt, whatever they did to look like somebody else's.

Workers that forked twice, in sessions of their own, must not survive their attempt: they hold the
GPU, the ports and the disk of the next one. No single way finds all of them, so each is used where
it is there:

- *The control group* (cgroups(7), version 2) into which the process is put before it becomes the
  user's command. Nothing leaves it by forking, and one write kills it all. It needs the right to
  make groups.
- *Descendants*: the wrapper adopts every orphan below it (PR_SET_CHILD_SUBREAPER), and when it is
  killed, they are the agent's, which is a subreaper too. Nothing leaves that by forking either, but
  an agent that was started again has lost it.
- *The marker*: the run directory in the environment with which a process was started.
- *The session* of the command, as long as its leader is there.

Process ids are used again, after a reboot from the beginning. So a recorded id counts only with the
boot and the start time that belong to it, and a signal goes through a pidfd where there is one: the
process is looked at again after that is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spothop_agent.paths import write_atomic
from spothop_agent.wrapper import PR_SET_CHILD_SUBREAPER, group_processes, kill_group

MARKER = "SPOTHOP_RUN_DIR"
GROUP = "group.json"
PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One process, as /proc/PID/stat shows it (proc(5))."""

    pid: int
    state: str
    parent: int
    session: int
    started: int
    """In clock ticks since the boot: together with the id it names one process only."""

    @property
    def ended(self) -> bool:
        return self.state in "ZX"


def look(pid: int) -> Seen | None:
    """None when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
        # The name in parentheses may hold anything, parentheses and blanks included.
        fields = text.rpartition(")")[2].split()
        state, parent, session, started = fields[0], *map(int, (fields[1], fields[3], fields[19]))
    except (OSError, ValueError, IndexError):
        return None
    return Seen(pid=pid, state=state, parent=parent, session=session, started=started)


def boot_id() -> str:
    """Another one after each boot; empty where the kernel does not tell."""
    with contextlib.suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def identity(pid: int) -> dict[str, Any]:
    """What a record needs so that `leader` can know the process again."""
    seen = look(pid)
    return {"pid": pid, "boot": boot_id(), "started": seen.started if seen is not None else None}


def leader(record: dict[str, Any] | None) -> Seen | None:
    """The recorded process, if it is still that one; it may have ended and not be waited for."""
    if record is None or record.get("boot") != boot_id():
        return None
    seen = look(int(record["pid"]))
    return seen if seen is not None and seen.started == record.get("started") else None


def adopt_orphans() -> None:
    """From now on orphans below this process become its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def of_attempt(run: Path, record: dict[str, Any] | None, *, below: int | None) -> list[Seen]:
    """What still lives of an attempt: by its group, its marker, its session, and below the process
    `below`, if that is given. Ended ones and ourselves are left out."""
    everybody = {seen.pid: seen for seen in _all()}
    found = set(group_processes(group_of(record)))
    first = leader(record)
    if first is not None:
        found |= {seen.pid for seen in everybody.values() if seen.session == first.pid}
    if below is not None:
        found |= _descendants(below, everybody.values())
    wanted = f"{MARKER}={run}".encode()
    found |= {pid for pid in everybody.keys() - found if wanted in _environment(pid)}
    found -= {os.getpid()}
    return [everybody[pid] for pid in sorted(found & everybody.keys()) if not everybody[pid].ended]


def kill(seen: Seen, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal this very process; nothing when it has ended."""
    gone = contextlib.suppress(ProcessLookupError, PermissionError)
    with gone, _pinned(seen.pid) as descriptor:
        if (now := look(seen.pid)) is None or now.started != seen.started:
            return
        if descriptor is None:
            os.kill(seen.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)


def reap(*, but: int | None) -> None:
    """Wait for adopted orphans that have ended; not for `but`, whose parent object does that."""
    for seen in _all():
        if seen.parent == os.getpid() and seen.ended and seen.pid != but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(seen.pid, os.WNOHANG)


@contextlib.contextmanager
def _pinned(pid: int) -> Iterator[int | None]:
    """A pidfd (Linux 5.3); None where the kernel has none. Raises ProcessLookupError."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _all() -> Iterator[Seen]:
    for name in os.listdir(PROC):
        if name.isdigit() and (seen := look(int(name))) is not None:
            yield seen


def _descendants(root: int, everybody: Any) -> set[int]:
    children: dict[int, list[int]] = {}
    for seen in everybody:
        children.setdefault(seen.parent, []).append(seen.pid)
    below = [root]
    for pid in below:
        below.extend(children.get(pid, ()))
    return set(below[1:])


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return []


# --- control groups -------------------------------------------------------------------------------


def group_of(record: dict[str, Any] | None) -> str:
    """The recorded control group; empty for none."""
    return str((record or {}).get("group") or "")


def make_group(run: Path) -> str:
    """A control group for what runs with this run directory, below our own; empty where we may not
    make one. Harmless when it is there."""
    own = own_group(_text(PROC / "self/mountinfo"), _text(PROC / "self/cgroup"))
    if own is None:
        return ""
    path = own / f"spothop-{hashlib.sha256(os.fsencode(run)).hexdigest()[:16]}"
    try:
        # Noted before it is made: a local VM may be killed in between, and the group outlives it.
        write_atomic(run / GROUP, json.dumps({"group": str(path)}).encode())
        path.mkdir(exist_ok=True)
    except OSError:
        return ""
    return str(path) if os.access(path / "cgroup.procs", os.W_OK) else ""


def own_group(mountinfo: str, cgroup: str) -> Path | None:
    """Where our own group of version 2 lies, from these files of /proc/self (proc(5), cgroups(7));
    None where that version is not mounted, or shows other groups than ours."""
    ours = next((line[3:] for line in cgroup.splitlines() if line.startswith("0::")), None)
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        if ours is None or not rest.startswith("cgroup2 "):
            continue
        root, mount = (_unescaped(field) for field in fields.split()[3:5])
        if ours == root or root == "/" or ours.startswith(root + "/"):
            return Path(mount) / ours.removeprefix(root).lstrip("/")
    return None


def _unescaped(field: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes as \\040 and so on."""
    return field.encode().decode("unicode_escape") if "\\" in field else field


def end_group(group: str) -> None:
    """Kill what is in it at once; harmless when there is no such group."""
    if group:
        kill_group(group)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
