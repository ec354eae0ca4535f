"""Which alarms a job has: facts in, alarms with their reasons out. Pure.

An alarm is a state that somebody should look at; it begins, and it is over. What it must guarantee:
none for a job that is well, and each goes away with its cause. So each rule looks at what is true
now and at since when, never at what an earlier pass said.

The master does nothing because of an alarm: what can be done without people is done by the rules of
`decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from spothop.durations import duration
from spothop.wire import JOB_ACTIVE, Alarm, EndReason, JobState, Unprotected

STALE_INTERVALS = 2
"""The newest commit may be so many intervals old..."""
STALE_LEAST = timedelta(minutes=2)
"""...and so old in any case: an interval may be seconds, and an upload takes its time."""
NO_CAPACITY = timedelta(minutes=15)
UNCONFIRMED = timedelta(minutes=10)
IDLE = timedelta(minutes=20)
NEARLY = 5
"""A budget is nearly used when at most one in so many of its tries is left."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Failures in a row of one kind, against `retries` in the job file."""

    key: str
    used: int
    allowed: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One job at one moment; None where there is no such thing."""

    now: datetime
    state: JobState
    trains_since: datetime | None = None
    """First step of the attempt that trains now."""
    committed_at: datetime | None = None
    """The newest checkpoint of the job."""
    interval_s: float | None = None
    """Between two insurance saves, as the policy has it now."""
    unprotected: Unprotected | None = None
    unprotected_why: str = ""
    ended_as: EndReason | None = None
    """The newest attempt that has ended."""
    ended_at: datetime | None = None
    noticed_at: datetime | None = None
    """Its notice."""
    had_trained: bool = False
    """It made a step."""
    waits_since: datetime | None = None
    """The job has no VM that runs or boots since then."""
    refused_at: datetime | None = None
    """A pool last refused the job."""
    refused_why: str = ""
    unconfirmed: Mapping[str, datetime] | None = None
    """VMs of which we asked their cloud for something that it has not confirmed, and since when."""
    budgets: tuple[Budget, ...] = ()
    idle_since: datetime | None = None
    """Since then its process uses next to nothing of the GPU, or of the CPU where there is none."""
    idle_why: str = ""


def alarms(facts: Facts) -> dict[Alarm, str]:
    """What somebody should look at now, each with its reason."""
    found = {kind: why for kind, rule in _RULES.items() if (why := rule(facts)) is not None}
    if facts.state in JOB_ACTIVE:
        return found
    return {kind: why for kind, why in found.items() if kind is Alarm.UNCONFIRMED}


def _stale(facts: Facts) -> str | None:
    if facts.trains_since is None or facts.interval_s is None:
        return None
    since = max(facts.trains_since, facts.committed_at or facts.trains_since)
    limit = max(STALE_LEAST, timedelta(seconds=STALE_INTERVALS * facts.interval_s))
    if facts.now - since < limit:
        return None
    what = "the last commit is" if facts.committed_at == since else "nothing is committed, for"
    age, every = _for(facts.now - since), duration(facts.interval_s)
    old = " old" if facts.committed_at == since else ""
    return f"{what} {age}{old}; a save is due every {every}"


def _storage(facts: Facts) -> str | None:
    failing = facts.unprotected is Unprotected.STORAGE
    return f"the storage takes no save: {facts.unprotected_why}" if failing else None


def _unprotected(facts: Facts) -> str | None:
    if facts.unprotected in (None, Unprotected.STORAGE):
        return None
    return f"nothing protects its work: {facts.unprotected_why}"


def _hang(facts: Facts) -> str | None:
    """Until it trains again."""
    if facts.ended_as is not EndReason.HANG or facts.trains_since is not None:
        return None
    return "the script hung, and the job has not trained since"


def _no_capacity(facts: Facts) -> str | None:
    if facts.waits_since is None or facts.refused_at is None:
        return None
    waited = facts.now - facts.waits_since
    if waited < NO_CAPACITY or facts.refused_at < facts.waits_since:
        return None
    return f"no VM for {_for(waited)}: {facts.refused_why}"


def _unconfirmed(facts: Facts) -> str | None:
    late = {
        vm: facts.now - since
        for vm, since in (facts.unconfirmed or {}).items()
        if facts.now - since >= UNCONFIRMED
    }
    if not late:
        return None
    names = ", ".join(sorted(late)[:5]) + (", ..." if len(late) > 5 else "")
    return f"the cloud has not confirmed what it was asked for {_for(max(late.values()))}: {names}"


def _retries(facts: Facts) -> str | None:
    for each in facts.budgets:
        left = each.allowed - each.used
        if each.used > 0 and left <= each.allowed // NEARLY:
            tries = "1 failure" if each.used == 1 else f"{each.used} failures in a row"
            return f"{tries}; `retries.{each.key}` is {each.allowed}"
    return None


def _idle(facts: Facts) -> str | None:
    if facts.idle_since is None or facts.trains_since is None:
        return None
    idle = facts.now - max(facts.idle_since, facts.trains_since)
    return f"{facts.idle_why} for {_for(idle)}" if idle >= IDLE else None


def _notice_lost(facts: Facts) -> str | None:
    """Until the next commit: then its work is safe again, as far as it was computed anew."""
    if facts.ended_as is not EndReason.PREEMPTED or facts.noticed_at is None:
        return None
    committed = facts.committed_at
    if not facts.had_trained or (committed is not None and committed >= facts.noticed_at):
        return None
    return "a preemption notice led to no commit: what was trained since the last one is lost"


def _for(time: timedelta) -> str:
    return duration(time.total_seconds())


_RULES: Mapping[Alarm, Callable[[Facts], str | None]] = {
    Alarm.STALE: _stale,
    Alarm.STORAGE: _storage,
    Alarm.UNPROTECTED: _unprotected,
    Alarm.HANG: _hang,
    Alarm.NO_CAPACITY: _no_capacity,
    Alarm.UNCONFIRMED: _unconfirmed,
    Alarm.RETRIES: _retries,
    Alarm.IDLE: _idle,
    Alarm.NOTICE_LOST: _notice_lost,
}
