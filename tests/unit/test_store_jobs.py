"""What a job file asks of the master, as the loop and the plan read it."""

from __future__ import annotations

from spothop.jobspec import JobSpec
from spothop_master.core.facts import Match, Requirements
from spothop_master.store.jobs import requirements_of


def test_requirements_are_those_of_the_job_file() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "job",
            "run": "python train.py",
            "resources": {
                "any_of": [{"cloud": "aws", "vm": "p3"}, {"zone": "b"}],
                "spot": False,
                "max_price": 2.5,
            },
            "retries": {"user": 1, "infrastructure": 2},
            "max_duration": "2h",
        }
    )
    assert requirements_of(spec) == Requirements(
        any_of=(Match(cloud="aws", vm="p3"), Match(zone="b")),
        spot=False,
        max_price=2.5,
        user_retries=1,
        infrastructure_retries=2,
        max_duration_s=7200,
    )
