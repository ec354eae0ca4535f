"""What a policy is given: the measures of a pool, and those of the job that trains there.

`notice-aware` takes the posteriors of `pool_figures`. `thesis` takes the thesis's plain means over
(VM type, region). Where nothing was measured a stated default stands in, and the answer says so.
All durations are seconds. Two or three queries besides those of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop.policy import Measures
from spothop.policy.hazard import Hazard
from spothop.policy.savetimes import RECENT, estimate
from spothop.wire import Pool
from spothop_master.store.schema import Attempt, JobSum, Observation
from spothop_master.store.statistics import Statistics


@dataclass(frozen=True, kw_only=True)
class PolicyInputs:
    """What a policy is given."""

    measures: Measures
    hazard: Hazard | None
    """None with fewer than 30 preemptions in the region, and for other policies."""
    saves_measured: bool
    """Delta and beta were measured; else they are stated defaults, or a bound below them."""


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
    """M, R and q of the pool as `policy` takes them; delta, beta and T of the job, if there is one.

    `lives` counts the preemptions of the region: they are behind M under either policy. `weight` is
    what they count for; the thesis takes them all in full.
    """
    figures, priors = statistics.of(session, pool, now=now), statistics.priors
    save_s, backup_s = _of_job(session, job_id)
    bounds_s = _save_bounds_s(session, job_id) if save_s is None else []
    ours = not policy.startswith("thesis")
    measures = Measures(
        step_s=_newest_step_s(session, job_id) or 0.0,
        save_s=estimate(save_s, bounds_s, assumed_s=priors.prior_save_s),
        backup_s=priors.prior_backup_s if backup_s is None else backup_s,
        mttp_s=figures.rate.mttp_s if ours else figures.plain_mttp_s,
        restart_s=figures.restart_s if ours else figures.thesis_restart_s,
        grace_s=grace_s,
        notice_kept=figures.notice.mean,
        lives=figures.region_lives,
        weight=figures.rate.weight if ours else None,
        failure_s=figures.failure_s if ours else None,
    )
    hazard = figures.hazard if policy == "notice-aware" else None
    return PolicyInputs(
        measures=measures, hazard=hazard, saves_measured=save_s is not None and backup_s is not None
    )


def _of_job(session: Session, job_id: str | None) -> tuple[float | None, float | None]:
    """Mean delta and beta of the job, where it has any."""
    if job_id is None:
        return None, None
    rows = session.execute(
        select(JobSum.kind, JobSum.total, JobSum.count).where(
            JobSum.job_id == job_id, JobSum.censored.is_(False)
        )
    )
    means = {kind: total / count for kind, total, count in rows}
    return means.get("save"), means.get("backup")


def _save_bounds_s(session: Session, job_id: str | None) -> list[float]:
    """What the newest saves took at most whose beginning nobody marked."""
    if job_id is None:
        return []
    bounds = (
        select(Observation.value)
        .where(Observation.job_id == job_id, Observation.kind == "save", Observation.censored)
        .order_by(Observation.id.desc())
        .limit(RECENT)
    )
    return list(session.scalars(bounds))


def _newest_step_s(session: Session, job_id: str | None) -> float | None:
    if job_id is None:
        return None
    return session.scalar(
        select(Attempt.step_s)
        .where(Attempt.job_id == job_id, Attempt.step_s.is_not(None))
        .order_by(Attempt.number.desc())
        .limit(1)
    )
