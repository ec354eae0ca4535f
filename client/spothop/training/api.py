"""The training API: what a training script calls. See `spothop` for the four lines.

Steps are completed steps since the job began. Outside a spothop job (no SPOTHOP_RUN_DIR) every call
is a cheap no-op. One process trains per rank. A forked child of a process that used the API, such
as a data loader's worker, is silent until it calls something that only a training process does.
"""

from __future__ import annotations

import atexit
import os
import time

from spothop.training.contexts import Save, StepContext
from spothop.training.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spothop.training.shards import Shard

_default: Session | None = None
_forked_at: int | None = None
"""This process was forked from one that had a session and had completed so many steps."""
_beside_trainer = False
"""The one that it was forked from trains."""


def enter_step() -> None:
    """A training step begins. The first call ends the starting phase.

    Raises SystemExit(0) when the job is to stop (cancelled, paused, fenced).
    """
    (_default or _start()).enter_step()


def exit_step() -> None:
    """A training step is completed: counts it. Raises RuntimeError without an `enter_step()`."""
    (_default or _start()).exit_step()


def step_context(step: int | None = None) -> StepContext:
    """`with step_context():` enters and exits a step; one that raises is not counted.

    `step`: how many steps were completed before this one, for scripts that know better than the
    counter (which `latest_checkpoint()` seeds). In `for step in range(start, n)` it is `step`.
    """
    return (_default or _start()).step_context(step)


def check_save() -> bool:
    """Is a save wanted now, before a preemption or as insurance? True once for each request.

    Call it between steps, and answer True by saving and `backup()`. Takes about a microsecond.
    """
    return (_default or _start()).check_save()


def saving(step: int | None = None, *, shard: Shard = False) -> Save:
    """`with sp.saving() as save:` marks a save: when it began, and of which step it is.

    The time of a save counts from here. Without the mark nobody can tell a periodic save from what
    the script does before it, such as an evaluation: its time is then known as an upper bound only.
    Saves that are handed over later, from a thread, need it: call `save.backup(path)` there. A save
    that raises inside the block is asked for again. `step`: which one the save holds, if it is not
    the newest completed one; `shard`: as in `backup()`.
    """
    return (_default or _start()).saving(step, shard=shard)


def backup(path: str | os.PathLike[str], step: int | None = None, *, shard: Shard = False) -> None:
    """Hand over a saved checkpoint, a file or a directory below the job's directory.

    It is renamed away at once, so the same name may be written again; it is uploaded in the
    background, and restored to the same relative path. Outside a job the file stays.

    `step`: how many steps the checkpoint holds, where that is not the newest completed one. A save
    in the background must say so, or be begun by `saving()`: its content belongs to the step at
    which it began.

    `shard`: each process saves a part of its own, and all parts of one step are one checkpoint,
    which counts when every process has handed its part over. True takes the number of the part from
    LOCAL_RANK and LOCAL_WORLD_SIZE, or from torch.distributed; or give it, as (rank, world size).
    Without it the save is whole: where only rank 0 saves, nothing waits for the others.

    Raises FileNotFoundError (nothing there), ValueError (outside the job's directory, a symbolic
    link, called in another thread without `step`, or another process has handed a whole save of
    this step over), OSError (disk full).
    """
    (_default or _start()).backup(path, step, shard=shard)


def latest_checkpoint() -> Path | None:
    """The checkpoint to resume from, as an absolute path, or None at the beginning of a job.

    Seeds the step counter. Call it at the start of the script. In a script that was started again
    inside the attempt (`os.execv`, torchrun's or accelerate's own restart) it is the newest save
    that was handed over, whether it is uploaded or not; it waits until the agent has put it back.
    Where each process saved a shard, each gets the path of its own.

    Raises RuntimeError when the agent's note cannot be read or the save cannot be put back.
    """
    path = (_default or _start()).latest_checkpoint()
    if path is None:
        return None
    from pathlib import Path  # 8 ms at import

    return Path(path)


def log(**metrics: float) -> None:
    """Report metrics of the newest step, such as `log(loss=loss)`; the newest value of each counts.

    Numbers only, tensors with one element included; anything else raises ValueError.
    """
    (_default or _start()).log(metrics)


def done() -> None:
    """All work is done; call it after the last `backup()`.

    Without it, exit code 0 after a preemption notice means "resume me elsewhere".
    """
    (_default or _start()).done()


def session_from(
    environ: Mapping[str, str],
    *,
    age_s: float = 0.0,
    quiet: bool = False,
    beside_trainer: bool = False,
) -> Session:
    """The session that these environment variables describe; off without SPOTHOP_RUN_DIR.

    `quiet` and `beside_trainer` are those of `Session`.
    """
    rank, world = environ.get("LOCAL_RANK", ""), environ.get("LOCAL_WORLD_SIZE", "")
    return Session(
        environ.get("SPOTHOP_RUN_DIR"),
        job_dir=environ.get("SPOTHOP_JOB_DIR", "."),
        rank=int(rank) if rank.isdecimal() else 0,
        world=int(world) if world.isdecimal() else 1,
        age_s=age_s,
        quiet=quiet,
        beside_trainer=beside_trainer,
    )


def _start() -> Session:
    """Make the process's own session, at the first call and not at import: workers import too."""
    global _default
    environ = os.environ  # noqa: TID251  the API's only reader
    _default = session_from(
        environ,
        age_s=_process_age_s(),
        quiet=_forked_at is not None,
        beside_trainer=_beside_trainer,
    )
    if _forked_at is not None:
        _default.step = _forked_at
    else:
        atexit.register(_close)
        if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
            os.register_at_fork(after_in_child=_after_fork)
    return _default


def _close() -> None:
    if _default is not None:
        _default.close()


def _after_fork() -> None:
    """In a forked child: the parent's session is not its own. It gets one when it calls us."""
    global _default, _forked_at, _beside_trainer
    if _default is not None:
        _forked_at = _default.step
        _beside_trainer = _beside_trainer or _default.trains
        _default.after_fork()
        _default = None


def _process_age_s() -> float:
    """Seconds since this process was started, to 10 ms (proc(5), stat field 22); 0 if unknown."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return max(0.0, age)
