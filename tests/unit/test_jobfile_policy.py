"""`checkpoint.policy` and `checkpoint.static_every` in the job file."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spothop import jobfile
from spothop.jobspec import JobSpec
from spothop.policy import parse


def spec(**checkpoint: Any) -> JobSpec:
    return jobfile.parse({"name": "j", "run": "true", "checkpoint": checkpoint})


def problem(**checkpoint: Any) -> jobfile.FieldProblem:
    with pytest.raises(jobfile.JobFileError) as caught:
        spec(**checkpoint)
    (found,) = caught.value.problems
    return found


def test_the_default_is_notice_aware() -> None:
    assert spec().checkpoint.policy_name == "notice-aware"


@pytest.mark.parametrize("policy", ["none", "thesis", "notice-aware"])
def test_names_are_those_of_the_policy_package(policy: str) -> None:
    name = spec(policy=policy).checkpoint.policy_name
    assert parse(name) == (policy, None)


def test_static_carries_its_interval() -> None:
    assert parse(spec(policy="static", static_every=250).checkpoint.policy_name) == ("static", 250)


def test_a_spec_survives_the_wire() -> None:
    for given in ({}, {"policy": "none"}, {"policy": "static", "static_every": 5}):
        made = spec(**given)
        assert jobfile.parse(made.as_mapping()) == made


def test_the_vm_is_given_up_shortly_before_the_deadline_or_as_the_job_says() -> None:
    assert spec().checkpoint.release_before == timedelta(seconds=2)
    assert spec(release_before="1h").checkpoint.release_before == timedelta(hours=1)
    assert problem(release_before="0s").field == "checkpoint.release_before"


def test_insurance_saves_are_ten_seconds_apart_or_as_the_job_says() -> None:
    assert spec().checkpoint.min_interval == timedelta(seconds=10)
    assert spec(min_interval="90s").checkpoint.min_interval == timedelta(seconds=90)
    assert problem(min_interval=5).field == "checkpoint.min_interval"


def test_static_without_an_interval_is_refused_with_the_way_out() -> None:
    found = problem(policy="static")
    assert (found.field, found.fact) == ("checkpoint.static_every", "is missing")
    assert "static" in found.hint


@pytest.mark.parametrize("policy", ["none", "thesis", "notice-aware"])
def test_an_interval_with_another_policy_is_refused(policy: str) -> None:
    found = problem(policy=policy, static_every=5)
    assert found.field == "checkpoint.static_every"
    assert policy in found.fact


def test_an_interval_alone_is_refused() -> None:
    assert problem(static_every=5).field == "checkpoint.static_every"


@pytest.mark.parametrize("every", [0, -1, 1.5, "10", True])
def test_an_interval_is_a_whole_number_above_0(every: object) -> None:
    assert problem(policy="static", static_every=every).field == "checkpoint.static_every"


@pytest.mark.parametrize("policy", ["adaptive", "static:5", "thesis-always", "", 3, None])
def test_an_unknown_policy_is_refused_alone(policy: object) -> None:
    assert problem(policy=policy, static_every=5).field == "checkpoint.policy"


def test_the_schema_names_the_policies() -> None:
    schema = jobfile.json_schema()["$defs"]["CheckpointSpec"]["properties"]
    assert schema["policy"]["enum"] == ["none", "static", "thesis", "notice-aware"]
    assert "static_every" in schema
