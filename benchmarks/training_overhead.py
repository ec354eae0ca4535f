"""What training pays for spothop outside saves: the GPT example with and without it.

One process runs the example as a job of a real agent. Blocks of steps take turns: in one, all is as
in any job; in the other, spothop is off as it is outside a job (each call returns at once) and the
agent is stopped (SIGSTOP). The time of a step is all that lies between two batches. Neighbouring
blocks form a pair, and which comes first changes from pair to pair. One process, because two of
them differ by up to 2 % by their luck with memory alone, which hides what is sought. A stand-in
answers for the master.

Target: the median of the ratios of the pairs, by wall time, is under 1.01.
Run: python benchmarks/training_overhead.py [--pairs 44] [--steps 12]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import live
from common import publish, quantile
from fakes.agent_vm import AgentVm, assignment, pack
from fakes.fake_azure_metadata import FakeAzureMetadata
from fakes.fake_master import FakeMaster, bundle_hash
from spothop.wire import PolicyParams

TARGET = 0.01
NEVER = 10**9
GPT = live.ROOT / "examples" / "gpt"
WALL, CPU = 0, 1

TURNS = """
import json, os, sys, time
import train
from spothop.training import api
from spothop.training.session import Session
block = int(os.environ["BLOCK"])
told = open(os.environ["TURNS"] + "/told", "w")
go = open(os.environ["TURNS"] + "/go")
sessions = {"with": api._start(), "without": Session(None)}
count, began, batch = 0, None, train.Trainer.batch

def now():
    return time.perf_counter(), time.process_time()

def turn(trainer):
    global count, began
    if count == block:
        print(json.dumps([(b - a) / block for a, b in zip(began, now())]), file=told, flush=True)
        api._default = sessions.get(go.readline().strip()) or os._exit(0)
        count = 0
    if count == 0:
        began = now()
    count += 1
    return batch(trainer)

train.Trainer.batch = turn
sys.argv[0] = "train.py"
train.main()
"""

Block = tuple[float, float]
"""Milliseconds of a step: wall, and CPU time of the training process."""


class Turns:
    """The training process, block by block."""

    def __init__(self, go: TextIO, told: TextIO, agent: int) -> None:
        self._go, self._told, self._agent = go, told, agent
        self._told.readline()  # the first block begins by itself, and warms up

    def block(self, which: str) -> Block:
        os.kill(self._agent, signal.SIGCONT if which == "with" else signal.SIGSTOP)
        self._go.write(f"{which}\n")
        self._go.flush()
        wall_s, cpu_s = json.loads(self._told.readline())
        return 1000 * wall_s, 1000 * cpu_s

    def pairs(self, count: int) -> list[dict[str, Block]]:
        orders = (("with", "without"), ("without", "with"))
        return [{which: self.block(which) for which in orders[n % 2]} for n in range(count)]


def measure(folder: Path, *, pairs: int, steps: int) -> tuple[list[dict[str, Block]], float]:
    """The pairs, and the agent's own CPU time in parts of a core while the job trains."""
    for name in ("go", "told"):
        os.mkfifo(folder / name)
    files = {name: (GPT / name).read_text(encoding="utf-8") for name in ("train.py", "model.py")}
    bundle = pack({**files, "turns.py": TURNS})
    work = assignment(
        folder / "storage",
        bundle=bundle_hash(bundle),
        run=f"python turns.py --steps {NEVER} --save-every {NEVER}",
        env={"TURNS": str(folder), "BLOCK": str(steps)},
        policy=PolicyParams(policy="none", grace_s=30.0),
    )
    with (
        FakeAzureMetadata() as metadata,
        FakeMaster(work, bundle, sync_every_s=5.0) as master,
        AgentVm(folder, master, metadata=metadata.url) as vm,
    ):
        agent = vm.start().pid
        with open(folder / "told") as told, open(folder / "go", "w") as go:
            turns = Turns(go, told, agent)
            found = turns.pairs(pairs)
            before, began = cpu_s(agent), time.monotonic()
            for _ in range(5):
                turns.block("with")
            return found, (cpu_s(agent) - before) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    """User and system time, proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(pairs: Sequence[dict[str, Block]], clock: int) -> float:
    """What a step takes longer with spothop, in parts of one: median over the pairs."""
    return statistics.median(each["with"][clock] / each["without"][clock] for each in pairs) - 1


def main() -> int:
    parser = argparse.ArgumentParser(description="What training pays for spothop")
    parser.add_argument("--pairs", type=int, default=44, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=12, help="steps of each block")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs, agent = measure(Path(folder), pairs=options.pairs, steps=options.steps)
    rows: list[dict[str, Any]] = []
    for name, clock in (("wall", WALL), ("CPU", CPU)):
        ratios = [100 * (each["with"][clock] / each["without"][clock] - 1) for each in pairs]
        row: dict[str, Any] = {"time": name}
        for which in ("with", "without"):
            row[f"{which} ms/step"] = statistics.median(each[which][clock] for each in pairs)
        row["cost %"] = 100 * cost(pairs, clock)
        row["quartiles %"] = " .. ".join(f"{quantile(ratios, q):+.2f}" for q in (0.25, 0.75))
        rows.append(row)
    in_all = cost(pairs, WALL)
    met = in_all < TARGET
    publish(
        "training_overhead",
        f"GPT example, {options.pairs} pairs of blocks of {options.steps} steps (target: under "
        f"{100 * TARGET:g} % of wall time)",
        rows,
        cost=in_all,
        cost_in_cpu_time=cost(pairs, CPU),
        agent_cpu=agent,
        target={"cost": TARGET, "met": met},
    )
    print(f"  the agent beside it: {100 * agent:.1f} % of a core")
    print(f"  {100 * in_all:+.2f} %: target {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
