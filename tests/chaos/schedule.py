"""What is done to which jobs in one seed: pure data, made from the seed alone.

Every fault waits for progress (a step in a log, a VM's folder, a named point in a program), never
for a moment: on a slow machine the same things are struck. How long something is held (a stopped
process, a full disk) is the only duration. The same seed makes the same schedule, which can be
printed as JSON, changed, and read back.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

AGENT_POINTS = (
    *("before_fence", "after_fence", "before_restore", "after_restore", "after_start"),
    *("before_upload", "during_upload", "after_upload", "before_commit", "after_commit"),
    *("after_report", "after_exit"),
)
MASTER_POINTS = ("before_plan", "vm_row_committed", "after_launch", "after_apply")
LINE = ("lost", "unanswered", "doubled", "delayed", "repeated", "poison", "garbled", "busy")
"""Between agents and master, see `line.Line`."""
STORE = ("outage", "refused", "cut", "done_unanswered", "slow")
"""See `runner.STORE_FAULTS`."""
PROCESSES = ("agent", "trainer", "wrapper", "supervisor")
VIOLENT = frozenset({"trainer", "wrapper", "supervisor"})
"""Who strikes one of these takes the emergency save's chance as well."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    kind: str
    """kill | stop | preempt | line | store | disk | cancel | pause."""
    job: int
    """By its place in the schedule; of `kill` and `stop` of a master only the trigger's."""
    step: int | None = None
    """When this step of the job is in a log; or:"""
    launch: int | None = None
    """when this many VMs of the job were launched."""
    target: str = ""
    """A process for `kill` and `stop`; a kind of `LINE` or `STORE`."""
    times: int = 1
    """Messages or requests that are struck."""
    for_s: float = 0.0
    """How long it is held."""
    notice_s: float | None = None
    """Of a preemption; None: what the cloud promises."""


@dataclass(frozen=True, kw_only=True)
class Job:
    steps: int
    step_ms: int
    save_every: int
    zone: str
    on_s3: bool
    fails_at: int = 0
    """Its script raises at this step; 0: never."""
    fails_in: int = 0
    """In attempts up to this one."""
    flood_at: int = 0
    """It prints megabytes at this step; 0: never."""
    points: tuple[str, ...] = ()
    """Of each of its agents, such as `before_commit=kill`."""

    @property
    def is_broken(self) -> bool:
        return self.fails_in > 1000


@dataclass(frozen=True, kw_only=True)
class Schedule:
    seed: int
    masters: int
    silent_after_s: float
    pools: dict[str, dict[str, Any]]
    """By dialect: what the cloud refuses."""
    master_point: str
    """Such as `after_launch@2=kill`; empty for none."""
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...] = field(default_factory=tuple)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def from_json(text: str) -> Schedule:
    found = json.loads(text)
    jobs = tuple(Job(**{**job, "points": tuple(job["points"])}) for job in found.pop("jobs"))
    faults = tuple(Fault(**fault) for fault in found.pop("faults"))
    return Schedule(**found, jobs=jobs, faults=faults)


def from_seed(seed: int, *, masters: int | None = None, deck: int = 1, dense: int = 1) -> Schedule:
    """`masters`: as many as these; None: the seed says, mostly one. Another `deck` has another
    schedule for each seed. `dense`: so many times the faults."""
    draw = random.Random(seed if deck == 1 else f"{deck}/{seed}")
    count = draw.choice((1, 1, 1, 1, 2, 3))
    jobs = tuple(_job(draw) for _ in range(draw.choice((2, 3, 3))))
    faults = [
        fault for number, job in enumerate(jobs) for fault in _faults(draw, number, job, dense)
    ]
    count = masters or count
    return Schedule(
        seed=seed,
        masters=count,
        silent_after_s=draw.choice((12, 30, 30)),
        pools=_pools(draw),
        master_point=f"{draw.choice(MASTER_POINTS)}@{draw.choice((1, 2, 3))}=kill"
        if draw.random() < 0.3
        else "",
        jobs=jobs,
        faults=tuple(faults),
    )


def _job(draw: random.Random) -> Job:
    steps = draw.randrange(30, 61)
    odd = draw.random()
    fails_at = draw.randrange(5, steps) if odd < 0.25 else 0
    points = [
        f"{point}={draw.choice(('kill', 'kill', 'pause'))}"
        for point in draw.sample(AGENT_POINTS, draw.choice((0, 0, 1, 2)))
    ]
    return Job(
        steps=steps,
        step_ms=draw.choice((10, 20, 30)),
        save_every=draw.choice((7, 10, 15, 1000)),
        zone=draw.choice(("aws", "azure", "gcp", "")),
        on_s3=draw.random() < 0.4,
        fails_at=fails_at,
        fails_in=0 if not fails_at else draw.choice((1, 1, 1_000_000)),
        flood_at=draw.randrange(2, steps) if draw.random() < 0.15 else 0,
        points=tuple(points),
    )


def _pools(draw: random.Random) -> dict[str, dict[str, Any]]:
    return {
        dialect: {
            "refuse": draw.choice((0, 0, 0, 1, 2)),
            "fail": draw.choice((0, 0, 0, 1)),
            "keep_failed": draw.random() < 0.5,
        }
        for dialect in ("aws", "azure", "gcp")
    }


def _faults(draw: random.Random, number: int, job: Job, dense: int) -> Sequence[Fault]:
    return [_fault(draw, number, job) for _ in range(dense * draw.choice((0, 1, 1, 2, 2, 3)))]


def _fault(draw: random.Random, number: int, job: Job) -> Fault:
    when: dict[str, Any] = {"step": draw.randrange(1, job.steps)}
    early: dict[str, Any] = when
    if draw.random() < 0.15:
        early = {"launch": draw.choice((1, 1, 2))}
    held_s = draw.choice((0.3, 1.0, 2.5))
    kind = draw.choices(
        ("kill", "stop", "preempt", "line", "store", "disk", "cancel", "pause"),
        (5, 4, 4, 4, 4 if job.on_s3 else 0, 1, 0.5, 1),
    )[0]
    match kind:
        case "kill" | "stop":
            target = draw.choice((*PROCESSES, "master", "master"))
            return Fault(kind=kind, job=number, target=target, for_s=held_s, **early)
        case "preempt":
            notice_s = draw.choice((None, None, 0.0, 0.5))
            return Fault(kind=kind, job=number, notice_s=notice_s, **early)
        case "line":
            times = draw.choice((1, 2, 5, 12))
            target = draw.choice(LINE)
            return Fault(kind=kind, job=number, target=target, times=times, for_s=held_s, **early)
        case "store":
            # A refusal that meets two attempts before their first step ends a job, and should.
            target = draw.choice(STORE)
            when = when if target == "refused" else early
            return Fault(
                kind=kind, job=number, target=target, times=draw.choice((1, 5, 12)), **when
            )
        case _:
            return Fault(kind=kind, job=number, for_s=held_s, **when)
