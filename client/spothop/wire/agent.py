"""Between agent and master: joining, syncs, and the directives that come back.

Peers refuse keys that they do not know, and agents outlive the master that launched them. So what
is newer than version 0.1.0 is said only to a peer that has shown that it knows it: an agent whose
log can ride in its syncs says so with a header (`LOGS_RIDE`), which an older master passes over;
only then an answer has `log`; and only after such an answer a request has one.

Which version of the protocol a VM is spoken to in is agreed on when it joins: a header of the
request names the oldest and the newest that the agent speaks (`SPEAKS`), and one of the answer the
newest that both do (`SPOKEN`). Peers without them speak the oldest. Masters are upgraded first: one
goes on with the agents of the version before, whose VMs train on; an agent newer than its master is
spoken to in the master's version.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field

from spothop.wire.assignment import Assignment
from spothop.wire.common import (
    OLDEST_PROTOCOL,
    PROTOCOL,
    Dialect,
    Extended,
    Insurance,
    Seconds,
    Strict,
    Whole,
)
from spothop.wire.lifecycle import EndReason
from spothop.wire.reports import AnyReport


class Envelope(Strict):
    """One report: `seq` counts from 1 per VM without gaps, so that replays are harmless."""

    seq: Whole
    age_s: Seconds
    """How long before this request was sent the report was made."""
    attempt: Whole
    report: AnyReport


class Heartbeat(Strict):
    """What is true now; costs the master no database write."""

    step: Whole | None = None
    pending_saves: Whole = 0
    trainer_alive: bool = False


MAX_REPORTS = 1_000
"""Of one sync."""
SPEAKS, SPOKEN = "X-Spothop-Protocols", "X-Spothop-Protocol"
"""Headers of a join and of its answer."""
LOGS_RIDE = "X-Spothop-Logs-Ride"
"""A header of a sync, with any value: the agent understands `SyncReply.log`."""
RIDE_BYTES = 32 * 1024
"""Of a log, in one sync; more goes by `POST /agent/v1/logs`."""


class UnspokenProtocol(Exception):
    """Agent and master have no version in common; the message says what to do."""


def speaks() -> str:
    """The header of a join."""
    return f"{OLDEST_PROTOCOL}-{PROTOCOL}"


def agree(said: str | None) -> int:
    """The newest version that both speak, from the header of a join; None: there was none. Raises
    UnspokenProtocol."""
    if said is None:
        return OLDEST_PROTOCOL
    oldest, _, newest = said.partition("-")
    if not (oldest.isdecimal() and newest.isdecimal() and len(said) < 20):
        raise UnspokenProtocol(f"{SPEAKS}: {said[:40]!r} is no range such as {speaks()!r}")
    if int(oldest) > PROTOCOL:
        raise UnspokenProtocol(
            f"the agent speaks protocol {said}, this master {speaks()}: upgrade the master, which "
            "goes before the agents"
        )
    if int(newest) < OLDEST_PROTOCOL:
        raise UnspokenProtocol(
            f"the agent speaks protocol {said}, this master {speaks()}: pause its job and "
            "resume it, and it goes on on a VM with the agent of this release"
        )
    return min(int(newest), PROTOCOL)


class LogChunk(Strict):
    """A part of the log of one attempt, by the rules of `POST /agent/v1/logs`: what the master has
    already is skipped, what would leave a gap is refused, and the answer says where to go on."""

    attempt: Whole
    offset: Whole
    """Of its first byte."""
    data: str = Field(max_length=4 * -(-RIDE_BYTES // 3))
    """In base64 (RFC 4648): a log is bytes, and its parts may begin and end inside a character."""

    @classmethod
    def of(cls, attempt: int, offset: int, content: bytes) -> LogChunk:
        return cls(attempt=attempt, offset=offset, data=base64.b64encode(content).decode("ascii"))

    def content(self) -> bytes:
        """Raises ValueError when it is no base64."""
        try:
            return base64.b64decode(self.data, validate=True)
        except ValueError as error:  # binascii.Error too
            raise ValueError(f"log.data: {error}") from None


class LogState(Strict):
    """What the master has of the log, and how soon it wants more."""

    attempt: int
    """Of the request."""
    next_offset: int | None = None
    """Where the next chunk has to begin. None: the request had none, or it could not be kept now:
    it is to be sent again."""
    follow: bool = False
    """Somebody reads along: send what is new every two seconds, and not only with the syncs."""


class SyncRequest(Extended):
    NEWER = ("log",)

    protocol: int = Field(OLDEST_PROTOCOL, ge=OLDEST_PROTOCOL, le=PROTOCOL)
    vm: str
    attempt: Whole
    heartbeat: Heartbeat = Heartbeat()
    reports: list[Envelope] = Field(default_factory=list, max_length=MAX_REPORTS)
    log: LogChunk | None = None


class FenceDirective(Strict):
    """The attempt before cannot commit any more: fence, restore, start."""

    kind: Literal["fence"] = "fence"
    attempt: int


class InsuranceDirective(Strict):
    kind: Literal["insurance"] = "insurance"
    attempt: int
    insurance: Insurance


class StopDirective(Strict):
    """End the training process; with `save` ask for a last checkpoint first."""

    kind: Literal["stop"] = "stop"
    attempt: int
    reason: EndReason
    """What the attempt will have ended for."""
    save: bool = False


class AssignDirective(Strict):
    """A new attempt on this VM (the process is started again)."""

    kind: Literal["assign"] = "assign"
    assignment: Assignment


class ReleaseDirective(Strict):
    """Nothing more to do on this VM; the agent may exit."""

    kind: Literal["release"] = "release"


AnyDirective = Annotated[
    FenceDirective | InsuranceDirective | StopDirective | AssignDirective | ReleaseDirective,
    Field(discriminator="kind"),
]


class SyncReply(Strict):
    ack_seq: int
    """Every report up to this one is committed in the master's database."""
    directives: list[AnyDirective] = Field(default_factory=list)
    """What holds now, not what changed: repeating one is harmless."""
    next_delay_s: float
    log: LogState | None = None
    """Left out for an agent that has not said that it understands it."""


class JoinRequest(Strict):
    protocol: int = Field(OLDEST_PROTOCOL, ge=OLDEST_PROTOCOL, le=PROTOCOL)
    token: str
    """The one-time token of the VM."""
    agent_version: str
    boot_s: Seconds | None = None
    """Uptime of the VM at the join."""


class JoinReply(Strict):
    vm: str
    session: str
    """Bearer token for this VM from now on."""
    sync_every_s: float
    assignment: Assignment


class AgentConfig(Strict):
    """What a VM's user data carries to its agent. No secret but the one-time token."""

    master: str
    """Base URL of the master as the VM reaches it."""
    token: str
    vm: str
    dialect: Dialect
    metadata: str = "http://169.254.169.254"
    directory: str
    """The agent's own directory on the VM's disk."""
    reserve_bytes: int = Field(4 << 20, ge=0)
    """Of that disk, kept for the agent's own files when it is full; 0 for none. State and journal
    are replaced whole, so each needs room for two: 0.7 MB of state (scripts and variables of a job
    are limited to that) and as much of unsent reports (a few thousand)."""
    ca: str = ""
    """Certificates in PEM: who may vouch for the master. Empty: whoever the VM's system trusts."""
    away_s: float = Field(86_400.0, gt=0)
    """A VM that hears nothing of its master for so long saves, and ends itself."""


class LogReply(Strict):
    next_offset: int
    """Where the next chunk has to begin; the agent resends from here when it differs."""
