"""A real agent, a real wrapper and a real training process, against a strict fake master."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.agent_vm import BUNDLE, AgentVm, assignment, chain
from fakes.fake_azure_metadata import FakeAzureMetadata
from fakes.fake_master import FakeMaster
from spothop.checkpoints import Chain
from spothop.storage import open_store
from spothop.wire import (
    AcknowledgedReport,
    AssignDirective,
    CommittedReport,
    ExitedReport,
    FencedInReport,
    FenceDirective,
    FencedReport,
    Insurance,
    InsuranceDirective,
    MessageReport,
    MetricsReport,
    NoticeReport,
    PhaseReport,
    PolicyParams,
    PreparationFailedReport,
    PreparedReport,
    ReleaseDirective,
    RestoredReport,
    SaveKind,
    SaveRequestedReport,
    StartedReport,
    StepsReport,
    StopDirective,
    StorageSpec,
)
from spothop_agent.agent import STOPPED
from support.waiting import WITHIN_S

pytestmark = pytest.mark.e2e

GRACE_S = 30.0
"""What the pool of `assignment` promises; the agent allows for no more, whatever a notice says."""

NOTICE_S = 1800
"""From a notice to the end of the VM: no agent is too slow for that."""

AT_ONCE = PolicyParams(policy="thesis-always", grace_s=GRACE_S, release_before_s=3600.0)
"""The VM is given up as soon as all is saved, so that no test waits for a deadline."""
LONG = {"STEPS": "100000", "EVERY": "100000", "STEP_S": "0.01"}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@pytest.fixture
def metadata() -> Iterator[FakeAzureMetadata]:
    with FakeAzureMetadata() as fake:
        yield fake


@pytest.fixture
def master(storage: Path) -> Iterator[FakeMaster]:
    with FakeMaster(assignment(storage), BUNDLE) as fake:
        yield fake
    assert fake.refused == []


@pytest.fixture
def vm(tmp_path: Path, master: FakeMaster, metadata: FakeAzureMetadata) -> Iterator[AgentVm]:
    with AgentVm(tmp_path, master, metadata=metadata.url) as machine:
        yield machine


def test_trains_to_success_and_is_released(master: FakeMaster, vm: AgentVm, storage: Path) -> None:
    agent = vm.start()
    exited = master.wait_for(ExitedReport)
    assert exited == ExitedReport(code=0, done=True, step=30)
    assert [r.phase for r in master.reports(PhaseReport)] == [
        *("join", "bundle", "setup", "data", "waiting", "restore", "starting")
    ]
    assert master.reports(FencedInReport)[0].n == 1
    assert master.reports(RestoredReport) == [RestoredReport(step=0)]
    assert [(r.n, r.step, r.save) for r in master.reports(CommittedReport)] == [
        (n, step, SaveKind.PERIODIC) for n, step in ((2, 10), (3, 20), (4, 30))
    ]
    assert [entry.step for entry in chain(storage)] == [None, 10, 20, 30]
    steps = master.reports(StepsReport)
    assert sum(report.count for report in steps) == 30
    assert steps[-1].step == 30
    assert steps[0].step_s >= 0.01
    assert master.reports(MetricsReport)[-1].values == {"loss": pytest.approx(1 / 30)}
    assert (storage / "jobs/job-1/outputs/1/result.txt").read_text() == "30"
    assert "training from 0 to 30" in master.log()
    assert "the process ended: exit code 0" in master.log()
    master.directives = [ReleaseDirective()]
    assert agent.wait(WITHIN_S) == 0
    assert vm.start().wait(WITHIN_S) == 0  # started again it knows that there is nothing to do
    assert master.joins == 1


@pytest.mark.thorough
def test_waits_for_the_fence_directive(master: FakeMaster, vm: AgentVm, storage: Path) -> None:
    master.assignment = assignment(storage, fence_now=False)
    vm.start()
    master.wait_for(PreparedReport)
    assert chain(storage) == []
    master.directives = [FenceDirective(attempt=7), FenceDirective(attempt=1)]
    master.wait_for(ExitedReport)
    kinds = [e.report.kind for e in master.envelopes]
    assert kinds.index("prepared") < kinds.index("fenced_in") < kinds.index("started")


def test_emergency_save_at_a_notice_then_the_cloud_is_told(
    master: FakeMaster, vm: AgentVm, storage: Path, metadata: FakeAzureMetadata
) -> None:
    master.assignment = assignment(storage, env=LONG, policy=AT_ONCE)
    vm.start()
    master.wait_for(StepsReport)
    metadata.announce("event-1", in_s=NOTICE_S)
    master.wait_for(AcknowledgedReport)
    notice = master.wait_for(NoticeReport)
    assert notice.fits
    assert 0 < notice.deadline_in_s <= GRACE_S  # never more than the pool promises
    (committed,) = master.reports(CommittedReport)
    assert committed.save is SaveKind.EMERGENCY
    assert committed.since_notice_s is not None
    assert committed.since_notice_s < GRACE_S  # in time
    assert chain(storage)[-1].step == committed.step
    kinds = [e.report.kind for e in master.envelopes]
    assert kinds.index("notice") < kinds.index("committed") < kinds.index("acknowledged")
    assert metadata.acknowledged == ["event-1"]
    assert master.heartbeat.trainer_alive


@pytest.mark.thorough
def test_emergency_path_needs_no_master(
    master: FakeMaster, vm: AgentVm, storage: Path, metadata: FakeAzureMetadata
) -> None:
    master.assignment = assignment(storage, env=LONG, policy=AT_ONCE)
    vm.start()
    master.wait_for(StepsReport)
    master.away = True
    metadata.announce("event-1", in_s=NOTICE_S)
    assert metadata.acknowledged_event.wait(WITHIN_S)
    assert chain(storage)[-1].kind is SaveKind.EMERGENCY
    assert master.reports(NoticeReport) == []
    master.away = False
    assert master.wait_for(CommittedReport).save is SaveKind.EMERGENCY
    assert len(master.reports(NoticeReport)) == 1


def test_one_emergency_save_however_often_the_agent_is_killed(
    master: FakeMaster, vm: AgentVm, storage: Path, metadata: FakeAzureMetadata
) -> None:
    """The script is held in a step until the agent has died between request and answer."""
    hold = storage.with_name("hold")
    master.assignment = assignment(storage, env={**LONG, "HOLD": str(hold)}, policy=AT_ONCE)
    agent = vm.start()
    master.wait_for(StepsReport)
    hold.touch()
    metadata.announce("event-1", in_s=NOTICE_S)
    master.wait_for(SaveRequestedReport)
    for answered in (False, True):
        agent.kill()
        agent.wait()
        assert (master.reports(CommittedReport) != []) is answered
        agent = vm.start()
        hold.unlink(missing_ok=True)
        master.wait_for(AcknowledgedReport)
    master.wait(lambda: master.heartbeat.trainer_alive)
    assert [r.save for r in master.reports(CommittedReport)] == [SaveKind.EMERGENCY]
    assert [len(master.reports(kind)) for kind in (NoticeReport, SaveRequestedReport)] == [1, 1]
    assert metadata.acknowledged == ["event-1"]


@pytest.mark.thorough
def test_a_notice_before_the_start_saves_nothing(
    master: FakeMaster, vm: AgentVm, storage: Path, metadata: FakeAzureMetadata
) -> None:
    master.assignment = assignment(storage, setup="sleep 60")
    vm.start()
    master.wait(lambda: (vm.run_dir() / "setup.pid").exists())
    metadata.announce("event-1", in_s=NOTICE_S)
    exited = master.wait_for(ExitedReport)
    assert exited.stopped
    assert "before the training process started" in exited.message
    assert not master.wait_for(NoticeReport).fits
    master.wait_for(AcknowledgedReport)
    assert chain(storage) == []


@pytest.mark.thorough
def test_insurance_follows_the_directive_and_then_its_own_clock(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    often = AT_ONCE.model_copy(update={"min_interval_s": 0.0})
    master.assignment = assignment(storage, env=LONG, policy=often)
    insurance = Insurance(at_step=40, tau_s=0.5, reason="tau 0.5 s")
    master.directives = [InsuranceDirective(attempt=1, insurance=insurance)]
    vm.start()
    master.wait(lambda: len(master.reports(CommittedReport)) == 3)
    first, second, third = master.reports(CommittedReport)
    assert {r.save for r in (first, second, third)} == {SaveKind.INSURANCE}
    assert 40 <= first.step < second.step < third.step


@pytest.mark.thorough
def test_an_agent_that_is_killed_goes_on(master: FakeMaster, vm: AgentVm, storage: Path) -> None:
    master.assignment = assignment(storage, env={"STEPS": "150", "EVERY": "25", "STEP_S": "0.01"})
    agent = vm.start()
    master.wait_for(CommittedReport)
    trainer = vm.trainer_pid()
    agent.kill()
    agent.wait()
    os.kill(trainer, 0)  # it trains on
    vm.start()
    exited = master.wait_for(ExitedReport)
    assert exited == ExitedReport(code=0, done=True, step=150)
    assert master.joins == 1
    assert [r.pid for r in master.reports(StartedReport)] == [trainer]
    assert [e.step for e in chain(storage)] == [None, 25, 50, 75, 100, 125, 150]
    assert [r.step for r in master.reports(CommittedReport)] == [25, 50, 75, 100, 125, 150]
    assert master.log().count("training from") == 1
    master.wait(lambda: master.log().count("the process ended") == 1)


def test_killed_at_every_named_point_nothing_is_lost_or_doubled(
    tmp_path: Path, master: FakeMaster, metadata: FakeAzureMetadata, storage: Path
) -> None:
    from spothop_agent.chaos import POINTS

    points = set(POINTS) - {"during_restore"}  # there is nothing to restore here
    chaos = ",".join(f"agent:{point}=kill" for point in sorted(points))
    with AgentVm(tmp_path, master, metadata=metadata.url, chaos=chaos) as vm:
        vm.keep()
        exited = master.wait_for(ExitedReport)
        assert exited == ExitedReport(code=0, done=True, step=30)
        assert vm.starts == len(points) + 1, vm.console()
        assert [e.step for e in chain(storage)] == [None, 10, 20, 30]
        for kind in (FencedInReport, RestoredReport, StartedReport, ExitedReport):
            assert len(master.reports(kind)) == 1
        assert [r.step for r in master.reports(CommittedReport)] == [10, 20, 30]
        assert master.log().count("training from") == 1
        master.directives = [ReleaseDirective()]


def test_a_crash_is_reported_and_the_next_attempt_resumes(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    crash = {"STEPS": "30", "EVERY": "10", "STEP_S": "0.01", "CRASH_AT": "15"}
    master.assignment = assignment(storage, env=crash)
    vm.start()
    exited = master.wait_for(ExitedReport)
    assert (exited.code, exited.step) == (3, 15)
    assert exited.message.startswith("training from 0 to 30")  # the last that it printed
    again = assignment(storage, attempt=2)
    master.directives = [AssignDirective(assignment=again)]
    master.wait(lambda: master.reports(ExitedReport, attempt=2))
    assert master.reports(ExitedReport, attempt=2)[0].done
    assert master.reports(RestoredReport, attempt=2) == [RestoredReport(step=10, n=2)]
    assert [(e.attempt, e.step) for e in chain(storage)] == [
        *((1, None), (1, 10), (2, None), (2, 20), (2, 30))
    ]
    assert "training from 10 to 30" in master.log(2)


def test_a_run_without_its_master_commits_everything(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    master.assignment = assignment(storage, run="sleep 0.5; python train.py")
    vm.start()
    master.wait_for(StartedReport)
    master.away = True
    master.wait(lambda: (vm.run_dir() / "exit.json").exists())
    master.wait(lambda: len(chain(storage)) == 4)
    master.away = False
    exited = master.wait_for(ExitedReport)
    assert exited.done
    assert exited.uncommitted == 0
    assert len(master.reports(CommittedReport)) == 3
    assert sum(report.count for report in master.reports(StepsReport)) == 30


@pytest.mark.parametrize("save", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_stop(master: FakeMaster, vm: AgentVm, storage: Path, save: bool) -> None:
    master.assignment = assignment(storage, env=LONG)
    vm.start()
    master.wait_for(StepsReport)
    master.directives = [StopDirective(attempt=1, reason="cancelled", save=save)]
    exited = master.wait_for(ExitedReport)
    assert exited.stopped
    assert (exited.code, exited.done, exited.message) == (0, False, "cancelled")
    assert len(master.reports(CommittedReport)) == save


@pytest.mark.thorough
def test_stop_of_a_process_that_hears_nothing(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    master.assignment = assignment(storage, run="echo deaf; sleep 60 & sleep 60")
    vm.start()
    master.wait_for(StartedReport)
    master.directives = [StopDirective(attempt=1, reason="cancelled")]
    exited = master.wait_for(ExitedReport)
    assert exited == ExitedReport(signal=15, stopped=True, message="cancelled")


@pytest.mark.thorough
def test_failed_setup_is_the_users(master: FakeMaster, vm: AgentVm, storage: Path) -> None:
    master.assignment = assignment(storage, setup="echo installing\nfalse\necho unreached")
    vm.start()
    failed = master.wait_for(PreparationFailedReport)
    assert failed.user
    assert failed.phase == "setup"
    assert "exit code 1" in failed.message
    assert "installing" in master.log()
    assert "unreached" not in master.log()


@pytest.mark.thorough
def test_a_fenced_attempt_ends(master: FakeMaster, vm: AgentVm, storage: Path) -> None:
    from spothop.checkpoints import Chain
    from spothop.storage import open_store

    master.assignment = assignment(storage, env={**LONG, "EVERY": "50"})
    vm.start()
    master.wait_for(StepsReport)
    Chain(open_store(master.assignment.storage), "job-1").fence(2)
    assert master.wait_for(FencedReport) == FencedReport(by=2)
    assert master.wait_for(ExitedReport).stopped
    assert chain(storage)[-1].fence


@pytest.mark.thorough
def test_a_vm_that_is_over_for_the_master_ends(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    master.assignment = assignment(storage, env=LONG)
    agent = vm.start()
    master.wait_for(StepsReport)
    master.over = True
    assert agent.wait(WITHIN_S) == 0
    assert (vm.run_dir() / "exit.json").exists()


@pytest.mark.thorough
def test_sigterm_leaves_the_process_to_the_vm(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    master.assignment = assignment(storage, env=LONG)
    agent = vm.start()
    master.wait_for(StepsReport)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(WITHIN_S) == STOPPED
    os.kill(vm.trainer_pid(), 0)
    assert "training from 0" in master.log()


def test_what_nobody_expected_is_told_and_ends_the_attempt(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    """Not the agent: one that is started again would only meet the same."""
    master.assignment = assignment(storage, env={**LONG, "BIG": "x" * 200_000})
    vm.start()
    failed = master.wait_for(PreparationFailedReport)
    assert (failed.phase, failed.user) == ("start", True)
    assert "`env` is too long" in failed.message
    assert "start failed" in master.log()


def test_a_storage_that_is_empty_where_it_cannot_be_is_waited_for(
    master: FakeMaster, vm: AgentVm, storage: Path
) -> None:
    """As a folder is whose disk is not mounted: to begin again would lose the job's work."""
    storage.mkdir()
    master.assignment = assignment(storage, attempt=2, resumes=True)
    vm.start()
    told = master.wait_for(MessageReport)
    assert "nothing of job 'job-1' is in" in told.text
    assert master.reports(FencedInReport) == []
    store = open_store(StorageSpec(url=storage.as_uri()))
    Chain(store, "job-1").fence(1)  # the disk is back
    assert master.wait_for(FencedInReport).n == 2
    assert master.wait_for(ExitedReport).done
