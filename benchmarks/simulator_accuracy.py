"""Does the simulator tell the truth? Table 6.1 of the thesis, on this machine.

Real jobs (`examples/counter`, which sleeps, so that the machine's load hardly matters) run on the
local cloud for a fixed time under injected preemptions: two workloads (the emergency save fits the
grace period, and does not), two policies, three mean lives, several runs. Each job's own records
give T, delta, beta, A and P, and the lives that its VMs had; the simulator replays these lives and
says how long the steps that were really done should have taken.

Run: python benchmarks/simulator_accuracy.py [--minutes 9] [--runs 3] [--policy notice-aware]
     python benchmarks/simulator_accuracy.py --quick
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import select

from common import publish
from live import MARKER, Machine
from spothop.simulator import make, run
from spothop.wire import InjectRequest
from spothop_master.store.db import Database
from spothop_master.store.schema import Attempt, Checkpoint, Observation, VmRow

LIMIT = 0.05
"""Mean error that is allowed."""
MTTPS_S = (20.0, 40.0, 80.0)
STEP_MS = 200
ALLOCATION_S = (2.0, 3.0)
START_S = 8.0
"""For a master to begin and for its jobs to end."""
EXTRA = 0.3
"""So much longer it may take until every job trains new steps."""
SETTINGS = {"sync_every_s": 1.0, "silent_after_s": 30, "mttp_half_life_s": 1e6}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of job, in pools of its own."""

    name: str
    save_ms: float
    grace_s: float
    static_every: int
    """Steps: the `static` arm's interval."""


WORKLOADS = (
    Workload(name="fits", save_ms=300, grace_s=4.0, static_every=40),  # 0.2 + 0.3 + beta < 4
    Workload(name="does not fit", save_ms=600, grace_s=0.5, static_every=25),  # 0.6 > 0.5
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job of each round."""

    workload: Workload
    policy: str
    """Of the job file."""
    mttp_s: float

    @property
    def vm(self) -> str:
        """A VM type for each case: each learns from its own lives, as a simulated trial does."""
        return f"{self.workload.name.replace(' ', '-')}-{self.policy}-{self.mttp_s:.0f}"

    @property
    def arm(self) -> str:
        """As the simulator names it: a real job under `static` tries a save at each notice."""
        if self.policy == "static":
            return f"static-{self.workload.static_every}+emergency"
        return self.policy

    @property
    def checkpoint(self) -> dict[str, Any]:
        every = {"static_every": self.workload.static_every} if self.policy == "static" else {}
        return {"policy": self.policy, **every}


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one run measured of itself; seconds."""

    case: Case
    steps: int
    wall_s: float
    """From the first request for a VM to the newest step."""
    lives_s: list[float]
    step_s: float
    save_s: float
    backup_s: float
    allocation_s: float
    preparation_s: float
    grace_s: float


def cloud(directory: Path, cases: Sequence[Case]) -> dict[str, Any]:
    zones = {"acc-1a": "aws", "acc-1b": "azure", "acc-1c": "gcp"}
    pools = [
        {
            "region": "acc-1",
            "zone": zone,
            "vm": case.vm,
            "dialect": dialect,
            "price": 0.2,
            "on_demand_price": 0.6,
            "grace_s": case.workload.grace_s,
            "allocation_s": list(ALLOCATION_S),
            "boot_s": [0.05, 0.1],
        }
        for case in {case.vm: case for case in cases}.values()
        for zone, dialect in zones.items()
    ]
    return {
        "directory": str(directory),
        "isolation": "auto",
        "environment": [MARKER],
        "pools": pools,
    }


def one_round(machine: Machine, cases: Sequence[Case], seconds: float, seed: int) -> list[Record]:
    """All cases side by side for this long; the records of those that got anywhere.

    A run is read when it trains a step for the first time: what it computes again would be
    compared with when the simulator first came there.
    """
    waiting = {submit(machine, case, seed): case for case in cases}
    time.sleep(seconds)
    last = time.monotonic() + EXTRA * seconds
    database = Database(f"sqlite:///{machine.home}/master.db")
    found = []
    try:
        while waiting and time.monotonic() < last:
            for job, case in list(waiting.items()):
                if (record := read(database, job, case)) is not None:
                    found.append(record)
                    del waiting[job]
            time.sleep(0.5)
    finally:
        database.close()
    return found


def submit(machine: Machine, case: Case, seed: int) -> str:
    from support.machine import COUNTER

    options = f"--steps 1000000 --step-ms {STEP_MS} --save-every 1000000"
    job = machine.submit(
        f"python train.py {options} --save-ms {case.workload.save_ms:g}",
        files={"train.py": COUNTER.read_text(encoding="utf-8")},
        checkpoint=case.checkpoint,
        resources={"any_of": [{"vm": case.vm}]},
    )
    machine.client.inject(job, InjectRequest(mttp_s=[case.mttp_s], seed=seed))
    return job


def read(database: Database, job_id: str, case: Case) -> Record | None:
    """From the job's rows, up to its newest step; None when nothing can be replayed."""
    with database.read() as session:
        attempts = list(
            session.scalars(
                select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number)
            )
        )
        rows = {vm.id: vm for vm in session.scalars(select(VmRow).where(VmRow.job_id == job_id))}
        seen = list(session.scalars(select(Observation).where(Observation.job_id == job_id)))
        saves = list(session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id)))
    trained = [a for a in attempts if a.last_step_at is not None and a.step_s is not None]
    newest = trained[-1] if trained else None
    if newest is None or newest.last_step is None or newest.last_step_at is None:
        return None
    if newest is not attempts[-1] or newest.notice_at is not None:
        return None  # between two VMs
    if any(newest.last_step <= (a.last_step or 0) for a in trained[:-1]):
        return None
    vms = [rows[a.leader.vm_id] for a in attempts if a.number <= newest.number]
    lives = {o.vm_id: o for o in seen if o.kind == "life"}
    before = [lives.get(vm.id) for vm in vms[:-1]]
    if any(life is None or life.censored for life in before):
        return None  # something else than a preemption ended a VM
    notices = [
        (life.value - seconds(vm.running_at, vm.notice_at))
        for vm, life in zip(vms[:-1], before, strict=True)
        if life is not None and vm.notice_at is not None
    ]
    step_s = weighted_step_s(trained)
    return Record(
        case=case,
        steps=newest.last_step,
        wall_s=seconds(vms[0].requested_at, newest.last_step_at),
        lives_s=[life.value for life in before if life is not None],
        step_s=step_s,
        save_s=mean([s.delta_s for s in saves if s.delta_s > 0], case.workload.save_ms / 1000),
        backup_s=mean([save.beta_s for save in saves], 0.1),
        allocation_s=mean([o.value for o in seen if o.kind == "allocation"], 0.0),
        # the product measures to the end of the first step, the simulator to its beginning
        preparation_s=max(0.0, mean(of_kind(seen, "preparation"), 0.0) - step_s),
        grace_s=mean(notices, case.workload.grace_s),
    )


