"""A real agent whose VM has a small disk, and that disk is full when it counts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fakes.agent_vm import BUNDLE, AgentVm, assignment, chain
from fakes.fake_azure_metadata import FakeAzureMetadata
from fakes.fake_master import FakeMaster
from spothop.wire import (
    AcknowledgedReport,
    CommittedReport,
    ExitedReport,
    MessageReport,
    NoticeReport,
    PolicyParams,
    ReleaseDirective,
    SaveKind,
    StepsReport,
)
from support.disks import fill, small_disk
from support.require import need_mounts
from support.waiting import WITHIN_S

pytestmark = pytest.mark.e2e

NOTICE_S = 1800
"""From a notice to the end of the VM: no agent is too slow for that."""

LOG_MAX = 1_000_000
FLOOD = "yes 'a line of output' | head -c 60000000; echo; echo flooded; exec python train.py"


def test_a_flood_of_output_and_a_full_disk_take_nothing_from_the_agent(tmp_path: Path) -> None:
    """Output of twice the disk's size; then no byte is left, from the notice to the exit."""
    need_mounts()
    storage, disk = tmp_path / "storage", tmp_path / "vm"
    env = {"STEPS": "100000", "EVERY": "100000", "STEP_S": "0.01", "HOLD": ""}
    at_once = PolicyParams(policy="thesis-always", grace_s=30.0, release_before_s=3600.0)
    work = assignment(storage, run=FLOOD, env=env, log_max=LOG_MAX, policy=at_once)
    with (
        small_disk(disk, "32m"),
        FakeAzureMetadata() as metadata,
        FakeMaster(work, BUNDLE) as master,
        AgentVm(tmp_path, master, metadata=metadata.url) as vm,
    ):
        vm.keep()
        master.wait_for(StepsReport)
        log = vm.run_dir().parent / "log"
        assert log.stat().st_size > 60_000_000
        assert log.stat().st_blocks * 512 < 2 * LOG_MAX
        filler = fill(disk)
        metadata.announce("event-1", in_s=NOTICE_S)
        master.wait_for(AcknowledgedReport)
        assert len(master.reports(NoticeReport)) == 1
        (committed,) = master.reports(CommittedReport)
        assert committed.save is SaveKind.EMERGENCY
        assert chain(storage)[-1].step == committed.step
        fill(disk)
        (vm.directory / "attempts/1/work/checkpoint.json").unlink(missing_ok=True)
        vm.end_trainer()
        exited = master.wait_for(ExitedReport)
        assert (exited.signal, exited.uncommitted) == (15, 0)
        assert vm.starts == 1, vm.console()
        told = partial(master.reports, MessageReport)
        master.wait(lambda: any("the disk is full" in message.text for message in told()))
        filler.unlink()
        master.wait(lambda: any("room again" in t.text for t in master.reports(MessageReport)))
        assert "logs.max is reached" in master.log()
        assert "flooded" in master.log()
        master.directives = [ReleaseDirective()]
        assert vm.agent is not None
        assert vm.agent.wait(WITHIN_S) == 0
