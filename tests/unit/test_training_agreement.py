"""Several processes save at one step or not at all, in whatever order things happen."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.training.agreement import Agreement
from spothop.training.requests import SaveRequests
from spothop.wire import PolicyParams, SaveKind
from spothop_agent.saves import Ask, Saves


class Process:
    """What one process does with its requests; `saves` says at which step it answered which."""

    def __init__(self, run: Path, pid: int, wire: list[tuple[str, int, list[int]]]) -> None:
        self.pid = pid
        self.step = 0
        self.inbox: list[Ask] = []
        self.saves: dict[str, int] = {}
        self.requests = SaveRequests(
            Agreement(str(run), pid),
            lambda request, missing: wire.append((request, self.step, [*missing])),
        )

    def hear(self) -> None:
        for ask in self.inbox:
            self.requests.take(
                {
                    "request": ask.request,
                    "kind": ask.kind.value,
                    "at_step": ask.at_step,
                    "ranks": list(ask.ranks),
                }
            )
        self.inbox.clear()

    def check(self, *, periodic: bool) -> None:
        """`if i % n == 0 or sp.check_save(): save; sp.backup()`"""
        if periodic:
            begun = self.requests.answered(self.step, 0.0)
        elif self.requests.begin(self.step, 0.0) is None:
            return
        else:
            begun = self.requests.answered(self.step, 0.0)
        if begun.request is not None:
            self.saves[begun.request.id] = begun.step
        self.requests.end(begun)


class Vm:
    """Processes and the agent's decisions; every message takes as long as the test says."""

    def __init__(self, run: Path, count: int) -> None:
        self.wire: list[tuple[str, int, list[int]]] = []  # missed, on their way to the agent
        self.processes = [Process(run, 100 + n, self.wire) for n in range(count)]
        policy = PolicyParams(policy="thesis-always", grace_s=30.0)
        self.agent = Saves(params=policy, attempt=1, started=0.0)
        self.agent.ranks = {process.pid for process in self.processes}
        self.now = 0.0

    def ask(self, kind: SaveKind) -> None:
        self.now += 1.0
        self.send(self.agent._ask(kind, self.now, deadline=None, reason=""))

    def send(self, ask: Ask | None) -> None:
        if ask is not None:
            for process in self.processes:
                process.inbox.append(ask)

    def report(self, step: int) -> None:
        """The agent hears how far one was, perhaps long ago."""
        self.agent.stepped(step, count=1, step_s=1.0)

    def hear(self) -> None:
        while self.wire:
            self.now += 1.0
            request, step, missing = self.wire.pop(0)
            self.send(self.agent.missed(request, step, now=self.now, missing=missing))

    def together(self) -> None:
        """What was decided for one was decided for all who came by."""
        for request in {name for process in self.processes for name in process.saves}:
            steps = {process.saves.get(request) for process in self.processes}
            behind = {
                process.pid
                for process in self.processes
                if process.step < max(step for step in steps if step is not None)
            }
            there = {
                process.saves.get(request)
                for process in self.processes
                if process.pid not in behind
            }
            assert len(there) == 1, (request, there)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["step", "hear", "ask", "urgent", "report", "agent"]), st.integers(0, 3)
    ),
    max_size=120,
)


@given(count=st.integers(2, 4), every=st.integers(2, 9), lead=st.integers(1, 50), moves=STEPS)
def test_all_save_at_one_step_or_nobody(
    count: int, every: int, lead: int, moves: list[tuple[str, int]]
) -> None:
    """`lead`: how many steps one may be ahead of the others (1: in lockstep; more: on a GPU, where
    collectives only queue). Requests, polls and the agent's knowledge are late by any amount."""
    with tempfile.TemporaryDirectory() as folder:
        vm = Vm(Path(folder), count)
        for move, number in moves:
            process = vm.processes[number % count]
            if move == "step" and process.step < min(p.step for p in vm.processes) + lead:
                process.step += 1
                process.check(periodic=process.step % every == 0)
            elif move == "hear":
                process.hear()
            elif move in ("ask", "urgent"):
                vm.ask(SaveKind.EMERGENCY if move == "urgent" else SaveKind.INSURANCE)
            elif move == "report":
                vm.report(process.step)
            elif move == "agent":
                vm.hear()
        top = max(process.step for process in vm.processes)
        for process in vm.processes:
            while process.step < top:
                process.step += 1
                process.check(periodic=process.step % every == 0)
        vm.together()


@given(count=st.integers(2, 4), ahead=st.integers(0, 40), order=st.randoms(use_true_random=False))
def test_a_request_is_answered_however_little_the_agent_knows(
    count: int, ahead: int, order: object
) -> None:
    """In lockstep, each polling between two steps: each "no" doubles the distance."""
    with tempfile.TemporaryDirectory() as folder:
        vm = Vm(Path(folder), count)
        for process in vm.processes:
            process.step = ahead
            process.check(periodic=False)
        vm.ask(SaveKind.EMERGENCY)
        for _ in range(200):
            shuffled = [*vm.processes]
            order.shuffle(shuffled)  # type: ignore[attr-defined]
            for process in shuffled:
                process.hear()
                process.step += 1
                process.check(periodic=False)
            vm.hear()
            if any(process.saves for process in vm.processes):
                break
        saved = [process.saves for process in vm.processes]
        assert saved[0]
        assert all(each == saved[0] for each in saved)


def test_one_that_trains_no_more_is_not_waited_for(tmp_path: Path) -> None:
    """It lives and hears nothing: after two times in vain the others save without it."""
    vm = Vm(tmp_path, 3)
    *training, _ = vm.processes
    vm.ask(SaveKind.EMERGENCY)
    for _ in range(40):
        for process in training:
            process.hear()
            process.step += 1
            process.check(periodic=False)
        vm.hear()
    assert training[0].saves
    assert training[0].saves == training[1].saves


def test_who_does_not_check_is_no_hindrance_and_a_stop_waits_for_no_decided_save(
    tmp_path: Path,
) -> None:
    """Only rank 0 checks and saves; the other one just takes steps."""
    vm = Vm(tmp_path, 2)
    first, second = vm.processes
    vm.ask(SaveKind.INSURANCE)
    for _ in range(4):
        for process in (first, second):
            process.hear()
            process.step += 1
        first.check(periodic=False)
    assert [*first.saves.values()] == [2]
    assert second.requests.pending is not None
    second.requests.settle(second.step)
    assert second.requests.pending is None


def test_what_all_have_agreed_on_is_not_replaced(tmp_path: Path) -> None:
    """The first has saved for it when the second hears of a more urgent one."""
    vm = Vm(tmp_path, 2)
    first, second = vm.processes
    vm.ask(SaveKind.INSURANCE)
    for process in vm.processes:
        process.hear()
    for _ in range(2):
        first.step += 1
        first.check(periodic=False)
    assert [*first.saves.values()] == [2]
    vm.report(2)
    vm.ask(SaveKind.EMERGENCY)
    second.hear()
    for _ in range(2):
        second.step += 1
        second.check(periodic=False)
    assert second.saves == first.saves
    assert second.requests.pending is not None
    assert second.requests.pending.kind == "emergency"


def test_a_full_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = Agreement(str(tmp_path), 1)
    agreement.join("r1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.symlink", full)
    assert agreement.decide("r1", [1], 5) is None
