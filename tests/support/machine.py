"""A real master with a local cloud of its own, and the people around it: what end-to-end tests use.

Every process that comes of it inherits one environment variable, the marker, so that at the end
none can hide. Waiting is always for a condition, with a deadline, and a wait in vain shows what
happened: events, log, and the master's own log.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import yaml

from spothop.sdk import bundle
from spothop.sdk.client import Client
from spothop.sdk.errors import ClientError
from spothop.wire import JOB_ENDED, AttemptView, EventView, JobDetail, VmView
from spothop_master.clouds.local import config
from spothop_master.clouds.local.driver import LocalCloud
from support import leftovers
from support.database import write_migrated
from support.leftovers import LEFTOVERS_S, carrying
from support.ports import free_port
from support.waiting import POLL_S, WITHIN_S, Waited, until
from support.warm_master import WarmMaster

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
COUNTER = ROOT / "examples" / "counter" / "train.py"
MARKER = "E2E_RUN"  # not SPOTHOP_...: those do not reach the training process

ZONES = {"aws": "local-1a", "azure": "local-1b", "gcp": "local-1c"}
GRACE_S = 120.0
"""Of a notice: the save and the replacement are over long before, on a slow machine too, and then
the VM ends."""

FAST: dict[str, float] = {
    "sync_every_s": 0.4,
    "supervise_every_s": 0.4,
    "sweep_every_s": 1,
    "suspect_after_syncs": 3,
    "silent_after_s": 30,
    "join_timeout_s": 120,
    "fence_margin_s": 0.5,
    "stop_timeout_s": 60,
    "backoff_base_s": 0.2,
    "backoff_max_s": 0.5,
}
"""Settings under which a test is over in seconds; every one of them is a duration or a count. What
ends something that does not answer is long: a busy machine must not be taken for a lost one."""


STEPS = """\
import json, os, pathlib, sys
endless, more = map(int, sys.argv[1:])
note = pathlib.Path(os.environ["SPOTHOP_RUN_DIR"], "restored.json")
restored = json.loads(note.read_text())["step"] if note.exists() else 0
print(10**9 if int(os.environ["SPOTHOP_ATTEMPT"]) <= endless else restored + more)
"""
"""How many steps the counter is to make in this attempt; see `Machine.counter`."""


class Machine:
    """One master; leaving the context ends it and everything below it, and tells what was left."""

    poll_s = 0.2
    """How often it is asked about a job that is waited for."""

    def __init__(
        self,
        folder: Path,
        *,
        isolation: str = "auto",
        settings: Mapping[str, object] | None = None,
        pools: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
        cloud: Mapping[str, object] | None = None,
        **pool: Any,
    ) -> None:
        """`pool` goes into the configuration of all three pools, `pools[dialect]` into that of one,
        `cloud` beside them; `environment` is added to the master's, and so to its agents'."""
        self.folder = folder
        self.home = folder / "master"
        self.port = free_port()
        self.run_id = f"{os.getpid()}-{time.monotonic_ns()}"
        self._settings = {**FAST, **(settings or {})}
        self._environment = dict(environment or {})
        self._master: WarmMaster | None = None
        self._client: Client | None = None
        self._jobs: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.cloud_file = folder / "cloud.yaml"
        offered = _cloud(folder / "cloud", isolation, pool, pools or {}) | dict(cloud or {})
        offered["environment"] = [MARKER, leftovers.MARKER, *self._environment]
        self.cloud_file.write_text(yaml.safe_dump(offered), encoding="utf-8")
        self.home.mkdir(mode=0o700, exist_ok=True)
        write_migrated(self.home / "master.db")  # migrations have tests of their own

    # --- its life -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.home / "admin.token").read_text(encoding="utf-8").strip()

    @property
    def client(self) -> Client:
        assert self._client is not None, "the master does not run"
        return self._client

    def __enter__(self) -> Machine:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = self.close()
        if kind is None:
            assert left == [], f"left behind: {left}"

    def start(self) -> None:
        """Start the master, again or for the first time, and wait until it answers."""
        arguments = ["--port", str(self.port), "--home", str(self.home)]
        self._master = WarmMaster(
            [*arguments, "--local-cloud", str(self.cloud_file)],
            env=self.environment(),
            log=self.master_log,
        )
        until(self._answers, what="the master answers", details=self._master_tail)
        self._client = Client(self.url, self.token)

    def _answers(self) -> bool:
        assert self._master is not None
        if self._master.poll() is not None:
            raise Waited(f"the master ended:\n{self._master_tail()}")
        try:
            return httpx.get(f"{self.url}/healthz", timeout=10, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """`kill -9` the master; its VMs go on."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the master in order; its VMs go on."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._master is not None:
            self._master.send_signal(number)
            try:
                self._master.wait(WITHIN_S)
            finally:
                self._master.kill()
                self._master.wait()
                self._master = None

    @property
    def master_pid(self) -> int:
        assert self._master is not None
        return self._master.pid

    def close(self) -> list[str]:
        """End everything; what had to be ended by force, or was not cleaned up, in words."""
        left = []
        try:
            if self._client is not None:
                self._cancel_all()
        except (ClientError, AssertionError) as error:
            left.append(str(error))
        self.stop()
        left += self.leftovers()
        for pid in self.processes():
            _kill(pid)
        return left

    def _cancel_all(self) -> None:
        for job in self._jobs:
            if self.client.job(job).state not in JOB_ENDED:
                self.client.cancel(job, now=True)
        until(lambda: not self.live_vms(), what="all VMs are over", details=self._master_tail)

    def environment(self) -> dict[str, str]:
        """For processes of this machine: no settings of whoever runs the tests, and the marker."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("SPOTHOP_")}  # noqa: TID251  handed on
        settings = {f"SPOTHOP_MASTER_{k.upper()}": str(v) for k, v in self._settings.items()}
        settings["SPOTHOP_MASTER_STORAGE_ROOTS"] = "/"  # tests have storages wherever they like
        return own | settings | self._environment | {MARKER: self.run_id}

    @property
    def cloud(self) -> LocalCloud:
        """The cloud itself: it is there while the master is away."""
        return LocalCloud(config.load(self.cloud_file, default_directory=self.folder))

    # --- what is left ---------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """Process ids that carry the marker, with their command lines; ourselves excluded."""
        return carrying(MARKER, self.run_id)

    def live_vms(self) -> list[str]:
        """VMs that are not over, by the master's rows."""
        return [f"{vm.id} is {vm.state}" for vm in self.client.vms() if vm.state != "terminated"]

    def leftovers(self) -> list[str]:
        """Processes, and disks of VMs, in words; waits a moment for what is just ending."""
        ended = time.monotonic() + LEFTOVERS_S
        while (found := self._leftovers()) and time.monotonic() < ended:
            time.sleep(POLL_S)
        return found

    def _leftovers(self) -> list[str]:
        disks = (self.folder / "cloud" / "vms").glob("*/disk")
        processes = [f"process {pid}: {line}" for pid, line in self.processes().items()]
        return processes + [f"disk {path}" for path in disks]

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self, run: str = "python train.py", *, files: Mapping[str, str], **spec: Any) -> str:
        """Submit a job of these files; `dialect` picks its zone, the rest are keys of the job file.
        Returns its id."""
        dialect = spec.pop("dialect", None)
        if dialect is not None:
            any_of = [{"zone": ZONES[dialect]}]
            spec["resources"] = {**spec.get("resources", {}), "any_of": any_of}
        code = self.folder / f"code-{time.monotonic_ns()}"
        for name, content in files.items():
            path = code / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        packed = bundle.pack(code, self.folder / f"{code.name}.tar.gz")
        shutil.rmtree(code)
        mapping = {"name": "e2e", "run": run, **spec}
        job = self.client.submit(mapping, self.client.upload_bundle(packed)).id
        self._jobs.append(job)
        return job

    def counter(
        self,
        steps: int = 100,
        *,
        step_ms: float = 10,
        save_every: int = 1000,
        endless: int = 0,
        **more: Any,
    ) -> str:
        """Submit `examples/counter`, by default without periodic saves.

        The first `endless` attempts would never end by themselves, so that whatever is to happen to
        them does, on a slow machine too; the one after makes `steps` more.
        """
        count = f"$(python steps.py {endless} {steps})" if endless else str(steps)
        options = f"--steps {count} --step-ms {step_ms} --save-every {save_every}"
        if "payload_kb" in more:
            options += f" --payload-kb {more.pop('payload_kb')}"
        files = {"train.py": COUNTER.read_text(encoding="utf-8"), "steps.py": STEPS}
        before = more.pop("run_before", "")
        return self.submit(f"{before}python train.py {options}", files=files, **more)

    def job(self, job: str) -> JobDetail:
        return self.client.job(job)

    def attempt(self, job: str, number: int) -> AttemptView | None:
        return next((a for a in self.job(job).attempts if a.number == number), None)

    def vm(self, job: str, attempt: int | None = None) -> VmView:
        """The VM of this attempt, or of the newest one."""
        found = self.job(job)
        number = attempt if attempt is not None else found.attempt
        name = next(a.vm for a in found.attempts if a.number == number)
        return next(vm for vm in found.vms if vm.id == name)

    def vm_folder(self, job: str, attempt: int | None = None) -> Path:
        """What the local cloud keeps of the VM of this attempt."""
        cloud_id = self.vm(job, attempt).cloud_id
        assert cloud_id is not None
        return self.folder / "cloud" / "vms" / cloud_id

    def agent_folder(self, job: str, attempt: int | None = None) -> Path:
        """Of the agent, on the disk of the VM of this attempt."""
        return self.vm_folder(job, attempt) / "disk" / "agent"

    def events(self, job: str, kind: str | None = None) -> list[EventView]:
        return [e for e in self.client.events(job) if kind is None or e.kind == kind]

    def log(self, job: str, attempt: int | None = None) -> str:
        return "".join(piece.text for piece in self.client.logs(job, attempt=attempt))

    def wait(
        self,
        job: str,
        predicate: Callable[[JobDetail], T | None],
        within_s: float = WITHIN_S,
        *,
        what: str,
        over: bool = False,
    ) -> T:
        """The first true value of the predicate. A job's end ends the waiting, unless `over`.

        Raises `Waited` with the whole timeline of the job.
        """

        def look() -> T | None:
            found = self.job(job)
            value = predicate(found)
            if not value and found.state in JOB_ENDED and not over:
                raise Waited(f"it is {found.state} before it was {what}\n{self.timeline(job)}")
            return value

        details = partial(self.timeline, job)
        return until(look, within_s, what=what, details=details, poll_s=self.poll_s)

    def reaches(self, job: str, step: int, within_s: float = WITHIN_S) -> JobDetail:
        """Until the newest attempt trains and the job has come to this step."""
        return self.wait(
            job,
            lambda j: j if j.state == "running" and (j.step or 0) >= step else None,
            within_s,
            what=f"running at step {step}",
        )

    def ends(self, job: str, state: str = "succeeded", within_s: float = WITHIN_S) -> JobDetail:
        """Until the job is over; it must have ended in this state. Its last VM may still stop."""
        found = self.wait(job, lambda j: j if j.state in JOB_ENDED else None, within_s, what="over")
        assert found.state == state, f"{found.state}: {found.reason}\n{self.timeline(job)}"
        return found

    def gone(self, job: str) -> JobDetail:
        """Until every VM of the job is over."""

        def look(job: JobDetail) -> JobDetail | None:
            return job if all(vm.state == "terminated" for vm in job.vms) else None

        return self.wait(job, look, what="without VMs", over=True)

    def timeline(self, job: str) -> str:
        """All that is known of a job, for a test that failed."""
        found = self.job(job)
        events = [f"{e.at:%H:%M:%S.%f} [{e.attempt}] {e.kind}: {e.text}" for e in self.events(job)]
        return "\n".join(
            [
                f"--- {job}: {found.state} at step {found.step}: {found.reason}",
                *("--- events", *events[-80:]),
                *("--- log", found.log_tail, "--- master", self._master_tail()),
            ]
        )

    # --- files ----------------------------------------------------------------------------------

    @property
    def master_log(self) -> Path:
        return self.folder / "master.log"

    def _master_tail(self) -> str:
        text = self.master_log.read_text(encoding="utf-8", errors="replace")
        return text[-3000:]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _cloud(
    directory: Path, isolation: str, pool: Mapping[str, Any], pools: Mapping[str, Any]
) -> dict[str, Any]:
    """Three zones, one per dialect of metadata server; VMs come and boot in a moment."""
    common = {"region": "local-1", "vm": "small", "on_demand_price": 0.6, "grace_s": GRACE_S}
    common |= {"allocation_s": [0.02, 0.05], "boot_s": [0.02, 0.05], **pool}
    zones = [
        {**common, "zone": zone, "dialect": dialect, "price": price, **pools.get(dialect, {})}
        for price, (dialect, zone) in zip((0.21, 0.22, 0.23), ZONES.items(), strict=True)
    ]
    return {"directory": str(directory), "isolation": isolation, "pools": zones}
