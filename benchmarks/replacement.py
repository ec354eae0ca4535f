"""How fast a VM is replaced: after a kill without notice, and after a notice.

A real master with the product's own intervals, the local cloud, real agents, and a trainer of the
standard library that writes down when it began, entered its first step and completed it. One job is
preempted over and over, at a random phase of every interval.

Targets, for the worst run: from the kill to the first new step under 1.5 s, less the allocation and
boot delay that the VM was given and less the script's own start-up (process start to first step
entered); the replacement's row and launch call within 1 s of the agent seeing the notice.
Run: python benchmarks/replacement.py [--kills 16] [--notices 8]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from common import publish, quantile
from live import Machine, machine, until, wall
from spothop.wire import EventView

KILL_S, NOTICE_S = 1.5, 1.0
POOL = {"grace_s": 30.0, "allocation_s": [0.15, 0.25], "boot_s": [0.05, 0.1]}
"""Of all three zones. Only what the VM was given in these two ranges is taken off."""
WARM_S, PHASE_S = 0.3, 1.0
"""Training before each preemption: at least, and a random part on top."""

TRAIN = """
import json, time
marks = {"script": time.time()}
import spothop as sp
path = sp.latest_checkpoint()
step = json.loads(path.read_text())["step"] if path else 0
while True:
    with sp.step_context():
        marks.setdefault("entered", time.time())
        time.sleep(0.005)
        step += 1
    if "completed" not in marks:
        marks["completed"] = time.time()
        print("marks", json.dumps(marks))
    if step % 20 == 0 or sp.check_save():
        with open("ckpt.json", "w") as file:
            json.dump({"step": step}, file)
        sp.backup("ckpt.json")
"""

Row = dict[str, Any]


class Story:
    """One job, attempt after attempt."""

    def __init__(self, live: Machine, rng: random.Random) -> None:
        self.live = live
        self.job = live.submit(files={"train.py": TRAIN})
        self.number = 1
        self._rng = rng
        self._events: list[EventView] = []

    def settle(self) -> None:
        """Train for a while."""
        self.script_marks(self.number)
        time.sleep(WARM_S + self._rng.uniform(0, PHASE_S))

    def script_marks(self, attempt: int) -> dict[str, float]:
        """What the script wrote down, Unix times; waits for it."""
        log = self.live.home / "logs" / self.job / f"{attempt}.log"

        def look() -> str | None:
            lines = log.read_text().splitlines() if log.exists() else []
            return next((line[6:] for line in lines if line.startswith("marks {")), None)

        marks: dict[str, float] = json.loads(
            until(look, what=f"attempt {attempt} trains", details=lambda: self.live.story(self.job))
        )
        return marks

    def at(self, kind: str, *, attempt: int | None = None, **data: str) -> float:
        """Unix time of the newest event of this kind; waits for one."""

        def look() -> EventView | None:
            after = self._events[-1].id if self._events else 0
            self._events += self.live.client.events(self.job, after=after)
            for event in reversed(self._events):
                fits = event.kind == kind and event.attempt == attempt
                if fits and all(event.data.get(key) == value for key, value in data.items()):
                    return event
            return None

        what = f"event {kind} of attempt {attempt} with {data}"
        return until(look, what=what, details=lambda: self.live.story(self.job)).at.timestamp()

    def spec(self, attempt: int) -> dict[str, Any]:
        """The local cloud's own note of this launch."""
        content = (self.live.vm_folder(self.job, attempt) / "spec.json").read_text()
        spec: dict[str, Any] = json.loads(content)
        return spec

    def agent_start(self, attempt: int) -> float:
        """Unix time at which the VM has started its agent, as its console says."""
        console = (self.live.vm_folder(self.job, attempt) / "console.log").read_text()
        line = next(line for line in console.splitlines() if "agent started" in line)
        moment = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")  # noqa: DTZ007  this machine's
        return moment.timestamp()


