"""Carries a schedule out on real masters, agents and training processes over the local cloud.

One loop looks at the jobs' own files (what they have logged, which VMs were launched), strikes what
is due, lets go of what was held long enough, and starts masters again that are dead. It asks the
masters only whether jobs are over: nothing here may need one that is struck.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from chaos.check import Facts, JobFacts
from chaos.line import Line
from chaos.schedule import VIOLENT, Fault, Job, Schedule
from fakes import s3_server
from fakes.s3_server import S3Server
from spothop.checkpoints import Chain, Entry, download_outputs
from spothop.sdk.errors import ClientError
from spothop.storage import ObjectStore, StorageError, open_store
from spothop.wire import StorageSpec
from spothop_master.clouds.base import CloudError
from support import database
from support.counter import expected_value
from support.disks import fill, small_disk
from support.faults import FaultyMachine, is_stopped, prefixed
from support.masters import Masters
from support.ports import free_port
from support.require import may_mount
from support.waiting import Waited, until

OVER_S = 150.0
"""For a whole seed. One that goes well takes a twentieth of it, on a slow machine a tenth."""
LOOK_S = 0.04
ASK_S = 0.25
STORE_FAULTS: dict[str, dict[str, Any]] = {
    "outage": {"status": 503, "code": "ServiceUnavailable"},
    "refused": {"status": 403, "code": "AccessDenied"},
    "cut": {},
    "done_unanswered": {"after": True},
    "slow": {"delay_s": 0.5},
}
ODD = """
import os as _os, builtins as _builtins
def _odd(*texts, _print=_builtins.print, **options):
    _print(*texts, **options)
    words = str(texts[0]).split() if texts else []
    if words[:1] == ["step"]:
        if int(words[1]) == {flood_at}:
            for _ in range(400):
                _print("flood " * 1000)
        if int(words[1]) == {fails_at} and int(_os.environ["SPOTHOP_ATTEMPT"]) <= {fails_in}:
            raise RuntimeError("by schedule")
