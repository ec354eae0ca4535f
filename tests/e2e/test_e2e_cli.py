"""A user's whole way by the `spothop` program: submit, look, preempt, download. The real program,
where a process matters: following, and what it reads or writes in the folder it is started in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli import in_process, spothop
from support.counter import expected_value
from support.machine import COUNTER, STEPS, Machine

pytestmark = pytest.mark.e2e

JOB_FILE = """\
name: by-hand
run: python train.py --steps {steps} --step-ms 10 --save-every 50
resources:
  any_of:
    - {{cloud: local, zone: local-1c}}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(COUNTER.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "steps.py").write_text(STEPS, encoding="utf-8")
    return folder / "job.yaml"


def test_from_submit_to_download(machine: Machine, tmp_path: Path, job_file: Path) -> None:
    job_file.write_text(JOB_FILE.format(steps="$(python steps.py 1 20)"), encoding="utf-8")
    submitted = spothop(machine, "submit", job_file, "--yes", "-d")
    assert submitted.returncode == 0, submitted.stderr
    assert "local-1c" in submitted.stdout  # the plan
    job = next(
        line.split()[1] for line in submitted.stdout.splitlines() if line.startswith("submitted ")
    )
    machine.reaches(job, 5)
    listed = json.loads(in_process(machine, "jobs", "--json").stdout)
    assert next(view for view in listed if view["id"] == job)["state"] == "running"
    preempted = in_process(machine, "preempt", job)
    assert preempted.returncode == 0, preempted.stderr
    step = machine.ends(job).step
    assert step is not None

    shown = json.loads(in_process(machine, "show", job, "--json").stdout)
    assert [a["reason"] for a in shown["attempts"]] == ["preempted", "succeeded"]
    for_people = in_process(machine, "show", job).stdout
    assert "succeeded" in for_people
    assert f"done at step {step}" in for_people
    log = in_process(machine, "logs", job).stdout
    assert f"done at step {step}, value {expected_value(step)}" in log
    followed = in_process(machine, "logs", job, "-f", "--attempt", "1").stdout
    assert "step 1 value" in followed
    events = in_process(machine, "events", job, "--json").stdout.splitlines()
    assert {"notice", "committed"} <= {json.loads(line)["kind"] for line in events}

    downloaded = spothop(machine, "download", job, cwd=tmp_path)
    assert downloaded.returncode == 0, downloaded.stderr
    there = tmp_path / job
    assert json.loads((there / "outputs" / "result.json").read_text())["step"] == step
    assert json.loads((there / "ckpt.json").read_text())["value"] == expected_value(step)


def test_following_shows_the_log_and_ends_with_the_job(machine: Machine, job_file: Path) -> None:
    job_file.write_text(JOB_FILE.format(steps=20), encoding="utf-8")
    followed = spothop(machine, "submit", job_file, "--yes")
    assert followed.returncode == 0, followed.stderr
    assert [line for line in followed.stdout.splitlines() if line.startswith("step ")] == [
        line
        for line in machine.log("by-hand-" + job_id(followed.stdout)).splitlines()
        if line.startswith("step ")
    ]
    assert "succeeded" in followed.stderr


def job_id(output: str) -> str:
    """The random part of the id, from what submit prints."""
    line = next(line for line in output.splitlines() if line.startswith("submitted by-hand-"))
    return line.removeprefix("submitted by-hand-")


def test_a_job_that_fails_ends_the_following_with_status_1(
    machine: Machine, job_file: Path
) -> None:
    text = "name: broken\nrun: echo the reason; exit 3\nretries: {user: 0}\n"
    job_file.write_text(text, encoding="utf-8")
    followed = in_process(machine, "submit", job_file, "--yes")
    assert followed.returncode == 1
    assert "the reason" in followed.stdout
    assert "exited with code 3" in followed.stderr
    shown = in_process(machine, "show", "broken")
    assert "failed" in shown.stdout
    assert "the reason" in shown.stdout


def test_cancel_by_name(machine: Machine, job_file: Path) -> None:
    text = JOB_FILE.format(steps=10_000).replace("by-hand", "endless")
    job_file.write_text(text, encoding="utf-8")
    made = in_process(machine, "submit", job_file, "--yes", "-d", "--json")
    job = json.loads(made.stdout)["id"]
    machine.reaches(job, 1)
    cancelled = in_process(machine, "cancel", "endless")
    assert cancelled.returncode == 0, cancelled.stderr
    machine.ends(job, "cancelled")
    assert in_process(machine, "cancel", job).returncode == 0  # again: harmless
