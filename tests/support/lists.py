"""A job in a list and the job by itself say the same."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from spothop_master.store import job_lists, job_views
from spothop_master.store.schema import Job, Metric

URL = "file:///s"


def assert_light_is_full(session: Session, job_id: str, *, now: datetime) -> None:
    """The figures of the list against those that are made of all rows."""
    light = job_lists.job_view(session, job_id, now=now, storage_url=URL).model_dump()
    whole = job_views.job_detail(session, session.get_one(Job, job_id), now=now, storage_url=URL)
    full = whole.model_dump(include={*light})
    for name in ("cost", "on_demand_cost"):
        assert light.pop(name) == pytest.approx(full.pop(name), abs=1e-9), name
    assert light == full
    assert light["metrics"] == newest_metrics(session, job_id)


def newest_metrics(session: Session, job_id: str) -> dict[str, Any]:
    """From the measured values themselves."""
    newest = sa.select(sa.func.max(Metric.id)).where(Metric.job_id == job_id).group_by(Metric.name)
    found = session.execute(sa.select(Metric.name, Metric.value).where(Metric.id.in_(newest)))
    return {row[0]: row[1] for row in found}
