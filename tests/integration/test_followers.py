"""Long polls: woken by what they wait for, without asking meanwhile and without a thread."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from anyio import to_thread

from fakes.http_master import HttpAgent, HttpMaster
from fakes.virtual_time import play
from spothop_master.notifier import REMEMBERED, News, Notifier
from spothop_master.polling import GATHER_S, poll

pytestmark = pytest.mark.databases

JOBS = "/api/v1/jobs"
JOB = (News.ROWS, "j")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        master.services.notifier.fallback_s = 1e6  # only what is told wakes
        yield master


class Waiting:
    """A long poll under way, and what the master does meanwhile."""

    def __init__(self, master: HttpMaster, path: str, **params: Any) -> None:
        self.master = master
        self.asked: list[str] = []
        sa.event.listen(
            master.services.db.engine,
            "before_cursor_execute",
            lambda *args: self.asked.append(args[2]),
        )
        request = master.http.request(
            "GET",
            path,
            params={"wait_s": 30, **params},
            headers={"Authorization": f"Bearer {master.admin}"},
        )
        self.task = master._loop.create_task(request)
        self.settle()

    def settle(self) -> None:
        """Until it waits for news, or is answered."""
        while not (self.task.done() or self.master.services.notifier.waits):
            self.master.run(asyncio.sleep(0.01))

    def answer(self) -> Any:
        return self.master.run(self.wait())

    async def wait(self) -> httpx.Response:
        return await asyncio.wait_for(self.task, 20)


def followed(master: HttpMaster) -> tuple[HttpAgent, dict[str, Any]]:
    """A job that trains, and its newest news."""
    agent = master.joined()
    agent.train(10)
    return agent, master.get(f"{JOBS}/{agent.job}/news").json()


def test_who_waits_is_woken_by_an_event_by_a_step_and_by_the_log(master: HttpMaster) -> None:
    agent, news = followed(master)
    path, after = f"{JOBS}/{agent.job}/news", news["events"][-1]["id"]

    def waiting(**more: Any) -> Waiting:
        return Waiting(master, path, after=after, seen=news["seen"], attempt=1, **more)

    waits = waiting()
    assert not waits.task.done()
    waits.asked.clear()
    master.run(asyncio.sleep(0.3))
    assert waits.asked == [], "who waits asks nothing"
    agent.sync(agent.envelope(kind="steps", step=20, count=10, step_s=0.5, load_s=0.0))
    news = waits.answer().json()
    assert (news["job"]["step"], news["events"]) == (20, [])

    waits = waiting()
    agent.sync(agent.envelope(kind="message", text="hello", level="info"))
    news = waits.answer().json()
    assert [event["text"] for event in news["events"]] == ["hello"]
    after = news["events"][-1]["id"]

    waits = waiting()
    master.post("/agent/v1/logs?attempt=1&offset=0", content=b"line\n", token=agent.session)
    news = waits.answer().json()
    assert base64.b64decode(news["log"]["data"]) == b"line\n"
    assert news["log"]["next_offset"] == 5


def test_a_log_that_is_waited_for_is_not_asked_for_at_every_step(master: HttpMaster) -> None:
    agent, _ = followed(master)
    waits = Waiting(master, f"{JOBS}/{agent.job}/logs", attempt=1)
    waits.asked.clear()
    waits.master.services.notifier.tell(News.PROGRESS, [agent.job])
    master.run(asyncio.sleep(GATHER_S * 3))
    assert waits.asked == []
    master.post("/agent/v1/logs?attempt=1&offset=0", content=b"line\n", token=agent.session)
    assert waits.answer().content == b"line\n"


def test_a_page_is_asked_for_again_when_it_would_say_something_else(master: HttpMaster) -> None:
    agent, _ = followed(master)
    cookie = master.cookie()
    seen = master.call("GET", f"/live/{agent.job}", token="", headers=cookie).json()["seen"]
    assert (
        f'data-seen="{seen}"'
        in master.call("GET", f"/jobs/{agent.job}", token="", headers=cookie).text
    )
    agent.sync(agent.envelope(kind="steps", step=20, count=10, step_s=0.5, load_s=0.0))
    again = master.call("GET", f"/live/{agent.job}?seen={seen}", token="", headers=cookie).json()
    assert again["seen"] != seen
    assert master.call("GET", "/live/none", token="", headers=cookie).status_code == 404


def test_those_who_wait_are_answered_when_the_master_ends(master: HttpMaster) -> None:
    job = master.submit()["id"]
    waits = Waiting(master, f"{JOBS}/{job}/events", after=10**6)
    assert not waits.task.done()
    master.services.stop()
    assert waits.answer().json() == []


def test_many_who_wait_hold_no_thread(master: HttpMaster) -> None:
    job = master.submit()["id"]
    before = threading.active_count()
    waits = [Waiting(master, f"{JOBS}/{job}/events", after=10**6) for _ in range(60)]
    assert threading.active_count() <= before + 50, "they share the threads of the server"
    assert master.get(f"{JOBS}/{job}").status_code == 200
    master.post(f"{JOBS}/{job}/cancel")
    master.services.stop()
    assert all(each.answer().status_code == 200 for each in waits)


# --- the notifier -------------------------------------------------------------------------------


def notifier() -> Notifier:
    return Notifier(fallback_s=10.0)


async def took_s(work: Any) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await work
    return loop.time() - began


def test_what_was_told_after_the_mark_is_not_waited_for() -> None:
    async def scenario() -> None:
        news = notifier()
        mark = news.mark()
        news.tell(News.ROWS, ["j"])
        assert await took_s(news.wait([JOB], since=mark, at_most_s=5)) == 0
        assert await took_s(news.wait([JOB], since=news.mark(), at_most_s=5)) == 5
        assert await took_s(news.wait([JOB], since=news.mark(), at_most_s=50)) == 10

    play(scenario)


def test_only_who_waits_for_it_is_woken_from_any_thread() -> None:
    async def scenario() -> None:
        news = notifier()

        async def wait(topic: Any) -> float:
            return await took_s(news.wait([topic], since=news.mark(), at_most_s=8))

        tasks = [asyncio.ensure_future(wait((kind, "j"))) for kind in News]
        other = asyncio.ensure_future(wait((News.LOG, "k")))
        await asyncio.sleep(3)
        thread = threading.Thread(target=news.tell, args=(News.LOG, ["j"]))
        thread.start()
        thread.join()
        assert [round(s) for s in await asyncio.gather(*tasks)] == [8, 8, 3]
        assert round(await other) == 8
        assert not news.waits

    play(scenario)


def test_what_it_has_forgotten_counts_as_told() -> None:
    async def scenario() -> None:
        news = notifier()
        mark = news.mark()
        news.tell(News.ROWS, ["j"])
        for number in range(REMEMBERED):
            news.tell(News.LOG, [str(number)])
        assert await took_s(news.wait([JOB], since=mark, at_most_s=5)) == 0
        assert await took_s(news.wait([JOB], since=news.mark(), at_most_s=5)) == 5

    play(scenario)


# --- many who wait ------------------------------------------------------------------------------


def test_with_every_thread_of_the_server_at_work_polls_and_healthz_are_answered(
    master: HttpMaster,
) -> None:
    job = master.submit()["id"]

    async def busy() -> list[int]:
        limiter = to_thread.current_default_thread_limiter()
        for number in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(number)
        headers = {"Authorization": f"Bearer {master.admin}"}
        try:
            paths = ("/healthz", f"{JOBS}/{job}/events", f"{JOBS}/{job}/news")
            asked = [master.http.get(path, headers=headers) for path in paths]
            answers = await asyncio.wait_for(asyncio.gather(*asked), 60)  # only where it hangs
        finally:
            for number in range(int(limiter.total_tokens)):
                limiter.release_on_behalf_of(number)
        return [answer.status_code for answer in answers]

    assert master.run(busy()) == [200, 200, 200]


@dataclass
class Patient:
    """What a poll needs of the services; it asks in no thread."""

    random: float
    db: Any
    notifier: Notifier = field(default_factory=lambda: Notifier(fallback_s=10.0))
    stopping: threading.Event = field(default_factory=threading.Event)
    asked_at: list[float] = field(default_factory=list)

    @property
    def user_threads(self) -> Any:
        return SimpleNamespace(polls=self)

    async def run(self, ask: Callable[[], object]) -> object:
        self.asked_at.append(asyncio.get_running_loop().time())
        return ask()

    def spread(self) -> float:
        return 0.75 + 0.25 * self.random


@pytest.mark.parametrize(("random", "asked_at"), [(0.0, [0, 7.6]), (1.0, [0, 10.1])])
@pytest.mark.parametrize("single_master", [True, False])
def test_polls_that_begin_together_do_not_come_again_together(
    random: float, asked_at: list[float], single_master: bool
) -> None:
    """And where nobody else writes, what nothing was told of is not asked for at the end."""
    ends_at = 15 + 5 * random

    async def wait() -> list[float]:
        services: Any = Patient(random, SimpleNamespace(single_master=single_master))
        began = asyncio.get_running_loop().time()
        found = await poll(
            services, lambda: 1, enough=lambda _: False, topics=lambda _: [JOB], wait_s=20
        )
        assert found == 1
        ended_at = asyncio.get_running_loop().time()
        return [round(at - began, 3) for at in (*services.asked_at, ended_at)]

    assert play(wait) == [*asked_at, *([] if single_master else [ends_at]), ends_at]


def test_whoever_asks_whether_it_is_well_waits_for_no_other_request(tmp_path: Path) -> None:
    """Not even for another step of the event loop: there a crowd of polls may stand before it."""
    with HttpMaster(tmp_path) as master:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": []}
        call = master.app({**scope, "server": ("127.0.0.1", 1), "query_string": b""}, None, send)
        with pytest.raises(StopIteration):
            call.send(None)
        assert sent[0]["status"] == 200
        assert json.loads(sent[1]["body"])["status"] == "ok"