print = _odd
"""


class OneMaster(FaultyMachine):
    """Whose master may be dead or stopped at any moment."""

    def processes_of_masters(self) -> list[Any]:
        return [self._master]

    def start_again(self, number: int) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self.start()


class ManyMasters(FaultyMachine, Masters):
    def processes_of_masters(self) -> list[Any]:
        return list(self.masters)

    def start_again(self, number: int) -> None:
        self.start_one(number)


class Room:
    """One seed under way."""

    def __init__(self, schedule: Schedule, folder: Path, machine: Any, line: Line, s3: S3Server):
        self.schedule = schedule
        self.folder = folder
        self.machine = machine
        self.line = line
        self.s3 = s3
        self.story: list[str] = []
        self.jobs: list[str] = []
        self.wishes: dict[int, set[str]] = {number: set() for number in range(len(schedule.jobs))}
        self.struck: set[str] = set()
        """Cloud ids of VMs whose notice may come to nothing, for what was done to them."""
        self.not_met = 0
        """Faults whose moment did not come before the jobs were over."""
        self._closed = False
        self._due = list(schedule.faults)
        self._held: list[tuple[float, Callable[[], None]]] = []
        self._steps: dict[int, int] = {}
        self._paused: set[Path] = set()
        self._resume: set[int] = set()
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self._began:7.2f}  {text}")

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self) -> None:
        for number, job in enumerate(self.schedule.jobs):
            name = f"job-{number}"
            for point in job.points:
                self._strike_points(name, job.points)
                self.tell(f"{name}: its agents reach {point}")
            self.jobs.append(self._submit(name, job))

    def _strike_points(self, name: str, points: tuple[str, ...]) -> None:
        text = ",".join(f"agent:{point}" for point in points)
        (self.machine.chaos / name).write_text(text)

    def _submit(self, name: str, job: Job) -> str:
        odd = ODD.format(flood_at=job.flood_at, fails_at=job.fails_at, fails_in=job.fails_in)
        run = (
            f"python train.py --steps {job.steps} --step-ms {job.step_ms}"
            f" --save-every {job.save_every}"
        )
        checkpoint: dict[str, Any] = {"policy": "notice-aware"}
        if job.on_s3:
            checkpoint["storage"] = self.storage(job).model_dump(exclude_defaults=True)
        more = {"dialect": job.zone} if job.zone else {}
        retries = {"user": 1 if job.is_broken else 20, "infrastructure": 50, "hang": 20}
        files = prefixed(odd)

        def sent() -> str:
            try:
                return self.machine.submit(
                    run, files=files, name=name, checkpoint=checkpoint, retries=retries, **more
                )
            except (ClientError, AssertionError):
                self.restart_masters()
                known = [j.id for j in self._client_jobs() if j.name == name]
                return known[0] if known else ""

        return until(sent, what=f"{name} is submitted", details=self.machine._master_tail)

    def _client_jobs(self) -> list[Any]:
        try:
            return list(self.machine.client.jobs(all=True))
        except (ClientError, AssertionError):
            return []

    def storage(self, job: Job) -> StorageSpec:
        if job.on_s3:
            return self.s3.spec("s3://bucket/runs")
        home = self.machine.folder if self.schedule.masters > 1 else self.machine.home
        return StorageSpec(url=f"file://{home}/storage")

    # --- what is seen ---------------------------------------------------------------------------

    def vms(self, number: int) -> list[Path]:
        """Folders of the job's VMs in the cloud, oldest first."""
        found = []
        for path in (self.machine.folder / "cloud" / "vms").glob("lvm-*/spec.json"):
            with suppress(OSError, ValueError):
                spec = json.loads(path.read_text())
                if spec["tags"]["spothop-job"] == self.jobs[number]:
                    found.append((spec["requested_at"], path.parent))
        return [path for _, path in sorted(found)]

    def look(self) -> None:
        for number in range(len(self.jobs)):
            for vm in self.vms(number):
                for log in vm.glob("disk/agent/attempts/*/log"):
                    with suppress(OSError):
                        found = re.findall(rb"^step (\d+) ", log.read_bytes()[-4096:], re.MULTILINE)
                        if found:
                            newest = max(map(int, found))
                            self._steps[number] = max(self._steps.get(number, 0), newest)

    def is_due(self, fault: Fault) -> bool:
        if fault.kind == "disk" and len(self._steps) < len(self.jobs):
            return False  # two attempts that fail alike before their first step end a job
        if fault.launch is not None:
            return len(self.vms(fault.job)) >= fault.launch
        return self._steps.get(fault.job, 0) >= (fault.step or 0)

    # --- what is done ---------------------------------------------------------------------------

    def go_on(self) -> None:
        """Once round the loop."""
        self.look()
        now = time.monotonic()
        for at, let_go in [held for held in self._held if held[0] <= now]:
            self._held.remove((at, let_go))
            let_go()
        for fault in [fault for fault in self._due if self.is_due(fault)]:
            self._due.remove(fault)
            self.tell(f"{fault}")
            self.strike(fault)
        self.pause_at_points()
        self.restart_masters()
        self.resume_jobs()

    def hold(self, for_s: float, let_go: Callable[[], None]) -> None:
        self._held.append((time.monotonic() + for_s, let_go))

    def strike(self, fault: Fault) -> None:
        match fault.kind:
            case "kill" | "stop":
                self._signal(fault)
            case "preempt":
                vms = self.vms(fault.job)
                with suppress(CloudError):
                    if vms:
                        if fault.notice_s is not None:
                            self.struck.add(vms[-1].name)
                        self.machine.cloud.preempt(vms[-1].name, fault.notice_s)
            case "line":
                self.line.strike(fault.target, fault.times, min(fault.for_s, 1.0))
            case "store":
                pattern = f"*{self.jobs[fault.job]}*"
                more = STORE_FAULTS[fault.target]
                self.s3.add(s3_server.Fault(key=pattern, times=fault.times, **more))
            case "disk":
                self._fill(fault)
            case _:
                self._wish(fault)

    def _signal(self, fault: Fault) -> None:
        if fault.target == "master":
            self._signal_master(fault)
            return
        vms = self.vms(fault.job)
        if not vms:
            return
        for pid in self._find(vms[-1], fault.target):
            if fault.target in VIOLENT:
                self.struck.add(vms[-1].name)
            self._send(pid, fault)

    def _send(self, pid: int, fault: Fault) -> None:
        with suppress(ProcessLookupError):
            if fault.kind == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
                self.hold(fault.for_s, lambda: _go_on(pid))

    def _signal_master(self, fault: Fault) -> None:
        masters = self.machine.processes_of_masters()
        master = masters[(fault.step or 0) % len(masters)]
        if master is None:
            return
        if fault.kind == "kill":
            master.kill()
            master.wait()
        else:
            master.send_signal(signal.SIGSTOP)
            self.hold(fault.for_s, lambda: master.send_signal(signal.SIGCONT))

    def _find(self, vm: Path, target: str) -> list[int]:
        """At most one."""
        lines = self.machine.processes()
        if target == "supervisor":
            with suppress(ValueError):
                return [self.machine.supervisor(vm)]
        if target == "agent":
            wanted = f"-m spothop_agent --config {vm}/disk/agent.json"
            return [pid for pid, line in lines.items() if wanted in line][:1]
        if target == "wrapper":
            return [p for p, line in lines.items() if "wrapper.py" in line and str(vm) in line][:1]
        if target == "trainer":
            with suppress(AssertionError):
                return [self.machine.trainer(vm)]
        return []

    def _fill(self, fault: Fault) -> None:
        """All the disks of the cloud's VMs are one."""
        vms = self.machine.folder / "cloud" / "vms"
        if not os.path.ismount(vms):
            return
        self.struck |= {path.parent.name for path in vms.glob("lvm-*/spec.json")}
        filler = fill(vms)
        self.hold(fault.for_s, lambda: filler.unlink(missing_ok=True))

    def _wish(self, fault: Fault) -> None:
        for _ in range(3):
            with suppress(ClientError, AssertionError):
                wish = self.machine.client.cancel if fault.kind == "cancel" else None
                wish = wish or self.machine.client.pause
                wish(self.jobs[fault.job])
                break
        self.wishes[fault.job].add(fault.kind)  # also where its answer was lost
        if fault.kind == "pause":
            self._resume.add(fault.job)

    def resume_jobs(self) -> None:
        for number in list(self._resume):
            if self.state(number) == "paused":
                with suppress(ClientError, AssertionError):
                    self.machine.client.resume(self.jobs[number])
                    self._resume.discard(number)

    def pause_at_points(self) -> None:
        """Let agents go on that have stopped themselves."""
        vms = self.machine.folder / "cloud" / "vms"
        for marker in vms.glob("lvm-*/disk/agent/chaos.*"):
            if marker not in self._paused:
                self._paused.add(marker)
                self.tell(f"{marker.parents[2].name} reached {marker.name}")
                for pid in self._find(marker.parents[2], "agent"):
                    with suppress(FileNotFoundError):
                        if is_stopped(pid):
                            self.hold(1.0, lambda pid=pid: _go_on(pid))  # type: ignore[misc]

    def restart_masters(self) -> None:
        for number, master in enumerate(self.machine.processes_of_masters()):
            if master is not None and master.poll() is not None:
                self.tell(f"master {number} is dead, and started again")
                self.machine.start_again(number)

    # --- the end --------------------------------------------------------------------------------

    def state(self, number: int) -> str:
        """As a master says; empty where none answers."""
        with suppress(httpx.HTTPError, ValueError, KeyError):
            answer = httpx.get(
                f"{self.machine.url}/api/v1/jobs/{self.jobs[number]}",
                headers={"Authorization": f"Bearer {self.machine.token}"},
                timeout=2.0,
                trust_env=False,
            )
            return str(answer.json()["state"])
        return ""

    def run(self) -> None:
        """To the end of all jobs. Raises Waited."""
        asked, over = 0.0, False
        end = time.monotonic() + OVER_S
        while not over:
            self.go_on()
            if time.monotonic() - asked >= ASK_S:
                states = [self.state(number) for number in range(len(self.jobs))]
                over = all(state in {"succeeded", "failed", "cancelled"} for state in states)
                asked = time.monotonic()
            if time.monotonic() > end:
                raise Waited(f"not over within {OVER_S:g} s: {states}")
            time.sleep(LOOK_S)
        self.not_met = len(self._due)
        for fault in self._due:
            self.tell(f"did not come to be: {fault}")

    def calm(self) -> None:
        """Nothing is struck or held any more, and a master answers."""
        self._due.clear()
        for _, let_go in self._held:
            let_go()
        self._held.clear()
        self.s3.heal()
        for pid in self.machine.processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                if is_stopped(pid):
                    os.kill(pid, signal.SIGCONT)
        self.restart_masters()

    def close(self) -> list[str]:
        """End the machine; what it has left, the first time."""
        if self._closed:
            return []
        self._closed = True
        left: list[str] = self.machine.close()
        return left + [f"folder {path}" for path in self.folder.glob("machine/cloud/vms/.new-*")]

    def facts(self) -> Facts:
        for job in self.jobs:
            self.machine.gone(job)
        rows = self.machine.client.vms()
        cloud = self.machine.cloud.list("")
        launched = {vm.id for vm in cloud if vm.error is None}
        return Facts(
            jobs=[
                self._job_facts(number, job, launched)
                for number, job in enumerate(self.schedule.jobs)
            ],
            launched=frozenset(launched),
            owned=frozenset(vm.cloud_id for vm in rows if vm.cloud_id),
            alive=[f"{vm.id} is {vm.state}" for vm in cloud if vm.state.value != "terminated"],
        )

    def _job_facts(self, number: int, job: Job, made: set[str]) -> JobFacts:
        name = self.jobs[number]
        store = open_store(self.storage(job), create=False)
        entries = Chain(store, name).entries()
        launched = frozenset(path.name for path in self.vms(number) if path.name in made)
        return JobFacts(
            number=number,
            job=job,
            wishes=frozenset(self.wishes[number]),
            detail=self.machine.job(name),
            events=sorted(self.machine.events(name), key=lambda event: event.id),
            entries=[entry for entry in entries if isinstance(entry, Entry)],
            unreadable=[str(entry) for entry in entries if not isinstance(entry, Entry)],
            result=self._result(store, name),
            expected={"step": job.steps, "value": expected_value(job.steps)},
            launched=launched,
            kept=frozenset(launched - self.struck),
        )

    def _result(self, store: ObjectStore, name: str) -> object:
        with suppress(StorageError):
            to = self.folder / f"outputs-{name}"
            if "result.json" in download_outputs(store, name, to):
                return json.loads((to / "result.json").read_text())
        return None


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def room(schedule: Schedule, folder: Path) -> Iterator[Room]:
    """With its machine running; ends both."""
    with ExitStack() as stack:
        s3 = stack.enter_context(S3Server())
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        settings = {
            "agents_url": f"http://127.0.0.1:{port}",
            "silent_after_s": schedule.silent_after_s,
            "chaos": schedule.master_point,
        }
        if any(fault.kind == "disk" for fault in schedule.faults) and may_mount():
            stack.enter_context(small_disk(folder / "machine" / "cloud" / "vms", "64m"))
        options: dict[str, Any] = {
            "settings": settings,
            "pools": schedule.pools,
            "grace_s": 8.0,
            "cloud": {"forward": [int(s3.endpoint.rpartition(":")[2])]},
        }
        kind = ManyMasters if schedule.masters > 1 else OneMaster
        if schedule.masters > 1:
            options["count"] = schedule.masters
            stack.callback(database.close_all)
        machine = kind(folder / "machine", **options)
        line = Line(port, machine.port)
        stack.callback(line.close)
        found = Room(schedule, folder, machine, line, s3)
        stack.callback(found.close)
        machine.start()
        yield found
