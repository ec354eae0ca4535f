"""What an account has of an installation, and what is to be done about it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RoleFound:
    tags: Mapping[str, str]
    trust: Any = None
    policies: Mapping[str, Any] = field(default_factory=dict)
    """Inline ones, by name."""
    attached: Sequence[str] = ()
    """ARNs of others."""


@dataclass(frozen=True, kw_only=True)
class ProfileFound:
    tags: Mapping[str, str]
    roles: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class BucketFound:
    theirs: bool = False
    """It belongs to another account."""
    tags: Mapping[str, str] = field(default_factory=dict)
    access_block: Any = None
    encryption: Any = None
    rules: Sequence[Any] = ()
    """Of its life cycle."""
    software: Sequence[str] = ()
    """Keys."""
    empty: bool = True
    """But for the software."""


@dataclass(frozen=True, kw_only=True)
class GroupFound:
    id: str
    tags: Mapping[str, str]
    ports: frozenset[int] = frozenset()
    """First ports of its rules for what comes in."""


@dataclass(frozen=True, kw_only=True)
class AddressFound:
    allocation: str
    ip: str
    vm: str = ""
    association: str = ""


@dataclass(frozen=True, kw_only=True)
class MasterFound:
    """A VM of the master that has not ended."""

    id: str
    state: str
    """EC2's: pending, running, stopping, stopped, shutting-down."""
    vm_type: str
    user_data: str
    """SHA-256, from its tag."""
    stopped_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    account: str
    region: str
    vpc: str = ""
    """The default one; empty: there is none."""
    image: str = ""
    image_root: str = "/dev/sda1"
    roles: Mapping[str, RoleFound] = field(default_factory=dict)
    profiles: Mapping[str, ProfileFound] = field(default_factory=dict)
    bucket: BucketFound | None = None
    groups: Mapping[str, GroupFound] = field(default_factory=dict)
    addresses: Sequence[AddressFound] = ()
    masters: Sequence[MasterFound] = ()
    backup_at: datetime | None = None
    """The newest one's time, where a master is stopped."""
    ended: Sequence[str] = ()
    """Ids of the master's VMs that EC2 still remembers."""
    vms: Sequence[str] = ()
    """Of jobs, that have not ended."""
    volumes: Sequence[str] = ()
    """Of jobs' VMs, that no VM has."""
    parameters: Sequence[str] = ()


class Do(str, Enum):
    KEEP = "keep"
    MAKE = "make"
    CHANGE = "change"
    REMOVE = "remove"
    WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request that changes something."""

    service: str
    operation: str
    params: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    subject: str
    do: Do
    reason: str = ""
    calls: Sequence[Call] = ()
    """In this order; none: it is done when others are."""


class Refused(Exception):
    """The account cannot be used as it is: pairs of a fact and a way out."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__("; ".join(fact for fact, _ in problems))
        self.problems = problems
