"""`make demo`: a GPT trains on spot VMs that keep being preempted, and ends with the same bits.

Two jobs of `examples/gpt` run side by side on the local cloud: one uninterrupted on demand, one on
spot VMs that the demo preempts with every kind of notice. Writes demo-report.json; exits 1 when
anything promised does not hold.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from interrupts import Interrupts
from machine import DemoError, Machine
from pace import QUIET, CannotMeasure, Pace, in_words, measure
from plan import Plan
from report import Report, broken_promises, compute, partial_table, table
from runner import HOPPED, STRAIGHT, DemoRunner
from screen import Screen, say
from spothop import jobfile
from spothop.sdk import bundle
from spothop.sdk.client import Client
from spothop.sdk.errors import ClientError
from spothop.wire import JobDetail

GPT = Path(__file__).resolve().parent.parent / "gpt"
sys.path.append(str(GPT))  # the example's own comparison of weights

INTRO = """\
[bold]spothop demo[/bold]: a byte-level GPT learns the source text of Python's own
standard library, twice. One run trains on an on-demand VM and is left alone.
The other trains on spot VMs in three zones, whose metadata servers speak the
dialects of AWS, Azure and GCP, and is preempted again and again. Both must end
with the same weights.
After a notice a VM saves, and trains on until its replacement takes over.
"54 insurance" below: so many saves that spothop asked for, besides those of the
script's own schedule and those at a notice.
Status pages, while it runs: {url}
Their token is in {token}
"""


Outcome = tuple[Report, JobDetail]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument(
        "--steps", type=int, help="that each run trains; by default what the machine does"
    )
    parser.add_argument("--short", action="store_true", help="preempt once in each of three ways")
    parser.add_argument("--seed", type=int, default=7, help="moments of the preemptions")
    parser.add_argument("--train", default="", help="further options of examples/gpt/train.py")
    parser.add_argument("--report", type=Path, default=Path("demo-report.json"))
    parser.add_argument("--home", type=Path, default=Path(".demo"), help="kept after the run")
    parser.add_argument(
        "--stalled-after", type=float, help="seconds in which nothing moves; then it gives up"
    )
    return parser.parse_args()


def submit_both(client: Client, steps: int, options: str) -> dict[str, str]:
    """Submit `examples/gpt` twice, on spot and on demand; returns title -> job id."""
    spec = jobfile.load(GPT / "spothop.yaml").as_mapping()
    spec["run"] = f"python train.py --steps {steps} {options}".rstrip()
    with tempfile.TemporaryDirectory() as folder:
        packed = bundle.pack(GPT, Path(folder) / "bundle.tar.gz")
        code = client.upload_bundle(packed)
    jobs = {}
    for title, spot in ((HOPPED, True), (STRAIGHT, False)):
        resources = {**spec.get("resources", {}), "spot": spot}
        job = client.submit({**spec, "name": f"gpt-{title}", "resources": resources}, code)
        jobs[title] = job.id
    return jobs


def compare(client: Client, jobs: dict[str, str], folder: Path) -> tuple[str, str]:
    """SHA-256 over the named tensors of both final checkpoints, read back from storage."""
    from weights_hash import checkpoint_hash

    hashes = {
        title: checkpoint_hash(client.download(job, folder / title).checkpoint)
        for title, job in jobs.items()
    }
    return hashes[HOPPED], hashes[STRAIGHT]


def run(
    console: Console,
    machine: Machine,
    interrupts: Interrupts,
    plan: Plan,
    args: argparse.Namespace,
) -> Outcome:
    """Train on a machine of our own; everything is ended afterwards, whatever happens."""
    with machine:
        with machine.client() as client:
            console.print(INTRO.format(url=machine.url, token=shown(machine.token_file)))
            try:
                report, hopped = train(console, client, machine, plan, args)
            except BaseException:
                interrupts.ignore()
                say(console, "cleaning up: ending the VMs and the master; up to a minute ...")
                cancel(client)
                raise
        interrupts.ignore()
        left = machine.stop()
    return replace(report, processes_left=left), hopped


def train(
    console: Console, client: Client, machine: Machine, plan: Plan, args: argparse.Namespace
) -> Outcome:
    """Run both jobs to their ends and compute the report; cut short, tell what is known by then."""
    jobs = submit_both(client, args.steps, args.train)
    with Screen(console, steps=args.steps) as screen:
        runner = DemoRunner(
            *(client, jobs, screen, plan),
            steps=args.steps,
            grace_s=machine.grace_s,
            seed=args.seed,
        )
        try:
            runner.run(stalled_after_s=args.stalled_after)
            console.print("both runs are over; comparing their weights ...")
            return finish(client, machine.home, jobs, runner)
        except BaseException:
            if len(runner.views) == len(jobs):
                views = runner.views[HOPPED], runner.views[STRAIGHT]
                say(console, partial_table(*views, runner.preemptions, steps=args.steps))
            raise


def finish(client: Client, home: Path, jobs: dict[str, str], runner: DemoRunner) -> Outcome:
    """The report of two runs that are over."""
    details = {title: client.job(job) for title, job in jobs.items()}
    for title, job in details.items():
        if job.state != "succeeded":
            raise DemoError(f"the {title} run is {job.state}: {job.reason}\n{job.log_tail}")
    weights = compare(client, jobs, home / "download")
    wait_for_vms(client, list(jobs.values()))
    details = {title: client.job(job) for title, job in jobs.items()}
    report = compute(
        details[HOPPED], details[STRAIGHT], runner.preemptions, runner.released, weights
    )
    return report, details[HOPPED]


def shown(path: Path) -> str:
    """Relative where that is shorter."""
    return os.path.relpath(path)


def wait_for_vms(client: Client, jobs: list[str], *, stalled_after_s: float = 60.0) -> None:
    """Until the cloud has confirmed the end of every VM. Raises DemoError when no more end."""
    before: list[str] | None = None
    while True:
        left = [vm.id for job in jobs for vm in client.job(job).vms if vm.state != "terminated"]
        if not left:
            return
        if left != before:
            before, until = left, time.monotonic() + stalled_after_s
        elif time.monotonic() > until:
            raise DemoError(f"VMs still there after {stalled_after_s:.0f} s: {', '.join(left)}")
        time.sleep(0.1)


def cancel(client: Client) -> None:
    """Have the master end jobs and VMs in order; `Machine.stop` kills what this leaves."""
    with suppress(DemoError, ClientError):
        jobs = [job.id for job in client.jobs()]
        for job in jobs:
            with suppress(ClientError):  # it may have ended just now
                client.cancel(job, now=True)
        wait_for_vms(client, jobs)


def fit(console: Console, args: argparse.Namespace, plan: Plan) -> Pace:
    """Choose what was not given by the pace of this machine, and say how long it will take."""
    pace = QUIET
    if args.steps is None:
        console.print("measuring how fast this machine trains, for some seconds ...")
        pace = measure(args.train)
        args.steps = pace.steps(short=args.short)
        console.print(
            f"a start takes {pace.start_s:.1f} s, a step {pace.step_s * 1000:.0f} ms: "
            f"{args.steps} steps a run, {in_words(pace.total_s(args.steps, plan.todo))}\n"
        )
    if args.stalled_after is None:
        args.stalled_after = pace.stalled_after_s()
    return pace


def main() -> int:
    args = arguments()
    args.report.unlink(missing_ok=True)  # an older report must not be taken for this run's
    console = Console(highlight=False)
    home = args.home.resolve()
    plan = Plan.short() if args.short else Plan()
    machine: Machine | None = None
    with Interrupts() as interrupts:
        try:
            pace = fit(console, args, plan)
            machine = Machine(home, grace_s=pace.grace_s())
            report, hopped = run(console, machine, interrupts, plan, args)
        except KeyboardInterrupt:
            if machine is not None:
                machine.stop()  # again: the signal may have hit the machine's start or its end
            say(console, "interrupted; every process was ended")
            say(console, f"checkpoints and logs stay in {shown(home)} until the next run")
            return 130
        except (DemoError, CannotMeasure, ClientError) as error:
            say(console, f"[red]error:[/red] {escape(str(error))}")
            say(console, f"hint: see {shown(home / 'master.log')}; run `make demo` again")
            return 1
    report.write(args.report)
    console.print(table(report))
    broken = broken_promises(report, hopped, plan)
    for text in broken:
        console.print(f"[red]broken:[/red] {escape(text)}")
    if not broken:
        console.print(f"All promises held. Figures: {args.report}")
    return 1 if broken else 0
