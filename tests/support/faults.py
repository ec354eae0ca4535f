"""Machines whose agents and masters are struck at named points, and jobs to be struck."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spothop.wire import JobDetail
from support.machine import COUNTER, Machine
from support.require import namespaces_work
from support.waiting import until

STEPS = 200
"""Of a `hopper`: its first attempt would take half a minute for them, later ones take none."""

SLOW_SAVE = """
import os, pathlib, time

def in_two_halves(path, text, write=pathlib.Path.write_text):
    if path.name != "ckpt.json" or os.environ["SPOTHOP_ATTEMPT"] != "1":
        return write(path, text)
    write(path, text[: len(text) // 2])
    print("half saved", flush=True)
    time.sleep(1)
    write(path, text)

pathlib.Path.write_text = in_two_halves
"""
"""Put before `examples/counter`: each save of the first attempt
takes a while, and its file is torn meanwhile."""


def prefixed(code: str) -> dict[str, str]:
    """The files of a job: `examples/counter`, with this code run before it."""
    before, future, after = COUNTER.read_text(encoding="utf-8").partition(
        "from __future__ import annotations\n"
    )
    return {"train.py": before + future + code + after}


def hopper(
    machine: Machine, *, save_every: int = 1000, code: str = "", later_ms: int = 1, **spec: Any
) -> str:
    """Submit a counter job of `STEPS` steps, the first attempt of which is there to be ended."""
    step_ms = f'$([ "$SPOTHOP_ATTEMPT" = 1 ] && echo 150 || echo {later_ms})'
    run = f"python train.py --steps {STEPS} --step-ms {step_ms} --save-every {save_every}"
    return machine.submit(run, files=prefixed(code), **spec)


class FaultyMachine(Machine):
    """Agents that start between `strike` and `calm` are killed or paused at a point, once each:
    those of the jobs of this name."""

    poll_s = 0.2  # several tests at the same time: their looking must not be the load

    def __init__(self, folder: Path, **options: Any) -> None:
        self.chaos = folder / "chaos"  # by a job's name: what its agents' SPOTHOP_CHAOS is
        self.chaos.mkdir(parents=True)
        script = (
            'spec="${2%/disk/agent.json}/spec.json"; '
            """job=$(sed -n 's/.*"spothop-job": "\\(.*\\)-[0-9a-f]*".*/\\1/p' "$spec"); """
            f'export SPOTHOP_CHAOS="$(cat {shlex.quote(str(self.chaos))}/$job 2>/dev/null)"; '
            f'exec {shlex.quote(sys.executable)} -m spothop_agent "$@"'
        )
        command = ["/bin/sh", "-c", script, "agent"]
        # Its agents read the points at which they are struck from our folder, as our user.
        options.setdefault("isolation", "namespaces" if namespaces_work() else "processes")
        cloud = {"agent_command": command, **options.pop("cloud", {})}
        super().__init__(folder, cloud=cloud, **options)

    def submit(self, run: str = "python train.py", *, files: Mapping[str, str], **spec: Any) -> str:
        """Of saves there are only those of the script and of a notice, unless `checkpoint` says
        otherwise: on a slow machine an insurance save would be right, and the test's steps off."""
        return super().submit(run, files=files, **{"checkpoint": {"policy": "none"}, **spec})

    def strike(self, name: str, point: str, action: str) -> None:
        aside = self.chaos / f".{name}"
        aside.write_text(f"agent:{point}={action}", encoding="utf-8")
        aside.replace(self.chaos / name)

    def calm(self, name: str) -> None:
        (self.chaos / name).unlink(missing_ok=True)

    def master_died(self) -> None:
        """Wait for that, and start it again."""
        master = self._master
        assert master is not None
        until(
            lambda: master.poll() is not None, what="the master is dead", details=self._master_tail
        )
        assert master.returncode == -signal.SIGKILL
        self.kill()
        self.start()

    def __enter__(self) -> FaultyMachine:
        super().__enter__()
        return self

    @contextmanager
    def paused(self, job: str, attempt: int, point: str) -> Iterator[int]:
        """With the agent of this attempt stopped at the point, and no later one struck; yields its
        process id and lets it go on, if it lives."""
        folder = self.folder_of(job, attempt)
        marker = folder / "disk" / "agent" / f"chaos.{point}"
        until(marker.exists, what=f"at {point}", details=lambda: self.timeline(job))
        [agent] = self.agents(folder)
        until(lambda: is_stopped(agent), what="paused")
        self.calm(self.job(job).name)
        try:
            yield agent
        finally:
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGCONT)

    def log_on_disk(self, job: str, attempt: int) -> Path:
        """As soon as it is there; it knows what the master has not heard yet."""
        agent = self.folder_of(job, attempt) / "disk" / "agent"
        log = agent / "attempts" / str(attempt) / "log"
        until(log.exists, what="a log", details=lambda: self.timeline(job))
        return log

    # --- processes ------------------------------------------------------------------------------

    def folder_of(self, job: str, attempt: int) -> Path:
        """The VM's folder, as soon as there is one."""

        def launched(job: JobDetail) -> bool:
            named = {a.vm for a in job.attempts if a.number == attempt}
            return any(vm.id in named and vm.cloud_id for vm in job.vms)

        self.wait(job, launched, what=f"launched for attempt {attempt}")
        return self.vm_folder(job, attempt)

    def agents(self, vm_folder: Path) -> list[int]:
        """The agent of this VM, as soon as there is one."""
        line = f"-m spothop_agent --config {vm_folder}/disk/agent.json"
        return until(
            lambda: [pid for pid, found in self.processes().items() if line in found],
            what="an agent runs",
        )

    def supervisor(self, vm_folder: Path) -> int:
        """The VM's supervisor: its first process has the same command line, and is its child."""
        line = f"local.vm_supervisor {vm_folder}"
        found = {pid for pid, name in self.processes().items() if line in name}
        [supervisor] = [pid for pid in found if parent(pid) not in found]
        return supervisor

    def trainer(self, vm_folder: Path) -> int:
        """The training process itself, not the shell around it."""
        for pid, line in self.processes().items():
            with suppress(FileNotFoundError):
                here = Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(vm_folder / "disk")
                if here and line.startswith("python train.py"):
                    return pid
        raise AssertionError("no training process")


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    with suppress(FileNotFoundError):
        return _stat(pid)[0] not in "ZX"
    return False


def is_stopped(pid: int) -> bool:
    """State T in proc(5)."""
    return _stat(pid)[0] == "T"


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
