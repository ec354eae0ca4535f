"""What the observations say of pools: posterior, plain means, defaults, and few queries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from spothop.policy import next_insurance
from spothop.policy.estimators import Life, RatePrior, preemption_rate
from spothop.wire import Pool
from spothop_master.store import observations, policy_inputs, pool_figures, zone_observations
from spothop_master.store.db import Database
from spothop_master.store.observations import STATED, StatedPriors
from spothop_master.store.schema import (
    Attempt,
    Checkpoint,
    Job,
    Observation,
    Place,
    User,
    VmRow,
)
from spothop_master.store.statistics import FRESH
from support.database import new_database
from support.examples import examples

pytestmark = pytest.mark.databases

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
A, B = (Pool(cloud="aws", region="us", zone=zone, vm="gpu") for zone in ("us-a", "us-b"))
OTHER = Pool(cloud="aws", region="eu", zone="eu-a", vm="gpu")
HOUR = 3600.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = new_database(tmp_path / "s.db")
    with db.begin() as session:
        session.add(User(id=1, name="u", role="user", created_at=NOW))
        session.flush()
        session.add(
            Job(
                id="j", name="j", owner_id=1, submit_token="t", spec={}, bundle="0" * 64,
                state="running", submitted_at=NOW,
            )
        )  # fmt: skip
    yield db
    db.close()


def vm(session: Session, pool: Pool, **more: Any) -> VmRow:
    number = session.scalar(sa.select(sa.func.count()).select_from(VmRow))
    row = VmRow(
        **{
            "id": f"vm-{number}", "job_id": "j", "token": f"t-{number}", "cloud": pool.cloud,
            "region": pool.region, "zone": pool.zone, "vm_type": pool.vm, "spot": pool.spot,
            "dialect": "aws", "grace_s": 30.0, "price": 1.0, "on_demand_price": 3.0,
            "state": "terminated", "requested_at": NOW, "ended_at": NOW, **more,
        }
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


def see(
    db: Database, pool: Pool, kind: str, value: float, *, ago_s: float = 0.0, **more: Any
) -> None:
    with db.begin() as session:
        observations.add(
            session,
            vm(session, pool),
            kind,
            value,
            now=NOW - timedelta(seconds=ago_s),
            **more,
        )


def figures(db: Database, pool: Pool = A, **priors: Any) -> pool_figures.PoolFigures:
    with db.read() as session:
        return pool_figures.of_pools(session, [pool], StatedPriors(**priors), now=NOW)[pool]


def measures(db: Database, policy: str, pool: Pool = A) -> Any:
    with db.read() as session:
        return policy_inputs.read(
            session, pool, None, FRESH, policy=policy, now=NOW, grace_s=30
        ).measures


# --- recommendations to leave a VM ---------------------------------------------------------------


def at_risk(db: Database, pool: Pool, **more: Any) -> None:
    with db.begin() as session:
        vm(session, pool, **{"at_risk_at": NOW, **more})


def test_a_recommendation_makes_its_pool_more_dangerous(db: Database) -> None:
    calm = figures(db).rate.mttp_s
    at_risk(db, A)
    at_risk(db, OTHER)
    assert figures(db).rate.mttp_s == pytest.approx(calm / 1.5)
    assert measures(db, "notice-aware").mttp_s == pytest.approx(calm / 1.5)
    assert measures(db, "thesis").mttp_s == calm, "it knows deaths only"
    assert figures(db, B).rate.mttp_s == pytest.approx(calm), "another zone has its own"


def test_a_preempted_vm_counts_by_its_death_alone(db: Database) -> None:
    calm = figures(db).rate.mttp_s
    at_risk(db, A, reason="preempted")
    at_risk(db, A, notice_at=NOW)
    assert figures(db).rate.mttp_s == calm


def test_a_vm_that_outlives_its_recommendation_is_believed(db: Database) -> None:
    calm = figures(db).rate.mttp_s
    at_risk(db, A, at_risk_at=NOW - timedelta(hours=1), ended_at=None, state="running")
    assert figures(db).rate.mttp_s == pytest.approx(calm / 1.25)
    at_risk(db, A, at_risk_at=NOW - timedelta(days=30), ended_at=NOW - timedelta(days=30))
    assert figures(db).rate.mttp_s == pytest.approx(calm / 1.25), "long ago"


# --- mean time to preemption --------------------------------------------------------------------


def test_without_a_life_the_stated_default_speaks(db: Database) -> None:
    known = figures(db)
    assert (known.rate.mttp_s, known.lives, known.region_lives) == (3 * HOUR, 0, 0)
    assert known.rate.interval()[0] < 3 * HOUR < known.rate.interval()[1]
    assert measures(db, "thesis").mttp_s == 3 * HOUR
    local = Pool(cloud="local", region="l", zone="l-a", vm="small")
    assert figures(db, local).rate.mttp_s == 20
    on_demand = A.model_copy(update={"spot": False})
    assert figures(db, on_demand).rate.mttp_s == 30 * 24 * HOUR


def test_a_pools_own_prior_is_found_by_its_name(db: Database) -> None:
    pools = {"aws/us-b/*": 60.0, "aws/*/gpu/spot": 7200.0}
    assert figures(db, A, prior_mttp_pools=pools).rate.mttp_s == 7200
    assert figures(db, B, prior_mttp_pools=pools).rate.mttp_s == 60


def test_the_posterior_is_the_estimators(db: Database) -> None:
    see(db, A, "life", 2 * HOUR, ago_s=HOUR)
    see(db, A, "life", 5 * HOUR, ago_s=2 * HOUR, censored=True)
    see(db, B, "life", HOUR)
    see(db, OTHER, "life", 1.0)  # another region says nothing
    expected = preemption_rate(
        [
            Life(duration_s=2 * HOUR, preempted=True, ended_ago_s=HOUR),
            Life(duration_s=5 * HOUR, preempted=False, ended_ago_s=2 * HOUR),
        ],
        neighbours=[[Life(duration_s=HOUR, preempted=True)]],
        prior=RatePrior(exposure_s=3 * HOUR),
    )
    known = figures(db)
    assert known.rate.mttp_s == pytest.approx(expected.mttp_s)
    assert known.rate.interval() == pytest.approx(expected.interval())
    assert (known.lives, known.censored, known.region_lives) == (1, 1, 2)
    assert measures(db, "notice-aware").lives == 2


def test_the_thesis_takes_the_plain_mean_of_the_region(db: Database) -> None:
    see(db, A, "life", 2 * HOUR, ago_s=90 * 24 * HOUR)
    see(db, B, "life", 4 * HOUR)
    see(db, A, "life", 100 * HOUR, censored=True)
    for policy in ("thesis", "thesis-always"):
        assert measures(db, policy).mttp_s == 3 * HOUR
    assert measures(db, "notice-aware").mttp_s > 3 * HOUR


def test_a_vm_that_is_alive_counts_its_age_and_an_ended_one_counts_once(db: Database) -> None:
    with db.begin() as session:
        row = vm(
            session,
            A,
            state="running",
            running_at=NOW - timedelta(hours=9),
            ended_at=None,
        )
        vm(session, A, state="booting", ended_at=None)  # not running: no exposure
    alive = figures(db, mttp_half_life_s=1e9)
    assert alive.rate.exposure_s == pytest.approx(12 * HOUR, rel=1e-3)
    assert (alive.alive, alive.censored) == (1, 0)
    with db.begin() as session:
        row = session.get_one(VmRow, row.id)
        row.state, row.ended_at = "terminated", NOW
        observations.add(session, row, "life", 9 * HOUR, now=NOW, censored=True)
    ended = figures(db, mttp_half_life_s=1e9)
    assert ended.rate.exposure_s == pytest.approx(alive.rate.exposure_s)
    assert (ended.alive, ended.censored) == (0, 1)


def test_old_lives_fade(db: Database) -> None:
    for n in range(20):
        see(db, A, "life", 60.0, ago_s=5 * 24 * HOUR + n * 60)
    assert figures(db, mttp_half_life_s=1e9).rate.mttp_s < 0.2 * HOUR
    assert figures(db).rate.mttp_s > HOUR
    see(db, A, "life", 60.0, ago_s=400 * 24 * HOUR)
    assert figures(db).lives == 21  # counted, though it weighs nothing


def test_a_survival_curve_needs_two_preemptions(db: Database) -> None:
    see(db, A, "life", 100.0)
    assert (figures(db).survival, figures(db).median_life_s) == ([], None)
    see(db, A, "life", 300.0)
    see(db, A, "life", 200.0, censored=True)
    assert [point.age_s for point in figures(db).survival] == [100.0, 300.0]
    assert figures(db).median_life_s == 300.0


# --- restart and notices ------------------------------------------------------------------------


def test_restart_is_allocation_plus_preparation_of_the_region(db: Database) -> None:
    see(db, A, "allocation", 10.0)
    assert (figures(db).restart_s, figures(db).restart_assumed) == (120, True)
    see(db, B, "allocation", 20.0)
    see(db, B, "preparation", 5.0)
    assert (figures(db).restart_s, figures(db).restart_assumed) == (20.0, False)
    assert measures(db, "thesis").restart_s == 20.0


def test_restart_fades_like_lives_but_for_the_thesis(db: Database) -> None:
    for _ in range(50):
        see(db, A, "allocation", 100.0, ago_s=5 * 24 * HOUR)
        see(db, A, "preparation", 10.0, ago_s=5 * 24 * HOUR)
    for _ in range(10):
        see(db, B, "allocation", 600.0)
    assert figures(db).allocation_s == pytest.approx(600, rel=0.15)
    assert figures(db).preparation_s == pytest.approx(10)
    assert measures(db, "thesis").restart_s == pytest.approx(110 + 500 / 6)


def test_what_was_measured_long_ago_is_better_than_what_is_only_stated(db: Database) -> None:
    see(db, A, "allocation", 100.0, ago_s=90 * 24 * HOUR)
    see(db, A, "preparation", 10.0, ago_s=90 * 24 * HOUR)
    assert (figures(db).restart_s, figures(db).restart_assumed) == (110, False)


def test_a_notice_path_that_broke_is_not_hidden_behind_a_thousand_kept_notices(
    db: Database,
) -> None:
    with db.begin() as session:
        session.add_all(
            Observation(
                kind="emergency", cloud="aws", region="us", zone="us-a", vm_type="gpu", spot=True,
                value=float(ago_h >= 12), vm_id=f"v{ago_h}", evidence="notice",
                at=NOW - timedelta(hours=ago_h),
            )
            for ago_h in range(1_000)
        )  # fmt: skip
    known = figures(db)
    assert (known.kept, known.notices, known.unannounced) == (988, 1_000, 0)
    assert known.notice.mean < 0.75  # of all alike: 0.99
    assert known.notice.interval()[0] < 0.65


def test_a_preemption_without_a_notice_is_no_notice_but_counts_against_them(db: Database) -> None:
    see(db, A, "emergency", 1.0, evidence="notice")
    see(db, A, "emergency", 0.0, evidence="notice")
    see(db, A, "emergency", 0.0, evidence="no_notice")
    known = figures(db)
    assert (known.kept, known.notices, known.unannounced) == (1, 2, 1)
    assert known.notice.mean == pytest.approx(3 / 6)


def test_a_busy_region_leaves_the_others_their_rows(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zone_observations, "MAX_LIVES", 5)
    monkeypatch.setattr(zone_observations, "MAX_FIGURES", 2)
    for n in range(20):
        see(db, A, "life", HOUR, ago_s=n * HOUR)
        see(db, A, "allocation", float(n), ago_s=n)
    for _ in range(3):
        see(db, OTHER, "life", HOUR, ago_s=100 * HOUR)
    with db.read() as session:
        found = pool_figures.of_pools(session, [A, OTHER], STATED, now=NOW)
    assert (len(found[A].own), len(found[OTHER].own)) == (5, 3)
    assert sorted(life.ended_ago_s / HOUR for life in found[A].own) == [0, 1, 2, 3, 4]
    assert found[A].allocation_s == pytest.approx(0.5, rel=0.01)


def test_a_quiet_vm_shows_how_long_it_has_been_quiet(db: Database) -> None:
    with db.begin() as session:
        vm(session, A, state="running", running_at=NOW - timedelta(days=60), ended_at=None)
    assert figures(db).rate.mttp_s == pytest.approx(60 * 24 * HOUR, rel=0.01)
    see(db, A, "life", HOUR, ago_s=20 * 24 * HOUR)  # so long ago that it is not read
    assert figures(db).rate.mttp_s == pytest.approx(20 * 24 * HOUR, rel=0.01)


def test_notices_that_were_not_to_fit_say_nothing_of_the_pool(db: Database) -> None:
    assert figures(db).notice.mean == pytest.approx(2 / 3)
    see(db, A, "emergency", 1.0)
    see(db, B, "emergency", 0.0)
    see(db, B, "emergency", 0.0, censored=True)
    known = figures(db)
    assert (known.kept, known.notices) == (1, 2)
    assert known.notice.mean == pytest.approx(3 / 5)
    assert measures(db, "notice-aware").notice_kept == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("attempt", "saved", "value", "censored", "evidence"),
    [
        ({"notice_at": NOW, "notice_fits": True}, True, 1.0, False, "notice"),
        ({"notice_at": NOW, "notice_fits": True}, False, 0.0, False, "notice"),
        # A notice that came later than promised is the pool's fault, though the agent saw no way.
        ({"notice_at": NOW, "notice_fits": False}, False, 0.0, False, "notice"),
        ({"notice_at": NOW, "step_s": 9.0, "save_s": 29.0}, True, 1.0, True, "notice"),
        ({"step_s": 1.0, "save_s": 2.0, "backup_s": 3.0}, False, 0.0, False, "no_notice"),
        ({"step_s": 9.0, "save_s": 9.0, "backup_s": 12.0}, False, 0.0, True, "no_notice"),
        ({}, True, 0.0, False, "no_notice"),  # never measured: a lost notice is not overlooked
    ],
)
def test_the_outcome_of_an_emergency_save(
    db: Database,
    attempt: dict[str, Any],
    saved: bool,
    value: float,
    censored: bool,
    evidence: str,
) -> None:
    attempt = dict(attempt)
    with db.begin() as session:
        row = vm(session, A)
        noticed = {name: attempt.pop(name) for name in list(attempt) if name.startswith("notice")}
        place = Place(vm_id=row.id, living=False, **noticed)
        made = Attempt(job_id="j", number=1, state="ended", created_at=NOW, **attempt)
        made.places.append(place)
        session.add(made)
        if saved:
            session.add(
                Checkpoint(
                    job_id="j", attempt=1, n=2, step=9, kind="emergency", bytes=1, delta_s=1.0,
                    beta_s=1.0, committed_at=NOW,
                )
            )  # fmt: skip
        session.flush()
        observations.emergency(session, row, place, now=NOW)
        (seen,) = session.scalars(sa.select(Observation))
        assert (seen.value, seen.censored, seen.evidence) == (value, censored, evidence)


# --- cost and safety ----------------------------------------------------------------------------


def test_four_queries_whatever_the_number_of_pools(db: Database) -> None:
    for pool in (A, B, OTHER):
        see(db, pool, "life", HOUR)
    many = [A.model_copy(update={"zone": f"z{i}", "region": f"r{i % 7}"}) for i in range(60)]
    asked: list[str] = []
    sa.event.listen(db.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    with db.read() as session:
        found = pool_figures.of_pools(session, [A, B, OTHER, *many], STATED, now=NOW)
    assert len(found) == 63
    assert [found[pool].lives for pool in (A, B, OTHER)] == [1, 1, 1]
    assert len([q for q in asked if q.startswith("SELECT")]) == 4
    with db.read() as session:
        assert pool_figures.of_pools(session, [], STATED, now=NOW) == {}


@examples(60)
@given(
    lives=st.lists(st.tuples(st.floats(-10, 1e9), st.booleans(), st.floats(-1e6, 1e9)), max_size=5),
    prior_s=st.floats(1e-3, 1e9),
    half_life_s=st.floats(1e-2, 1e12),
)
def test_no_figure_is_ever_nan_or_infinite(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[tuple[float, bool, float]],
    prior_s: float,
    half_life_s: float,
) -> None:
    folder = tmp_path_factory.mktemp("p", numbered=True)
    db = new_database(folder / "p.db")
    with db.begin() as session:
        session.add_all(
            Observation(
                kind="life", cloud="aws", region="us", zone="us-a", vm_type="gpu", spot=True,
                value=value, censored=censored, vm_id=f"v{i}", at=NOW - timedelta(seconds=ago_s),
            )
            for i, (value, censored, ago_s) in enumerate(lives)
        )  # fmt: skip
    known = figures(db, prior_mttp_s=prior_s, mttp_half_life_s=half_life_s)
    shown = [known.rate.mttp_s, *known.rate.interval(), known.plain_mttp_s, known.restart_s]
    assert all(math.isfinite(value) for value in shown), shown
    for policy in ("thesis", "thesis-always", "notice-aware"):
        with db.read() as session:
            m = policy_inputs.read(
                session, A, None, FRESH, policy=policy, now=NOW, grace_s=30
            ).measures
        decision = next_insurance(policy, m, step=0)
        assert decision.tau_s is None or math.isfinite(decision.tau_s)
    db.close()
