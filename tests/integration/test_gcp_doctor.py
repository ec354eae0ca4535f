"""`spothop doctor`: a GCP project, from one that has nothing to one that is ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.gcp import Gce
from fakes.gcp_rig import FILE, driver
from spothop.wire import AgentConfig, Dialect, Pool, Verdict
from spothop_master.clouds.base import OWNER_TAG, LaunchSpec
from spothop_master.clouds.gcp.config import GcpConfig
from spothop_master.clouds.gcp.driver import GcpCloud

ROLE = Path(__file__).parents[2] / "deploy" / "gcp" / "master.yaml"
MakeCloud = Callable[..., GcpCloud]


@pytest.fixture
def gce() -> Gce:
    return Gce()


@pytest.fixture
def make_cloud(gce: Gce) -> MakeCloud:
    def make(**more: Any) -> GcpCloud:
        return driver(gce, GcpConfig.model_validate({**yaml.safe_load(FILE), **more}))

    return make


@pytest.fixture
def cloud(make_cloud: MakeCloud) -> GcpCloud:
    return make_cloud()


def role() -> frozenset[str]:
    return frozenset(yaml.safe_load(ROLE.read_text(encoding="utf-8"))["includedPermissions"])


def test_a_project_that_is_ready_has_nothing_to_mend(gce: Gce, cloud: GcpCloud) -> None:
    rule = {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}
    gce.bucket = {"location": "US-CENTRAL1", "lifecycle": {"rule": [rule]}}
    found = {check.subject: check for check in cloud.diagnose("gs://runs/jobs")}
    assert {check.verdict for check in found.values()} == {Verdict.OK}, found
    assert "my-project" in found["credentials"].fact
    assert "us-central1-f" in found["us-central1: zones"].fact
    assert found["bucket"].fact == "runs in us-central1"
    assert gce.lives() == [], "nothing is made"


def test_an_empty_project_is_told_what_it_lacks(gce: Gce, make_cloud: MakeCloud) -> None:
    gce.granted = role() - {"compute.instances.create"}
    gce.accounts = frozenset()
    gce.regional = {"PREEMPTIBLE_CPUS": 0}
    gce.gpus_in_all_regions = 0
    cloud = make_cloud(
        regions={"us-central1": {"zones": ["us-central1-x"]}, "mars-east1": {}},
        network="other",
        gpu_image="projects/x/global/images/family/y",
    )
    found = {check.subject: check for check in cloud.diagnose("s3://runs")}
    failed = {name for name, check in found.items() if check.verdict is Verdict.FAILED}
    assert failed == {
        "permissions",
        "service account of the VMs",
        "us-central1: zones",
        "us-central1: network",
        "mars-east1: look at it",
        "gpu_image",
    }
    assert "compute.instances.create" in found["permissions"].fact
    assert found["quota"].fact == "0 GPUs in all regions together, 0 in use"
    assert found["us-central1: quota"].verdict is Verdict.LOOK
    assert found["bucket"].verdict is Verdict.LOOK
    assert all(check.hint for check in found.values() if check.verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("status", "reason", "subject", "hint"),
    [
        (404, "notFound", "project", "gcloud projects list"),
        (403, "accessNotConfigured", "project", "gcloud services enable compute.googleapis.com"),
        (403, "forbidden", "project", "role"),
        (401, "authError", "credentials", "gcloud auth"),
        (503, "backendError", "Google", "later"),
    ],
)
def test_each_trouble_of_the_first_question_has_its_own_way_out(
    gce: Gce, cloud: GcpCloud, status: int, reason: str, subject: str, hint: str
) -> None:
    gce.fail("projects.get", status, reason, times=2)
    [check] = cloud.diagnose("gs://runs")
    assert (check.subject, check.verdict) == (subject, Verdict.FAILED)
    assert hint in check.hint


def test_credentials_that_nobody_takes_end_it(gce: Gce, cloud: GcpCloud) -> None:
    gce.tokens.clear()
    [check] = cloud.diagnose("gs://runs")
    assert (check.subject, check.verdict) == ("credentials", Verdict.FAILED)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in check.hint


@pytest.mark.parametrize("ahead_s", [-240.0, 240.0])
def test_a_clock_that_is_off_is_told_and_moments_are_told_in_its_time(
    gce: Gce, ahead_s: float
) -> None:
    gce.insert_s, gce.delete_s = 20.0, 30.0
    cloud = driver(gce, GcpConfig.model_validate(yaml.safe_load(FILE)), ahead_s=ahead_s)
    [clock] = [check for check in cloud.diagnose("") if check.subject == "clock"]
    assert (clock.verdict, "240 s" in clock.fact) == (Verdict.LOOK, True)
    rig_spec = LaunchSpec(
        pool=Pool(cloud="gcp", region="us-central1", zone="us-central1-a", vm="e2-standard-2"),
        user_data=AgentConfig(
            master="http://m", token="j", vm="vm-1", dialect=Dialect.GCP, directory="/x"
        ),
        script="#!/bin/sh\n",
        tags={OWNER_TAG: "us"},
    )

    def ours() -> float:
        return gce.clock() + ahead_s

    asked_at = ours()
    vm = cloud.launch(rig_spec, "t")
    assert vm.requested_at.timestamp() == pytest.approx(asked_at, abs=2)
    gce.clock.advance(20)
    [found] = cloud.list("us")
    assert found.running_at is not None
    assert found.running_at.timestamp() == pytest.approx(ours(), abs=2)
    cloud.terminate(vm.id)
    gce.clock.advance(30)
    [found] = cloud.list("us")
    assert found.ended_at is not None
    assert found.ended_at.timestamp() == pytest.approx(ours(), abs=2)
