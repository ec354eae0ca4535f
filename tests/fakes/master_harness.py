"""A whole master without HTTP: database, loops, fake cloud, scripted agents, fake time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import select

from fakes.fake_cloud import FakeClock, FakeCloud, Machine
from fakes.scripted_agent import FakeChain, ScriptedAgent
from spothop.chaos import Chaos
from spothop.jobspec import JobSpec
from spothop.wire import Wanted
from spothop_master.agents.directive_cache import DirectiveCache
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.agents.sessions import Sessions
from spothop_master.chaos import POINTS
from spothop_master.clouds.base import LaunchSpec, Vm
from spothop_master.clouds.watcher import CloudWatcher
from spothop_master.core.actions import Action
from spothop_master.loops.booting import Booting
from spothop_master.loops.snapshot import jobs_to_watch
from spothop_master.loops.supervise import Supervisor
from spothop_master.loops.sweep import Sweep, hold_limits
from spothop_master.settings import MasterSettings
from spothop_master.store import jobs, leases
from spothop_master.store.schema import (
    Attempt,
    BackOffRow,
    Base,
    Event,
    Job,
    Observation,
    Refusal,
    User,
    VmRow,
)
from support.database import new_database

PASSES = 20
"""Of the supervise loop in one moment; more is an endless one."""

Row = TypeVar("Row", bound=Base)
OWNER = "owner-1"


class Killed(BaseException):
    """The master is no more: nothing of it may catch this."""


class Inline(Executor):
    """Does it at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Later(Executor):
    """Calls that hang, or wait for a thread, until the test lets them happen."""

    def __init__(self) -> None:
        self.given: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(lambda: fn(*args, **kwargs))
        return Future()


