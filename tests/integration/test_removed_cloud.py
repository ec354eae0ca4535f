"""A cloud is taken out of the configuration while VMs of it live."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.fake_cloud import FakeClock, FakeCloud
from fakes.http_master import HttpAgent, HttpMaster
from spothop_master.clouds.base import Cloud, CloudVmState

pytestmark = pytest.mark.databases

JOBS = "/api/v1/jobs"


def later(before: HttpMaster, folder: Path, clouds: dict[str, Cloud]) -> HttpMaster:
    """Another master on the same home."""
    return HttpMaster(folder, clock=before.clock, clouds=clouds)


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[tuple[HttpMaster, HttpAgent]]:
    with HttpMaster(tmp_path) as master:
        agent = master.joined()
        agent.train(5)
        yield master, agent


def told(master: HttpMaster, agent: HttpAgent, text: str) -> int:
    events = master.get(f"{JOBS}/{agent.job}/events?limit=500").json()
    return sum(text in event["text"] for event in events)


def test_its_vms_and_their_jobs_say_what_to_do_and_nothing_fails(
    trained: tuple[HttpMaster, HttpAgent], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, agent = trained
    other: dict[str, Cloud] = {"other": FakeCloud(clock=FakeClock(), name="other")}
    gone = "cloud 'fake' is not configured any more"
    for _ in range(2):  # told once, however often the master is started
        with later(before, tmp_path, other) as master:
            [vm] = master.get("/api/v1/vms").json()["vms"]
            assert vm["hint"].startswith(gone)
            assert vm["id"] in vm["hint"]
            assert told(master, agent, gone) == 1
            agent.master = master
            heard = agent.sync(agent.envelope(kind="message", text="alive"))
            assert heard.json()["ack_seq"] == agent.seq  # it trains on
    with later(before, tmp_path, other) as master:
        master.post(f"{JOBS}/{agent.job}/cancel")
        for _ in range(30):
            master.look(10.0)
        [vm] = master.get("/api/v1/vms").json()["vms"]
        assert vm["state"] == "terminating"
        assert vm["hint"].startswith(gone)
        assert told(master, agent, gone) == 1
    assert not [r for r in caplog.records if r.exc_info]
    with later(master, tmp_path, {"fake": before.cloud}) as master:
        assert told(master, agent, "cloud 'fake' is configured again") == 1
        for _ in range(10):
            master.look(10.0)
        [vm] = master.get("/api/v1/vms").json()["vms"]
        assert (vm["state"], vm["hint"]) == ("terminated", "")


def test_vms_of_a_region_that_is_taken_out_are_not_taken_for_gone(
    trained: tuple[HttpMaster, HttpAgent], tmp_path: Path
) -> None:
    before, agent = trained
    [machine] = before.cloud.machines.values()
    gone = f"region {machine.pool.region!r} of cloud 'fake' is not configured any more"
    before.cloud.looks_in = frozenset({"elsewhere"})
    with later(before, tmp_path, {"fake": before.cloud}) as master:
        master.post(f"{JOBS}/{agent.job}/cancel")
        for _ in range(30):
            master.look(10.0)
        [vm] = master.get("/api/v1/vms").json()["vms"]
        assert vm["state"] == "terminating"  # it runs, and costs
        assert vm["hint"].startswith(gone)
        assert told(master, agent, gone) == 1
    before.cloud.looks_in = None
    with later(master, tmp_path, {"fake": before.cloud}) as master:
        for _ in range(10):
            master.look(10.0)
        [vm] = master.get("/api/v1/vms").json()["vms"]
        assert (vm["state"], vm["hint"]) == ("terminated", "")
    assert machine.state(before.clock()) is CloudVmState.TERMINATED
