"""Two processes on one VM, started by torchrun: one checkpoint of two shards, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spothop.checkpoints import Chain, Entry
from spothop.storage import open_store
from spothop.wire import SaveKind, StorageSpec
from support.machine import STEPS, Machine
from support.require import need_torch

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded"
LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 train.py"


def alone(folder: Path, steps: int) -> str:
    """The hash of the weights of a run without spothop and without a break."""
    script = (EXAMPLE / "train.py").read_text(encoding="utf-8")
    folder.mkdir()
    (folder / "train.py").write_text(script, encoding="utf-8")
    outside = {k: v for k, v in os.environ.items() if not k.startswith("SPOTHOP_")}  # noqa: TID251
    subprocess.run(
        [sys.executable, *TORCHRUN.split(), "--steps", str(steps)],
        cwd=folder,
        env={**outside, **LOCAL},
        check=True,
        capture_output=True,
    )
    return (folder / "outputs" / "weights.sha256").read_text()


def test_a_preempted_torchrun_of_two_goes_on_bit_for_bit(machine: Machine, tmp_path: Path) -> None:
    need_torch()
    files = {"train.py": (EXAMPLE / "train.py").read_text(encoding="utf-8"), "steps.py": STEPS}
    run = f"python {TORCHRUN} --save-every 1000000 --step-ms 10 --steps $(python steps.py 1 5)"
    job = machine.submit(run, files=files, env=LOCAL, dialect="gcp")
    machine.reaches(job, 5)
    machine.client.preempt(job)
    ended = machine.ends(job)
    assert [a.reason for a in ended.attempts] == ["preempted", "succeeded"]
    restored = ended.attempts[1].restored_step or 0
    assert restored >= 5
    for rank in (0, 1):
        assert f"rank {rank} resumed at step {restored}" in machine.log(job, 2)
    store = open_store(StorageSpec(url=f"file://{machine.home}/storage"))
    entries = [e for e in Chain(store, job).entries() if isinstance(e, Entry) and not e.fence]
    assert SaveKind.EMERGENCY in {entry.kind for entry in entries}
    assert restored in {entry.step for entry in entries}
    for entry in entries:
        assert sorted(file.path for file in entry.files) == ["0/shard-0.pt", "1/shard-1.pt"]
    machine.client.download(job, tmp_path / "there")
    digest = tmp_path / "there" / "outputs" / "weights.sha256"
    assert digest.read_text() == alone(tmp_path / "alone", restored + 5)
