"""What every part of an attempt works with: identity, paths, state, reports and log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spothop.chaos import Chaos
from spothop.wire import AnyReport, Assignment, MessageReport, MetricsReport, StepsReport
from spothop_agent.checkpoint_store import CheckpointStore
from spothop_agent.clock import Clock
from spothop_agent.logs import append_line
from spothop_agent.master_link import MasterLink
from spothop_agent.paths import AgentPaths, AttemptPaths
from spothop_agent.retry import StorageRetrier
from spothop_agent.spool import Spool
from spothop_agent.state import State, StateFile
from spothop_agent.tasks import Errands
from spothop_agent.threads import Threads


@dataclass(frozen=True, kw_only=True)
class Context:
    """One attempt. Time is read here and passed on to what decides."""

    assignment: Assignment
    agent_paths: AgentPaths
    state_file: StateFile
    spool: Spool
    link: MasterLink
    clock: Clock
    chaos: Chaos
    retrier: StorageRetrier
    threads: Threads
    checkpoint_store: CheckpointStore
    base_env: Mapping[str, str]

    @property
    def attempt(self) -> int:
        return self.assignment.attempt

    @property
    def paths(self) -> AttemptPaths:
        return self.agent_paths.attempt(self.attempt)

    @property
    def state(self) -> State:
        return self.state_file.now

    def now(self) -> float:
        """CLOCK_MONOTONIC, seconds."""
        return self.clock.monotonic()

    def report(self, report: AnyReport, *, key: str | None = None, urgent: bool = False) -> None:
        """Spool a report; `key` makes it happen once per attempt, `urgent` syncs at once."""
        self.spool.add(self.attempt, report, key=f"{self.attempt}:{key}" if key else None)
        if urgent:
            self.link.wake()

    def progress(self, report: StepsReport | MetricsReport) -> None:
        self.spool.merge(self.attempt, report)

    def tell_user(self, text: str, *, level: str = "info") -> None:
        """To the user: into the job's events and into the log."""
        self.report(MessageReport.model_validate({"level": level, "text": text}))
        self.note(text)

    def errands(self) -> Errands:
        """For work that nothing depends on."""
        return Errands(lambda text: self.tell_user(text, level="warning"))

    def note(self, text: str) -> None:
        """Into the job's log only."""
        append_line(self.paths.log, text)
