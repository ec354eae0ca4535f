"""The whole agent in one process: scripted master, store, process and cloud, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fakes.agent_vm import BUNDLE, assignment
from fakes.attempt_harness import OK
from fakes.fake_master import JOIN_TOKEN, VM, MasterScript
from fakes.scripted_process import ScriptedProcess
from fakes.scripted_store import ScriptedStore
from fakes.virtual_time import START_S, LoopClock, play, until
from spothop.wire import (
    AcknowledgedReport,
    AgentConfig,
    AnyDirective,
    AssignDirective,
    Assignment,
    Dialect,
    EndReason,
    ExitedReport,
    FenceDirective,
    Insurance,
    InsuranceDirective,
    MessageReport,
    NoticeReport,
    PhaseReport,
    ReleaseDirective,
    SaveKind,
    SaveRequestedReport,
    StartedReport,
    StopDirective,
)
from spothop_agent import dead_man, master_link
from spothop_agent.agent import ALONE, OVER_PATIENCE_S, REFUSED, STOPPED, Agent
from spothop_agent.chaos import from_text
from spothop_agent.paths import AgentPaths, AttemptPaths
from spothop_agent.state import Phase, State, StateFile
from spothop_agent.watch import Notice

AWAY_S = 90.0
"""Without its master a VM that `counts` ends itself after so long."""


class VmHarness:
    """One VM: its disk, its training process and its cloud outlive the agents started on it."""

    def __init__(self, root: Path, **changes: object) -> None:
        self._root = root
        self._clock = LoopClock()
        self.master = MasterScript(assignment(root / "storage", **changes), BUNDLE)
        self.config = AgentConfig(
            master="http://master",
            token=JOIN_TOKEN,
            vm=VM,
            dialect=Dialect.AZURE,
            directory=str(root / "vm"),
        )
        self.paths = AgentPaths(root / "vm")
        self.announced: asyncio.Queue[Notice] = asyncio.Queue()
        self.acknowledged: list[str] = []
        self.graces: list[float] = []
        self.stores: list[tuple[int, bool, ScriptedStore]] = []
        """Attempt, whether the store may be new, and the store."""
        self.processes: dict[Path, ScriptedProcess] = {}

    def counts(self) -> VmHarness:
        """It ends itself when its master is away for AWAY_S."""
        self.config = self.config.model_copy(update={"away_s": AWAY_S})
        return self

    def agent(self) -> Agent:
        """One that is started now."""
        self.paths.root.mkdir(exist_ok=True)
        return Agent(
            self.config,
            clock=self._clock,
            rng=random.Random(1),
            chaos=from_text("", self._root),
            base_env={"PATH": "/bin"},
            watcher=self._watch,
            acknowledge=self._acknowledge,
            transport=self.master.transport,
            open_store=self._open_store,
            make_process=self._process,
        )

    async def _watch(self, grace_s: float) -> AsyncIterator[Notice]:
        self.graces.append(grace_s)
        while True:
            yield await self.announced.get()

    async def _acknowledge(self, notice: Notice) -> bool:
        self.acknowledged.append(notice.event)
        return True

    def _open_store(
        self, work: Assignment, *, first: bool, vm: str, since: int | None
    ) -> ScriptedStore:
        store = ScriptedStore(job=work.job, attempt=work.attempt)
        self.stores.append((work.attempt, first, store))
        return store

    def _process(self, paths: AttemptPaths) -> ScriptedProcess:
        if paths.root not in self.processes:
            self.processes[paths.root] = ScriptedProcess(paths, self._clock.monotonic)
        return self.processes[paths.root]

    def process(self, attempt: int = 1) -> ScriptedProcess:
        return self.processes[self.paths.attempt(attempt).root]

    def state(self) -> State:
        file = StateFile(self.paths.state)
        assert file.load()
        return file.now

    def direct(self, *directives: AnyDirective) -> None:
        self.master.directives = list(directives)

    async def training(self, agent: Agent) -> asyncio.Task[int]:
        """Run the agent until its process trains."""
        running = asyncio.create_task(agent.run())
        await until(lambda: self.master.reports(StartedReport))
        self.process().say("hello", v=1)
        self.process().steps(1)
        await until(lambda: self.master.heartbeat.step == 1)
        return running


def test_from_the_join_to_the_release(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        running = await vm.training(vm.agent())
        assert vm.master.joins == 1
        assert vm.state().session == "session-token"
        assert vm.graces == [30.0]
        vm.process().end(OK)
        await until(lambda: vm.master.reports(ExitedReport))
        assert not running.done()  # waits for what the master wants next
        vm.direct(ReleaseDirective())
        assert await running == 0
        assert vm.state().over
        assert vm.master.reports(PhaseReport)[0].phase == "join"
        assert vm.master.refused == []
        assert "the process ended: exit code 0" in vm.master.log()

        assert await vm.agent().run() == 0  # started again it knows that there is nothing to do
        assert vm.master.joins == 1

    play(scenario)


def test_a_used_token_is_no_reason_to_try_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        vm.master.joins = 1
        agent = vm.agent()
        assert await agent.run() == REFUSED
        assert not vm.paths.state.exists()

    play(scenario)


def test_a_join_waits_for_the_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        vm.master.away = True
        running = asyncio.create_task(vm.agent().run())
        await asyncio.sleep(600.0)
        vm.master.away = False
        await until(lambda: vm.master.reports(StartedReport))
        (joined, *_) = vm.master.reports(PhaseReport)
        assert joined.duration_s == pytest.approx(600.0, abs=10.0)
        vm.direct(ReleaseDirective())
        await running

    play(scenario)


def test_released_while_it_trains_the_process_is_ended_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        running = await vm.training(vm.agent())
        vm.direct(ReleaseDirective())
        await until(lambda: vm.state().stop)
        asked = asyncio.get_running_loop().time()
        assert await running == 0
        (at, _) = vm.process().signals[0]
        assert at - asked == pytest.approx(OVER_PATIENCE_S, abs=0.1)
        assert vm.state().stop == "the VM is over"
        assert vm.state().over

    play(scenario)


def test_a_vm_that_is_over_for_the_master_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        running = await vm.training(vm.agent())
        vm.master.over = True
        assert await running == 0
        assert vm.process().ended is not None
        assert vm.state().over

    play(scenario)


def test_sigterm_leaves_the_process_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        agent = vm.agent()
        running = await vm.training(agent)
        vm.process().say("done", step=1)
        agent.leave.set()
        assert await running == STOPPED  # 0 would have the VM shut down
        assert vm.process().signals == []
        assert not vm.state().over
        assert "attempt 1 of job job-1" in vm.master.log()  # its last words

        again = asyncio.create_task(vm.agent().run())
        vm.process().steps(5)
        await until(lambda: vm.master.heartbeat.step == 5)
        assert vm.master.joins == 1
        assert len(vm.process().starts) == 1
        vm.direct(ReleaseDirective())
        await again

    play(scenario)


def test_a_vm_without_a_master_saves_and_ends_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path).counts()
        running = await vm.training(vm.agent())
        left = asyncio.get_running_loop().time()
        vm.master.away = True
        await asyncio.sleep(AWAY_S - 30.0)
        assert vm.state().stop is None
        await until(lambda: vm.state().stop)
        assert asyncio.get_running_loop().time() - left == pytest.approx(AWAY_S, abs=20.0)
        await until(lambda: any(said["t"] == "save" for said in vm.process().heard()))
        vm.process().hand_over(2)
        await asyncio.sleep(1.0)
        vm.process().end(OK)
        assert await running == ALONE
        assert vm.state().committed is not None
        assert vm.state().over
        assert await vm.agent().run() == 0  # started again it does nothing more

    play(scenario)


def test_a_vm_that_its_master_has_forgotten_saves_and_commits_before_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is not the master's: whoever resumes the job finds what was trained here."""
    monkeypatch.setattr(master_link, "UNKNOWN_SESSION_S", AWAY_S / 3)

    async def scenario() -> None:
        vm = VmHarness(tmp_path).counts()
        running = await vm.training(vm.agent())
        left = asyncio.get_running_loop().time()
        vm.master.forgets = True
        await until(lambda: vm.state().stop)
        waited_s = asyncio.get_running_loop().time() - left
        assert AWAY_S / 3 <= waited_s <= AWAY_S - 30.0
        await until(lambda: any(said["t"] == "save" for said in vm.process().heard()))
        vm.process().hand_over(2)
        await asyncio.sleep(1.0)
        vm.process().end(OK)
        assert await running == ALONE
        assert vm.state().committed is not None
        assert "the master does not know this VM any more" in caplog.text

    play(scenario)


