"""What one training step pays for spothop: `with step_context(): pass` and `check_save()`.

Each pair of calls is timed alone, the timer included, through the public functions. Steps shorter
than 5 ms almost never touch a pipe; those up to 100 ms look at the down pipe each time; longer ones
also write their timing up each time. Target: p99 under 20 microseconds, and median under 2 for
steps up to 100 ms; for longer ones, a ten-thousandth of the step is enough.
Run: python benchmarks/training_api.py [--pairs 200000]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import spothop as sp
from common import publish, quantile
from spothop.training import api, pipes
from spothop.training.session import POLL_EVERY_S, REPORT_EVERY_S, Session

MEDIAN_US, P99_US = 2.0, 20.0
IMPORT_MS = 15
NEVER = 1e9
MODES = {  # seconds between polls, between reports
    "under 5 ms": (POLL_EVERY_S, REPORT_EVERY_S),
    "5-100 ms": (0.0, NEVER),
    "over 100 ms": (0.0, 0.0),
}

AGENT = """
import select, sys
from spothop.training import pipes
import os
up = pipes.open_fifo(sys.argv[1])
print("ready", flush=True)
while select.select([up, sys.stdin], [], []):
    if select.select([sys.stdin], [], [], 0)[0]:
        break
    os.read(up, 65536)
"""


@contextmanager
def agent_live(run: Path) -> Iterator[None]:
    """A process that reads all that comes up, as an agent does."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(run / "up")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdout.readline()
    try:
        yield
    finally:
        agent.stdin.close()
        agent.wait()
        agent.stdout.close()


@contextmanager
def pipe_full(run: Path) -> Iterator[None]:
    """An agent that holds the pipe open and never reads."""
    up = pipes.open_fifo(run / "up")
    try:
        while True:
            os.write(up, b"x" * 64)
    except BlockingIOError:
        yield
    finally:
        os.close(up)


@contextmanager
def agent_dead(run: Path) -> Iterator[None]:
    """The pipes are there, and nobody at their other end."""
    os.close(pipes.open_fifo(run / "up"))
    yield


@contextmanager
def off_cluster(run: Path) -> Iterator[None]:
    yield


CASES: dict[str, Callable[[Path], Any]] = {
    "agent live": agent_live,
    "pipe full": pipe_full,
    "agent dead": agent_dead,
    "off-cluster": off_cluster,
}


def measure(case: str, mode: str, *, pairs: int) -> list[float]:
    """Microseconds of each pair of calls."""
    poll_every_s, report_every_s = MODES[mode]
    with tempfile.TemporaryDirectory() as folder, CASES[case](Path(folder)):
        session = api._default = Session(
            None if case == "off-cluster" else folder,
            job_dir=folder,
            poll_every_s=poll_every_s,
            report_every_s=report_every_s,
        )
        times = []
        for _ in range(pairs):
            began = perf_counter_ns()
            with sp.step_context():
                pass
            sp.check_save()
            times.append((perf_counter_ns() - began) / 1000)
        session.after_fork()
    return times


def import_ms(runs: int = 9) -> float:
    """Median of what `import spothop` adds to a bare interpreter."""
    command = [sys.executable, "-X", "importtime", "-c", "import spothop"]
    costs = []
    for _ in range(runs):
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        row = next(row for row in lines.splitlines() if row.endswith("| spothop"))
        costs.append(int(row.split("|")[1]) / 1000)
    return quantile(costs, 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description="What a training step pays for spothop")
    parser.add_argument("--pairs", type=int, default=200_000, help="pairs of calls a case")
    pairs = parser.parse_args().pairs
    rows: list[dict[str, Any]] = []
    met = True
    for mode in MODES:
        for case in CASES:
            times = measure(case, mode, pairs=pairs)
            median, p99 = quantile(times, 0.5), quantile(times, 0.99)
            met &= p99 < P99_US and (median < MEDIAN_US or mode == "over 100 ms")
            rows.append({"steps": mode, "case": case, "median us": median, "p99 us": p99})
            rows[-1]["worst us"] = max(times)
    imported = import_ms()
    met &= imported < IMPORT_MS
    publish(
        "training_api",
        f"one step's calls, {pairs:,} pairs a case (target: {MEDIAN_US:g} / {P99_US:g} us)",
        rows,
        pairs=pairs,
        import_ms=imported,
        target={"median_us": MEDIAN_US, "p99_us": P99_US, "import_ms": IMPORT_MS, "met": met},
    )
    print(f"  import spothop: {imported:.1f} ms (target: {IMPORT_MS} ms)")
    print("  targets met" if met else "  targets MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
