"""One job as the supervise loop sees it: facts with defaults, for tests of its decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from spothop.wire import AttemptState, EndReason, JobState, Pool, VmState, Wanted
from spothop_master.core.facts import (
    AttemptFacts,
    JobFacts,
    Limits,
    PlaceFacts,
    Snapshot,
    VmFacts,
)

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
POOL = Pool(cloud="x", region="r", zone="a", vm="gpu")
OTHER = POOL.model_copy(update={"zone": "b"})
LIMITS = Limits(backoff_base_s=1, backoff_max_s=1000)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def vm(name: str = "a", state: VmState = VmState.RUNNING, **facts: object) -> VmFacts:
    made = VmFacts(
        id=name,
        pool=POOL,
        state=state,
        requested_at=ago(500),
        launched_at=ago(499),
        running_at=ago(490),
        joined_at=ago(480),
        cloud_id=f"i-{name}",
    )
    return replace(made, **facts)  # type: ignore[arg-type]


def attempt(
    number: int = 1, on: str = "a", state: AttemptState = AttemptState.RUNNING, **facts: object
) -> AttemptFacts:
    """On one VM; what is a fact of a place goes there."""
    place = {
        key: facts.pop(key) for key in ("prepared_at", "notice_at", "deadline_at") if key in facts
    }
    places = (PlaceFacts(vm=on, **place),)  # type: ignore[arg-type]
    return AttemptFacts(number=number, places=places, state=state, **facts)  # type: ignore[arg-type]


def ended(number: int = 1, why: EndReason = EndReason.PREEMPTED, **facts: object) -> AttemptFacts:
    fields = {"reason": why, "detail": "why it ended", "ended_at": ago(5), **facts}
    return attempt(number, state=AttemptState.ENDED, **fields)


def seen(*attempts: AttemptFacts, vms: tuple[VmFacts, ...] = (), **job: object) -> Snapshot:
    facts = JobFacts(id="job", state=JobState.RUNNING, wanted=Wanted.RUNNING, submitted_at=ago(500))
    return Snapshot(
        job=replace(facts, **job),  # type: ignore[arg-type]
        attempts=attempts,
        vms=vms or (vm(),),
        offers={POOL: 1.0, OTHER: 2.0},
        limits=LIMITS,
        jitter=0.0,
        now=NOW,
    )
