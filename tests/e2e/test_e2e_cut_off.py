"""A VM that is cut off, and that its cloud does not end either: a host behind a broken network. It
comes back after its replacement has taken over (I2): then it commits nothing, is told to stop, and
is ended.

Its supervisor is stopped (SIGSTOP) meanwhile, so that it outlives its deadline and whatever the
master asks of its cloud.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fakes.s3_server import S3Server
from spothop.checkpoints import Chain, Entry
from spothop.storage import open_store
from spothop.wire import JobDetail
from spothop_master.clouds.local.disk import MARKER
from support.counter import expected_value
from support.cut import Cut
from support.leftovers import carrying
from support.machine import Machine
from support.truth import check_chain
from support.waiting import until

pytestmark = pytest.mark.e2e

GRACE_S = 5.0


def trains(job: JobDetail, attempt: int) -> bool:
    newest = job.attempts[-1] if job.attempts else None
    return job.attempt == attempt and bool(newest and newest.last_step)


def supervisor_of(machine: Machine, vm: str) -> int:
    """Its child, the VM's first process, has the same command line."""
    found = {
        pid
        for pid, line in machine.processes().items()
        if "vm_supervisor" in line and line.rstrip().endswith(vm)
    }
    [top] = [pid for pid in found if parent_of(pid) not in found]
    return top


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def entries(s3: S3Server, job: str) -> list[Entry]:
    found = Chain(open_store(s3.spec()), job).entries()
    return [entry for entry in found if isinstance(entry, Entry)]


def cuts() -> list[object]:
    both = pytest.param("master and storage", False, id="both")
    more = [
        pytest.param(what, silent, id=f"{what}{', silent' * silent}", marks=pytest.mark.thorough)
        for what in ("master", "storage", "master and storage")
        for silent in (False, True)
        if (what, silent) != ("master and storage", False)
    ]
    return [both, *more]


@pytest.mark.parametrize(("what", "silent"), cuts())
def test_a_vm_that_comes_back_after_its_replacement_started_does_no_harm(
    tmp_path: Path, what: str, silent: bool
) -> None:
    """`silent`: its packets vanish, instead of being refused."""
    machine = Machine(
        tmp_path / "machine",
        isolation="processes",
        grace_s=GRACE_S,
        settings={"stop_timeout_s": 5, "silent_after_s": 600},
    )
    with S3Server() as s3, Cut(machine.port) as master, Cut(port_of(s3)) as storage:
        machine._environment["SPOTHOP_MASTER_AGENTS_URL"] = f"http://127.0.0.1:{master.port}"
        options = s3.options() | {"endpoint": f"http://127.0.0.1:{storage.port}"}
        place = {"url": "s3://bucket/runs", "options": options}
        with machine:
            job = machine.counter(
                100,
                endless=1,
                step_ms=50,
                save_every=10,
                dialect="aws",
                checkpoint={"storage": place, "policy": "none"},
            )
            machine.wait(job, lambda j: len(j.checkpoints) > 1, what="saved twice")
            old = machine.vm(job).cloud_id
            assert old is not None
            machine.client.preempt(job)
            machine.wait(job, lambda j: j.attempts[0].notice_at, what="warned")
            supervisor = supervisor_of(machine, old)
            os.kill(supervisor, signal.SIGSTOP)
            try:
                for name, cut in (("master", master), ("storage", storage)):
                    if name in what:
                        cut.off(old, silent=silent)
                machine.wait(job, lambda j: trains(j, 2), what="training on another VM")
                fenced = len(entries(s3, job))
                assert carrying(MARKER, old), "the old VM has ended by itself"
                for name, cut in (("master", master), ("storage", storage)):
                    if name in what:
                        cut.on(old)
                until(
                    lambda: not trainers(old),
                    what="the old VM is told to stop",
                    details=lambda: machine.timeline(job),
                )
            finally:
                os.kill(supervisor, signal.SIGCONT)
            ended = machine.ends(job)
            log = machine.log(job, 2)  # of an uninterrupted run: each step once, and in order
            assert f"done at step {ended.step}, value {expected_value(ended.step or 0)}" in log
            machine.gone(job)
            assert carrying(MARKER, old) == {}
            after = entries(s3, job)
            check_chain(after)
            assert {entry.attempt for entry in after[fenced:]} <= {2}
            assert [attempt.reason for attempt in ended.attempts] == ["preempted", "succeeded"]
            assert len(ended.vms) == 2


def trainers(vm: str) -> list[str]:
    return [line for line in carrying(MARKER, vm).values() if "train.py" in line]


def port_of(s3: S3Server) -> int:
    return int(s3.endpoint.rpartition(":")[2])