def test_an_agent_that_is_started_again_counts_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path).counts()
        agent = vm.agent()
        running = await vm.training(agent)
        vm.master.away = True
        left = asyncio.get_running_loop().time()
        await asyncio.sleep(AWAY_S / 2)
        agent.leave.set()
        await running
        again = asyncio.create_task(vm.agent().run())
        await until(lambda: vm.state().stop)
        assert asyncio.get_running_loop().time() - left == pytest.approx(AWAY_S, abs=20.0)
        vm.process().end(OK)
        assert await again == ALONE

    play(scenario)


def test_a_vm_that_was_suspended_with_its_master_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path).counts()
        running = await vm.training(vm.agent())
        vm.master.away = True  # the network comes up after the VM
        now = LoopClock.monotonic
        monkeypatch.setattr(LoopClock, "boottime", lambda clock: now(clock) + 10 * AWAY_S)
        await asyncio.sleep(30.0)
        vm.master.away = False
        await asyncio.sleep(30.0)
        assert vm.state().stop is None
        vm.direct(ReleaseDirective())
        assert await running == 0

    play(scenario)


def _slow_transport(master: MasterScript) -> httpx.MockTransport:
    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(1.0)
        return master._answer(request)

    return httpx.MockTransport(answer)


def test_an_agent_that_was_not_there_for_long_asks_before_it_ends_its_vm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path).counts()
        agent = vm.agent()
        running = await vm.training(agent)
        agent.leave.set()
        await running
        await asyncio.sleep(2 * AWAY_S)
        monkeypatch.setattr(MasterScript, "transport", property(_slow_transport))
        again = asyncio.create_task(vm.agent().run())
        await asyncio.sleep(30.0)
        assert vm.state().stop is None
        vm.direct(ReleaseDirective())
        assert await again == 0

    play(scenario)


