"""How much an attempt uses of its VM: CPU of its processes, and the GPUs.

A job that holds a GPU and does not use it costs as much as one that trains. So it is measured every
`EVERY_S`, and told when it begins to use next to nothing (`LOW` of the GPUs, or of one core where
there are none) and when that is over; the master decides what is an alarm. One core and not all of
them: a script of one thread on a VM of 64 cores is well.

The judgement is pure (`Use`); measuring reads /proc and asks nvidia-smi, in a thread, with a time
limit. What cannot be measured is told of nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

EVERY_S = 60.0
LOW = 0.05
TIMEOUT_S = 10.0
"""For nvidia-smi, which may hang with its driver."""
_SMI = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """At one moment, of CLOCK_MONOTONIC."""

    at: float
    cpu_s: dict[int, float]
    """CPU time of each process so far, by its id."""
    gpu: float | None
    """Mean share of all GPUs, 0 to 1; None where there are none."""


@dataclass
class Use:
    """What is known of one attempt."""

    idle_since: float | None = None
    """CLOCK_MONOTONIC."""
    reason: str = ""
    _last: Sample | None = field(default=None, repr=False)

    def measured(self, sample: Sample) -> bool:
        """Whether it begins or ends to be idle with this."""
        last, self._last = self._last, sample
        if last is None or sample.at <= last.at:
            return False
        was = self.idle_since is not None
        if sample.gpu is not None:
            share, what = sample.gpu, "the GPUs are used"
        else:
            # of processes that ended in between, nobody knows any more
            used_s = sum(max(0.0, s - last.cpu_s.get(p, 0.0)) for p, s in sample.cpu_s.items())
            share, what = used_s / (sample.at - last.at), "of one CPU core it uses"
        if share >= LOW:
            self.idle_since, self.reason = None, ""
        elif not was:
            self.idle_since = last.at
            self.reason = f"{what} {100 * share:.0f} %"
        return was != (self.idle_since is not None)


def cpu_s(pids: Iterable[int], *, proc: Path = Path("/proc")) -> dict[int, float]:
    """User and system time of each process that lives, in seconds."""
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    found: dict[int, float] = {}
    for pid in pids:
        try:
            text = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()  # the name before it may hold anything
        if len(fields) > 12:
            found[pid] = (int(fields[11]) + int(fields[12])) * tick_s
    return found


def gpu_share(
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
    which: Callable[[str], str | None] = shutil.which,
) -> float | None:
    """Mean over all GPUs; None where there are none, or nobody tells. Takes up to `TIMEOUT_S`."""
    smi = which("nvidia-smi")
    if smi is None:
        return None
    try:
        answer = run([smi, *_SMI], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        shares = [float(line) / 100.0 for line in answer.stdout.split("\n") if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    bounded = [min(1.0, max(0.0, share)) for share in shares]
    return sum(bounded) / len(bounded) if bounded else None
