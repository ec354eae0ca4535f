"""What a policy is given: the measures of a pool, and those of the job that trains there.

`notice-aware` takes the posteriors of `pool_figures`. `thesis` takes the thesis's plain means over
(VM type, region). Where nothing was measured a stated default stands in, and the answer says so.
All durations are seconds. Two or three queries besides those of the pool, for any number of jobs;
they read columns and not objects, which cost ten times as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.orm import Session, aliased

from spothop.policy import Measures
from spothop.policy.hazard import Hazard
from spothop.policy.savetimes import RECENT, estimate
from spothop.wire import Pool
from spothop_master.store.schema import Attempt, Job, JobSum, Observation
from spothop_master.store.statistics import Statistics


@dataclass(frozen=True, kw_only=True)
class PolicyInputs:
    """What a policy is given."""

    measures: Measures
    hazard: Hazard | None
    """None with fewer than 30 preemptions in the region, and for other policies."""
    saves_measured: bool
    """Delta and beta were measured; else they are stated defaults, or a bound below them."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """For whom."""

    pool: Pool
    job: str | None
    policy: str
    grace_s: float = 0.0


_of_these: BindParameter[Sequence[str]] = bindparam("jobs", expanding=True)

_SUMS = select(JobSum.job_id, JobSum.kind, JobSum.total, JobSum.count).where(
    JobSum.job_id.in_(_of_these), JobSum.censored.is_(False)
)

_stepped = aliased(Attempt)
_with_steps = (
    select(_stepped.id)
    .where(_stepped.job_id == Job.id, _stepped.step_s.is_not(None))
    .order_by(_stepped.number.desc())
    .limit(1)
    .correlate(Job)
    .scalar_subquery()
)
_STEPS = (
    select(Attempt.job_id, Attempt.step_s)
    .select_from(Job)
    .join(Attempt, Attempt.id == _with_steps)
    .where(Job.id.in_(_of_these))
)

_bound = aliased(Observation)
_oldest_bound = (
    select(_bound.id)
    .where(_bound.job_id == Job.id, _bound.kind == "save", _bound.censored)
    .order_by(_bound.id.desc())
    .limit(1)
    .offset(RECENT - 1)
    .correlate(Job)
    .scalar_subquery()
)
_BOUNDS = (
    select(Observation.job_id, Observation.value)
    .select_from(Job)
    .join(Observation, Observation.job_id == Job.id)
    .where(
        Job.id.in_(_of_these),
        Observation.kind == "save",
        Observation.censored,
        Observation.id >= func.coalesce(_oldest_bound, 0),
    )
    .order_by(Observation.id.desc())
)


def read(
    session: Session,
    pool: Pool,
    job_id: str | None,
    statistics: Statistics,
    *,
    policy: str,
    now: datetime,
    grace_s: float = 0.0,
) -> PolicyInputs:
    """`read_all` for one."""
    asked = Asked(pool=pool, job=job_id, policy=policy, grace_s=grace_s)
    return read_all(session, [asked], statistics, now=now)[0]


def read_all(
    session: Session, asked: Sequence[Asked], statistics: Statistics, *, now: datetime
) -> list[PolicyInputs]:
    """M, R and q of the pool as `policy` takes them; delta, beta and T of the job, if there is one.

    `lives` counts the preemptions of the region: they are behind M under either policy. `weight` is
    what they count for; the thesis takes them all in full.
    """
    jobs = sorted({each.job for each in asked if each.job is not None})
    means, steps_s = _means(session, jobs), _newest_steps_s(session, jobs)
    unmeasured = [job for job in jobs if "save" not in means[job]]
    bounds_s = _save_bounds_s(session, unmeasured)
    return [
        _of_one(
            session,
            each,
            statistics,
            now,
            means=means.get(each.job or "", {}),
            bounds_s=bounds_s.get(each.job or "", []),
            step_s=steps_s.get(each.job or ""),
        )
        for each in asked
    ]


def _of_one(
    session: Session,
    asked: Asked,
    statistics: Statistics,
    now: datetime,
    *,
    means: Mapping[str, float],
    bounds_s: Sequence[float],
    step_s: float | None,
) -> PolicyInputs:
    figures, priors = statistics.of(session, asked.pool, now=now), statistics.priors
    save_s, backup_s = means.get("save"), means.get("backup")
    ours = not asked.policy.startswith("thesis")
    measures = Measures(
        step_s=step_s or 0.0,
        save_s=estimate(save_s, bounds_s, assumed_s=priors.prior_save_s),
        backup_s=priors.prior_backup_s if backup_s is None else backup_s,
        mttp_s=figures.rate.mttp_s if ours else figures.plain_mttp_s,
        restart_s=figures.restart_s if ours else figures.thesis_restart_s,
        grace_s=asked.grace_s,
        notice_kept=figures.notice.mean,
        lives=figures.region_lives,
        weight=figures.rate.weight if ours else None,
        failure_s=figures.failure_s if ours else None,
    )
    hazard = figures.hazard if asked.policy == "notice-aware" else None
    return PolicyInputs(
        measures=measures, hazard=hazard, saves_measured=save_s is not None and backup_s is not None
    )


def _means(session: Session, jobs: Sequence[str]) -> defaultdict[str, dict[str, float]]:
    """Mean delta and beta of each job, where it has any."""
    means: defaultdict[str, dict[str, float]] = defaultdict(dict)
    if jobs:
        for job_id, kind, total, count in session.execute(_SUMS, {"jobs": jobs}):
            means[job_id][kind] = total / count
    return means


def _save_bounds_s(session: Session, jobs: Sequence[str]) -> defaultdict[str, list[float]]:
    """What the newest saves took at most whose beginning nobody marked."""
    bounds: defaultdict[str, list[float]] = defaultdict(list)
    if jobs:
        for row in session.execute(_BOUNDS, {"jobs": jobs}):
            bounds[row.job_id or ""].append(row.value)
    return bounds


def _newest_steps_s(session: Session, jobs: Sequence[str]) -> dict[str, float | None]:
    rows = session.execute(_STEPS, {"jobs": jobs}) if jobs else ()
    return {row.job_id: row.step_s for row in rows}
