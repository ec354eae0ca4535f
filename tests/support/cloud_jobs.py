"""A job on the VMs of a fake cloud, preempted once: what the end-to-end tests of clouds share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from fakes.vm_hosts import VmHosts
from spothop.wire import JOB_ENDED
from support import leftovers
from support.counter import steps_in_log
from support.machine import MARKER, Machine
from support.waiting import until

M = TypeVar("M", bound=Machine)


def marks_of(machine: Machine) -> dict[str, str]:
    """What every process of its VMs has in its environment."""
    return {MARKER: machine.run_id, leftovers.MARKER: leftovers.mark()}


@contextmanager
def running(machine: M, hosts: VmHosts) -> Iterator[M]:
    """The master, and its VMs; at the end what these said."""
    with hosts, machine:
        try:
            yield machine
        finally:
            print(hosts.told())  # noqa: T201  pytest shows it of a test that failed


def wait_for_training(machine: Machine, job: str) -> None:
    machine.wait(job, lambda job: (job.step or 0) > 20, what="training")


def check_preempted_once(
    machine: Machine, job: str, *, left: Callable[[], Sequence[object]]
) -> None:
    """Replaced, resumed, done; and then `left` tells nothing of the account."""
    machine.wait(job, lambda job: job.state in JOB_ENDED, what="over", over=True)
    done = machine.job(job)
    first, second = done.attempts
    assert (done.state, first.reason, second.reason) == ("succeeded", "preempted", "succeeded")
    assert (second.restored_step or 0) >= (first.step_at_notice or 0) > 0
    numbers = steps_in_log(machine, job, 2)
    assert numbers == list(range((second.restored_step or 0) + 1, numbers[-1] + 1))
    until(lambda: not left(), what="the account is empty")


def preempt_once(machine: Machine, job: str, *, left: Callable[[], Sequence[object]]) -> None:
    """From the first VM's training on."""
    wait_for_training(machine, job)
    machine.client.preempt(job)
    check_preempted_once(machine, job, left=left)
