"""One job over two clouds: AWS takes its VM back and has no other one, GCP takes over, and restores
what the VM on AWS saved in the storage near it; the chain lies in the other one. Both clouds are
emulated (test_e2e_aws.py, test_e2e_gcp.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fakes.aws import FOR_EVER, Emulator
from fakes.aws import hosts as aws_hosts
from fakes.aws_rig import grant, left_of, set_up
from fakes.gcp import Gce
from fakes.gcp import hosts as gcp_hosts
from fakes.gcp.server import GceServer
from spothop.checkpoints import Chain, Entry
from spothop.storage import open_store
from spothop.wire import JOB_ENDED, StorageSpec
from support import leftovers
from support.counter import steps_in_log
from support.machine import MARKER, Machine
from support.require import need_namespaces
from support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.thorough]

BUCKET = "runs"


class TwoClouds(Machine):
    """A master with both, and VMs of both that run."""

    def __init__(self, folder: Path, aws: Emulator, compute: GceServer) -> None:
        folder.mkdir(parents=True)
        aws_file, gcp_file = folder / "aws.yaml", folder / "gcp.yaml"
        aws_file.write_text(
            f"regions: [us-east-1]\nendpoint_url: {aws.endpoint}\n"
            "vm_types: {t3.micro: {price: 0.5}}\n"
        )
        gcp_file.write_text(
            f"project: my-project\nregions: [us-central1]\nendpoint_url: {compute.endpoint}\n"
            "vm_types: {e2-standard-2: {price: 0.067, spot_price: 0.02}}\n"
        )
        self.keys = grant(aws, bucket=BUCKET)
        settings = {"clouds": "aws,gcp", "aws_cloud": aws_file, "gcp_cloud": gcp_file}
        environment = {**self.keys, **compute.write_key(folder / "key.json")}
        super().__init__(folder, settings=settings, environment=environment)
        self.aws, self.gce = aws, compute.gce
        marks = {MARKER: self.run_id, leftovers.MARKER: leftovers.mark()}
        emulator = ("127.0.0.1", urlsplit(aws.endpoint).port or 0)
        how: dict[str, Any] = {"reach": [("127.0.0.1", self.port), emulator], "marks": marks}
        self.hosts = (
            aws_hosts.Hosts(aws, folder / "vms-aws", **how),
            gcp_hosts.Hosts(compute.gce, folder / "vms-gcp", token="of no use here", **how),
        )

    def storages(self) -> list[dict[str, Any]]:
        """The first stands for one in GCP. With keys: a VM of GCP has no role of AWS."""
        options = {
            "endpoint": self.aws.endpoint,
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": self.keys["AWS_ACCESS_KEY_ID"],
            "secret_access_key": self.keys["AWS_SECRET_ACCESS_KEY"],
        }
        shared: dict[str, Any] = {"options": options}
        return [
            {"url": f"s3://{BUCKET}/far", "cloud": "gcp", "region": "us-central1", **shared},
            {"url": f"s3://{BUCKET}/near", "cloud": "aws", "region": "us-east-1", **shared},
        ]


def parse_storage(given: dict[str, Any]) -> StorageSpec:
    return StorageSpec(url=given["url"], options=given["options"])


@pytest.fixture
def machine(aws: Emulator, tmp_path: Path) -> Iterator[TwoClouds]:
    need_namespaces()
    aws.clock.real = True
    set_up(aws)
    aws.client("s3").create_bucket(Bucket=BUCKET)
    with ExitStack() as stack:
        compute = stack.enter_context(GceServer(Gce(real=True)))
        made = TwoClouds(tmp_path / "machine", aws, compute)
        for hosts in made.hosts:
            stack.enter_context(hosts)
        stack.enter_context(made)
        try:
            yield made
        finally:
            print(*(hosts.told() for hosts in made.hosts))  # noqa: T201  of a test that failed


def test_gcp_takes_over_where_aws_refuses_and_restores_from_s3(machine: TwoClouds) -> None:
    pools = [
        {"cloud": "aws", "region": "us-east-1", "vm": "t3.micro"},
        {"cloud": "gcp", "region": "us-central1", "vm": "e2-standard-2"},
    ]
    until(
        lambda: {view.pool.cloud for view in machine.client.pools()} == {"aws", "gcp"},
        what="offers of both clouds",
    )
    job = machine.counter(
        endless=1,
        steps=20,
        resources={"any_of": pools},
        checkpoint={"storage": machine.storages()},
    )
    machine.wait(job, lambda job: (job.step or 0) > 20, what="training on AWS")
    machine.aws.script.fail("RunInstances", "InsufficientInstanceCapacity", times=FOR_EVER)
    machine.client.preempt(job)
    machine.wait(job, lambda job: job.state in JOB_ENDED, what="over", over=True)
    done = machine.job(job)
    first, second = done.attempts
    assert (done.state, first.reason, second.reason) == ("succeeded", "preempted", "succeeded")
    assert (second.restored_step or 0) >= (first.step_at_notice or 0) > 0
    numbers = steps_in_log(machine, job, 2)
    assert numbers == list(range((second.restored_step or 0) + 1, numbers[-1] + 1))
    entries = Chain(open_store(parse_storage(machine.storages()[0])), job).entries()
    where = {
        (entry.attempt, record.url)
        for entry in entries
        if isinstance(entry, Entry)
        for record in entry.files
        if record.key
    }
    assert where == {(1, f"s3://{BUCKET}/near"), (2, "")}
    assert (len(machine.aws.fleet.lives()), len(machine.gce.lives())) == (1, 1)
    until(lambda: left_of(machine.aws) == [], what="the account of AWS is empty")
    until(lambda: machine.gce.living() == [], what="the project of GCP is empty")
