"""The command line: which seeds, how many beside each other, and what is told of them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

from chaos import runner, schedule
from chaos.check import violations
from chaos.schedule import Schedule
from support import leftovers, memory_disk, postgres, warm_master


@dataclass(frozen=True, kw_only=True)
class Outcome:
    schedule: Schedule
    violations: list[str]
    seconds: float
    not_met: int
    story: list[str] = field(default_factory=list)
    """What was done and when, and of a seed that failed what the masters and jobs say."""


def play(plan: Schedule, folder: Path) -> Outcome:
    """One schedule, from its masters' start to the last check."""
    began = time.monotonic()
    found: list[str] = []
    story: list[str] = []
    with runner.room(plan, folder) as room:
        try:
            room.submit()
            room.run()
            room.calm()
            facts = room.facts()
            found = violations(facts)
        except Exception as error:  # whatever it is, it is told, and nothing stays
            found = [f"{type(error).__name__}: {error}"]
        room.calm()
        story += room.story
        if found:
            story += [_timeline(room, job) for job in room.jobs]
        found += [f"left over: {thing}" for thing in room.close()]
    return Outcome(
        schedule=plan,
        violations=found,
        seconds=time.monotonic() - began,
        not_met=room.not_met,
        story=story,
    )


def _timeline(room: runner.Room, job: str) -> str:
    try:
        return str(room.machine.timeline(job))
    except Exception as error:  # the other facts of a broken seed are still wanted
        return f"no timeline of {job}: {error!r}"


def tell(outcome: Outcome, folder: Path, again: str) -> None:
    plan = outcome.schedule
    met = f"{len(plan.faults) - outcome.not_met} of {len(plan.faults)}"
    what = f"{len(plan.jobs)} jobs, {met} faults, {plan.masters} masters"
    told = f"{len(outcome.violations)} violations" if outcome.violations else "ok"
    print(f"seed {plan.seed}: {told} ({what}, {outcome.seconds:.1f} s)", flush=True)
    if outcome.violations:
        print(f"  schedule: {plan.as_json()}")
        print("\n".join(f"  violation: {text}" for text in outcome.violations))
        story = folder / f"seed-{plan.seed}.txt"
        story.write_text("\n".join(outcome.story), encoding="utf-8")
        print(f"  what happened: {story}")
        print(f"  again: python -m tests.chaos {again} {plan.seed}", flush=True)


def _work(folder: Path, plan: Schedule) -> Outcome:
    place = folder / f"seed-{plan.seed}"
    outcome = play(plan, place)
    if not outcome.violations:
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def _begin(marker: str) -> None:
    os.environ[leftovers.MARKER] = marker  # noqa: TID251  of all processes of ours
    memory_disk.use()
    for end in (postgres.close, warm_master.close):  # a worker calls nothing of atexit
        Finalize(None, end, exitpriority=1)


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return [*range(int(first), int(last or first) + 1)]


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=[*range(1, 11)], help="1-200, or 17")
    parser.add_argument("--masters", type=int, help="as many, whatever the seed says")
    parser.add_argument("--deck", type=int, default=1, help="other schedules of the same seeds")
    parser.add_argument("--dense", type=int, default=1, help="so many times the faults")
    parser.add_argument("--beside", type=int, default=1, help="so many seeds at the same time")
    parser.add_argument("--schedule", type=Path, help="play this one (JSON), not those of seeds")
    parser.add_argument("--print", action="store_true", help="print the schedules, and do nothing")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """The exit code: 1 where anything was violated."""
    arguments = _arguments(words)
    how = {"masters": arguments.masters, "deck": arguments.deck, "dense": arguments.dense}
    plans = [schedule.from_seed(seed, **how) for seed in arguments.seeds]
    if arguments.schedule is not None:
        plans = [schedule.from_json(arguments.schedule.read_text())]
    if arguments.print:
        print("\n".join(plan.as_json() for plan in plans))
        return 0
    if postgres.programs() is None:
        print("no PostgreSQL here: every seed has one master", file=sys.stderr)
        plans = [replace(plan, masters=1) for plan in plans]
    marker = uuid.uuid4().hex  # of what the workers start
    memory_disk.use()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    again = f"--masters {arguments.masters} " if arguments.masters else ""
    again += f"--deck {arguments.deck} --dense {arguments.dense} --seeds"
    count = 0
    context = get_context("spawn")
    with ProcessPoolExecutor(
        arguments.beside, mp_context=context, initializer=_begin, initargs=(marker,)
    ) as pool:
        for outcome in pool.map(partial(_work, folder), plans):
            tell(outcome, folder, again)
            count += len(outcome.violations)
    for text in leftovers.end_what_is_left(marker, within_s=5):
        print(f"LEFT BEHIND: {text}")
        count += 1
    if count == 0:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"what the seeds that failed have left lies in {folder}")
    print(f"chaos: {len(plans)} seeds, {count} violations")
    return 1 if count else 0
