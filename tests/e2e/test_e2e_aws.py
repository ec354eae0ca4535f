"""A job on AWS, from the submit to the empty account, as it would go there.

The master is a real one with the keys of deploy/aws/master.json, EC2 and S3 are the emulator with
IAM enforced, and a VM is a process tree in a network of its own that runs the user data that was
sent: it fetches the agent, joins, trains, and reaches the bucket with the role of its instance
profile, which only 169.254.169.254 tells. The FIS experiment and the status of the spot request
exist in the emulator's layer only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fakes.aws import Emulator
from fakes.aws.hosts import Hosts
from fakes.aws_rig import grant, left_of, set_up
from spothop.sdk.errors import ClientError
from support.cli import spothop
from support.cloud_jobs import check_preempted_once, marks_of, running, wait_for_training
from support.machine import Machine
from support.require import need_namespaces
from support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

BUCKET = "runs"


class AwsMachine(Machine):
    """A master whose only cloud is the emulator, with VMs that run."""

    def __init__(self, folder: Path, aws: Emulator, *, chaos: str = "") -> None:
        """`chaos`: points of the master's own at which it is killed."""
        folder.mkdir(parents=True)
        file = folder / "aws.yaml"
        file.write_text(
            f"regions: [us-east-1]\nendpoint_url: {aws.endpoint}\n"
            "vm_types: {t3.micro: {price: 0.5}}\n"
        )
        keys = grant(aws, bucket=BUCKET)
        settings = {"clouds": "aws", "aws_cloud": file, "chaos": chaos}
        super().__init__(folder, settings=settings, environment=keys)
        self.aws = aws
        emulator = ("127.0.0.1", urlsplit(aws.endpoint).port or 0)
        reach = [("127.0.0.1", self.port), emulator]
        self.hosts = Hosts(aws, folder / "vms", reach=reach, marks=marks_of(self))

    def storage(self) -> dict[str, Any]:
        """Without keys: VM and master have those of their own."""
        options = {"endpoint": self.aws.endpoint, "allow_http": "true", "region": "us-east-1"}
        return {"url": f"s3://{BUCKET}/jobs", "options": options}

    def killed_at(self, action: str, *, after: bool) -> None:
        """The next such call stays under way, with EC2's work still to be done or done, until the
        master is dead."""
        self._struck = self.aws.count(action) + 1
        self._action = action
        self.aws.script.stall(action, after=after)

    def dies(self) -> None:
        """Wait for that call, kill the master in its midst, and let EC2 go on."""
        action, count = self._action, self._struck
        until(lambda: self.aws.count(action) >= count, what=f"{action} is called")
        self.kill()
        self.aws.script.release()

    def died_by_itself(self) -> None:
        """Wait for it, and start it again."""
        master = self._master
        assert master is not None
        until(lambda: master.poll() is not None, what="the master is dead")
        self.kill()
        self.start()

    def wait_for_nothing(self) -> None:
        until(lambda: left_of(self.aws) == [], what="the account is empty")

    def counter_on_aws(self, **more: Any) -> str:
        pools = [{"cloud": "aws", "region": "us-east-1", "vm": "t3.micro"}]
        return self.counter(
            resources={"any_of": pools}, checkpoint={"storage": self.storage()}, **more
        )


@pytest.fixture
def machine(request: pytest.FixtureRequest, aws: Emulator, tmp_path: Path) -> Iterator[AwsMachine]:
    """Its parameter, if any: the master's `chaos`."""
    need_namespaces()
    aws.clock.real = True
    set_up(aws)
    aws.client("s3").create_bucket(Bucket=BUCKET)
    made = AwsMachine(tmp_path / "machine", aws, chaos=getattr(request, "param", ""))
    with running(made, made.hosts):
        yield made


