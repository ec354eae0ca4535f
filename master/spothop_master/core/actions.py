"""What a decision may ask for; each carries its reason, which goes to the event log. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spothop.wire import EndReason, JobState, Pool, VmReason
from spothop_master.core.refusals import Refused


@dataclass(frozen=True, kw_only=True)
class LaunchVm:
    """A VM for a node of attempt `attempt`, which is new unless a launch for it was refused."""

    attempt: int
    node: int
    pool: Pool
    reason: str


@dataclass(frozen=True, kw_only=True)
class AssignSame:
    """A VM that is up takes its node of a new attempt."""

    vm: str
    attempt: int
    node: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Wait:
    """No launch before `until`."""

    until: datetime
    reason: str
    why: str = ""
    """The reason without its times: a wait that goes on for the same one is told once."""


@dataclass(frozen=True, kw_only=True)
class Adopt:
    """The cloud lists a VM with this row's token: write down its id."""

    vm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class MarkRunning:
    """The cloud says it runs: allocation is over, billing begins."""

    vm: str
    running_at: datetime
    reason: str


@dataclass(frozen=True, kw_only=True)
class RepeatLaunch:
    """Nobody knows whether the cloud was asked for it: ask the same, with the same token."""

    vm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class LaunchLost:
    """The cloud lists no VM with this row's token: the launch never happened."""

    vm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class LaunchRefused:
    """The cloud accepted the launch and refuses it now."""

    vm: str
    refused: Refused
    kept: bool
    """What was made of it stays until it is terminated."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class VmOver:
    """The cloud says that it is over, or no longer lists it."""

    vm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class MarkSuspect:
    vm: str
    suspect: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReleaseVm:
    """We want it gone."""

    vm: str
    why: VmReason
    reason: str


@dataclass(frozen=True, kw_only=True)
class AskTermination:
    """Ask the cloud to end it; asked again until its listing says so."""

    vm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EndAttempt:
    attempt: int
    why: EndReason
    reason: str


@dataclass(frozen=True, kw_only=True)
class AllowFence:
    attempt: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class StopAttempt:
    """Tell the agent to end the process; `why` becomes the attempt's end."""

    attempt: int
    why: EndReason
    reason: str


@dataclass(frozen=True, kw_only=True)
class FinishJob:
    state: JobState
    reason: str


@dataclass(frozen=True, kw_only=True)
class ResumeJob:
    """From a pause."""

    reason: str


Action = (
    LaunchVm
    | AssignSame
    | Wait
    | Adopt
    | MarkRunning
    | RepeatLaunch
    | LaunchLost
    | LaunchRefused
    | VmOver
    | MarkSuspect
    | ReleaseVm
    | AskTermination
    | EndAttempt
    | AllowFence
    | StopAttempt
    | FinishJob
    | ResumeJob
)