def of_kind(seen: Sequence[Observation], kind: str) -> list[float]:
    return [o.value for o in seen if o.kind == kind]


def mean(values: Sequence[float], default: float) -> float:
    return statistics.mean(values) if values else default


def seconds(start: datetime | None, end: datetime | None) -> float:
    assert start is not None, "it ran"
    assert end is not None, "it trained"
    return (end - start).total_seconds()


def weighted_step_s(attempts: Sequence[Attempt]) -> float:
    """Over all steps, those computed again included."""
    done = [(a.last_step or 0) - (a.restored_step or 0) for a in attempts]
    spent = sum(n * (a.step_s or 0.0) for n, a in zip(done, attempts, strict=True))
    return spent / max(sum(done), 1)


def predicted_s(record: Record) -> float:
    """What the simulator says these steps take, on the very lives of the run."""
    inputs = {
        "name": record.case.vm,
        "steps": record.steps,
        "step_s": record.step_s,
        "save_s": record.save_s,
        "backup_s": record.backup_s,
        "allocation_s": record.allocation_s,
        "preparation_s": record.preparation_s,
        "grace_s": record.grace_s,
        "lives": {"kind": "replay", "lives_s": [max(s, 1e-3) for s in record.lives_s]},
        "policies": [record.case.arm],
        "notices_kept": 1.0,
        "replacement": "notice",
        "knowledge": "learned",
        "prior_mttp_s": record.case.mttp_s,  # as the master was told
        "trials": 1,
    }
    return run(make(inputs)).of(record.case.arm).row.total_s


