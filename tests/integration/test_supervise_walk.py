"""Random walks over the whole master: whatever happens, the invariants hold and the job ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_cloud import AmbiguousAfter
from fakes.master_harness import Killed, Later, MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop.wire import (
    JOB_ACTIVE,
    JOB_ENDED,
    AttemptState,
    JobState,
    MetricsReport,
    ProtectionReport,
    SaveKind,
    Unprotected,
    VmState,
)
from spothop_master.agents.protocol import BadToken
from spothop_master.chaos import POINTS
from spothop_master.clouds.base import (
    Ambiguous,
    CloudError,
    NoCapacity,
    QuotaExceeded,
    Throttled,
    Unavailable,
)
from spothop_master.core.evidence import EndCause
from support.lists import assert_light_is_full

pytestmark = pytest.mark.databases

STEPS = 120
DEEP = 3
"""So many launches at most are slow inside one another."""
REFUSALS: tuple[type[CloudError], ...] = (NoCapacity, QuotaExceeded, Throttled, Unavailable)


class Turns(Later):
    """Calls that wait for their turn; some get it at once."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.share = 0.5
        self._rng = rng

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.run()
        return future

    def run(self) -> None:
        for call in [*self.given]:
            if self._rng.random() < self.share and call in self.given:
                self.given.remove(call)
                call()


