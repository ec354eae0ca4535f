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
from plan import Plan
from report import Report, broken_promises, compute, table
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
"saves 2/37/3" below: 2 by the script's own schedule, 37 that spothop asked for
in between, 3 at a preemption notice.
Status pages, while it runs: {url}
Their token is in {token}
"""


Outcome = tuple[Report, JobDetail]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="steps that each run trains")
    parser.add_argument("--short", action="store_true", help="preempt once in each of three ways")
    parser.add_argument("--seed", type=int, default=7, help="moments of the preemptions")
    parser.add_argument("--report", type=Path, default=Path("demo-report.json"))
    parser.add_argument("--home", type=Path, default=Path(".demo"), help="kept after the run")
    parser.add_argument(
        "--stuck-after", type=float, default=200.0, help="seconds without a step; then it gives up"
    )
    return parser.parse_args()


def submit_both(client: Client, steps: int) -> dict[str, str]:
    """Submit `examples/gpt` twice, on spot and on demand; returns title -> job id."""
    spec = jobfile.load(GPT / "spothop.yaml").as_mapping()
    spec["run"] = f"python train.py --steps {steps}"
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
                report, hopped = train(console, client, machine.home, plan, args)
            except BaseException:
                interrupts.ignore()
                say(console, "cleaning up: ending the VMs and the master; up to half a minute ...")
                cancel(client)
                raise
        interrupts.ignore()
        left = machine.stop()
    return replace(report, processes_left=left), hopped


def train(
    console: Console, client: Client, home: Path, plan: Plan, args: argparse.Namespace
) -> Outcome:
    """Run both jobs to their ends and compute the report."""
    jobs = submit_both(client, args.steps)
    with Screen(console, steps=args.steps) as screen:
        runner = DemoRunner(client, jobs, screen, plan, seed=args.seed)
        runner.run(stuck_after_s=args.stuck_after)
    console.print("both runs are over; comparing their weights ...")
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


def wait_for_vms(client: Client, jobs: list[str], *, deadline_s: float = 20.0) -> None:
    """Until the cloud has confirmed the end of every VM. Raises DemoError at the deadline."""
    until = time.monotonic() + deadline_s
    while True:
        left = [vm.id for job in jobs for vm in client.job(job).vms if vm.state != "terminated"]
        if not left:
            return
        if time.monotonic() > until:
            raise DemoError(f"VMs still there after {deadline_s:.0f} s: {', '.join(left)}")
        time.sleep(0.1)


def cancel(client: Client) -> None:
    """Have the master end jobs and VMs in order; `Machine.stop` kills what this leaves."""
    with suppress(DemoError, ClientError):
        jobs = [job.id for job in client.jobs()]
        for job in jobs:
            with suppress(ClientError):  # it may have ended just now
                client.cancel(job)
        wait_for_vms(client, jobs)


def main() -> int:
    args = arguments()
    args.report.unlink(missing_ok=True)  # an older report must not be taken for this run's
    console = Console(highlight=False)
    machine = Machine(args.home.resolve())
    plan = Plan.short() if args.short else Plan()
    with Interrupts() as interrupts:
        try:
            report, hopped = run(console, machine, interrupts, plan, args)
        except KeyboardInterrupt:
            machine.stop()  # again: the signal may have hit the machine's start or its end
            say(console, "interrupted; every process was ended")
            return 130
        except (DemoError, ClientError) as error:
            say(console, f"[red]error:[/red] {escape(str(error))}")
            say(console, f"hint: see {shown(machine.home / 'master.log')}; run `make demo` again")
            return 1
    report.write(args.report)
    console.print(table(report))
    broken = broken_promises(report, hopped, plan)
    for text in broken:
        console.print(f"[red]broken:[/red] {escape(text)}")
    if not broken:
        console.print(f"All promises held. Figures: {args.report}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