def test_a_master_that_is_away_for_less_ends_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path).counts()
        running = await vm.training(vm.agent())
        for _ in range(2):
            vm.master.away = True
            await asyncio.sleep(AWAY_S - 30.0)
            vm.master.away = False
            await asyncio.sleep(30.0)
        assert vm.state().stop is None
        vm.direct(ReleaseDirective())
        assert await running == 0

    play(scenario)


def test_a_job_that_should_be_over_ends_its_vm_though_the_master_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_man, "LATE_S", 30.0)

    async def scenario() -> None:
        vm = VmHarness(tmp_path, ends_in_s=10.0)
        began = asyncio.get_running_loop().time()
        running = await vm.training(vm.agent())
        await until(lambda: vm.state().stop)
        waited_s = asyncio.get_running_loop().time() - began
        assert waited_s == pytest.approx(10.0 + dead_man.LATE_S, abs=20.0)
        vm.process().end(OK)
        assert await running == ALONE

    play(scenario)


def test_a_vm_that_never_finds_its_master_ends_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path).counts()
        vm.master.away = True
        assert await vm.agent().run() == ALONE
        assert asyncio.get_running_loop().time() == pytest.approx(START_S + AWAY_S, abs=20.0)

    play(scenario)


def test_what_happened_before_the_join_is_the_beginning_of_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        vm.paths.root.mkdir()
        vm.paths.boot_log.write_text("2030-01-01T00:00:00Z boot: VM vm-1\nagent installed\n")
        agent = vm.agent()
        running = await vm.training(agent)
        agent.leave.set()
        await running
        again = asyncio.create_task(vm.agent().run())
        await asyncio.sleep(30.0)
        vm.direct(ReleaseDirective())
        await again
        lines = vm.master.log().splitlines()
        assert lines[0].endswith("2030-01-01T00:00:00Z boot: VM vm-1")
        assert sum("agent installed" in line for line in lines) == 1

    play(scenario)


def test_directives(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path, fence_now=False)
        running = asyncio.create_task(vm.agent().run())
        vm.direct(FenceDirective(attempt=2), StopDirective(attempt=2, reason=EndReason.CANCELLED))
        await asyncio.sleep(30.0)
        assert vm.state().phase is Phase.PREPARED
        assert vm.state().stop is None
        insurance = Insurance(at_step=1, tau_s=100.0, reason="tau 100 s")
        vm.direct(FenceDirective(attempt=1), InsuranceDirective(attempt=1, insurance=insurance))
        await until(lambda: vm.master.reports(StartedReport))
        vm.process().steps(1)
        await until(lambda: vm.master.reports(SaveRequestedReport))
        assert vm.master.reports(SaveRequestedReport)[0].reason == "tau 100 s"
        vm.direct(StopDirective(attempt=1, reason=EndReason.PAUSED, save=True))
        await until(lambda: vm.state().stop)
        assert vm.state().stop_save
        vm.process().end(OK)
        await until(lambda: vm.master.reports(ExitedReport))
        assert vm.master.reports(ExitedReport)[0].message == "paused"
        vm.direct(ReleaseDirective())
        assert await running == 0

    play(scenario)