def preempted_once(machine: AwsMachine, job: str) -> None:
    """From the first VM's training on: interrupted, replaced, resumed, done, and nothing left."""
    wait_for_training(machine, job)
    assert "boot: agent installed" in machine.aws.fleet.lives()[0].console
    machine.client.preempt(job)
    check_end(machine, job)


def check_end(machine: AwsMachine, job: str) -> None:
    check_preempted_once(machine, job, left=lambda: left_of(machine.aws))
    assert len(machine.aws.fleet.lives()) == 2, "one VM for each attempt"


def test_a_job_is_interrupted_by_ec2_and_ends_on_another_vm(
    machine: AwsMachine, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Its report (`--junitxml`) has the seconds from the notice to the request of the VM that takes
    over, as the master wrote them down; nothing is asserted of them, or of this machine's speed."""
    job = machine.counter_on_aws(endless=1, steps=20)
    preempted_once(machine, job)
    noticed_at = machine.job(job).attempts[0].notice_at
    assert noticed_at is not None
    _, second = sorted(machine.client.vms(job=job), key=lambda vm: vm.requested_at)
    assert second.requested_at >= noticed_at, "the notice is why"
    took_s = (second.requested_at - noticed_at).total_seconds()
    record_testsuite_property("notice_to_replacement_requested_s", took_s)


@pytest.mark.thorough
def test_ten_refusals_first_change_nothing_but_the_time(machine: AwsMachine) -> None:
    script = machine.aws.script
    script.fail("RunInstances", "InsufficientInstanceCapacity", times=6)
    script.fail("RunInstances", "MaxSpotInstanceCountExceeded", times=2)
    script.fail("RunInstances", "RequestLimitExceeded")
    script.cut("RunInstances")
    preempted_once(machine, machine.counter_on_aws(endless=1, steps=20))
    assert machine.aws.count("RunInstances") == 12


@pytest.mark.thorough
def test_a_master_that_is_killed_at_its_calls_loses_and_doubles_nothing(
    machine: AwsMachine,
) -> None:
    machine.killed_at("RunInstances", after=False)
    job = machine.counter_on_aws(endless=1, steps=20)
    machine.dies()
    machine.start()
    wait_for_training(machine, job)
    machine.killed_at("RunInstances", after=True)
    machine.client.preempt(job)
    machine.dies()
    machine.killed_at("TerminateInstances", after=True)
    machine.start()
    machine.dies()
    machine.killed_at("TerminateInstances", after=False)
    machine.start()
    machine.dies()
    machine.start()
    check_end(machine, job)


POINTS = ("before_plan", "vm_row_committed", "after_launch", "after_apply", "after_terminate")
"""Around RunInstances, its answer, and TerminateInstances, in the order in which they come."""


@pytest.mark.thorough
@pytest.mark.parametrize("machine", [",".join(f"{point}=kill" for point in POINTS)], indirect=True)
def test_a_master_that_is_killed_between_its_calls_loses_and_doubles_nothing(
    machine: AwsMachine,
) -> None:
    """At each of its own points, and while it asks what there is."""
    with suppress(ClientError):  # it may die before it has answered
        machine.counter_on_aws(endless=1, steps=20, name="killed")
    for _ in POINTS[:4]:
        machine.died_by_itself()
    [job] = [job.id for job in machine.client.jobs(all=True) if job.name == "killed"]
    machine.killed_at("DescribeInstances", after=True)
    machine.dies()
    machine.start()
    wait_for_training(machine, job)
    with suppress(ClientError):
        machine.client.preempt(job)
    machine.died_by_itself()
    check_end(machine, job)


@pytest.mark.thorough
def test_all_of_an_account_is_ended_by_one_command(machine: AwsMachine) -> None:
    job = machine.counter_on_aws(endless=1, steps=20)
    wait_for_training(machine, job)
    done = spothop(machine, "vms", "--cloud", "--terminate-all", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert machine.job(job).state == "cancelled"
    assert machine.job(job).checkpoints, "it saved first"
    machine.wait_for_nothing()
