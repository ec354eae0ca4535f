"""Where a process that starts finds what it goes on from: the note `restored.json`.

The agent writes it: first what it restored, and from then on the newest save that it accepted. A
script may be started again inside one attempt (execv, torchrun's or accelerate's own restart). Then
the payload of that save was renamed away, or a process that died has half overwritten the file. So
the note carries a stamp of what the agent put in place, and a process that finds anything else
there asks the agent to put the newest save back. Standard library only: imported by every script.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spothop.training.channel import Channel

NOTE = "restored.json"
WAITS_S, AGAIN_S, LOOK_S = 3600.0, 5.0, 0.02
"""A process that was started again waits so long for the newest save, which may have to come from
the store; asks again so often, because an agent may have died with the question; looks so often."""


def read(run_dir: str) -> dict[str, Any] | None:
    """The note, or None where nothing was restored or accepted yet.

    Raises RuntimeError when it cannot be read: a job must not begin again from nothing without
    anybody noticing.
    """
    file_name = os.path.join(run_dir, NOTE)
    try:
        with open(file_name, "rb") as file:
            note = json.loads(file.read())
        if not isinstance(note["path"], (str, type(None))):
            raise TypeError(f"path {note['path']!r}")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(
            f"{file_name} cannot be read ({error!r}); start the attempt again to restore anew"
        ) from error
    return note  # type: ignore[no-any-return]  # read["path"] has proved that it is an object


def stamp(path: str | os.PathLike[str]) -> str | None:
    """What changes when anybody writes there: of each file its inode, size and time of change.

    None where nothing is, or where it changes while it is looked at.
    """
    try:
        if not os.path.isdir(path):
            return _of(path)
        parts = [
            f"{os.path.relpath(name, path)}={_of(name)}"
            for folder, _, files in os.walk(path)
            for name in (os.path.join(folder, file) for file in files)
        ]
    except OSError:
        return None
    import hashlib  # 2 ms that only directories pay

    return hashlib.sha256("\n".join(sorted(parts)).encode(errors="surrogateescape")).hexdigest()


def _of(path: str | os.PathLike[str]) -> str:
    status = os.lstat(path)
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def is_in_place(note: dict[str, Any] | None, *, waiting: list[str], job_dir: str) -> bool:
    """Whether the newest accepted save lies where the note says; True where there is none.

    `waiting`: what was in the outbox *before* the note was read. What of it is not in the note was
    handed over just before, and the agent had not seen it yet. In the other order a save could
    be missed that the agent took out in between: it writes the note first.
    """
    accepted = note.get("id") if note is not None else None
    if any(name != accepted for name in waiting):
        return False
    if note is None or note["path"] is None or "stamp" not in note:
        return True
    looked = note["stamp"]  # None: the agent has it elsewhere
    return looked is not None and bool(looked == stamp(os.path.join(job_dir, note["path"])))


def published(run_dir: str) -> list[str]:
    """Names of the backups in the outbox."""
    try:
        names = os.listdir(os.path.join(run_dir, "outbox"))
        return [name for name in names if not name.startswith(".")]
    except OSError:
        return []


def put_back(
    run_dir: str,
    channel: Channel,
    *,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> dict[str, Any]:
    """Have the agent put the newest save in its place; the note that then holds.

    Raises RuntimeError when it cannot, or does not answer.
    """
    began = asked_at = clock()
    token = f"{channel.pid}-{time.monotonic_ns()}"
    channel.send({"t": "resume", "token": token})
    while True:
        note = read(run_dir)
        if note is not None and token in note.get("answered", ()):
            if note.get("error"):
                raise RuntimeError(f"the newest save cannot be put back: {note['error']}; {_HINT}")
            return note
        now = clock()
        if now > began + WAITS_S:
            raise RuntimeError(
                f"the agent has not put the newest save back for {WAITS_S:.0f} s; {_HINT}"
            )
        if now > asked_at + AGAIN_S:
            asked_at = now
            channel.send({"t": "resume", "token": token})
        channel.flush()
        pause(LOOK_S)


_HINT = "end the process: the next attempt restores it"