class Walk:
    """One seed: things happen at random, then calm returns and the job must end. Where the user
    `cancels`, as soon as it may."""

    def __init__(self, folder: Path, seed: int, *, cancels: bool) -> None:
        self.random = random.Random(seed)
        self.end = "cancelled" if cancels else "succeeded"
        self.deep = 0
        self.harness = MasterHarness(
            folder, seed=seed, silent_after_s=8, join_timeout_s=15, stop_timeout_s=6
        )
        self.calls = self.harness.calls = Turns(self.random)
        self.harness.restart()
        self.harness.submit(retries={"user": 50, "infrastructure": 50})
        self.happenings: list[Callable[[], None]] = [
            self.notice,
            self.kill_vm,
            self.refuse,
            self.unclear,
            self.slow,
            self.cloud_away,
            self.master_dies,
            self.fail,
            self.fall_silent,
        ]
        self.silent: set[str] = set()
        self.checks = 0

    def run(self) -> None:
        for _ in range(STEPS):
            if self.random.random() < 0.25:
                self.random.choice(self.happenings)()
            self.turn()
            self.check()
        if self.end == "cancelled":
            self.cancel()
        self.calm_down()
        for _ in range(200):
            self.turn()
            self.check()
            if self.harness.job().state == self.end and not self.harness.cloud.alive():
                break
        self.harness.settle(8)
        self.check_end()
        self.harness.db.close()

    # -- a second ---------------------------------------------------------------------------------

    def turn(self) -> None:
        self.harness.clock.advance(1)
        self.join_those_that_are_up()
        for agent in list(self.harness.agents.values()):
            if self.is_up(agent):
                self.act(agent)
        try:
            self.calls.run()
            self.harness.look_at_what_is_due()
            self.harness.sweep.run_once()
        except Killed:
            self.calls.given.clear()
            self.harness.restart()

    def join_those_that_are_up(self) -> None:
        for machine in self.harness.cloud.machines.values():
            up = machine.is_up(self.harness.clock()) and machine.id not in self.harness.agents
            if up and self.random.random() < 0.8:
                try:
                    agent = ScriptedAgent.join(
                        self.harness.db,
                        lambda: self.harness.heartbeats,
                        self.harness.clock,
                        machine,
                        self.harness.chains.__getitem__,
                    )
                except BadToken:
                    continue
                self.harness.agents[machine.id] = agent

    def is_up(self, agent: ScriptedAgent) -> bool:
        up = agent.machine.is_up(self.harness.clock())
        return up and agent.machine.id not in self.silent

    def act(self, agent: ScriptedAgent) -> None:
        if agent.machine.notice_at is not None and not agent.noticed and agent.phase != "over":
            agent.notice(self.random.choice([None, 5.0, 30.0]))
        agent.obey()
        if agent.phase == "joined":
            agent.prepare()
        elif agent.phase == "training":
            agent.train(self.random.randint(1, 5))
            if self.random.random() < 0.3:
                agent.report(self.told(agent))
            if agent.noticed and self.random.random() < 0.5:
                agent.save(SaveKind.EMERGENCY)
            elif self.random.random() < 0.2:
                agent.save()
            if agent.phase == "training" and agent.step >= 300:
                agent.exit(0, done=True)

    def told(self, agent: ScriptedAgent) -> MetricsReport | ProtectionReport:
        """What lists show, too."""
        if self.random.random() < 0.3:
            cause = self.random.choice([None, Unprotected.STORAGE])
            return ProtectionReport(cause=cause, reason="denied")
        name = self.random.choice(["loss", "lr"])
        return MetricsReport(step=agent.step, values={name: self.random.random()})

    # -- what may happen --------------------------------------------------------------------------

    def someone(self) -> ScriptedAgent | None:
        up = [agent for agent in self.harness.agents.values() if self.is_up(agent)]
        return self.random.choice(up) if up else None

    def notice(self) -> None:
        if agent := self.someone():
            self.harness.cloud.preempt(agent.machine.id, self.random.choice([None, 3.0, 0.0]))

    def kill_vm(self) -> None:
        if alive := self.harness.cloud.alive():
            machine = self.random.choice(alive)
            self.harness.cloud.kill(machine.id, self.random.choice(list(EndCause)))

    def refuse(self) -> None:
        refusing = self.harness.cloud.refusing
        if refusing and self.random.random() < 0.6:
            refusing.clear()
        else:
            zone = self.random.choice(self.harness.cloud.zones)
            refusing[zone] = self.random.choice(REFUSALS)("not now")

    def unclear(self) -> None:
        answer = self.random.choice(
            [Ambiguous("timeout"), AmbiguousAfter(), OSError("broken pipe")]
        )
        self.harness.cloud.script.append(answer)
        self.harness.cloud.hidden_s = self.random.choice([0.0, 3.0])

    def slow(self) -> None:
        """Time goes by while a launch is under way, and whatever happens then."""
        seconds, late = self.random.randint(1, 12), self.random.random() < 0.5

        def meanwhile() -> None:
            self.deep += 1
            for _ in range(seconds if self.deep <= DEEP else 0):
                self.turn()
                self.check()
            self.deep -= 1

        self.harness.during_launch(meanwhile, late=late)

    def cancel(self) -> None:
        if JobState(self.harness.job().state) not in JOB_ENDED:
            self.harness.want("cancelled")
            return
        self.end = self.harness.job().state

    def cloud_away(self) -> None:
        self.harness.cloud.away = None if self.harness.cloud.away else Unavailable("503")

    def master_dies(self) -> None:
        self.harness.kill_at(self.random.choice(POINTS))

    def fail(self) -> None:
        agent = self.someone()
        if agent is not None and agent.phase == "training":
            agent.exit(self.random.choice([1, 2, 137]), stopped=self.random.random() < 0.2)

    def fall_silent(self) -> None:
        if agent := self.someone():
            self.silent.add(agent.machine.id)

    def calm_down(self) -> None:
        self.harness.cloud.away = None
        self.harness.cloud.refusing.clear()
        self.harness.cloud.script.clear()
        self.harness.cloud.hidden_s = 0.0
        self.calls.share = 1.0
        self.harness.restart()

    # -- invariants -------------------------------------------------------------------------------

    def check(self) -> None:
        vms, attempts = self.harness.vms(), self.harness.attempts()
        JobState(self.harness.job().state)
        living_vms = [vm for vm in vms if vm.state not in ("terminating", "terminated")]
        assert len(living_vms) <= 2
        living = [a for a in attempts if AttemptState(a.state) is not AttemptState.ENDED]
        assert len(living) <= 2
        assert sum(a.fenced_in for a in attempts) <= 1
        assert len({a.leader.vm_id for a in living}) == len(living)
        tokens = {vm.token for vm in vms}
        assert all(machine.token in tokens for machine in self.harness.cloud.machines.values())
        assert [a.number for a in attempts] == list(range(1, len(attempts) + 1))
        if JobState(self.harness.job().state) not in JOB_ACTIVE:
            assert living == []
        self.checks += 1
        if self.checks % 4:
            return
        with self.harness.db.read() as session:
            assert_light_is_full(session, "job-1", now=self.harness.clock())

    def check_end(self) -> None:
        assert self.harness.job().state == self.end
        assert self.harness.cloud.alive() == []
        assert {vm.state for vm in self.harness.vms()} <= {VmState.TERMINATED.value}
        lives = [o.vm_id for o in self.harness.observations("life")]
        assert len(lives) == len(set(lives))
        fences = [a for a, step in self.harness.chains["job-1"].entries if step is None]
        assert fences == sorted(fences), "the chain has no forks (I2)"


MORE = [pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 100)]


@pytest.mark.parametrize("seed", [*range(2), *MORE])
def test_any_walk_ends_well(tmp_path: Path, seed: int) -> None:
    Walk(tmp_path, seed, cancels=seed % 2 == 1).run()
