"""What is sent to Compute Engine, and what its answers mean: pure functions."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.wire import ANY_ZONE, AgentConfig, Dialect, Pool
from spothop_master.clouds.base import (
    OWNER_TAG,
    Ambiguous,
    AuthFailed,
    BadRequest,
    CloudError,
    CloudVmState,
    LaunchSpec,
    NoCapacity,
    QuotaExceeded,
    Throttled,
    Unavailable,
)
from spothop_master.clouds.configuration import ConfigError
from spothop_master.clouds.gcp import errors, labels, reading, requests
from spothop_master.clouds.gcp.config import GcpConfig, load
from spothop_master.core.evidence import EndCause
from spothop_master.core.refusals import Scope

POOL = Pool(cloud="gcp", region="us-central1", zone="us-central1-a", vm="g2-standard-4")
ROOT = "https://www.googleapis.com/compute/v1/projects/my-project"


def config(**more: Any) -> GcpConfig:
    return GcpConfig.model_validate(
        {"project": "my-project", "regions": ["us-central1", "europe-west4"], **more}
    )


def spec(pool: Pool = POOL, **more: Any) -> LaunchSpec:
    user_data = AgentConfig(
        master="http://m", token="j", vm="vm-1", dialect=Dialect.GCP, directory="/x"
    )
    tags = more.pop("tags", {OWNER_TAG: "us", "spothop-vm": "vm-1"})
    return LaunchSpec(
        pool=pool, user_data=user_data, script=more.pop("script", "#!/bin/sh\n"), tags=tags, **more
    )


def body(of: LaunchSpec, *, notice: bool = True, gpu: bool = True, **more: Any) -> dict[str, Any]:
    made = config(**more)
    return requests.instance(of, "t", config=made, image=made.gpu_image, gpu=gpu, notice=notice)


# --- labels ---------------------------------------------------------------------------------------


@given(st.text(max_size=15))
def test_what_is_read_from_a_label_is_what_was_written(text: str) -> None:
    label = labels.encoded(text) if len(text.encode()) * 3 <= labels.MOST else ""
    assert re.fullmatch(r"[-a-z0-9_]{0,63}", label)
    assert not label or labels.decoded(label) == text


def test_two_tags_are_never_one_label() -> None:
    assert len({labels.encoded(text) for text in ("A", "_41", "a", "_", "__", "\u00e4")}) == 6


def test_a_tag_that_is_no_label_is_refused() -> None:
    with pytest.raises(BadRequest, match="GCP takes 63"):
        labels.encoded("x" * 64)
    with pytest.raises(BadRequest, match="no letter"):
        labels.of_tags({"1st": "x"}, token="t")


def test_the_token_is_no_tag() -> None:
    made = labels.of_tags({OWNER_TAG: "Us"}, token="T-1")
    assert labels.tags_of(made) == {OWNER_TAG: "Us"}
    assert labels.decoded(made[labels.TOKEN]) == "T-1"


# --- what is sent ---------------------------------------------------------------------------------


def test_the_same_launch_makes_the_same_request() -> None:
    assert body(spec()) == body(spec())
    assert requests.name_of("t") == body(spec())["name"]
    assert requests.request_id("t", body(spec())) == requests.request_id("t", body(spec()))


def test_a_request_id_is_a_uuid_of_one_launch_only() -> None:
    made = {
        requests.request_id(token, body(spec(), notice=notice), refusals=refusals)
        for token in ("a", "b")
        for notice in (True, False)
        for refusals in (0, 1)
    }
    assert len(made) == 8
    assert all(uuid.UUID(each).int for each in made)


def test_a_spot_vm_is_deleted_at_its_end_and_has_a_notice() -> None:
    assert body(spec())["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "maxRunDuration": {"seconds": "604800"},
        "preemptionNoticeDuration": {"seconds": "120"},
    }
    assert "preemptionNoticeDuration" not in body(spec(), notice=False)["scheduling"]


def test_a_vm_on_demand_ends_by_itself_too_and_is_moved_where_it_can_be() -> None:
    on_demand = POOL.model_copy(update={"spot": False, "vm": "e2-standard-2"})
    made = body(spec(on_demand), gpu=False, max_run_days=2)["scheduling"]
    assert (made["provisioningModel"], made["maxRunDuration"]) == (
        "STANDARD",
        {"seconds": "172800"},
    )
    assert "onHostMaintenance" not in made
    assert "preemptionNoticeDuration" not in made
    assert body(spec(on_demand), gpu=True)["scheduling"]["onHostMaintenance"] == "TERMINATE"


def test_gpus_belong_to_a_machine_type_or_are_attached_to_an_n1() -> None:
    assert "guestAccelerators" not in body(spec())
    made = body(spec(POOL.model_copy(update={"vm": "n1-standard-8+t4x2"})))
    assert made["machineType"].endswith("/n1-standard-8")
    [gpu] = made["guestAccelerators"]
    assert (gpu["acceleratorType"].rpartition("/")[2], gpu["acceleratorCount"]) == (
        "nvidia-tesla-t4",
        2,
    )
    assert requests.vm_type("n1-standard-8", [gpu]) == "n1-standard-8+t4x2"


@pytest.mark.parametrize("vm", ["n1-standard-8+h100x1", "g2-standard-4+t4x1", "n1-standard-8+t4"])
def test_other_gpus_cannot_be_attached(vm: str) -> None:
    with pytest.raises(BadRequest, match="attached"):
        requests.machine(vm)


def test_the_disk_goes_with_the_vm_and_is_of_a_kind_that_it_boots_from() -> None:
    [disk] = body(spec(disk_gb=200))["disks"]
    assert (disk["autoDelete"], disk["initializeParams"]["diskSizeGb"]) == (True, "187")
    assert disk["initializeParams"]["diskType"].endswith("/pd-balanced")
    [disk] = body(spec(POOL.model_copy(update={"vm": "c4-standard-8"})))["disks"]
    assert disk["initializeParams"]["diskType"].endswith("/hyperdisk-balanced")


def test_the_network_and_the_service_account_are_those_of_the_configuration() -> None:
    made = body(spec())
    assert made["networkInterfaces"][0]["network"] == "global/networks/default"
    assert made["serviceAccounts"] == [
        {
            "email": "spothop-vm@my-project.iam.gserviceaccount.com",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        }
    ]
    regions = {"us-central1": {"subnet": "trainers"}}
    made = body(spec(), regions=regions, service_account="", external_ip=False)
    assert made["networkInterfaces"] == [{"subnetwork": "regions/us-central1/subnetworks/trainers"}]
    assert "serviceAccounts" not in made


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({"region": "asia-east1", "zone": "asia-east1-a"}, "its region is none of"),
        ({"zone": "europe-west4-a"}, "zone europe-west4-a is none of"),
        ({"zone": ANY_ZONE}, "name one"),
    ],
)
def test_a_place_that_is_not_ours_is_refused(pool: dict[str, str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        body(spec(POOL.model_copy(update=pool)))


def test_user_data_has_to_be_there_and_has_its_limit() -> None:
    with pytest.raises(BadRequest, match="nothing would run"):
        body(spec(script=""))
    with pytest.raises(BadRequest, match="262144"):
        body(spec(script="x" * 262_145))


@pytest.mark.parametrize("text", ["", "i-1", "/etc", "../vms", "us-central1-a/", "a/b", "Z-1/x"])
def test_what_is_no_id_of_ours_is_no_id(text: str) -> None:
    assert requests.parse_id(text) is None


# --- what refusals mean ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "launch", "kind", "scope"),
    [
        (403, "rateLimitExceeded", True, Throttled, Scope.ACCOUNT),
        (429, "", True, Throttled, Scope.ACCOUNT),
        (403, "quotaExceeded", True, QuotaExceeded, Scope.REGION),
        (403, "forbidden", True, AuthFailed, Scope.ACCOUNT),
        (401, "authError", True, AuthFailed, Scope.ACCOUNT),
        (403, "accessNotConfigured", True, AuthFailed, Scope.ACCOUNT),
        (400, "invalid", True, BadRequest, Scope.POOL),
        (404, "notFound", True, BadRequest, Scope.POOL),
        (400, "resourceNotReady", False, Unavailable, Scope.REGION),
        (503, "ZONE_RESOURCE_POOL_EXHAUSTED", True, NoCapacity, Scope.POOL),
        (503, "backendError", True, Ambiguous, Scope.POOL),
        (503, "backendError", False, Unavailable, Scope.REGION),
        (500, "", True, Ambiguous, Scope.POOL),
        (502, "", False, Unavailable, Scope.REGION),
    ],
)
def test_what_an_http_error_means(
    status: int, reason: str, launch: bool, kind: type[CloudError], scope: Scope
) -> None:
    told = {"error": {"code": status, "message": "no", "errors": [{"reason": reason}]}}
    error = errors.of_answer(status, told, launch=launch, headers={"retry-after": "7"})
    assert (type(error), error.scope, error.code) == (kind, scope, reason or None)
    assert error.retry_after_s == 7


def test_an_error_without_a_body_is_one_all_the_same() -> None:
    assert isinstance(errors.of_answer(503, {}, launch=True), Ambiguous)
    assert isinstance(errors.of_answer(404, {"error": "x"}), BadRequest)
    assert str(errors.of_answer(404, {})) == "HTTP 404"


@pytest.mark.parametrize(
    ("code", "message", "kind", "scope"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "full", NoCapacity, Scope.POOL),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "full", NoCapacity, Scope.POOL),
        ("UNSUPPORTED_OPERATION", "preempted while made", NoCapacity, Scope.POOL),
        ("IP_SPACE_EXHAUSTED", "full", NoCapacity, Scope.REGION),
        ("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded in region r", QuotaExceeded, Scope.REGION),
        ("QUOTA_EXCEEDED", "Quota X exceeded: 0.0 globally.", QuotaExceeded, Scope.ACCOUNT),
        ("RATE_LIMIT_EXCEEDED", "slow", Throttled, Scope.ACCOUNT),
        ("INTERNAL_ERROR", "ours", Unavailable, Scope.REGION),
        ("PERMISSIONS_ERROR", "no", AuthFailed, Scope.ACCOUNT),
        ("INVALID_USAGE", "yours", BadRequest, Scope.POOL),
    ],
)  # fmt: skip
def test_what_the_error_of_an_operation_means(
    code: str, message: str, kind: type[CloudError], scope: Scope
) -> None:
    error = errors.of_operation({"error": {"errors": [{"code": code, "message": message}]}})
    assert error is not None
    assert (type(error), error.scope, error.code) == (kind, scope, code)
    assert message in str(error)


def test_of_several_errors_the_one_that_is_known_counts() -> None:
    causes = [{"code": "ODD"}, {"code": "QUOTA_EXCEEDED", "message": "no"}]
    assert isinstance(errors.of_operation({"error": {"errors": causes}}), QuotaExceeded)
    assert errors.of_operation({"status": "DONE"}) is None


# --- what answers say -----------------------------------------------------------------------------


def operation(kind: str, second: int, *, status: str = "DONE", **more: Any) -> dict[str, Any]:
    at = f"2026-05-01T05:00:{second:02}.000-07:00"
    return {
        "operationType": kind,
        "status": status,
        "insertTime": at,
        "endTime": at,
        "targetLink": f"{ROOT}/zones/us-central1-a/instances/x",
        **more,
    }


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [
        ([reading.PREEMPTED], EndCause.PREEMPTED),
        ([reading.DELETED], EndCause.TERMINATED),
        ([reading.DELETED, reading.PREEMPTED], EndCause.TERMINATED),
        ([reading.PREEMPTED, reading.DELETED], EndCause.PREEMPTED),
        (["compute.instances.hostError", reading.DELETED], EndCause.FAILED),
        (["setLabels", reading.DELETED], EndCause.TERMINATED),
    ],
)
def test_what_asked_for_the_end_first_is_its_cause(kinds: list[str], cause: EndCause) -> None:
    told = [operation(kind, second) for second, kind in enumerate(kinds)]
    pages = [{"items": {"zones/us-central1-a": {"operations": told[::-1]}}}]
    [(vm_id, sorted_)] = reading.operations(pages).items()
    found = reading.fate(sorted_)
    assert (vm_id, found.cause) == ("us-central1-a/x", cause)
    assert found.over_at is not None


def test_an_end_that_is_under_way_is_not_over() -> None:
    found = reading.fate([operation(reading.DELETED, 1, status="RUNNING")])
    assert (found.cause, found.over_at) == (EndCause.TERMINATED, None)


def test_a_stopped_vm_is_not_over_and_a_delete_that_failed_ends_nothing() -> None:
    assert reading.fate([operation("compute.instances.guestTerminate", 1)]).over_at is None
    failed = operation(reading.DELETED, 1, error={"errors": [{"code": "RESOURCE_IN_USE"}]})
    assert reading.fate([failed]) == reading.Fate()
    assert reading.fate([operation("insert", 1)]) == reading.Fate()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PROVISIONING", CloudVmState.PENDING),
        ("STAGING", CloudVmState.PENDING),
        ("RUNNING", CloudVmState.RUNNING),
        ("STOPPING", CloudVmState.STOPPING),
        ("TERMINATED", CloudVmState.STOPPING),
        ("SUSPENDED", CloudVmState.STOPPING),
        ("A_NEW_ONE", CloudVmState.STOPPING),
    ],
)
def test_a_vm_as_it_is_listed(status: str, state: CloudVmState) -> None:
    found = reading.vm(
        {
            "name": "x",
            "zone": f"{ROOT}/zones/us-central1-a",
            "status": status,
            "machineType": f"{ROOT}/zones/us-central1-a/machineTypes/g2-standard-4",
            "scheduling": {"provisioningModel": "SPOT"},
            "labels": labels.of_tags({OWNER_TAG: "us"}, token="t"),
            "creationTimestamp": "2026-05-01T05:00:00.000-07:00",
            "lastStartTimestamp": "2026-05-01T05:00:09.500-07:00",
        }
    )
    assert (found.id, found.state, found.pool, found.token) == ("us-central1-a/x", state, POOL, "t")
    assert found.requested_at.isoformat() == "2026-05-01T12:00:00+00:00"
    assert (found.running_at is None) == (state is CloudVmState.PENDING)


def test_zones_that_do_not_answer_are_told_from_empty_ones() -> None:
    page = {
        "items": {
            "zones/us-central1-a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
            "zones/us-central1-b": {"warning": {"code": "UNREACHABLE"}},
        },
        "unreachables": ["projects/my-project/zones/us-central1-c"],
    }
    assert reading.instances([page]) == ([], {"us-central1-b", "us-central1-c"})


# --- the configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("regions: [us-central1]", "project: Field required"),
        ("project: my-project\nregions: {}", "regions: .*at least 1"),
        ("project: my-project\nregions: [us-central1-a]", "us-central1-a.*a region, such as"),
        ("project: P\nregions: [us-central1]", r"project: expected the id.*\(it is 'P'\)"),
        ("project: '1234567890'\nregions: [us-central1]", "`gcloud projects list` shows it"),
        ("project: my-project\nregions: {us-west1: {zones: [us-east1-b]}}", "regions: zone us-e"),
        ("project: my-project\nregions: [us-central1]\nimage: u", r"image: .*\(it is 'u'\)"),
        ("project: my-project\nregions: [us-central1]\nsubnet: x", "subnet: Extra inputs"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_names_its_field(tmp_path: Any, text: str, said: str) -> None:
    file = tmp_path / "gcp.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"gcp.yaml: .*{said}"):
        load(file)


@pytest.mark.parametrize(
    ("project", "account", "email"),
    [
        ("my-project", "spothop-vm", "spothop-vm@my-project.iam.gserviceaccount.com"),
        ("my-project", "a@b.example", "a@b.example"),
        ("my-project", "", ""),
        ("example.com:my-project", "vm", "vm@my-project.example.com.iam.gserviceaccount.com"),
    ],
)
def test_whose_rights_the_vms_have(project: str, account: str, email: str) -> None:
    made = GcpConfig(project=project, regions={"us-central1": {}}, service_account=account)  # type: ignore[dict-item]
    assert made.account() == email
