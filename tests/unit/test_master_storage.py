"""What `checkpoint.storage` is refused for before a VM is paid for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fakes.s3_server import FOR_EVER, S3Server
from spothop import jobfile
from spothop.storage import StorageBadUrl, StorageDenied, StorageError, StorageUnavailable
from spothop.wire import StorageSpec
from spothop_master.api.storage import check_storage
from spothop_master.probes import Probes
from spothop_master.problems import ApiError

KEYS = {"access_key_id": "AKIAIOSFODNN7EXAMPLE", "secret_access_key": "wJalrXUtnFEMIK7MDENG"}


def check(
    probes: Probes,
    *,
    clouds: tuple[str, ...] = ("local",),
    default: str = "file:///nowhere",
    options: dict[str, str] | None = None,
    **resources: Any,
) -> None:
    storage = {"url": "s3://bucket/runs", "options": options} if options is not None else None
    checkpoint = {"checkpoint": {"storage": storage}} if storage else {}
    spec = jobfile.parse({"name": "a", "run": "x", "resources": resources, **checkpoint})
    check_storage(spec, clouds, probes, default_url=default)


def failing(error: StorageError) -> Probes:
    def fail(spec: StorageSpec) -> None:
        raise error

    return Probes(fail)


@pytest.mark.parametrize(
    ("error", "clouds", "options", "refused"),
    [
        (StorageDenied("no"), ("local",), {}, True),
        (StorageUnavailable("away"), ("local",), {}, True),
        (StorageDenied("no"), ("local", "aws"), {}, False),  # a VM may have a role
        (StorageUnavailable("away"), ("aws",), {}, False),  # and another network
        (StorageDenied("no"), ("aws",), KEYS, True),
        (StorageBadUrl("no such bucket"), ("aws",), {}, True),
    ],
)
def test_what_a_vm_would_find_too_is_refused(
    error: StorageError, clouds: tuple[str, ...], options: dict[str, str], refused: bool
) -> None:
    if not refused:
        check(failing(error), clouds=clouds, options=options)
        return
    with pytest.raises(ApiError) as caught:
        check(failing(error), clouds=clouds, options=options)
    problem = caught.value.problem
    assert (caught.value.status, problem.field) == (422, "checkpoint.storage")
    assert error.message in problem.message
    assert ("submit again" in problem.hint) == error.retryable


def test_the_masters_own_bucket_is_tried_out_too() -> None:
    with pytest.raises(ApiError, match="no such bucket"):
        check(failing(StorageBadUrl("no such bucket")), default="s3://bucket/runs")
    check(failing(StorageBadUrl("no such folder")), default="file:///tried/at/the/start")


def test_a_bucket_without_credentials_names_where_they_were_looked_for() -> None:
    """No key in the job file: the machine's role is asked for, and there is none."""
    with S3Server() as s3:
        s3.fail("*", "*api/token", 404, "NotFound", times=FOR_EVER)
        at = {"endpoint": s3.endpoint, "metadata_endpoint": s3.endpoint, "allow_http": "true"}
        with pytest.raises(ApiError) as caught:
            check(Probes(), options=at)
    problem = caught.value.problem
    assert "no credentials for" in problem.message
    assert "s3://bucket/runs" in problem.message
    assert "the VM's environment or its role" in problem.hint
    assert "api/token" not in problem.message


def test_a_storage_that_hangs_is_not_waited_for() -> None:
    never = threading.Event()

    def hang(spec: StorageSpec) -> None:
        never.wait()

    probes = Probes(hang, deadline_s=0, at_once=1)
    with pytest.raises(ApiError, match="did not answer"):
        check(probes, options={})
    with pytest.raises(ApiError, match="too many"):  # threads that hang are bounded
        check(probes, options={})
    never.set()


def test_each_storage_of_a_list_is_tried_out_and_named() -> None:
    asked: list[str] = []

    def third_fails(spec: StorageSpec) -> None:
        asked.append(spec.url)
        if "three" in spec.url:
            raise StorageDenied("no")

    places = ["s3://one/x", {"url": "s3://two/x", "options": KEYS}, "s3://three/x"]
    spec = jobfile.parse({"name": "a", "run": "x", "checkpoint": {"storage": places}})
    with pytest.raises(ApiError) as caught:
        check_storage(spec, ("local",), Probes(third_fails), default_url="file:///nowhere")
    assert caught.value.problem.field == "checkpoint.storage[2]"
    assert asked == ["s3://one/x", "s3://two/x", "s3://three/x"]
