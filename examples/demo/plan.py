"""Which preemption comes next. Pure: the runner in `runner.py` carries it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from spothop.wire import Dialect


class Kind(str, Enum):
    """How the demo takes a VM away."""

    NOTICE = "notice"  # as promised by the pool
    SHORT = "short notice"  # the kill comes long before the announced deadline
    NONE = "no notice"


@dataclass(frozen=True, kw_only=True)
class Preemption:
    """One preemption that the demo carried out."""

    kind: Kind
    dialect: Dialect
    attempt: int
    vm: str
    at: float
    """Unix time in seconds at which the notice (or the kill) became visible."""
    deadline: float
    """Unix time in seconds at which the cloud takes the VM at the latest."""


SHORT_NOTICE_S = 0.1
"""Less than the poll period of two dialects, and less than one save and upload."""


@dataclass
class Plan:
    """Notices on each dialect, one too short, two without any; in an order that fits the VM."""

    noticed: set[Dialect] = field(default_factory=lambda: set(Dialect))
    others: list[Kind] = field(default_factory=lambda: [Kind.SHORT, Kind.NONE, Kind.NONE])
    most: int = 10

    @staticmethod
    def short() -> Plan:
        """One of each kind, the notice on the dialect of the cheapest zone, where a job begins."""
        return Plan(noticed={Dialect.AWS}, others=[Kind.SHORT, Kind.NONE], most=5)

    @property
    def todo(self) -> int:
        """How many preemptions are planned and have not happened."""
        return len(self.noticed) + len(self.others)

    @property
    def left(self) -> list[str]:
        """What was planned and has not happened, in words."""
        notices = [f"no notice on {dialect.value}" for dialect in sorted(self.noticed)]
        return notices + [f"no (more) preemption with {kind.value}" for kind in self.others]

    def next(self, dialect: Dialect, *, done: int) -> Kind | None:
        """What to do to a VM of this dialect; None when all was shown.

        A dialect that still needs its notice gets it; else the notice is too short or there is
        none. A VM of a dialect that was shown already is preempted with notice once more, so that
        the job moves on to another zone; `most` bounds that.
        """
        if not self.noticed and not self.others:
            return None
        if done >= self.most:
            return None
        if dialect in self.noticed:
            return Kind.NOTICE
        if self.others:
            return self.others[0]
        return Kind.NOTICE

    def carried_out(self, kind: Kind, dialect: Dialect) -> None:
        if kind is Kind.NOTICE:
            self.noticed.discard(dialect)
        else:
            self.others.remove(kind)
