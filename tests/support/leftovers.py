"""Processes of the tests, found by an environment variable that all of them inherit, or by the
tests' temporary folder, where those that are started with another environment work.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

MARKER = "TEST_PROCESS"
YOUNG_S = 2.0
"""Of those that come of this process; not SPOTHOP_...: such a one does not reach a trainer."""

LEFTOVERS_S = 30.0
"""For what is just ending; what should not be there would stay."""


def mark() -> str:
    """Have every process that is started from now on carry a marker of this process."""
    marker = uuid.uuid4().hex
    os.environ[MARKER] = marker  # noqa: TID251  handed on to all of them
    return marker


def carrying(variable: str, value: str) -> dict[int, str]:
    """Process ids that were started with this variable, with their command lines; ourselves and
    what has ended excluded."""
    wanted, found = f"{variable}={value}".encode(), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(PermissionError, FileNotFoundError, ProcessLookupError):
            if wanted in _environment(entry).split(b"\0"):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = line.decode(errors="replace")
    return found


def _environment(process: Path) -> bytes:
    """Of a process in /proc. Linux closes what an exec(2) closes before it says where the new
    environment is: whoever started a program may find that empty for some milliseconds."""
    found = (process / "environ").read_bytes()
    while not found and _age_s(process) < YOUNG_S:
        time.sleep(0.005)
        found = (process / "environ").read_bytes()
    return found


def _age_s(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":  # it has no environment any more
        return YOUNG_S
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started_s


def working(folder: Path) -> dict[int, str]:
    """Process ids whose working directory or command line is below `folder`, with their command
    lines; ourselves and what has ended excluded."""
    top, found = str(folder.resolve()), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(PermissionError, FileNotFoundError, ProcessLookupError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{os.readlink(entry / 'cwd')}/".startswith(f"{top}/") or f"{top}/" in line:
                found[int(entry.name)] = line
    return found


def end_what_is_left(
    marker: str | None, *, below: Path | None = None, within_s: float = LEFTOVERS_S
) -> list[str]:
    """What still lives of the tests, in words; it is killed."""

    def look() -> dict[int, str]:
        found = {} if marker is None else carrying(MARKER, marker)
        return found | ({} if below is None else working(below))

    ended = time.monotonic() + within_s
    while (found := look()) and time.monotonic() < ended:
        time.sleep(0.05)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid}: {line}" for pid, line in found.items()]
