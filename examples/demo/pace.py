"""How fast this machine trains, measured before the demo begins, and what follows from it.

A demo with a fixed number of steps takes minutes on one machine and an hour on another, and on a
very fast one it is over before the last preemption came. So two processes at once, as many as will
train later, make a few steps of `examples/gpt`; the number of steps, the grace periods and the
patience of the demo are computed from their pace. Run as a program this file is one such process:
it prints the seconds that a step took.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

GPT = Path(__file__).resolve().parent.parent / "gpt"

WARM_UP, TIMED = 3, 9
"""Steps of the measurement; the first ones fill caches."""

TRAINING_S, STARTS = 32.0, 4
"""The steps of one run shall take so long, and as long as so many starts, at the pace that was
measured. After a notice a VM trains on while the next one starts, and these steps count."""
LEAST, MOST = 240, 6000
"""Steps of a whole demo: fewer leave no room for all preemptions, more say nothing new."""
SHORT = 0.4
"""The share of a whole demo's steps that `--short` makes."""
HOP_S = 6.0
"""Seconds from a kill to the next process, without the process's own start."""
QUIET_START_S = 2.5
"""A start of the process on the machine for which the grace periods of the demo were chosen."""
GRACE_S = {"aws": (10.0, 120.0), "azure": (6.0, 30.0), "gcp": (8.0, 30.0)}
"""By dialect: the demo's grace period on a quiet machine, and the real cloud's, its limit."""


class CannotMeasure(Exception):
    """The example does not run; the message is its output."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """All in seconds."""

    step_s: float
    """One training step, while a second process trains too."""
    start_s: float
    """From the start of the process to its first step."""

    def steps(self, *, short: bool) -> int:
        """How many steps each run makes, in tens."""
        fitted = (TRAINING_S + STARTS * self.start_s) / self.step_s
        fitted = min(max(fitted, LEAST), MOST)
        return 10 * round(fitted * (SHORT if short else 1) / 10)

    def grace_s(self) -> dict[str, float]:
        """By dialect: longer on a slow machine, up to what the cloud gives."""
        slower = max(1.0, self.start_s / QUIET_START_S)
        return {
            dialect: round(min(real, quiet * slower), 1)
            for dialect, (quiet, real) in GRACE_S.items()
        }

    def stalled_after_s(self) -> float:
        """Without any progress for so long, something is wrong, and not only slow."""
        return max(200.0, 20 * (self.start_s + HOP_S), 200 * self.step_s)

    def total_s(self, steps: int, preemptions: int) -> float:
        """What the demo will take, roughly: each preemption costs a start and some steps."""
        hops = (preemptions + 1) * (HOP_S + 2 * self.start_s)
        return 1.2 * steps * self.step_s + hops


QUIET = Pace(step_s=0.07, start_s=2 * QUIET_START_S)
"""Assumed where the steps are given, and so nothing is measured; with some reserve."""


def in_words(seconds: float) -> str:
    """`less than a minute`, `about 2 minutes`."""
    minutes = round(seconds / 60)
    if seconds < 50:
        return "less than a minute"
    return f"about {minutes} minutes" if minutes > 1 else "about a minute"


def measure(options: str) -> Pace:
    """Train a few steps in two processes at once, with these options of `train.py`. Raises
    CannotMeasure."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPOTHOP_")}
    began = time.monotonic()
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *shlex.split(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=inherited,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which ends these
        )
        for _ in range(2)
    ]
    try:
        outputs = [process.communicate()[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    took = time.monotonic() - began
    if any(process.returncode for process in running):
        raise CannotMeasure("examples/gpt does not run here:\n" + outputs[0][-2000:])
    step_s = max(float(output.split()[-1]) for output in outputs)
    return Pace(step_s=step_s, start_s=max(took - (WARM_UP + TIMED) * step_s, 0.1))


def train() -> float:
    """The median time of a step in this process."""
    sys.path.append(str(GPT))
    import torch

    from train import Trainer, arguments

    torch.set_num_threads(1)
    trainer, times = Trainer(arguments()), []
    for _ in range(WARM_UP + TIMED):
        began = time.perf_counter()
        trainer.train(trainer.batch())
        times.append(time.perf_counter() - began)
    return median(times[WARM_UP:])


if __name__ == "__main__":
    print(train())
