"""Whatever a training script does, the job ends as it should, and says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.conftest import NewMachine
from support.machine import Machine
from support.waiting import until

pytestmark = pytest.mark.e2e

TOP = """
import json, os, pathlib, subprocess, sys, time
import spothop as sp

attempt = int(os.environ["SPOTHOP_ATTEMPT"])
start = 0
if latest := sp.latest_checkpoint():
    path = pathlib.Path(latest)
    start = int((path / "step" if path.is_dir() else path).read_text())
print("start at", start, flush=True)
"""


def script(body: str) -> dict[str, str]:
    """A training script; `TOP` gives it `attempt` and `start`, the step that was restored."""
    return {"train.py": TOP + body}


def test_one_that_never_calls_the_api_begins_again_after_a_preemption(machine: Machine) -> None:
    plain = """
import os, time
for i in range(5 if os.environ["SPOTHOP_ATTEMPT"] == "2" else 10_000):
    print("line", i, flush=True)
    time.sleep(0.02)
"""
    job = machine.submit(files={"train.py": plain}, dialect="gcp")
    until(lambda: "line 3" in machine.log(job), what="it runs")
    machine.client.preempt(job, notice_s=0.3)
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert ended.attempts[1].restored_step == 0
    assert machine.log(job, 2).count("line 4") == 1
    assert ended.checkpoints == []


def test_exit_0_at_once_is_success(machine: Machine) -> None:
    job = machine.submit("true", files={"train.py": ""})
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["succeeded"]


def test_exit_0_half_way_after_a_notice_is_no_success(machine: Machine) -> None:
    job = machine.submit(
        files=script(
            """
for step in range(start + 1, start + (10_000 if attempt == 1 else 10)):
    with sp.step_context():
        time.sleep(0.02)
    if sp.check_save():
        pathlib.Path("ckpt").write_text(str(step))
        sp.backup("ckpt")
        if attempt == 1:
            sys.exit(0)
print("all steps are done", flush=True)
"""
        ),
        dialect="gcp",
    )
    machine.reaches(job, 5)
    machine.client.preempt(job)
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    saved = next(c for c in ended.checkpoints if c.attempt == 1)
    assert ended.attempts[1].restored_step == saved.step
    assert "all steps are done" in machine.log(job, 2)


@pytest.mark.thorough
def test_a_crash_at_start_is_tried_twice_and_named_by_its_exception(machine: Machine) -> None:
    job = machine.submit(files=script("raise ValueError('no such dataset')"))
    ended = machine.ends(job, "failed")
    assert [a.reason for a in ended.attempts] == ["user_failure"] * 2
    assert len({a.vm for a in ended.attempts}) == 1  # the VM is not at fault
    assert ended.reason.startswith("ValueError: no such dataset (the process exited with code 1)")
    assert "two attempts in a row" in ended.reason
    assert "no such dataset" in ended.log_tail
    assert len(machine.events(job, "wait")) == 1  # backed off before the retry


@pytest.mark.thorough
def test_a_setup_that_fails_is_the_users_failure(machine: Machine) -> None:
    job = machine.submit(files=script(""), setup="echo installing; false")
    ended = machine.ends(job, "failed")
    assert ended.reason.startswith("setup failed: installing (exit code 1)")
    assert [a.reason for a in ended.attempts] == ["user_failure"]
    assert "installing" in ended.log_tail


@pytest.mark.thorough
def test_a_new_checkpoint_gives_a_crashing_script_its_budget_back(machine: Machine) -> None:
    job = machine.submit(
        files=script(
            """
for step in range(start + 1, start + 4):
    with sp.step_context():
        time.sleep(0.01)
pathlib.Path("ckpt").write_text(str(step))
sp.backup("ckpt")
sys.exit(0 if step >= 12 else 1)
"""
        ),
        retries={"user": 1},
    )
    ended = machine.ends(job)
    assert [a.restored_step for a in ended.attempts] == [0, 3, 6, 9]
    assert ended.step == 12


def test_saving_to_the_same_name_each_step_tears_nothing(machine: Machine, tmp_path: Path) -> None:
    job = machine.submit(
        files=script(
            """
for step in range(start + 1, 41):
    with sp.step_context():
        pass
    pathlib.Path("ckpt").write_text(str(step).rjust(200_000))
    sp.backup("ckpt")
sp.done()
"""
        )
    )
    ended = machine.ends(job)
    assert [c.step for c in sorted(ended.checkpoints, key=lambda c: c.n)] == [*range(1, 41)]
    found = machine.client.download(job, tmp_path / "there")
    assert found.rejected == []
    assert found.checkpoint is not None
    assert found.checkpoint.read_text() == str(40).rjust(200_000)


def test_a_directory_is_saved_and_restored_whole(machine: Machine, tmp_path: Path) -> None:
    job = machine.submit(
        files=script(
            """
