"""The watchers of AWS, Azure and GCP against scripted endpoints; no real time passes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.wire import Dialect
from spothop_agent.watch import AT_RISK, Notice, acknowledge, watch
from support.examples import examples

WALL = 1777636800.0  # 2026-05-01 12:00:00 UTC
START = 1000.0
IN_20_S_ISO = "2026-05-01T12:00:20Z"
IN_20_S_HTTP = "Fri, 01 May 2026 12:00:20 GMT"

Answer = httpx.Response | Exception
Responder = Callable[[httpx.Request], Answer]


class ScriptOver(Exception):
    """Ends a watcher, which never ends by itself."""


@dataclass
class MasterHarness:
    """A scripted endpoint with its own time: sleeping moves the clock, nothing waits."""

    respond: Responder
    polls: int = 8
    wall_off_s: float = 0.0
    """How far this VM's clock is off."""
    most_requests: int = 50
    now: float = START
    slept: list[float] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if len(self.slept) >= self.polls:
            raise ScriptOver

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if len(self.requests) > self.most_requests:
            raise ScriptOver
        answer = self.respond(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]


def run(harness: MasterHarness, dialect: Dialect, *, vm_name: str | None = "vm-1") -> list[Notice]:
    seen: list[Notice] = []

    async def scenario() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(harness.handle)) as client:
            try:
                async for notice in watch(
                    dialect,
                    "http://metadata/",
                    vm_name=vm_name,
                    client=client,
                    clock=lambda: harness.now,
                    sleep=harness.sleep,
                    wall=lambda: WALL + harness.wall_off_s + harness.now - START,
                    rng=random.Random(1),
                    inform=harness.told.append,
                ):
                    seen.append(notice)
            except ScriptOver:
                pass

    asyncio.run(scenario())
    return seen


# --- AWS ----------------------------------------------------------------------------------------

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN = "/latest/api/token"


def aws(*actions: Answer, rebalance: Answer | None = None) -> Responder:
    """IMDSv2 with one answer for each look at the action; the last one stays."""
    left = list(actions)

    def respond(request: httpx.Request) -> Answer:
        if request.method == "PUT" and request.url.path == TOKEN:
            return httpx.Response(200, text="the-token")
        if request.headers.get("X-aws-ec2-metadata-token") != "the-token":
            return httpx.Response(401)
        if request.url.path == REBALANCE:
            return rebalance or httpx.Response(404)
        return left.pop(0) if len(left) > 1 else left[0]

    return respond


def action(time: str = IN_20_S_ISO, what: str = "terminate") -> httpx.Response:
    return httpx.Response(200, json={"action": what, "time": time})


def test_aws_yields_one_notice_with_a_deadline() -> None:
    harness = MasterHarness(aws(httpx.Response(404), httpx.Response(404), action()))
    (notice,) = run(harness, Dialect.AWS)
    assert notice.kind == "terminate"
    assert notice.event == f"terminate@{IN_20_S_ISO}"
    assert notice.deadline_monotonic == START + 20.0
    assert harness.slept == [1.0] * 8


def test_aws_renews_the_token_when_it_is_refused_and_asks_again_at_once() -> None:
    refused = [httpx.Response(401)]
    inner = aws(action())

    def respond(request: httpx.Request) -> Answer:
        return refused.pop() if request.url.path == ACTION and refused else inner(request)

    harness = MasterHarness(respond, polls=1)
    assert len(run(harness, Dialect.AWS)) == 1
    assert harness.paths()[:4] == [TOKEN, ACTION, TOKEN, ACTION]


def test_aws_sends_no_request_without_a_token() -> None:
    harness = MasterHarness(lambda request: httpx.Response(403), polls=3)
    assert run(harness, Dialect.AWS) == []
    assert set(harness.paths()) == {TOKEN}


def test_aws_backs_off_when_it_is_throttled_and_sees_the_notice_after() -> None:
    harness = MasterHarness(
        aws(httpx.Response(503), httpx.Response(503), httpx.Response(503), action())
    )
    assert len(run(harness, Dialect.AWS)) == 1
    assert harness.slept[2] > 1.0
    assert harness.slept[3:] == [1.0] * 5


def test_aws_tells_of_a_rebalance_recommendation_once_and_announces_no_end() -> None:
    recommendation = httpx.Response(200, json={"noticeTime": "2026-05-01T11:59:00Z"})
    harness = MasterHarness(aws(httpx.Response(404), rebalance=recommendation), polls=12)
    (notice,) = run(harness, Dialect.AWS)
    assert (notice.kind, notice.deadline_monotonic) == (AT_RISK, None)
    assert (
        harness.told
        == [notice.detail]
        == ["AWS recommends to rebalance (emitted 2026-05-01T11:59:00Z)"]
    )


