"""A scripted master, and the command line run against it in this process."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest

from spothop.cli import run
from spothop.cli.session import Session
from spothop.sdk.settings import ClientSettings
from spothop.wire import (
    AttemptView,
    CheckpointView,
    Dialect,
    DiskView,
    EventView,
    Insurance,
    JobDetail,
    JobDisk,
    JobPage,
    JobView,
    PlanReply,
    Pool,
    PoolPlan,
    PoolView,
    RefusalView,
    SaveKind,
    StorageSpec,
    VmPage,
    VmView,
)

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)
POOL = Pool(cloud="local", region="local", zone="zone-a", vm="small")
JOB = "mnist-small-3f2a9c"
EVENTS_OF = {"queued": "the job is queued", "running": "attempt 1 runs", "succeeded": "succeeded"}


def plan_reply(*, pools: int = 2) -> PlanReply:
    rows = [
        PoolPlan(
            pool=POOL.model_copy(update={"zone": f"zone-{i}"}), spot_price=0.1234 * (i + 1),
            on_demand_price=0.4, grace_s=10.0, dialect=Dialect.AWS, mttp_s=20.0 * (i + 1),
            mttp_assumed=i == 0, lives=i, restart_s=4.2,
        )
        for i in range(pools)
    ]  # fmt: skip
    return PlanReply(pools=rows, storage="file:///home/someone/.spothop/master/storage")


def vm(number: int = 1) -> VmView:
    return VmView(
        id=f"vm-{JOB}-{number}", cloud_id="local-1", pool=POOL, state="running", reason=None,
        dialect=Dialect.AWS, attempt=number, requested_at=NOW - timedelta(minutes=5),
        running_at=NOW - timedelta(minutes=4), ended_at=None, price=0.12, cost=0.008,
        job=JOB,
    )  # fmt: skip


def job(*, state: str = "running", attempt: int = 1) -> JobDetail:
    return JobDetail(
        id=JOB, name="mnist-small", owner="admin", state=state, wanted="running",
        reason="attempt 2 trains" if state == "running" else "", attempt=attempt, vm=vm().id,
        submitted_at=NOW - timedelta(minutes=5),
        ended_at=None if state == "running" else NOW,
        pool=POOL, step=1200, metrics={"loss": 0.1234}, preemptions=1,
        saves={SaveKind.PERIODIC: 2, SaveKind.EMERGENCY: 1}, cost=0.0123, on_demand_cost=0.04,
        storage=StorageSpec(url="file:///home/someone/.spothop/master/storage"),
        insurance=Insurance(at_step=1300, tau_s=12.0, reason="sqrt(2 delta (M + R)) = 12 s"),
        spec={}, useful_s=123.0, recomputed_steps=14, lost_s=28.4, lost_cost=0.0004,
        log_tail="epoch 1\nloss [red]0.1[/red]\n",
        attempts=[
            AttemptView(
                number=1, vm=vm(1).id, state="ended", reason="preempted",
                detail="the notice came 10 s before the end", started_at=NOW, ended_at=NOW,
                restored_step=0, last_step=700, notice_at=NOW,
            )
        ],
        vms=[vm(1), vm(2)],
        refusals=[
            RefusalView(
                pool=POOL, count=3, first_at=NOW, last_at=NOW - timedelta(seconds=20),
                until=NOW + timedelta(seconds=40), error="NoCapacity",
                code="InsufficientInstanceCapacity", detail="none is left",
            )
        ],
        checkpoints=[
            CheckpointView(
                n=n, step=100 * n, attempt=1, kind=SaveKind.INSURANCE, bytes=4_200_000,
                delta_s=0.041, beta_s=0.7, committed_at=NOW - timedelta(seconds=90),
            )
            for n in range(1, 8)
        ],
    )  # fmt: skip


def job_page(*jobs: JobView, **more: Any) -> JobPage:
    """The only page, of one job if none is given."""
    listed = jobs or (job(),)
    return JobPage(**{"jobs": listed, "counts": {"running": 1}, "total": len(listed), **more})


def pool_view(*, spot: bool = True) -> PoolView:
    return PoolView(
        pool=POOL.model_copy(update={"spot": spot}), price=0.1234, on_demand_price=0.4,
        grace_s=120.0, lives=12, region_lives=40, censored=107, alive=2, mttp_s=18_600.0,
        mttp_low_s=14_000.0, mttp_high_s=210_000.0, mttp_assumed=False, median_life_s=9000.0,
        allocation_s=61.0, preparation_s=125.0, restart_s=186.0, restart_assumed=False,
        notices=12, notices_kept=11, notice_share=0.92, notice_low=0.7, notice_high=0.97,
    )  # fmt: skip


Scripted = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


@dataclass
class FakeMaster:
    """Answers as the master does; `scripted` replaces the answer of a route."""

    states: list[str] = field(default_factory=lambda: ["queued", "running", "succeeded"])
    log: bytes = b"epoch 1\nepoch 2\n"
    scripted: dict[str, Scripted] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    """Of the newest request."""

    def handle(self, request: httpx.Request) -> httpx.Response:
        route = f"{request.method} {request.url.path.removeprefix('/api/v1')}"
        self.asked.append(route)
        self.params = dict(request.url.params)
        if request.headers.get("content-type") == "application/json":
            self.bodies.append(json.loads(request.content))
        scripted = self.scripted.get(route)
        if isinstance(scripted, Exception):
            raise scripted
        if isinstance(scripted, httpx.Response):
            return scripted
        return scripted(request) if scripted else self.answer(route, request)

    def answer(self, route: str, request: httpx.Request) -> httpx.Response:
        if route.startswith(("HEAD /bundles/", "PUT /bundles/")):
            return httpx.Response(404 if request.method == "HEAD" else 201)
        if route == f"GET /jobs/{JOB}/logs":
            return self.log_answer(int(request.url.params["offset"]))
        if route == f"GET /jobs/{JOB}/events":
            return self.events_answer(int(request.url.params["after"]))
        if route == f"GET /jobs/{JOB}/news":
            return self.news_answer(request)
        if route == f"GET /jobs/{JOB}":
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return reply(job(state=state, attempt=0 if state == "queued" else 1))
        answers: dict[str, Any] = {
            "POST /plan": plan_reply(),
            "POST /jobs": job(),
            "GET /jobs": job_page(),
            "GET /vms": VmPage(vms=[vm()]),
            "GET /disk": DiskView(
                database=12_000_000,
                database_free=3_000_000,
                logs=9_000_000,
                bundles=2_000_000,
                largest=[JobDisk(job=JOB, log_bytes=8_000_000)],
            ),
            f"POST /jobs/{JOB}/cancel": job(),
            f"POST /jobs/{JOB}/pause": job(),
            f"POST /jobs/{JOB}/resume": job(),
            f"POST /jobs/{JOB}/preempt": vm(),
        }
        if route == "GET /me":
            return httpx.Response(200, json={"name": "admin", "role": "admin"})
        if route in answers:
            return reply(answers[route])
        message = f"nothing at {route}"
        return httpx.Response(404, json={"error": "no_such_job", "message": message, "hint": "c"})

    def news_answer(self, request: httpx.Request) -> httpx.Response:
        """Put together from the job's events and its log, scripted or not."""
        asked, path = request.url.params, f"GET /jobs/{JOB}"
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        scripted = self.scripted.get(f"{path}/events")
        if isinstance(scripted, Exception):
            raise scripted
        assert not isinstance(scripted, httpx.Response)
        events = scripted(request) if scripted else self.events_answer(int(asked["after"]))
        if not events.is_success:
            return events
        log = None
        if "attempt" in asked:
            answer = self.log_answer(int(asked["offset"]))
            log = {
                "attempt": 1,
                "data": base64.b64encode(answer.content).decode(),
                "next_offset": int(answer.headers["X-Next-Offset"]),
                "complete": answer.headers["X-Complete"] == "true",
            }
        found = job(state=state, attempt=0 if state == "queued" else 1)
        view = found.model_dump(mode="json", include={*JobView.model_fields})
        news = {"job": view, "events": events.json(), "log": log, "seen": state}
        return httpx.Response(200, json=news)

    def log_answer(self, offset: int) -> httpx.Response:
        headers = {
            "X-Next-Offset": str(len(self.log)),
            "X-Attempt": "1",
            "X-Complete": str(self.states[0] == "succeeded").lower(),
        }
        return httpx.Response(200, content=self.log[offset:], headers=headers)

    def events_answer(self, after: int) -> httpx.Response:
        texts = list(EVENTS_OF.values())
        found = [
            EventView(
                id=i, at=NOW, job=JOB, vm=None, attempt=1, kind="state", text=text, data={}
            ).model_dump(mode="json")
            for i, text in enumerate(texts, 1)
            if i > after
        ]
        return httpx.Response(200, json=found)


def reply(value: Any) -> httpx.Response:
    if isinstance(value, list):
        return httpx.Response(200, json=[item.model_dump(mode="json") for item in value])
    return httpx.Response(200, json=value.model_dump(mode="json"))


@dataclass
class Cli:
    """Runs commands in this process and keeps what they printed."""

    master: FakeMaster
    capture: pytest.CaptureFixture[str]
    can_ask: bool = False
    terminal: bool = False
    became: list[list[str]] = field(default_factory=list)
    out: str = ""
    err: str = ""

    def __call__(self, *arguments: str) -> int:
        session = Session(
            settings=ClientSettings(token="t", master_home=Path("/home/m")),
            transport=httpx.MockTransport(self.master.handle),
            now=lambda: NOW,
            sleep=lambda seconds: None,
            terminal=self.terminal,
            can_ask=self.can_ask,
            become=self.became.append,
        )
        code = run(list(arguments), session)
        self.out, self.err = self.capture.readouterr()
        return code


def in_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in a narrow terminal, in UTC, against a master of its own."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return Cli(FakeMaster(), capsys)
