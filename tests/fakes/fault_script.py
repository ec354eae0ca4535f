"""What may happen to a VM, as data: a script of events that prints and shrinks well."""

from __future__ import annotations

from dataclasses import dataclass

from fakes.faulty_store import How, Kind


@dataclass(frozen=True)
class Save:
    """The script saves after its next step; handed over so much later where it does so in the
    background."""

    late_s: float = 0.0


@dataclass(frozen=True)
class Fails:
    """The next requests of this kind meet that."""

    kind: Kind
    how: How
    times: int = 1


@dataclass(frozen=True)
class KillAgent:
    """Now, or when it reaches a point."""

    point: str | None = None


@dataclass(frozen=True)
class TakeBack:
    """The cloud's notice."""

    left_s: float


@dataclass(frozen=True)
class DiskFails:
    """The next system calls on files that wait for their backup."""

    number: int
    times: int = 1
    skip: int = 0
    """So many calls go well before."""


@dataclass(frozen=True)
class TakeOver:
    """Another attempt writes its fence."""


@dataclass(frozen=True)
class MasterAway:
    seconds: float


@dataclass(frozen=True)
class End:
    """The script ends, whatever else goes wrong."""


Action = Save | Fails | KillAgent | TakeBack | DiskFails | TakeOver | MasterAway | End


@dataclass(frozen=True)
class Event:
    after_s: float
    do: Action
