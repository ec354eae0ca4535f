"""Where tests write: into memory, if the machine has a file system for that.

Masters, agents and storages sync to the disk what must survive a power cut. No test cuts the power,
and on a slow disk half of the time of many tests was waiting for it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 4 * 2**30
"""More than all tests leave at the same time; containers often have 64 MB, which is too little."""


def use() -> None:
    """Have temporary files of this process and of its children written there, unless TMPDIR says
    where they are to be."""
    if "TMPDIR" not in os.environ and suits(SHARED_MEMORY):  # noqa: TID251  a child's
        os.environ["TMPDIR"] = str(SHARED_MEMORY)  # noqa: TID251  handed on
        tempfile.tempdir = None  # it is asked for once and remembered


def suits(folder: Path) -> bool:
    """There is room, and programs may be run from it."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    room = found.f_bavail * found.f_frsize >= NEEDED_BYTES
    return room and not found.f_flag & os.ST_NOEXEC
