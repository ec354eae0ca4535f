"""A second insert of one name: what it says of the VM of the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.test_gcp_pure import config, spec

from spothop.wire import Pool
from spothop_master.clouds.base import CloudVmState, LaunchSpec
from spothop_master.clouds.clock import CloudClock
from spothop_master.clouds.gcp import errors, labels, reading, requests
from spothop_master.clouds.gcp.config import GcpConfig
from spothop_master.clouds.gcp.driver import GcpCloud
from spothop_master.core.evidence import EndCause

TAKEN = {"errors": [{"code": "RESOURCE_ALREADY_EXISTS", "message": "already exists"}]}


def operation(kind: str, hour: int, **more: Any) -> dict[str, Any]:
    moment = f"2026-11-22T{hour:02}:00:00Z"
    return {
        "operationType": kind,
        "status": "DONE",
        "insertTime": moment,
        "endTime": moment,
        **more,
    }


def test_a_second_insert_that_failed_says_nothing_of_the_vm_of_the_first() -> None:
    inserts = [operation("insert", 10), operation("insert", 11, error=TAKEN)]
    assert reading.fate(inserts) == reading.Fate()
    found = reading.fate([*inserts, operation("compute.instances.preempted", 13)])
    assert (found.cause, found.refused) == (EndCause.PREEMPTED, None)


class Taken:
    """Answers that there is a VM of this name, inside the operation."""

    clock = CloudClock()

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._made = made

    def call(self, method: str, path: str, **more: Any) -> Any:
        return self._made if method == "GET" else operation("insert", 11, error=TAKEN)

    def pages(self, path: str, **more: Any) -> Any:
        raise AssertionError(path)

    def who(self) -> str:
        return "somebody"


def test_a_launch_of_a_name_that_is_taken_inside_the_operation_is_what_was_made() -> None:
    asked: LaunchSpec = spec()
    pool: Pool = asked.pool
    known: GcpConfig = config()
    made = {
        "name": requests.name_of("token"),
        "zone": f"zones/{pool.zone}",
        "status": "RUNNING",
        "machineType": f"machineTypes/{pool.vm}",
        "scheduling": {"provisioningModel": "SPOT" if pool.spot else "STANDARD"},
        "labels": labels.of_tags(asked.tags, token="token"),
        "creationTimestamp": "2026-11-22T10:00:00Z",
        "lastStartTimestamp": "2026-11-22T10:00:05Z",
    }
    vm = GcpCloud(known, calls=Taken(made)).launch(asked, "token")
    assert (vm.token, vm.state) == ("token", CloudVmState.RUNNING)


def test_both_ways_to_say_that_a_name_is_taken_are_known() -> None:
    told = errors.of_operation({"error": TAKEN})
    assert told is not None
    assert told.code in errors.TAKEN
