"""Whatever users ask of the master, and however long it takes, the agents' calls are answered."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from fakes.http_master import HttpAgent, HttpMaster


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as found:
        yield found


async def while_users_hold_every_thread(
    master: HttpMaster, path: str, **more: Any
) -> dict[str, Any]:
    """The answer to a call that is made while all threads of users' calls are at work."""
    free, held = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        held.release()
        free.wait()

    threads = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
    users = [asyncio.create_task(anyio.to_thread.run_sync(work)) for _ in range(threads)]
    try:
        for _ in users:
            await asyncio.to_thread(held.acquire)
        answer = await asyncio.wait_for(master.http.post(path, **more), 60)
        found: dict[str, Any] = answer.json()
        return found
    finally:
        free.set()
        await asyncio.gather(*users)


def test_a_notice_waits_for_no_users_call(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(5)
    body = agent.body(agent.envelope(kind="notice", event="e-1", deadline_in_s=120.0))
    told = master.run(
        while_users_hold_every_thread(
            master,
            "/agent/v1/sync",
            content=json.dumps(body),
            headers={"Authorization": f"Bearer {agent.session}"},
        )
    )
    assert told["ack_seq"] == agent.seq


def test_a_vm_joins_while_users_hold_every_thread(master: HttpMaster) -> None:
    master.submit()
    for _ in range(4):
        master.look(1.0)
    agent = HttpAgent(master, master.cloud.launches[-1].user_data.token)
    body = {"token": agent.join_token, "agent_version": "1"}
    told = master.run(while_users_hold_every_thread(master, "/agent/v1/join", json=body))
    assert told["vm"]


def test_a_slow_master_asks_for_fewer_syncs_and_calls_none_of_its_agents_silent(
    master: HttpMaster,
) -> None:
    agent = master.joined()
    agent.train(5)
    usual_s = agent.sync().json()["next_delay_s"]
    services, slow = master.services, timedelta(seconds=30)
    for _ in range(100):
        services.pace.answered(slow, master.clock())
    told = [agent.sync().json(), agent.sync(agent.envelope(kind="message", text="x")).json()]
    assert all(2 * usual_s < each["next_delay_s"] <= 4 * usual_s for each in told)
    waits_s = told[-1]["next_delay_s"]
    master.clock.advance(waits_s)
    silent = services.heartbeats.silent_for(agent.vm, master.clock())
    assert silent.total_seconds() == pytest.approx(usual_s)
