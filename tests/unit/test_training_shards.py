"""Which part of a save a process hands over, and where it finds its own again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.training_vm import Vm
from spothop.training import shards


def test_the_launcher_or_torch_or_the_script_says_which_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shards.part(False, 1, 2) is None
    assert shards.part(True, 1, 2) == (1, 2)
    assert shards.part(True, 0, 1) is None  # one process alone saves the whole
    assert shards.part((3, 4), 0, 1) == (3, 4)
    with pytest.raises(ValueError, match=r"shard=\(4, 4\): the rank must be below"):
        shards.part((4, 4), 0, 1)
    dist = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 2,
        get_world_size=lambda: 3,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    assert shards.part(True, 0, 1) == (2, 3)
    dist.is_initialized = lambda: False
    assert shards.part(True, 0, 1) is None


def test_a_backup_says_it_and_a_save_in_the_background_too(tmp_path: Path) -> None:
    vm = Vm(tmp_path)
    session = vm.session(rank=1, world=2)
    session.backup(vm.save("a"), shard=True)
    with session.saving(shard=True) as save:
        save.backup(vm.save("b"))
    session.backup(vm.save("whole"))
    assert [(m.get("part"), m.get("parts")) for m in vm.published()] == [
        (1, 2),
        (1, 2),
        (None,) * 2,
    ]
    vm.close()


def test_two_whole_saves_of_one_step_are_refused_and_rank_0_alone_is_not(tmp_path: Path) -> None:
    vm = Vm(tmp_path)
    parent = vm.session(rank=os.getppid() - os.getpid(), world=2)  # a process id that lives
    parent._rank = 0
    second = vm.session(rank=0, world=2)
    second._rank = 1
    for step in range(12):
        parent.backup(vm.save("a"), step=step)
    with pytest.raises(ValueError, match=r"step 11 in process 1 of 2: process 0 .* shard=True"):
        second.backup(vm.save("b"), step=11)
    assert (vm.work / "b").exists()
    second.backup(vm.save("b"), step=2)  # too long ago
    second.backup(vm.save("b"), step=12, shard=True)
    second.backup(vm.save("b"), step=13)
    with pytest.raises(ValueError, match="process 1 has handed over"):
        parent.backup(vm.save("a"), step=13)
    assert len(vm.published()) == 15
    vm.close()


def test_what_a_process_saved_before_it_ended_is_no_other_half(tmp_path: Path) -> None:
    """torchrun starts all again, and another rank may save then."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    shards.claim_whole(str(tmp_path), 5, rank=0, world=2, pid=ended.pid)
    shards.claim_whole(str(tmp_path), 5, rank=1, world=2, pid=os.getpid())
    shards.claim_whole(str(tmp_path), 5, rank=1, world=2, pid=os.getpid())
    shards.claim_whole(str(tmp_path), 5, rank=0, world=1, pid=os.getpid())
    shards.claim_whole(str(tmp_path / "missing" / "\0"), 5, rank=0, world=1, pid=1)


def test_each_gets_its_own_and_another_number_of_processes_is_told() -> None:
    note = {"path": "s", "step": 7, "shards": ["0/c", "1/c"]}
    assert shards.place(note, "/job", 1, 2) == "/job/s/1/c"
    assert shards.place(note, "/job", 0, 1) == "/job/s"
    with pytest.raises(RuntimeError, match="step 7 has 2 shards, and there are 4 processes"):
        shards.place(note, "/job", 1, 4)
    assert shards.place({"path": "c", "step": 7}, "/job", 1, 4) == "/job/c"