@pytest.mark.parametrize(
    ("time", "deadline"),
    [("not a time", None), ("2020-01-01T00:00:00Z", START), ("2036-01-01T00:00:00Z", START + 120)],
    ids=["no time", "past", "years ahead"],
)
def test_aws_times_that_make_no_sense_still_make_a_notice(
    time: str, deadline: float | None
) -> None:
    (notice,) = run(MasterHarness(aws(action(time))), Dialect.AWS)
    assert notice.deadline_monotonic == deadline


# --- Azure --------------------------------------------------------------------------------------

EVENTS = "/metadata/scheduledevents"


def event(**changes: object) -> dict[str, object]:
    return {
        "EventId": "E1",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm-1"],
        "EventStatus": "Scheduled",
        "NotBefore": IN_20_S_HTTP,
        **changes,
    }


def events(*list_: dict[str, object]) -> httpx.Response:
    return httpx.Response(200, json={"DocumentIncarnation": 1, "Events": list(list_)})


def azure(*answers: Answer, name: str = "vm-1", acknowledged: int = 200) -> Responder:
    left = list(answers)

    def respond(request: httpx.Request) -> Answer:
        if request.headers.get("Metadata") != "true":
            return httpx.Response(400)
        if request.url.path == "/metadata/instance":
            return httpx.Response(200, json={"compute": {"name": name}})
        if request.method == "POST":
            return httpx.Response(acknowledged)
        return left.pop(0) if len(left) > 1 else left[0]

    return respond


def test_azure_yields_one_notice_although_the_event_is_shown_until_the_end() -> None:
    started = event(EventStatus="Started", NotBefore="")
    harness = MasterHarness(azure(events(), events(event()), events(started)))
    (notice,) = run(harness, Dialect.AZURE)
    assert (notice.event, notice.kind) == ("E1", "preempt")
    assert notice.deadline_monotonic == START + 20.0


def test_azure_event_without_a_time_has_no_deadline() -> None:
    (notice,) = run(MasterHarness(azure(events(event(NotBefore="")))), Dialect.AZURE)
    assert notice.deadline_monotonic is None


def test_azure_leaves_events_of_other_vms_alone() -> None:
    harness = MasterHarness(azure(events(event(Resources=["vm-2"]))))
    assert run(harness, Dialect.AZURE) == []


def test_azure_tells_of_other_events_of_this_vm_once() -> None:
    harness = MasterHarness(azure(events(event(EventType="Freeze"))))
    assert run(harness, Dialect.AZURE) == []
    assert len(harness.told) == 1
    assert "Freeze" in harness.told[0]


def test_azure_asks_the_endpoint_for_the_name_of_this_vm() -> None:
    harness = MasterHarness(azure(events(event(Resources=["VM-7"])), name="vm-7"))
    assert len(run(harness, Dialect.AZURE, vm_name=None)) == 1


def test_azure_gives_the_first_call_two_minutes_and_the_others_two_seconds() -> None:
    harness = MasterHarness(azure(httpx.ReadTimeout("switching on"), events(), events()), polls=4)
    run(harness, Dialect.AZURE)
    timeouts = [r.extensions["timeout"]["read"] for r in harness.requests]
    assert timeouts[:3] == [130.0, 130.0, 2.0]


def test_azure_looks_for_the_name_while_the_first_call_blocks() -> None:
    async def scenario() -> list[str]:
        name_asked = asyncio.Event()

        async def handle(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/metadata/instance":
                name_asked.set()
                return httpx.Response(200, json={"compute": {"name": "vm-1"}})
            await name_asked.wait()  # would never come if the first call blocked all else
            return events(event())

        harness = MasterHarness(lambda request: events())
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
            watcher = watch(
                Dialect.AZURE,
                "http://metadata",
                vm_name=None,
                client=client,
                clock=lambda: harness.now,
                sleep=harness.sleep,
            )
            async for notice in watcher:
                return [notice.event]
        return []

    assert asyncio.run(asyncio.wait_for(scenario(), 5)) == ["E1"]


def acknowledged(harness: MasterHarness) -> bool:
    async def scenario() -> bool:
        async with httpx.AsyncClient(transport=httpx.MockTransport(harness.handle)) as client:
            watcher = watch(
                Dialect.AZURE,
                "http://metadata",
                vm_name="vm-1",
                client=client,
                clock=lambda: harness.now,
                sleep=harness.sleep,
            )
            async for notice in watcher:
                return await acknowledge(notice)
        raise AssertionError("no notice")

    return asyncio.run(scenario())


def test_azure_acknowledges_with_a_start_request() -> None:
    harness = MasterHarness(azure(events(event())))
    assert acknowledged(harness) is True
    post = harness.requests[-1]
    assert (post.method, post.url.path) == ("POST", EVENTS)
    assert json.loads(post.content) == {"StartRequests": [{"EventId": "E1"}]}


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (503, 3)])
def test_azure_acknowledgement_that_is_refused_gives_up_after_a_few_tries(
    status: int, tries: int
) -> None:
    harness = MasterHarness(azure(events(event()), acknowledged=status))
    assert acknowledged(harness) is False
    assert [r.method for r in harness.requests].count("POST") == tries


