"""An agent without a VM: drives the store's functions as the API would, in fake time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fakes.fake_cloud import FakeClock, Machine
from spothop.wire import (
    AnyDirective,
    AnyReport,
    AssignDirective,
    Assignment,
    CommittedReport,
    Envelope,
    ExitedReport,
    FencedInReport,
    FenceDirective,
    FencedReport,
    NoticeReport,
    PreparedReport,
    RestoredReport,
    SaveKind,
    StartedReport,
    StepsReport,
    StopDirective,
)
from spothop_master.agents import protocol
from spothop_master.agents.heartbeats import Heartbeats
from spothop_master.security import token_hash
from spothop_master.store.db import Database


@dataclass(kw_only=True)
class FakeChain:
    """The chain of one job as the bucket would hold it: (attempt, step), step None for a fence."""

    entries: list[tuple[int, int | None]] = field(default_factory=list)

    def newest(self) -> int:
        return max((step for _, step in self.entries if step is not None), default=0)

    def fenced_by(self, attempt: int) -> int | None:
        """The highest attempt above this one."""
        return max((a for a, _ in self.entries if a > attempt), default=None)

    def add(self, attempt: int, step: int | None) -> int:
        self.entries.append((attempt, step))
        return len(self.entries)


@dataclass(kw_only=True)
class ScriptedAgent:
    """One VM's agent and its training process."""

    db: Database
    heartbeats: Callable[[], Heartbeats]
    clock: FakeClock
    machine: Machine
    chain: FakeChain
    assignment: Assignment
    session_hash: str
    seq: int = 0
    step: int = 0
    phase: str = "joined"
    """joined | prepared | training | over"""
    noticed: bool = False

    @classmethod
    def join(
        cls,
        db: Database,
        heartbeats: Callable[[], Heartbeats],
        clock: FakeClock,
        machine: Machine,
        chains: Callable[[str], FakeChain],
    ) -> ScriptedAgent:
        """Raises BadToken."""
        session_hash = token_hash(f"session of {machine.id}")
        with db.begin() as session:
            _, assignment = protocol.join(
                session,
                join_hash=token_hash(machine.user_data.token),
                session_hash=session_hash,
                now=clock(),
                boot_s=1.0,
            )
        heartbeats().heard(machine.user_data.vm, clock())
        return cls(
            db=db,
            heartbeats=heartbeats,
            clock=clock,
            machine=machine,
            chain=chains(assignment.job),
            assignment=assignment,
            session_hash=session_hash,
        )

    @property
    def vm(self) -> str:
        return self.machine.user_data.vm

    @property
    def attempt(self) -> int:
        return self.assignment.attempt

    def report(self, *reports: AnyReport, age_s: float = 0.0) -> list[AnyDirective]:
        """One sync with these reports; what the master tells now."""
        envelopes = []
        for each in reports:
            self.seq += 1
            envelopes.append(Envelope(seq=self.seq, age_s=age_s, attempt=self.attempt, report=each))
        now = self.clock()
        self.heartbeats().heard(self.vm, now)
        with self.db.begin() as session:
            acked = protocol.apply(session, self.vm, envelopes, now=now)
            assert acked == self.seq
            return protocol.answer(session, self.vm, now=now, writes=True).directives

    # -- the ordinary way ------------------------------------------------------------------------

    def prepare(self) -> list[AnyDirective]:
        self.phase = "prepared"
        told = self.report(PreparedReport())
        if self.assignment.fence_now or any(isinstance(t, FenceDirective) for t in told):
            self.start()
        return told

    def start(self) -> None:
        """Fence, restore, run."""
        by = self.chain.fenced_by(self.attempt)
        if by is not None:
            self.report(FencedReport(by=by))
            self.phase = "over"
            return
        n = self.chain.add(self.attempt, None)
        self.step = self.chain.newest()
        restored = RestoredReport(step=self.step, n=n if self.step else None)
        self.report(FencedInReport(n=n), restored, StartedReport(pid=1))
        self.phase = "training"

    def train(self, steps: int, *, step_s: float = 0.5) -> list[AnyDirective]:
        self.step += steps
        return self.report(StepsReport(step=self.step, count=steps, step_s=step_s, load_s=0.0))

    def save(self, kind: SaveKind = SaveKind.PERIODIC) -> list[AnyDirective]:
        by = self.chain.fenced_by(self.attempt)
        if by is not None:
            self.phase = "over"
            return self.report(FencedReport(by=by))
        n = self.chain.add(self.attempt, self.step)
        return self.report(
            CommittedReport(n=n, step=self.step, save=kind, bytes=10, delta_s=0.2, beta_s=0.4)
        )

    def notice(self, deadline_in_s: float | None = 30.0) -> list[AnyDirective]:
        self.noticed = True
        return self.report(NoticeReport(event="e-1", deadline_in_s=deadline_in_s, reason="rule"))

    def exit(self, code: int | None = 0, **fields: object) -> list[AnyDirective]:
        self.phase = "over"
        report = ExitedReport.model_validate({"code": code, "step": self.step, **fields})
        return self.report(report)

    def obey(self) -> list[AnyDirective]:
        """One heartbeat, and do what the master says."""
        told = self.report()
        for each in told:
            match each:
                case FenceDirective() if self.phase == "prepared":
                    self.start()
                case StopDirective() if self.phase != "over":
                    if each.save:
                        self.save(SaveKind.EMERGENCY if self.noticed else SaveKind.INSURANCE)
                    self.exit(0, stopped=True)
                case AssignDirective() if each.assignment.attempt > self.attempt:
                    self.assignment = each.assignment
                    self.phase, self.step = "joined", 0
                case _:
                    pass
        return told
