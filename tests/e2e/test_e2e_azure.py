"""A job on Azure, from the submit to the empty resource group, as it would go there.

The master is a real one under the roles of deploy/azure, Resource Manager and the Retail Prices API
are a fake, and a VM is a process tree in a network of its own that runs the custom data that was
sent: it fetches the agent, joins, trains, sees its eviction in Scheduled Events, and acknowledges
it. The storage is S3's interface, because there is no fake of Azure's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from fakes.azure import Emulator
from fakes.azure.hosts import Hosts
from fakes.azure_rig import DEPLOY
from fakes.s3_server import S3Server
from support.cloud_jobs import marks_of, preempt_once, running
from support.machine import Machine
from support.require import need_namespaces

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

D2 = "Standard_D2s_v5"


class AzureMachine(Machine):
    """A master whose only cloud is the fake, with VMs that run."""

    def __init__(self, folder: Path, azure: Emulator, s3: S3Server) -> None:
        folder.mkdir(parents=True)
        file = folder / "azure.yaml"
        file.write_text(yaml.safe_dump(azure.config()))
        super().__init__(folder, settings={"clouds": "azure", "azure_cloud": file})
        self.azure, self.s3 = azure, s3
        reach = [("127.0.0.1", self.port), ("127.0.0.1", urlsplit(s3.endpoint).port or 0)]
        self.hosts = Hosts(azure, folder / "vms", reach=reach, marks=marks_of(self))

    def counter_on_azure(self, **more: Any) -> str:
        pools = [{"cloud": "azure", "region": "eastus", "vm": D2}]
        spec = self.s3.spec("s3://runs/jobs")
        storage = {"url": spec.url, "options": dict(spec.options)}
        return self.counter(resources={"any_of": pools}, checkpoint={"storage": storage}, **more)


@pytest.fixture
def machine(azure: Emulator, tmp_path: Path) -> Iterator[AzureMachine]:
    need_namespaces()
    azure.clock.real = True
    azure.group.boot_s, azure.group.delete_s, azure.group.before_notice_s = 0.2, 0.5, 0.2
    roles = [
        json.loads((DEPLOY / f"{name}.json").read_text("utf-8")) for name in ("master", "reader")
    ]
    azure.roles = {"none": roles}
    with S3Server() as s3:
        made = AzureMachine(tmp_path / "machine", azure, s3)
        with running(made, made.hosts):
            yield made


def evicted_once(machine: AzureMachine, job: str) -> None:
    preempt_once(machine, job, left=machine.azure.group.left)


def test_a_job_is_evicted_by_azure_and_ends_on_another_vm(machine: AzureMachine) -> None:
    job = machine.counter_on_azure(endless=1, steps=20)
    evicted_once(machine, job)
    first, second = machine.azure.group.ever()
    assert "boot: agent installed" in first.console
    assert (first.noticed_at is not None, second.noticed_at is not None) == (True, False)


@pytest.mark.thorough
def test_refusals_first_change_nothing_but_the_time(machine: AzureMachine) -> None:
    azure = machine.azure
    azure.group.doomed += ["AllocationFailed", "ZonalAllocationFailed"]
    azure.fail("PUT *", 409, "SkuNotAvailable")
    azure.fail("PUT *", 429, "TooManyRequests", headers={"Retry-After": "1"})
    azure.cut("PUT *", after=True)
    evicted_once(machine, machine.counter_on_azure(endless=1, steps=20))
    assert len(azure.group.ever()) == 4, "two that Azure could not make, and one for each attempt"