class MasterHarness:
    """One master over one fake cloud. `tick` lets time pass and turns the crank."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        clock: FakeClock | None = None,
        cloud: FakeCloud | None = None,
        **settings: object,
    ) -> None:
        self.clock = clock or FakeClock()
        self.cloud = cloud or FakeCloud(clock=self.clock)
        self.db = new_database(folder / f"harness-{seed}.db")
        self.db.clock = self.clock
        self.settings = MasterSettings.model_validate(
            {
                "home": folder,
                "owner": OWNER,
                "sync_every_s": 1,
                "silent_after_s": 20,
                "join_timeout_s": 60,
                "backoff_max_s": 20,
                **settings,
            }
        )
        self.random = random.Random(seed)
        self.calls: Executor = Inline()
        """Where clouds are called to launch and to terminate; set it before `restart`."""
        self.repeat_after_s: tuple[float, ...] = ()
        """After an unclear answer to a launch; not at all unless a test is about it."""
        self.slept: list[float] = []
        self.booting = Booting(join_token=lambda vm: f"join-{vm}", zips=dict)
        """What VMs that boot an image are given; set it before `restart`."""
        self.chains: dict[str, FakeChain] = defaultdict(FakeChain)
        self.agents: dict[str, ScriptedAgent] = {}
        self._tokens = 0
        with self.db.begin() as session:
            session.add(User(id=1, name="u", role="user", created_at=self.clock()))
        self.restart()

    def restart(self) -> None:
        """A new master process on the same database and clouds."""
        self.chaos = Chaos(POINTS)
        self.heartbeats = Heartbeats(self.clock())
        self.directives = DirectiveCache()
        rng = random.Random(1)
        self.attention: dict[str, str] = {}
        self.watcher = CloudWatcher(
            {"fake": self.cloud},
            OWNER,
            executor=Inline(),
            clock=self.clock,
            rng=rng,
            offers_every_s=self.settings.prices_every_s,
            attention=self.attention,
        )
        self.supervisor = Supervisor(
            self.db,
            {"fake": self.cloud},
            self.settings,
            watcher=self.watcher,
            heartbeats=self.heartbeats,
            directives=self.directives,
            sessions=Sessions(self.db),
            clock=self.clock,
            chaos=self.chaos,
            executor=self.calls,
            rng=rng,
            repeat_after_s=self.repeat_after_s,
            sleep=self._sleep,
            new_token=self._token,
            attention=self.attention,
            booting=self.booting,
        )
        self.sweep = Sweep(
            self.db,
            {"fake": self.cloud},
            self.watcher,
            self.clock,
            limits=hold_limits(self.settings),
            attention=self.attention,
        )

    def dead_master_s(self) -> float:
        """So long a killed master's lease on a call holds: where there may be others, nobody knows
        that it is dead. The only master knows, and breaks the lease when it starts."""
        return 0.0 if self.db.single_master else leases.TTL.total_seconds()

    def kill_at(self, point: str) -> None:
        """The master dies when it next gets there."""

        def die() -> None:
            raise Killed(point)

        self.chaos.at(point, die)

    def during_launch(self, act: Callable[[], None], *, late: bool = False) -> None:
        """The next launch is a slow one: this happens before the cloud makes the VM, or, `late`,
        after that and before it answers."""
        launch = self.cloud.launch

        def slow(spec: LaunchSpec, token: str) -> Vm:
            self.cloud.launch = launch  # type: ignore[method-assign]
            vm = launch(spec, token) if late else None
            act()
            return vm or launch(spec, token)

        self.cloud.launch = slow  # type: ignore[method-assign]

    def _sleep(self, seconds: float) -> None:
        """Of a thread that calls a cloud: time passes, and nothing else happens."""
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def _token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:010d}-token"

    # -- users -----------------------------------------------------------------------------------

    def submit(self, job_id: str = "job-1", **spec: object) -> str:
        parsed = JobSpec.model_validate({"name": "job", "run": "python train.py", **spec})
        with self.db.begin() as session:
            jobs.submit(
                session,
                spec=parsed,
                bundle="0" * 64,
                token=f"submit-{job_id}",
                owner_id=1,
                job_id=job_id,
                now=self.clock(),
                storage_url="file:///bucket",
            )
        return job_id

    def want(self, wanted: str, job_id: str = "job-1", *, at_once: bool = False) -> None:
        with self.db.begin() as session:
            jobs.want(session, job_id, Wanted(wanted), now=self.clock(), at_once=at_once)

    # -- time ------------------------------------------------------------------------------------

    def look(self) -> None:
        """What the supervise loop does at this moment, and what follows from it at once: a look at
        the jobs that changed, and at those whose time has come (`look_at_what_is_due` proves that
        these are all)."""
        for _ in range(PASSES):
            self.supervisor.wake.clear()
            self.supervisor.run_due()
            if not self.supervisor.wake.is_set():
                break

    def look_at_what_is_due(self) -> None:
        """What the loop does; nothing may be left that a look at every job would find."""
        for _ in range(PASSES):
            self.supervisor.wake.clear()
            self.supervisor.run_due()
            if not self.supervisor.wake.is_set():
                break
        assert self._overlooked() == {}

    def _overlooked(self) -> dict[str, list[Action]]:
        """What there is to do for each job."""
        supervisor, found = self.supervisor, {}
        with self.db.read() as session:
            for job_id in jobs_to_watch(session):
                found[job_id] = supervisor._decide(session, job_id)[1]
        return {job_id: actions for job_id, actions in found.items() if actions}

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.look()

    def settle(self, seconds: int = 10) -> None:
        for _ in range(seconds):
            self.tick()

    # -- VMs -------------------------------------------------------------------------------------

    def machine(
        self, attempt: int | None = None, job_id: str = "job-1", *, node: int = 0
    ) -> Machine:
        """Of this attempt; of the newest one when none is named."""
        chosen = self.attempt(attempt, job_id)
        token = self.vm(chosen.places[node].vm_id).token
        return next(m for m in self.cloud.machines.values() if m.token == token)

    def join(
        self, attempt: int | None = None, job_id: str = "job-1", *, node: int = 0
    ) -> ScriptedAgent:
        machine = self.machine(attempt, job_id, node=node)
        agent = ScriptedAgent.join(
            self.db, lambda: self.heartbeats, self.clock, machine, self.chains.__getitem__
        )
        self.agents[machine.id] = agent
        return agent

    def training(self, job_id: str = "job-1") -> ScriptedAgent:
        """Submit, allocate, join, prepare, train ten steps."""
        self.submit(job_id)
        self.look()
        self.settle(3)
        agent = self.join(job_id=job_id)
        self.tick()
        agent.prepare()
        self.tick()
        agent.train(10)
        self.look()
        return agent

    # -- looking ---------------------------------------------------------------------------------

    def rows(self, model: type[Row], *where: Any) -> list[Row]:
        with self.db.read() as session:
            return list(session.scalars(select(model).where(*where)))

    def job(self, job_id: str = "job-1") -> Job:
        return self.rows(Job, Job.id == job_id)[0]

    def attempts(self, job_id: str = "job-1") -> list[Attempt]:
        found = self.rows(Attempt, Attempt.job_id == job_id)
        return sorted(found, key=lambda attempt: attempt.number)

    def attempt(self, number: int | None = None, job_id: str = "job-1") -> Attempt:
        found = self.attempts(job_id)
        return found[-1] if number is None else found[number - 1]

    def vm(self, vm_id: str) -> VmRow:
        return self.rows(VmRow, VmRow.id == vm_id)[0]

    def all_over(self) -> bool:
        """By our rows and by the cloud."""
        return all(vm.state == "terminated" for vm in self.vms()) and not self.cloud.alive()

    def vms(self) -> list[VmRow]:
        return sorted(self.rows(VmRow), key=lambda vm: (vm.requested_at, vm.id))

    def refusals(self) -> list[Refusal]:
        return self.rows(Refusal)

    def back_offs(self) -> list[BackOffRow]:
        return self.rows(BackOffRow)

    def events(self, kind: str) -> list[Event]:
        return self.rows(Event, Event.kind == kind)

    def observations(self, kind: str) -> list[Observation]:
        return self.rows(Observation, Observation.kind == kind)
