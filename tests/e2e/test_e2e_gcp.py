"""A job on GCP, from the submit to the empty project, as it would go there.

The master is a real one with the key of a service account, Compute Engine and Cloud Storage are
fakes that take what Google's own description of the APIs has, and a VM is a process tree in a
network of its own that runs the user data that was sent: it fetches the agent, joins, trains, sees
its notice by a long poll of the metadata server, and reaches the bucket with the token of its
service account, which only 169.254.169.254 tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fakes.gcp import Gce
from fakes.gcp.hosts import Hosts
from fakes.gcp.server import GceServer
from fakes.gcs_server import GENERATION, GcsServer
from support.cloud_jobs import marks_of, preempt_once, running
from support.machine import Machine
from support.require import need_namespaces

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

VM_TOKEN = "of-the-vms-service-account"


class GcpMachine(Machine):
    """A master whose only cloud is the fake, with VMs that run."""

    def __init__(self, folder: Path, compute: GceServer, gcs: GcsServer) -> None:
        folder.mkdir(parents=True)
        file = folder / "gcp.yaml"
        file.write_text(
            "project: my-project\nregions: [us-central1]\n"
            f"endpoint_url: {compute.endpoint}\n"
            "vm_types: {e2-standard-2: {price: 0.067, spot_price: 0.02}}\n"
        )
        settings = {"clouds": "gcp", "gcp_cloud": file}
        keys = compute.write_key(folder / "key.json")
        super().__init__(folder, settings=settings, environment=keys)
        self.gce, self.gcs = compute.gce, gcs
        bucket = ("127.0.0.1", urlsplit(gcs.endpoint).port or 0)
        reach = [("127.0.0.1", self.port), bucket]
        self.hosts = Hosts(
            self.gce, folder / "vms", token=VM_TOKEN, reach=reach, marks=marks_of(self)
        )

    def storage(self) -> dict[str, Any]:
        """Without keys: VM and master have those of their own."""
        options = {"base_url": self.gcs.endpoint, "allow_http": "true"}
        return {"url": "gs://runs/jobs", "options": options}

    def counter_on_gcp(self, **more: Any) -> str:
        pools = [{"cloud": "gcp", "region": "us-central1", "vm": "e2-standard-2"}]
        return self.counter(
            resources={"any_of": pools}, checkpoint={"storage": self.storage()}, **more
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[GcpMachine]:
    need_namespaces()
    with ExitStack() as stack:
        gce = Gce(real=True)
        gce.insert_s = gce.delete_s = 0.3
        compute = stack.enter_context(GceServer(gce))
        gcs = stack.enter_context(GcsServer())
        gcs.tokens = {VM_TOKEN}
        made = GcpMachine(tmp_path / "machine", compute, gcs)
        with running(made, made.hosts):
            yield made


def preempted_once(machine: GcpMachine, job: str) -> None:
    preempt_once(machine, job, left=machine.gce.living)


def test_a_job_is_preempted_by_compute_engine_and_ends_on_another_vm(machine: GcpMachine) -> None:
    preempted_once(machine, machine.counter_on_gcp(endless=1, steps=20))
    first, second = machine.gce.lives()
    assert (first.noticed_at is not None, second.noticed_at is not None) == (True, False)
    assert "boot: agent installed" in first.console
    assert first.zone != second.zone, "a preemption counts against its zone"
    conditional = {asked.key for asked in machine.gcs.asked if GENERATION in asked.headers}
    assert all("/chain/" in key or "spothop-probe" in key for key in conditional)
    assert any("/chain/" in key for key in conditional)


@pytest.mark.thorough
def test_refusals_first_change_nothing_but_the_time(machine: GcpMachine) -> None:
    gce = machine.gce
    gce.doomed.extend([("ZONE_RESOURCE_POOL_EXHAUSTED", "full")] * 3)
    gce.fail("instances.insert", 403, "rateLimitExceeded")
    gce.cut("instances.insert", after=True)
    gce.fail("instances.insert", 503, "backendError")
    preempted_once(machine, machine.counter_on_gcp(endless=1, steps=20))
    assert all(life.insert.code or life.ending is not None for life in gce.lives())