@pytest.mark.parametrize("busy", [429, 503])
def test_azure_acknowledgement_that_is_told_to_wait_is_sent_again(busy: int) -> None:
    answers = [httpx.Response(busy), httpx.Response(200)]
    shown = azure(events(event()))

    def respond(request: httpx.Request) -> Answer:
        return answers.pop(0) if request.method == "POST" else shown(request)

    harness = MasterHarness(respond)
    assert acknowledged(harness) is True
    assert answers == []
    assert harness.slept, "not at once"


def test_azure_clock_that_is_an_hour_off_moves_no_deadline() -> None:
    """The endpoint's own time counts: `Date` and `NotBefore` are of one clock."""
    told = httpx.Response(
        200,
        json={"Events": [event(NotBefore="Fri, 01 May 2026 13:00:20 GMT")]},
        headers={"Date": "Fri, 01 May 2026 13:00:00 GMT"},
    )
    (notice,) = run(MasterHarness(azure(told)), Dialect.AZURE)
    assert notice.deadline_monotonic == START + 20.0


def test_azure_notice_waits_for_the_name_of_this_vm_and_is_not_lost() -> None:
    """Others of a set are shown, too: without its name nobody knows whose a notice is."""
    names = [httpx.Response(503), httpx.Response(429), httpx.Response(200, json={"compute": {}})]
    shown = azure(events(event(EventId="E0", Resources=["vm-2"]), event()))

    def respond(request: httpx.Request) -> Answer:
        if request.url.path == "/metadata/instance" and names:
            return names.pop(0)
        return shown(request)

    (notice,) = run(MasterHarness(respond), Dialect.AZURE, vm_name=None)
    assert notice.event == "E1"


# --- GCP ----------------------------------------------------------------------------------------


MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"


def gcp(*answers: Answer, maintenance: list[Answer] | None = None) -> Responder:
    """One answer for each look at `preempted`, and for each at the maintenance, then NONE."""
    left, planned = list(answers), list(maintenance or ())

    def respond(request: httpx.Request) -> Answer:
        if request.headers.get("Metadata-Flavor") != "Google":
            return httpx.Response(403)
        if request.url.path == MAINTENANCE:
            return planned.pop(0) if planned else value("NONE")
        if not left:
            raise ScriptOver
        return left.pop(0)

    return respond


def value(text: str, etag: str | None = "e1") -> httpx.Response:
    return httpx.Response(200, text=text, headers={"ETag": etag} if etag else {})


def preempted_asked(harness: MasterHarness) -> list[httpx.Request]:
    return [request for request in harness.requests if request.url.path != MAINTENANCE]


def test_gcp_asks_plainly_first_and_then_waits_for_a_change_of_that_etag() -> None:
    harness = MasterHarness(gcp(value("FALSE", "e1"), value("TRUE", "e2"), value("TRUE", "e2")))
    (notice,) = run(harness, Dialect.GCP)
    assert (notice.kind, notice.deadline_monotonic) == ("preempt", None)
    first, second, third = preempted_asked(harness)[:3]
    assert dict(first.url.params) == {}
    assert dict(second.url.params) == {
        "wait_for_change": "true",
        "timeout_sec": "60",
        "last_etag": "e1",
    }
    assert second.extensions["timeout"]["read"] > 60
    assert third.url.params["last_etag"] == "e2"


def test_gcp_sees_a_flip_that_came_before_the_first_request() -> None:
    assert len(run(MasterHarness(gcp(value("TRUE"))), Dialect.GCP)) == 1