def test_a_new_attempt_on_the_same_vm(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        running = await vm.training(vm.agent())
        leftover = vm.paths.attempt(1).work / "leftover"
        leftover.touch()
        vm.announced.put_nowait(
            Notice(event="e", kind="preempt", deadline_monotonic=START_S + 900, detail="d")
        )
        await until(lambda: vm.state().notice)
        again = vm.master.assignment.model_copy(update={"attempt": 2, "resumes": True})
        old = vm.master.assignment
        vm.direct(AssignDirective(assignment=old), AssignDirective(assignment=again))
        vm.process().end(OK)
        await until(lambda: vm.master.reports(StartedReport, attempt=2))
        assert [(attempt, first) for attempt, first, _ in vm.stores] == [(1, True), (2, False)]
        assert not leftover.exists()
        assert vm.state().assignment.attempt == 2
        assert vm.state().notice is not None  # it belongs to the VM
        assert "training" not in vm.master.log(2)
        vm.announced.put_nowait(
            Notice(event="e2", kind="preempt", deadline_monotonic=START_S + 900, detail="d")
        )
        await until(lambda: vm.master.reports(NoticeReport, attempt=2))
        vm.process(2).end(OK)
        await until(lambda: vm.master.reports(ExitedReport, attempt=2))
        vm.direct(ReleaseDirective())
        assert await running == 0

    play(scenario)


def test_once_it_was_fenced_a_store_must_be_there(tmp_path: Path) -> None:
    """Only before may it be made anew: an empty chain would let the job begin again."""

    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        agent = vm.agent()
        running = await vm.training(agent)
        agent.leave.set()
        await running
        again = asyncio.create_task(vm.agent().run())
        await until(lambda: len(vm.stores) == 2)
        assert [first for _, first, _ in vm.stores] == [True, False]
        vm.direct(ReleaseDirective())
        await again

    play(scenario)


def test_a_notice_needs_no_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        running = await vm.training(vm.agent())
        vm.master.away = True
        vm.announced.put_nowait(
            Notice(event="e", kind="preempt", deadline_monotonic=START_S + 60, detail="d")
        )
        await until(lambda: vm.state().notice)
        vm.process().hand_over(2, SaveKind.EMERGENCY)
        await until(lambda: vm.acknowledged)
        assert vm.stores[0][2].steps == [2]
        assert vm.master.reports(NoticeReport) == []
        vm.master.away = False
        await until(lambda: vm.master.reports(AcknowledgedReport))
        kinds = [e.report.kind for e in vm.master.envelopes]
        assert kinds.index("notice") < kinds.index("committed") < kinds.index("acknowledged")
        vm.direct(ReleaseDirective())
        await running

    play(scenario)


def a_bug() -> None:
    raise ZeroDivisionError("a bug")


def test_what_ends_the_agent_is_told_in_the_jobs_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        agent = vm.agent()
        running = await vm.training(agent)
        agent._chaos.at("after_report", a_bug)
        vm.process().hand_over(1)
        with pytest.raises(ZeroDivisionError):
            await running
        log = vm.paths.attempt(1).log.read_text()
        assert "the agent failed (ZeroDivisionError: a bug); it is started again" in log
        assert vm.process().signals == []

        again = asyncio.create_task(vm.agent().run())  # and goes on where it was
        await until(lambda: len(vm.stores) == 2 and vm.stores[1][2].steps == [1])
        vm.direct(ReleaseDirective())
        assert await again == 0
        assert "a bug" in vm.master.log()

    play(scenario)


def test_a_failure_before_the_join_has_no_log_to_go_into(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        vm.paths.root.mkdir()
        vm.paths.state.write_text("{")
        with pytest.raises(ValueError, match="JSON"):
            await vm.agent().run()

    play(scenario)


def test_a_released_reserve_is_told_to_the_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        agent = vm.agent()
        assert vm.paths.reserve.stat().st_size == vm.config.reserve_bytes
        running = await vm.training(agent)
        agent._reserve.release()
        await until(lambda: len(vm.master.reports(MessageReport)) == 2)  # it has room again at once
        first, second = vm.master.reports(MessageReport)
        assert "the disk is full" in first.text
        assert "has room again" in second.text
        vm.direct(ReleaseDirective())
        await running

    play(scenario)


def test_a_reserve_that_is_released_at_the_very_end_is_told_with_the_last_sync(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        agent = vm.agent()
        running = await vm.training(agent)
        agent._reserve.release()
        agent.leave.set()
        await running
        assert "the disk is full" in vm.master.reports(MessageReport)[0].text

    play(scenario)


def test_a_log_that_cannot_be_shipped_for_an_unknown_reason_fails_the_agent(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        vm = VmHarness(tmp_path)
        agent = vm.agent()
        running = await vm.training(agent)

        async def unheard_of() -> bool:
            raise RuntimeError("of a kind that nobody expects")

        agent._attempt.shipper.ship = unheard_of  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="nobody expects"):
            await running

    play(scenario)