def kill(story: Story) -> dict[str, float]:
    """Take the VM without notice; the seconds of each part until its successor has a new step."""
    story.settle()
    at = time.time()
    story.live.client.preempt(story.job, notice_s=0)
    story.number += 1
    new = story.number
    script, spec = story.script_marks(new), story.spec(new)
    moments = {
        "the master knows": story.at("attempt", attempt=new - 1, event="end"),
        "the cloud is asked": datetime.fromisoformat(spec["requested_at"]).timestamp(),
        "the agent starts": story.agent_start(new),
        "joined": story.at("phase", attempt=new, phase="join"),
        "prepared": story.at("prepared", attempt=new),
        "fenced in": story.at("fenced_in", attempt=new),
        "restored": story.at("restored", attempt=new),
        "the script starts": script["script"],
        "first step entered": script["entered"],
        "first step completed": script["completed"],
    }
    parts, before = {}, at
    for name, moment in moments.items():
        parts[name], before = moment - before, moment
    vm_s = spec["allocation_s"] + spec["boot_s"]
    parts["in all"] = before - at
    parts["- the VM's delays"] = vm_s
    parts["- the script's start"] = parts["first step entered"]
    parts["= ours"] = before - at - vm_s - parts["first step entered"]
    return parts


def notice(story: Story) -> dict[str, float]:
    """Preempt with notice; seconds from the agent seeing it until row and launch of the next VM."""
    story.settle()
    state = story.live.agent_folder(story.job, story.number) / "state.json"
    story.live.client.preempt(story.job)

    def look() -> float | None:
        seen = json.loads(state.read_text())["notice"]
        return None if seen is None else wall(seen["seen"])

    seen = until(look, what="the agent sees the notice")
    story.number += 1
    until(lambda: story.live.attempt(story.job, story.number), what="a replacement is requested")
    vm = story.live.vm(story.job, story.number)
    row = story.at("attempt", attempt=story.number, to="preparing")
    until(lambda: story.live.vm(story.job, story.number).cloud_id, what="it is launched")
    asked = datetime.fromisoformat(story.spec(story.number)["requested_at"]).timestamp()
    trained = story.script_marks(story.number)
    assert vm.id == story.live.vm(story.job, story.number).id, "the replacement was replaced"
    return {
        "notice -> row": row - seen,
        "notice -> launch": asked - seen,
        "notice -> first new step": trained["completed"] - seen,
    }


def table(title: str, runs: Sequence[Mapping[str, float]]) -> list[Row]:
    return [
        {
            "after": title,
            "part": part,
            "median ms": round(1000 * quantile([run[part] for run in runs], 0.5)),
            "p90 ms": round(1000 * quantile([run[part] for run in runs], 0.9)),
            "worst ms": round(1000 * max(run[part] for run in runs)),
        }
        for part in runs[0]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast a VM is replaced")
    parser.add_argument("--kills", type=int, default=16, help="preemptions without notice")
    parser.add_argument("--notices", type=int, default=8, help="preemptions with notice")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder), **POOL) as live:
        story = Story(live, random.Random(3))
        kills = [kill(story) for _ in range(options.kills)]
        notices = [notice(story) for _ in range(options.notices)]
    worst_kill = max(run["= ours"] for run in kills)
    worst_notice = max(run["notice -> launch"] for run in notices)
    missed = [f"kill -> step: {worst_kill:.2f} s"] if worst_kill >= KILL_S else []
    missed += [f"notice -> launch: {worst_notice:.2f} s"] if worst_notice >= NOTICE_S else []
    publish(
        "replacement",
        f"{len(kills)} kills (target: {KILL_S:g} s of ours), {len(notices)} notices "
        f"(target: {NOTICE_S:g} s to the launch)",
        [*table("kill", kills), *table("notice", notices)],
        kills=len(kills),
        notices=len(notices),
        target={"kill_s": KILL_S, "notice_s": NOTICE_S, "met": not missed},
    )
    print("  targets met" if not missed else f"  targets MISSED: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