def report(records: Sequence[Record], **facts: Any) -> float:
    """Table 6.1; answers the mean error over all runs."""
    runs = [(record, predicted_s(record)) for record in records]
    rows = []
    for case in dict.fromkeys(record.case for record in records):
        mine = [(record, told_s) for record, told_s in runs if record.case == case]
        errors = [100 * (told_s / r.wall_s - 1) for r, told_s in mine]
        rows.append(
            {
                "emergency save": case.workload.name,
                "policy": case.arm,
                "mttp_s": case.mttp_s,
                "runs": len(mine),
                "preemptions": sum(len(r.lives_s) for r, _ in mine),
                "steps": statistics.mean(r.steps for r, _ in mine),
                "real_s": statistics.mean(r.wall_s for r, _ in mine),
                "simulated_s": statistics.mean(told_s for _, told_s in mine),
                "error_%": statistics.mean(errors),
                "sd_%": spread(errors),
                "worst_%": max(errors, key=abs),
                "T_s": statistics.mean(r.step_s for r, _ in mine),
                "delta_s": statistics.mean(r.save_s for r, _ in mine),
                "beta_s": statistics.mean(r.backup_s for r, _ in mine),
                "R_s": statistics.mean(r.allocation_s + r.preparation_s for r, _ in mine),
            }
        )
    errors = [told_s / r.wall_s - 1 for r, told_s in runs]
    facts |= {"mean_error": statistics.mean(errors), "sd_error": spread(errors)}
    facts |= {"mean_absolute_error": statistics.mean(map(abs, errors)), "limit": LIMIT}
    facts["worst_error"] = max(errors, key=abs)
    facts["runs"] = [{**vars(r), "case": r.case.vm, "simulated_s": told_s} for r, told_s in runs]
    publish("simulator_accuracy", "simulated against real wall time", rows, **facts)
    print(
        f"  over {len(errors)} runs: mean error {100 * facts['mean_error']:+.1f} %, "
        f"standard deviation {100 * (facts['sd_error'] or 0):.1f} %, "
        f"mean absolute error {100 * facts['mean_absolute_error']:.1f} %, "
        f"worst run {100 * facts['worst_error']:+.1f} %"
    )
    return statistics.mean(errors)


def spread(errors: Sequence[float]) -> float | None:
    """The standard deviation of what these are a sample of; one run tells of none."""
    return statistics.stdev(errors) if len(errors) > 1 else None


def main() -> int:
    parser = argparse.ArgumentParser(description="How far the simulator is from real runs.")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all runs together")
    parser.add_argument("--runs", type=int, default=2, help="of each case")
    parser.add_argument("--parallel", type=int, default=6, help="jobs side by side")
    parser.add_argument("--policy", default="notice-aware", help="the adaptive one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one run each, two minutes")
    args = parser.parse_args()
    cases = [
        Case(workload=workload, policy=policy, mttp_s=mttp_s)
        for workload in WORKLOADS
        for policy in (args.policy, "static")
        for mttp_s in MTTPS_S
    ]
    minutes, runs = (2.0, 1) if args.quick else (args.minutes, args.runs)
    parallel = len(cases) if args.quick else args.parallel
    priors = ",".join(f"local/*/{case.vm}/spot={case.mttp_s:.0f}" for case in cases)
    waves = [
        (args.seed + number, cases[at : at + parallel])
        for number in range(runs)
        for at in range(0, len(cases), parallel)
    ]
    each_s = (minutes * 60 / len(waves) - START_S) / (1 + EXTRA)
    if each_s < 2 * MTTPS_S[0]:
        parser.error(f"{each_s:.0f} s for each run is too short: raise --minutes or lower --runs")
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for n, (seed, wave) in enumerate(waves, 1):
            home = Path(folder) / f"wave-{n}"
            machine = Machine(home, settings={**SETTINGS, "prior_mttp_pools": priors})
            config = cloud(home / "cloud", wave)
            machine.cloud_file.write_text(yaml.safe_dump(config), encoding="utf-8")
            with machine:
                records += one_round(machine, wave, each_s, seed)
            print(f"  {n} of {len(waves)}: {len(records)} runs", flush=True)
    if not records:
        print("no run came far enough to be compared; hint: a quieter machine, or --minutes")
        return 1
    lost = runs * len(cases) - len(records)
    error = report(records, seconds_each=each_s, not_replayable=lost)
    return 0 if abs(error) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
