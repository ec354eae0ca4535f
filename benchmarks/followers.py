"""What somebody who follows a job costs the master, beside the agents that train.

A real master with the agents of `master_load.py`, each with its log; its processor time without
followers, then with some of each way, in the same run. The difference is theirs.

    python benchmarks/followers.py --agents 20 --followers 20 --seconds 30 --json
    python benchmarks/followers.py --ways turns               as clients did it before

Target: a follower costs under 1 % of a core, whichever way it follows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import master_load
from common import publish
from load.agents import Plan as AgentPlan
from load.followers import Plan

WAYS = ("news", "logs", "page")
TARGET = 0.01
"""Of a core."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Of one way."""

    way: str
    followers: int
    core_each: float
    """Share of one core that one of them takes."""
    answers_a_minute: float
    """Of one of them."""
    failed: int
    alone: float
    """Share of a core that the agents take without them."""


def run(options: argparse.Namespace) -> list[Found]:
    case = master_load.Case(agents=options.agents, training=True, seconds=options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), master_load.free_port()
        master_load.fill(home, port, case)
        with master_load.master(home, port, case) as pid:
            token = (home / "admin.token").read_text(encoding="utf-8").strip()
            spans = 1 + len(options.ways)
            begin_at = time.monotonic() + master_load.SETTLE_S
            whole = replace(case, seconds=spans * (options.seconds + 1.0))
            plans = master_load.plans(whole, [port], begin_at)
            agents = [_start(plan) for plan in plans]
            try:
                alone, _ = _span(pid, begin_at, options, None)
                found = []
                for number, way in enumerate(options.ways, start=1):
                    at = begin_at + number * (options.seconds + 1.0)
                    plan = Plan(
                        port=port,
                        way=way,
                        followers=options.followers,
                        token=token,
                        begin_at=at - 0.5,  # they come before they are counted
                        end_at=at + options.seconds,
                    )
                    share, seen = _span(pid, at, options, plan)
                    found.append(_found(way, options, share, alone, seen))
                return found
            finally:
                for agent in agents:
                    agent.communicate()


def _start(plan: AgentPlan) -> Any:
    return master_load.agents_of(plan)


def _span(
    pid: int, at: float, options: argparse.Namespace, plan: Plan | None
) -> tuple[float, dict[str, Any]]:
    """The master's share of a core from `at` on, and what the followers saw."""
    followers = None
    if plan is not None:
        arguments = [json.dumps(asdict(plan))]
        followers = master_load.start("load.followers", arguments, cores=master_load.others())
    time.sleep(max(0.0, at - time.monotonic()))
    cpu_s, began = master_load.processor_s(pid), time.monotonic()
    time.sleep(max(0.0, at + options.seconds - time.monotonic()))
    share = (master_load.processor_s(pid) - cpu_s) / (time.monotonic() - began)
    return share, json.loads(followers.communicate()[0]) if followers is not None else {}


def _found(
    way: str, options: argparse.Namespace, share: float, alone: float, seen: dict[str, Any]
) -> Found:
    for text in seen["failed"][:3]:
        print(f"  {text}", file=sys.stderr)
    return Found(
        way=way,
        followers=options.followers,
        core_each=max(0.0, share - alone) / options.followers,
        answers_a_minute=60 * seen["answers"] / options.seconds / options.followers,
        failed=len(seen["failed"]),
        alone=alone,
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=20, help="VMs that train, each with its job")
    parser.add_argument("--followers", type=int, default=20, help="at most one for each job")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each way")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=[*WAYS, "turns"])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    found = run(options)
    missed = [f"{one.way}: {one.core_each:.2%}" for one in found if one.core_each > TARGET]
    missed += [f"{one.way}: {one.failed} failed" for one in found if one.failed]
    if options.json:
        print(json.dumps([asdict(one) for one in found]))
    else:
        title = f"followers beside {options.agents} VMs that train, on one core"
        publish("followers", title, [asdict(one) for one in found], missed=missed)
        print("  targets met" if not missed else f"  targets MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
