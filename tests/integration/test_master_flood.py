"""One VM that floods its master: it is slowed down, its user hears of it, and no other VM does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from fakes.http_master import HttpAgent, HttpMaster
from spothop_master.agents import syncs
from spothop_master.agents.syncs import LOG_SLOWED, REPORTS_SLOWED, SYNCS_SLOWED
from spothop_master.store import metrics

pytestmark = pytest.mark.databases

JOBS = "/api/v1/jobs"
RATE = 20


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path, max_reports_per_s=RATE, max_log_bytes_per_s=100) as master:
        yield master


def told(agent: HttpAgent, text: str) -> int:
    events = agent.master.get(f"{JOBS}/{agent.job}/events?limit=500").json()
    return sum(text in event["text"] for event in events)


@contextmanager
def statements(master: HttpMaster) -> Iterator[list[str]]:
    asked: list[str] = []

    def note(*args: Any) -> None:
        asked.append(args[2])

    engine = master.services.db.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(engine, "before_cursor_execute", note)


def metric(agent: HttpAgent, names: int, *, first: int = 0) -> dict[str, Any]:
    values = {f"m{first + number}": 1.0 for number in range(names)}
    return agent.envelope(kind="metrics", step=9, values=values)


def report(agent: HttpAgent) -> Any:
    """As a normal VM does; it is taken at once."""
    steps = agent.envelope(kind="steps", step=10, count=1, step_s=0.5, load_s=0.0)
    answer = agent.sync(steps, metric(agent, 3)).json()
    assert answer["ack_seq"] == agent.seq
    assert answer["next_delay_s"] <= agent.master.settings.sync_every_s
    return answer


@pytest.mark.parametrize("normal", [5, pytest.param(20, marks=pytest.mark.thorough)])
def test_a_flood_costs_the_other_vms_nothing(master: HttpMaster, normal: int) -> None:
    for number in range(normal + 1):
        master.submit(name=f"job-{number}")
    for _ in range(4):
        master.look(1.0)
    flood, *others = [HttpAgent(master, vm.user_data.token) for vm in master.cloud.launches]
    for agent in (flood, *others):
        agent.join()
        agent.train(5)
    assert len(others) == normal
    for agent in others:
        report(agent)
    with statements(master) as before:
        for agent in others:
            report(agent)
    refused = [metric(flood, 250) for _ in range(4)]
    with statements(master) as during:
        for agent in others:
            flood.sync(*refused)
            report(agent)
    assert len(during) <= len(before) + 40  # what the bucket held, and the event
    assert told(flood, REPORTS_SLOWED) == 1
    assert all(told(agent, REPORTS_SLOWED) == 0 for agent in others[:2])


def test_a_flood_waits_and_is_thinned_but_an_exit_is_not(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(5)
    first = metric(agent, 250)
    assert agent.sync(first, metric(agent, 250)).json()["ack_seq"] == agent.seq  # a burst
    waits = metric(agent, 250)
    answer = agent.sync(waits).json()
    assert answer["ack_seq"] == agent.seq - 1
    every_s = master.settings.sync_every_s
    assert every_s < answer["next_delay_s"] <= 2 * every_s
    assert [directive["kind"] for directive in answer["directives"]] == ["insurance"]
    done = agent.envelope(kind="exited", code=0, done=True, step=6)
    assert agent.sync(waits, done).json()["ack_seq"] == agent.seq
    master.look()
    assert master.get(f"{JOBS}/{agent.job}").json()["state"] == "succeeded"
    assert told(agent, REPORTS_SLOWED) == 1


def test_a_bucket_fills_again(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(5)
    agent.sync(metric(agent, 250), metric(agent, 250))
    waits = metric(agent, 250)
    assert agent.sync(waits).json()["ack_seq"] == agent.seq - 1
    master.clock.advance(30)
    assert agent.sync(waits).json()["ack_seq"] == agent.seq


def test_a_flood_of_log_waits_for_its_turn(master: HttpMaster) -> None:
    agent, other = master.joined(name="a"), master.joined(name="b")
    assert agent.post_log(b"x" * 3_000, offset=0).json()["next_offset"] == 3_000
    for _ in range(3):
        answer = agent.post_log(b"x" * 2_000, offset=3_000)
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "20"
        assert answer.json()["error"] == "too_much_log"
    assert other.post_log(b"x" * 3_000, offset=0).status_code == 200
    assert told(agent, LOG_SLOWED) == 1
    master.clock.advance(20)
    assert agent.post_log(b"x" * 2_000, offset=3_000).json()["next_offset"] == 5_000


def test_metrics_of_ten_thousand_names_are_told_once_and_the_first_stay(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as master:
        agent = master.joined()
        agent.train(5)
        for first in range(0, 10_000, 250):
            told_to = agent.sync(metric(agent, 250, first=first))
            assert told_to.json()["ack_seq"] == agent.seq
        view = master.get(JOBS)
        [job] = view.json()["jobs"]
        assert len(job["metrics"]) == metrics.MAX_NAMES
        assert job["metrics"]["loss"] == 1.25
        assert len(view.content) < 50_000
        assert told(agent, "more than 1,000 metrics") == 1
        agent.sync(agent.envelope(kind="metrics", step=10, values={"loss": 0.5, "m9999": 1.0}))
        assert master.get(f"{JOBS}/{agent.job}").json()["metrics"]["loss"] == 0.5


def test_a_vm_that_syncs_without_end_waits_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with HttpMaster(tmp_path, max_syncs_per_s=1.0) as master:
        one, other = master.joined(name="one"), master.joined(name="other")
        monkeypatch.setattr(syncs.asyncio, "sleep", sleep)
        for _ in range(40):  # 30 at once are taken
            one.sync()
        assert waits
        assert 0.0 < waits[0] <= master.settings.sync_every_s
        assert told(one, SYNCS_SLOWED) == 1
        waits.clear()
        one.sync(one.envelope(kind="message", text="hello"))
        assert len(waits) == 1
        one.sync(one.envelope(kind="notice", event="e-1", deadline_in_s=30.0))
        other.sync()
        assert len(waits) == 1, "a notice waits for nothing, nor does another VM"
        master.clock.advance(300)
        one.sync()
        assert len(waits) == 1