@pytest.mark.parametrize("status", [429, 500, 503, 404])
def test_gcp_asks_again_after_a_pause_and_starts_over_with_a_plain_get(status: int) -> None:
    harness = MasterHarness(gcp(value("FALSE"), httpx.Response(status), value("TRUE", "e2")))
    assert len(run(harness, Dialect.GCP)) == 1
    [pause] = harness.slept
    assert 1.0 <= pause <= 4.0
    assert dict(preempted_asked(harness)[2].url.params) == {}


def test_gcp_backs_off_while_it_is_refused_and_never_far() -> None:
    busy = [httpx.Response(429) for _ in range(7)]
    harness = MasterHarness(gcp(*busy, value("TRUE")), polls=20)
    assert len(run(harness, Dialect.GCP)) == 1
    assert sum(harness.slept[:7]) >= 7 * 1.0
    assert max(harness.slept) <= 4.0


@pytest.mark.parametrize("years", [-30, 30])
def test_gcp_needs_no_clock_of_this_vm(years: int) -> None:
    harness = MasterHarness(gcp(value("FALSE"), value("TRUE", "e2")), wall_off_s=years * 31e6)
    (notice,) = run(harness, Dialect.GCP)
    assert notice.deadline_monotonic is None, "the grace period that was promised counts"


def test_gcp_recommends_to_leave_before_its_host_is_maintained_and_says_so_once() -> None:
    told = iter([value("TERMINATE_ON_HOST_MAINTENANCE")] * 3)

    def respond(request: httpx.Request) -> Answer:
        if request.url.path == MAINTENANCE:
            return next(told, value("NONE"))
        return value("FALSE", None)

    harness = MasterHarness(respond, polls=240)
    harness.most_requests = 500
    (notice,) = run(harness, Dialect.GCP)
    assert (notice.kind, notice.deadline_monotonic) == (AT_RISK, None)
    assert harness.told == [notice.detail]
    assert "TERMINATE_ON_HOST_MAINTENANCE" in notice.detail
    assert harness.paths().count(MAINTENANCE) == 4, "once a minute"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (value("MIGRATE_ON_HOST_MAINTENANCE"), 1),
        (value("NONE"), 0),
        (httpx.Response(503), 0),
        (httpx.Response(200, text="<html>a portal</html>"), 0),
        (httpx.ReadTimeout("slow"), 0),
    ],
)
def test_gcp_makes_no_notice_of_other_maintenance(answer: Answer, told: int) -> None:
    harness = MasterHarness(gcp(value("FALSE"), value("TRUE", "e2"), maintenance=[answer]))
    (notice,) = run(harness, Dialect.GCP)
    assert (notice.kind, len(harness.told)) == ("preempt", told)


@pytest.mark.parametrize(
    "etags",
    [[None] * 50, ["e1"] * 50, [f"e{n}" for n in range(50)]],
    ids=["no etag", "long poll answered at once", "each time with another etag"],
)
def test_gcp_never_spins(etags: list[str | None]) -> None:
    told = iter(etags)
    harness = MasterHarness(lambda request: value("FALSE", next(told)), polls=5)
    run(harness, Dialect.GCP)
    assert len(preempted_asked(harness)) <= len(harness.slept) + 1


# --- all ----------------------------------------------------------------------------------------

ODD: list[Answer] = [
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("garbage"),
    httpx.Response(200, text="<html>a captive portal</html>"),
    httpx.Response(200, json=[]),
    httpx.Response(200, json={"Events": "none", "action": 7}),
    httpx.Response(200, json={"Events": [None, 3, {"EventId": 1}, {"EventId": "x"}]}),
    httpx.Response(200, content=b"\xff\xfe"),
    httpx.Response(302, headers={"Location": "http://elsewhere"}),
    httpx.Response(429),
    httpx.Response(500),
    httpx.Response(503),
]
NOTICE: dict[Dialect, Responder] = {
    Dialect.AWS: aws(action()),
    Dialect.AZURE: azure(events(event())),
    Dialect.GCP: lambda request: value("TRUE"),
}


@examples(60)
@given(st.sampled_from(list(Dialect)), st.lists(st.sampled_from(ODD), max_size=6))
def test_no_odd_answer_ends_a_watcher_or_hides_the_notice_after_it(
    dialect: Dialect, odd: list[Answer]
) -> None:
    left = list(odd)
    harness = MasterHarness(
        lambda request: left.pop() if left else NOTICE[dialect](request), polls=20
    )
    assert len(run(harness, dialect)) == 1
