"""I11 for a usual training loop: prefetched batches, evaluation, a schedule, accumulation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from spothop.wire import Dialect, JobDetail
from support.machine import ROOT, STEPS, Machine
from support.require import need_torch

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(1200)]

EXAMPLE = ROOT / "examples" / "nanogpt"
NAMES = ("train.py", "model.py", "prepare.py")
FILES = {name: (EXAMPLE / name).read_text("utf-8") for name in NAMES}
OPTIONS = "--save-every 1000 --eval-every 8 --eval-batches 2 --log-every 1 --warmup 10"
LEFT = 25
"""Steps of the last attempt."""


def trains(attempt: int, job: JobDetail) -> bool:
    """This attempt has made some steps."""
    newest = next((a for a in job.attempts if a.number == attempt), None)
    if newest is None or job.state != "running":
        return False
    return (newest.last_step or 0) >= (newest.restored_step or 0) + 3


def alone(folder: Path, steps: int) -> Path:
    """The weights of a run without spothop and without a break."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    outside = {k: v for k, v in os.environ.items() if not k.startswith("SPOTHOP_")}  # noqa: TID251
    command = [sys.executable, "train.py", *OPTIONS.split(), "--steps", str(steps)]
    subprocess.run(command, cwd=folder, env=outside, check=True, capture_output=True)
    return folder / "outputs" / "model.pt"


def test_preempted_on_every_dialect_it_goes_on_bit_for_bit(
    machine: Machine, tmp_path: Path
) -> None:
    need_torch()
    taken = [None, None, None, 0.0]  # with the pool's notice in each zone, then without any
    run = f"python train.py {OPTIONS} --steps $(python steps.py {len(taken)} {LEFT})"
    job = machine.submit(run, files={**FILES, "steps.py": STEPS}, setup="python prepare.py")
    for attempt, notice_s in enumerate(taken, start=1):
        machine.wait(job, partial(trains, attempt), what=f"training in attempt {attempt}")
        machine.client.preempt(job, notice_s=notice_s)
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted"] * len(taken) + ["succeeded"]
    assert {vm.dialect for vm in ended.vms[:3]} == set(Dialect)
    steps = ended.step
    assert steps is not None
    for attempt in ended.attempts[1:]:
        assert f"resumed at step {attempt.restored_step}" in machine.log(job, attempt.number)

    machine.client.download(job, tmp_path / "there")
    files = [tmp_path / "there" / "outputs" / "model.pt", alone(tmp_path / "alone", steps)]
    shutil.copy(ROOT / "examples" / "gpt" / "weights_hash.py", tmp_path)
    hashes = subprocess.run(
        [sys.executable, "weights_hash.py", *map(str, files)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()[::2]
    assert hashes[0] == hashes[1]
