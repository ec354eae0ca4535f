"""What a job file asks of the master, as the loop and the plan read it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from spothop import storageoptions
from spothop.jobspec import JobSpec
from spothop_master.core.facts import Match, Requirements
from spothop_master.store.jobs import requirements_of, spec_of
from spothop_master.store.schema import Job


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


def test_a_job_that_was_accepted_with_a_password_in_its_url_goes_on() -> None:
    """Version 0.1.0 took it. Refused now, at each look of the loop, its VMs would run for ever."""
    url = "s3://user:pass-word@bucket/runs"
    source = "https://acct.blob.core.windows.net/c/old?sig=a-signature"
    spec = {
        "name": "job",
        "run": "python train.py",
        "data": {"train": url},
        "checkpoint": {"storage": url, "init_from": source},
    }
    with pytest.raises(ValidationError, match="holds a password"):
        JobSpec.model_validate(spec)
    found = spec_of(Job(spec=spec))
    assert found.checkpoint.storage is not None
    assert (found.checkpoint.storage.url, found.data) == (url, {"train": url})
    shown = str(storageoptions.masked_spec(spec))
    assert "pass-word" not in shown
    assert "a-signature" not in shown
