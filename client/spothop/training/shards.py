"""A save of several processes of one VM: which part each hands over, and where it finds it again.

Explicit, and not guessed from who calls `backup()`: where only rank 0 saves, nobody must wait for
the others, and where each saves a part, the first one to call looks just the same. Standard library
only: imported by every script.
"""

from __future__ import annotations

import os
import sys

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