assert start == 0 or sorted(os.listdir(latest)) == ["shard", "step"], os.listdir(latest)
for step in range(start + 1, start + (10_001 if attempt == 1 else 21)):
    with sp.step_context():
        time.sleep(0.01)
    if step % 10 == 0 or sp.check_save():
        folder = pathlib.Path("out/ckpt")
        (folder / "shard").mkdir(parents=True, exist_ok=True)
        (folder / "step").write_text(str(step))
        (folder / "shard" / "weights").write_text(f"{step} " * 10_000)
        sp.backup(folder)
sp.done()
"""
        ),
        dialect="aws",
    )
    machine.wait(job, lambda j: j.checkpoints, what="with a checkpoint")
    machine.client.preempt(job, notice_s=0)
    ended = machine.ends(job)
    assert (ended.attempts[1].restored_step or 0) >= 10
    found = machine.client.download(job, tmp_path / "there")
    assert found.checkpoint == tmp_path / "there" / "out" / "ckpt"
    assert (found.checkpoint / "shard" / "weights").read_text() == f"{ended.step} " * 10_000


def test_children_that_are_left_end_with_the_process_and_do_not_hold_the_job(
    machine: Machine,
) -> None:
    """Both one in the group of its parent, and a daemon in a session of its own."""
    job = machine.submit(
        files=script(
            """
subprocess.Popen(["sleep", "1001"])
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1002 & wait"], start_new_session=True)
print("children started", flush=True)
sp.done()
"""
        )
    )
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["succeeded"]
    machine.gone(job)
    lines = machine.processes().values()
    assert not [line for line in lines if "sleep 100" in line]


@pytest.mark.thorough
def test_children_end_with_a_vm_that_is_killed(machine: Machine) -> None:
    job = machine.submit(
        files=script(
            """
subprocess.Popen(["sleep", "1003"], start_new_session=True)
print("children started", flush=True)
time.sleep(0 if attempt > 1 else 60)
"""
        ),
        dialect="azure",
    )
    until(lambda: "children started" in machine.log(job), what="it runs")
    machine.client.preempt(job, notice_s=0)
    machine.wait(job, lambda j: j.vms[0].state == "terminated", what="without its first VM")
    on_disk = str(machine.vm_folder(job, 1))
    assert not [line for line in machine.processes().values() if on_disk in line]
    machine.ends(job)
    machine.gone(job)
    assert not [line for line in machine.processes().values() if "sleep 1003" in line]


def test_one_that_ignores_the_save_request_is_restored_from_its_own_saves(
    machine: Machine,
) -> None:
    job = machine.submit(
        files=script(
            """
for step in range(start + 1, 61):
    with sp.step_context():
        time.sleep(0.02)
    if step % 10 == 0 and step <= 20:
        pathlib.Path("ckpt").write_text(str(step))
        sp.backup("ckpt")
    while attempt == 1 and step == 25:
        time.sleep(1)
"""
        ),
        dialect="gcp",
    )
    machine.wait(job, lambda j: any(c.step == 20 for c in j.checkpoints), what="saved")
    machine.client.preempt(job, notice_s=1.5)
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    assert ended.attempts[1].restored_step == 20
    assert {c.step for c in ended.checkpoints if c.attempt == 1} == {10, 20}


LOG_MB = 100


def test_a_flood_of_output_neither_fills_memory_nor_delays_the_rest(
    new_machine: NewMachine,
) -> None:
    """The whole log arrives; meanwhile the job's progress and its checkpoints do too, and no sync
    waits until all of it is sent."""
    machine = new_machine(settings={"suspect_after_syncs": 75})  # half a minute
    job = machine.submit(
        files=script(
            f"""
line = "x" * 99 + "\\n"
for step in range(1, {LOG_MB} + 1):
    with sp.step_context():
        sys.stdout.write(line * 10_000)
        sys.stdout.flush()
        time.sleep(0.01)
    if step % 20 == 0:
        pathlib.Path("ckpt").write_text(str(step))
        sp.backup("ckpt")
print("last line", flush=True)
sp.done()
"""
        ),
        logs={"max": "1GB"},  # no line is dropped
    )
    machine.wait(job, lambda j: (j.step or 0) >= LOG_MB, what="at its last step")
    agents = [p for p, line in machine.processes().items() if "-m spothop_agent --config" in line]
    peaks = {pid: peak_mb(pid) for pid in [*agents, machine.master_pid]}
    ended = machine.ends(job)
    assert len(peaks) >= 2
    assert all(peak < 150 for peak in peaks.values()), peaks
    assert not [e for e in machine.events(job) if "asking the cloud" in e.text]
    assert {c.step for c in ended.checkpoints} >= {20, 40, 60, 80, 100}
    size = complete_log_size(machine, job)
    assert size > LOG_MB * 1_000_000
    assert ended.log_tail.rstrip().count("last line") == 1


def peak_mb(pid: int) -> float:
    """Largest resident memory that the process ever had: VmHWM in proc(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1000


def complete_log_size(machine: Machine, job: str) -> int:
    offset = 0
    while True:
        piece = machine.client.read_log(job, attempt=1, offset=offset)
        offset = piece.next_offset
        if piece.complete and not piece.data:
            return offset
