"""The training API: what a training script calls. See `spothop` for the four lines.

Steps are completed steps since the job began. Outside a spothop job (no SPOTHOP_RUN_DIR) every call
is a cheap no-op. One process trains per rank: the API is off in a forked child of a process that
used it, such as a data loader's worker.
"""

from __future__ import annotations

import atexit
import os
import time

from spothop.training.session import Session, StepContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_default: Session | None = None


def enter_step() -> None:
    """A training step begins. The first call ends the init phase.

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


def backup(path: str | os.PathLike[str]) -> None:
    """Hand over a saved checkpoint, a file or a directory below the job's directory.

    It is renamed away at once, so the same name may be written again; it is uploaded in the
    background, and restored to the same relative path. Outside a job the file stays.

    Raises FileNotFoundError (nothing there), ValueError (outside the job's directory, or a symbolic
    link), OSError (disk full).
    """
    (_default or _start()).backup(path)


def latest_checkpoint() -> Path | None:
    """The checkpoint to resume from, as an absolute path, or None at the beginning of a job.

    Seeds the step counter. Raises RuntimeError when the agent's note cannot be read.
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


def session_from(environ: Mapping[str, str], *, age_s: float = 0.0) -> Session:
    """The session that these environment variables describe; off without SPOTHOP_RUN_DIR."""
    rank = environ.get("LOCAL_RANK", "")
    return Session(
        environ.get("SPOTHOP_RUN_DIR"),
        job_dir=environ.get("SPOTHOP_JOB_DIR", "."),
        rank=int(rank) if rank.isdecimal() else 0,
        age_s=age_s,
    )


def _start() -> Session:
    """Make the process's own session, at the first call and not at import: workers import too."""
    global _default
    _default = session_from(os.environ, age_s=_process_age_s())  # noqa: TID251  the API's only reader
    atexit.register(_default.close)
    os.register_at_fork(after_in_child=_default.after_fork)
    return _default


def _process_age_s() -> float:
    """Seconds since this process was started, to 10 ms (proc(5), stat field 22); 0 if unknown."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
    return max(0.0, age)
