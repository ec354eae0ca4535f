"""A save of several processes of one VM: which part each hands over, and where it finds it again.

Explicit, and not guessed from who calls `backup()`: where only rank 0 saves, nobody must wait for
the others, and where each saves a part, the first one to call looks just the same. The second one
does not: two whole saves of one step are two halves, and a restore would take one of them. So each
process notes of which steps it handed over a whole save, and is refused where another one that
lives did so before. Standard library only: imported by every script.
"""

from __future__ import annotations

import os
import sys

WHOLE = "whole"
"""Folder of those notes: a link for each process, by its rank, to `<process id>:<step>,<step>`."""
REMEMBERED = 8

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Shard = bool | tuple[int, int]


def part(shard: Shard, rank: int, world: int) -> tuple[int, int] | None:
    """The number of this process's part, and of how many; None for a whole save.

    Raises ValueError for numbers that cannot be.
    """
    if shard is False:
        return None
    number, count = _place(rank, world) if shard is True else shard
    if not 0 <= number < count:
        raise ValueError(f"shard=({number}, {count}): the rank must be below the world size")
    return None if count == 1 else (number, count)


def claim_whole(run_dir: str, step: int, *, rank: int, world: int, pid: int) -> None:
    """Before a whole save of this step is handed over; nothing where there is one process only.

    Raises ValueError where another process has handed one over.
    """
    number, count = _place(rank, world)
    if count == 1:
        return
    folder = os.path.join(run_dir, WHOLE)
    others = {}
    try:
        os.makedirs(folder, exist_ok=True)
        own = os.path.join(folder, str(number))
        steps = [old for old in _noted(own, pid) if old != step][1 - REMEMBERED :]
        aside = os.path.join(folder, f".{number}-{pid}")
        os.symlink(f"{pid}:{','.join(map(str, [*steps, step]))}", aside)
        os.replace(aside, own)
        # Noted first and looked at then: of two at the same moment at least one sees the other.
        others = {
            name: _noted(os.path.join(folder, name))
            for name in os.listdir(folder)
            if name.isdecimal() and int(name) != number
        }
    except OSError:  # a full disk: then the agent tells it
        return
    for name, theirs in others.items():
        if step in theirs:
            raise ValueError(
                f"backup() of step {step} in process {number} of {count}: process {name} has handed"
                " over a checkpoint of this step, too, and a restore takes one only; where each"
                " process saves a part, pass shard=True in all of them, else save in one of them"
            )


def _noted(link: str, pid: int | None = None) -> list[int]:
    """Steps that a process which lives, this one if `pid` is given, has noted there."""
    try:
        owner, _, steps = os.readlink(link).partition(":")
        os.kill(int(owner), 0)
    except OSError:
        return []
    return [int(step) for step in steps.split(",")] if pid in (None, int(owner)) else []


def place(note: dict[str, Any], job_dir: str, rank: int, world: int) -> str:
    """What this process resumes from: its own shard, or all that was saved.

    A single process gets the folder of all shards. Raises RuntimeError where their number is
    another than that of the processes.
    """
    top = os.path.join(job_dir, note["path"])
    shards = note.get("shards") or ()
    number, count = _place(rank, world)
    if not shards or count == 1:
        return top
    if count != len(shards):
        raise RuntimeError(
            f"the checkpoint of step {note.get('step')} has {len(shards)} shards, and there are"
            f" {count} processes; start {len(shards)}, or read all shards, in {top}"
        )
    return os.path.join(top, shards[number])


def _place(rank: int, world: int) -> tuple[int, int]:
    """As the launcher says, else torch.distributed, where the script has begun it."""
    if world > 1:
        return rank, world
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
