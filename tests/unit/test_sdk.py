"""The SDK against scripted masters, proxies and strangers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest

from spothop import jobfile
from spothop.sdk.bundle import Bundle
from spothop.sdk.client import Client
from spothop.sdk.errors import ApiError, ClientError, NotSpothop, TooNew, Unreachable
from spothop.sdk.settings import DEFAULT_URL, read_settings
from spothop.wire import EventView, JobDetail, JobView, StorageSpec

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)
Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, *, slept: list[float] | None = None) -> Client:
    return Client(
        "http://master:8900/",
        "secret",
        transport=httpx.MockTransport(handler),
        sleep=(slept if slept is not None else []).append,
    )


def detail(*, state: str = "running", attempt: int = 1) -> dict[str, Any]:
    return JobDetail(
        id="mnist-1", name="mnist", owner="admin", state=state, wanted="running", reason="",
        submitted_at=NOW, ended_at=None, attempt=attempt, vm=None, pool=None, step=None,
        metrics={}, preemptions=0, saves={}, cost=0.0, on_demand_cost=0.0,
        storage=StorageSpec(url="file:///s"), insurance=None, spec={}, attempts=[], vms=[],
        checkpoints=[], useful_s=0.0, recomputed_steps=0, lost_s=0, lost_cost=0, log_tail="",
    ).model_dump(mode="json")  # fmt: skip


def job_page(*jobs: dict[str, Any], next: str | None = None) -> dict[str, Any]:
    return {"jobs": jobs, "next": next, "counts": {}, "total": len(jobs)}


def news(*events: dict[str, Any], state: str = "running") -> dict[str, Any]:
    return {"job": detail(state=state), "events": events, "log": None, "seen": "s"}


def event(number: int) -> dict[str, Any]:
    return EventView(
        id=number, at=NOW, job="mnist-1", vm=None, attempt=1, kind="x", text="", data={}
    ).model_dump(mode="json")


def log(text: bytes, *, attempt: int = 1, offset: int, complete: bool = False) -> httpx.Response:
    headers = {
        "X-Next-Offset": str(offset),
        "X-Attempt": str(attempt),
        "X-Complete": str(complete).lower(),
    }
    return httpx.Response(200, content=text, headers=headers)


def test_requests_carry_the_token_and_the_route() -> None:
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json=job_page())

    assert client(handle).jobs(state="running", all=True) == []
    url = "http://master:8900/api/v1/jobs?all=true&state=running&limit=500"
    assert str(asked[0].url) == url
    assert asked[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("field", "value"), [("state", "hibernating"), ("wanted", "archived"), ("state", "x" * 9999)]
)
def test_a_state_that_came_after_this_client_is_named(field: str, value: str) -> None:
    newer = {**detail(), field: value}
    with pytest.raises(TooNew) as caught:
        client(lambda request: httpx.Response(200, json=newer)).job("mnist-1")
    assert f"{field} = '{value[:9]}" in caught.value.message
    assert len(caught.value.message) < 400
    assert "update the client" in caught.value.hint


def test_a_state_that_came_after_this_client_is_named_in_a_list() -> None:
    jobs = [detail(), {**detail(), "state": "hibernating"}]
    with pytest.raises(TooNew, match=r"1\.state = 'hibernating'"):
        client(lambda request: httpx.Response(200, json=job_page(*jobs))).jobs()


def test_iterators_go_through_all_pages() -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("cursor", ""))
        page = asked[-1] or "a"
        following = {"a": "b", "b": "c"}.get(page)
        if request.url.path.endswith("/vms"):
            return httpx.Response(200, json={"vms": [], "next": following})
        if request.url.path.endswith("/checkpoints"):
            return httpx.Response(200, json={"checkpoints": [], "next": following})
        return httpx.Response(200, json=job_page({**detail(), "id": page}, next=following))

    with client(handle) as master:
        assert [job.id for job in master.iter_jobs()] == ["a", "b", "c"]
        assert master.vms() == [*master.checkpoints("mnist-1")] == []
    assert asked == ["", "b", "c"] * 3


def test_all_events_are_those_of_all_pages() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        after = int(request.url.params["after"])
        return httpx.Response(200, json=[event(n) for n in range(after + 1, 6)][:2])

    assert [each.id for each in client(handle).all_events("mnist-1")] == [1, 2, 3, 4, 5]


def test_states_travel_as_plain_text() -> None:
    assert detail()["state"] == "running"
    assert json.loads(JobDetail.model_validate(detail()).model_dump_json())["state"] == "running"


@pytest.mark.parametrize("name", ["../vms", "a/b", "a?b", "", "%2e"])
def test_a_name_stays_one_segment_of_the_path(name: str) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.raw_path.count(b"/") == 4
        assert b"?" not in request.url.raw_path
        return httpx.Response(200, json=detail())

    client(handle).job(name)


@pytest.mark.parametrize("name", ["\udcff", "a\nb", "a\0", "x" * 201])
def test_what_no_job_is_called_is_refused_unasked(name: str) -> None:
    with pytest.raises(ClientError, match="no job or VM can be called") as caught:
        client(_unasked).job(name)
    assert "spothop jobs" in caught.value.hint


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(ClientError, match=r"'state': '\\udcff'.*cannot be sent"):
        client(_unasked).jobs(state="\udcff")
    with pytest.raises(ClientError, match="cannot be sent: Out of range float"):
        client(_unasked).preempt("j", notice_s=float("nan"))


@pytest.mark.parametrize(
    "url",
    [
        "http://[bad", "http://[::1", "http://\udcff", "http://127.0.0.1:99999", "http://a:b",
        "http://a..b", "http://xn--", "http://" + "x" * 64, "http://" + "x" * 70_000, "http://a\nb",
        "ftp://a", "a",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ClientError, match=r"is not a URL|is not an http\(s\) URL") as caught:
        Client(url, "t")
    assert len(caught.value.message) < 400
    assert "SPOTHOP_URL" in caught.value.hint


@pytest.mark.parametrize("url", ["http://[::1]:8900", "https://a_b.c-d:1/x/", "http://127.0.0.1"])
def test_what_is_a_url_is_taken(url: str) -> None:
    Client(url, "t").close()


@pytest.mark.parametrize(
    ("token", "shown"), [("a\nb", r"'\\n'"), ("\udcff", r"'\\udcff'"), ("t\N{SNOWMAN}", "'.'")]
)
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str, shown: str) -> None:
    with pytest.raises(ClientError, match=f"^the token holds {shown}, a char") as caught:
        Client("http://master", token)
    assert "SPOTHOP_TOKEN" in caught.value.hint


def _unasked(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"asked {request.url}")


# --- wrong answers ------------------------------------------------------------------------------


def refused(handler: Handler) -> ClientError:
    with pytest.raises(ClientError) as caught:
        client(handler).jobs()
    assert caught.value.hint
    return caught.value


def test_a_refusal_of_the_master_keeps_its_words() -> None:
    body = {"error": "no_such_job", "message": "no job 'x'", "hint": "`spothop jobs`", "field": "j"}
    error = refused(lambda request: httpx.Response(404, json=body))
    assert isinstance(error, ApiError)
    assert (error.status, error.error, error.field) == (404, "no_such_job", "j")
    assert (error.message, error.hint) == ("no job 'x'", "`spothop jobs`")


def test_a_wrong_token_tells_where_tokens_come_from() -> None:
    body = {"error": "bad_token", "message": "the token is unknown"}
    error = refused(lambda request: httpx.Response(401, json=body))
    assert isinstance(error, ApiError)
    assert "SPOTHOP_TOKEN" in error.hint


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, html="<html>hello</html>"),
        httpx.Response(200, json={"jobs": []}),
        httpx.Response(200, json=[{"id": 1}]),
        httpx.Response(404, json={"detail": "Not Found"}),
        httpx.Response(404, html="<html>nginx</html>"),
        httpx.Response(500, text="boom"),
        httpx.Response(204),
    ],
)
def test_what_is_no_master_is_called_so(answer: httpx.Response) -> None:
    error = refused(lambda request: answer)
    assert isinstance(error, NotSpothop)
    assert "not a spothop master" in error.message
    assert "SPOTHOP_URL" in error.hint


def test_a_redirect_names_where_it_leads() -> None:
    answer = httpx.Response(301, headers={"Location": "https://master/"})
    assert "https://master/" in refused(lambda request: answer).message


def test_a_proxy_without_a_master_is_called_so() -> None:
    assert "a proxy without a master" in refused(lambda request: httpx.Response(502)).message


def raising(error: Exception) -> Handler:
    def handle(request: httpx.Request) -> httpx.Response:
        raise error

    return handle


def test_no_answer_tells_how_to_start_a_master() -> None:
    error = refused(raising(httpx.ConnectError("[Errno 111] Connection refused")))
    assert isinstance(error, Unreachable)
    assert error.message == (
        "cannot reach the master at http://master:8900: [Errno 111] Connection refused"
    )
    assert "spothop master" in error.hint


def test_a_slow_answer_is_not_called_a_wrong_address() -> None:
    assert "in time" in refused(raising(httpx.ReadTimeout("timed out"))).message


@pytest.mark.parametrize("url", ["master:8900", "ftp://x", "http://", "http://[::1", "x y"])
def test_what_is_no_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ClientError, match="URL") as caught:
        Client(url, None)
    assert "SPOTHOP_URL" in caught.value.hint


def test_a_token_that_no_header_can_carry_is_refused() -> None:
    with pytest.raises(ClientError, match="token"):
        Client("http://master", "a\nb")


# --- submitting ---------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    file = tmp_path / "b.tar.gz"
    file.write_bytes(b"packed" * 1000)
    return Bundle(path=file, sha256="ab12", size=6000, files=1)


@pytest.mark.parametrize(("known", "methods"), [(True, ["HEAD"]), (False, ["HEAD", "PUT"])])
def test_a_bundle_goes_up_only_when_the_master_lacks_it(
    bundle: Bundle, known: bool, methods: list[str]
) -> None:
    asked: list[tuple[str, bytes]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.read()))
        return httpx.Response((200 if known else 404) if request.method == "HEAD" else 201)

    assert client(handle).upload_bundle(bundle) == "ab12"
    assert [method for method, _ in asked] == methods
    assert asked[-1][1] == (b"" if known else b"packed" * 1000)


def test_an_upload_that_is_refused_tells_the_reason(bundle: Bundle) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            return httpx.Response(401)  # without a body, as HEAD answers are
        return httpx.Response(401, json={"error": "bad_token", "message": "the token is unknown"})

    with pytest.raises(ApiError, match="the token is unknown"):
        client(handle).upload_bundle(bundle)


def test_a_submit_whose_answer_got_lost_is_sent_again_with_the_same_token() -> None:
    tokens: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        tokens.append(json.loads(request.content)["token"])
        if len(tokens) == 1:
            raise httpx.ReadError("connection reset")
        return httpx.Response(200, json=detail())

    job = client(handle).submit({"name": "mnist", "run": "x"}, "ab12")
    assert isinstance(job, JobView)
    assert len(tokens) == 2
    assert tokens[0] == tokens[1]


def test_a_job_goes_out_as_it_is_written(tmp_path: Path) -> None:
    """An older master refuses keys that it does not know. Those that nobody has set stay here; what
    is set does not, even to our default: theirs may be another."""
    sent: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["spec"])
        return httpx.Response(500)

    written = {
        "name": "mnist",
        "run": "python train.py",
        "hang_after": "30m",
        "retries": {"user": 0},
        "checkpoint": {"storage": "s3://b/p", "policy": "notice-aware"},
        "resources": {"any_of": [{"cloud": "local"}]},
    }
    for ask in (lambda spec: client(answer).plan(spec), lambda s: client(answer).submit(s, "0")):
        with pytest.raises(ClientError):
            ask(jobfile.parse(written))
    assert sent == [written, written]
    assert jobfile.parse(sent[0]) == jobfile.parse(written)


def test_two_submits_are_two_jobs() -> None:
    tokens: set[str] = set()

    def handle(request: httpx.Request) -> httpx.Response:
        tokens.add(json.loads(request.content)["token"])
        return httpx.Response(201, json=detail())

    for _ in range(2):
        client(handle).submit({}, "ab12")
    assert len(tokens) == 2


def test_preempt_without_notice_is_not_preempt_with_the_promised_one() -> None:
    bodies: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(409, json={"error": "e", "message": "m"})

    for notice_s in (None, 0.0):
        with pytest.raises(ApiError):
            client(handle).preempt("mnist", notice_s=notice_s)
    assert bodies == [{"notice_s": None}, {"notice_s": 0.0}]


# --- following ----------------------------------------------------------------------------------


def test_a_log_is_read_to_its_end_by_offset() -> None:
    whole = "h\u00e9llo\nworld\n".encode()

    def handle(request: httpx.Request) -> httpx.Response:
        start = int(request.url.params["offset"])
        return log(whole[start : start + 2], offset=min(start + 2, len(whole)))

    texts = [piece.text for piece in client(handle).logs("mnist", attempt=1)]
    assert "".join(texts) == "h\u00e9llo\nworld\n"  # although a character was cut in two


def test_following_a_log_goes_through_all_attempts_until_the_job_ends() -> None:
    logs = {1: b"one\n", 2: b"two\n", 3: b"three\n"}
    looks = iter([("running", 1), ("draining", 2), ("running", 3), ("succeeded", 3)])

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/logs"):
            attempt = int(request.url.params.get("attempt", "1"))
            start = int(request.url.params["offset"])
            text = logs[attempt]
            return log(text[start:], attempt=attempt, offset=len(text), complete=True)
        state, attempt = next(looks)
        return httpx.Response(200, json=detail(state=state, attempt=attempt))

    pieces = [(p.attempt, p.text) for p in client(handle).logs("mnist", follow=True)]
    assert pieces == [(1, "one\n"), (2, "two\n"), (3, "three\n")]


def test_a_log_that_is_not_followed_spans_all_attempts_too() -> None:
    logs = {1: b"one\n", 2: b"", 3: b"three\n"}
    slept: list[float] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/logs"):
            assert "mnist-1" in request.url.path  # the name may stand for another job by then
            attempt, start = (int(request.url.params[name]) for name in ("attempt", "offset"))
            return log(logs[attempt][start:], attempt=attempt, offset=len(logs[attempt]))
        preparing = {"number": 3, "vm": "vm-3", "state": "preparing", "reason": None, "detail": ""}
        times = dict.fromkeys(("started_at", "ended_at", "notice_at"))
        steps = dict.fromkeys(("restored_step", "last_step"))
        found = {**detail(attempt=2), "attempts": [{**preparing, **times, **steps}]}
        return httpx.Response(200, json=found)

    pieces = [(p.attempt, p.text) for p in client(handle, slept=slept).logs("mnist")]
    assert pieces == [(1, "one\n"), (3, "three\n")]
    assert slept == []


def test_a_job_without_an_attempt_has_no_log_yet() -> None:
    looks = iter([("queued", 0), ("queued", 0), ("preparing", 1), ("succeeded", 1)])
    waits: list[tuple[str, float]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/logs"):
            start = int(request.url.params["offset"])
            return log(b"one\n"[start:], offset=4, complete=True)
        if request.url.path.endswith("/news"):
            asked = request.url.params
            waits.append((asked["seen"], float(asked["wait_s"])))
            return httpx.Response(200, json=news())
        state, attempt = next(looks)
        return httpx.Response(200, json=detail(state=state, attempt=attempt))

    assert list(client(handle).logs("mnist")) == []
    pieces = [p.text for p in client(handle).logs("mnist", follow=True)]
    assert (pieces, waits) == (["one\n"], [("", 0.0), ("s", 20.0)]), "it waits for an attempt"


def test_following_one_attempt_ends_with_it() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        start = int(request.url.params["offset"])
        return log(b"one\n"[start:], offset=4, complete=True)

    pieces = client(handle).logs("mnist", attempt=1, follow=True)
    assert [piece.text for piece in pieces] == ["one\n"]


def test_following_a_silent_log_does_not_spin() -> None:
    slept: list[float] = []
    answers = iter([log(b"", offset=0)] * 5 + [log(b"", offset=0, complete=True)])

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/logs"):
            assert request.url.params["wait_s"] == "20.0"
            return next(answers)
        return httpx.Response(200, json=detail(state="failed"))

    assert list(client(handle, slept=slept).logs("mnist", follow=True)) == []
    assert len(slept) == 5


def test_a_log_answer_without_its_headers_is_no_masters() -> None:
    with pytest.raises(NotSpothop, match="headers"):
        list(client(lambda request: httpx.Response(200, text="x")).logs("mnist", attempt=1))


def test_following_events_shows_each_once_and_ends_after_the_last() -> None:
    states = iter(["running", "running", "succeeded", "succeeded"])
    stored = {0: [event(1), event(2)], 2: [event(5)], 5: []}
    waits: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        waits.append(asked["wait_s"])
        return httpx.Response(200, json=news(*stored[int(asked["after"])], state=next(states)))

    assert [e.id for e in client(handle).follow_events("mnist")] == [1, 2, 5]
    assert waits == ["20.0", "20.0", "20.0"]
    stored[5] = [event(6)]
    stored[6] = []
    states = iter(["succeeded"] * 4)
    waits.clear()
    assert [e.id for e in client(handle).follow_events("mnist")] == [1, 2, 5, 6]
    assert waits == ["20.0", "0.0", "0.0", "0.0"], "nothing is waited for at the end"


# --- downloading --------------------------------------------------------------------------------


def test_a_job_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    found = {**detail(), "storage": {"url": f"file://{tmp_path}/storage", "options": {}}}
    with pytest.raises(ClientError, match="neither an intact checkpoint nor outputs"):
        client(lambda request: httpx.Response(200, json=found)).download("mnist", tmp_path / "to")


def test_storage_that_is_not_reachable_from_here_says_so(tmp_path: Path) -> None:
    found = {**detail(), "storage": {"url": f"file://{tmp_path}/nowhere", "options": {}}}
    with pytest.raises(ClientError, match="no such folder") as caught:
        client(lambda request: httpx.Response(200, json=found)).download("mnist", tmp_path / "to")
    assert caught.value.hint


# --- settings -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "master").mkdir()
    (tmp_path / "master/admin.token").write_text("local-token\n")
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "token"),
    [
        ({}, "local-token"),
        ({"SPOTHOP_URL": ""}, "local-token"),
        ({"SPOTHOP_URL": DEFAULT_URL + "/"}, "local-token"),
        ({"SPOTHOP_URL": "http://127.0.0.1:8901"}, "local-token"),
        ({"SPOTHOP_URL": "http://localhost:8901/"}, "local-token"),
        ({"SPOTHOP_URL": "http://[::1]:8900"}, "local-token"),
        ({"SPOTHOP_TOKEN": "mine"}, "mine"),
        ({"SPOTHOP_URL": "http://10.0.0.1:8900"}, None),
        ({"SPOTHOP_URL": "http://127.0.0.1.elsewhere"}, None),
        ({"SPOTHOP_URL": "http://127.0.0.1@elsewhere"}, None),
        ({"SPOTHOP_URL": "http://[127.0.0.1"}, None),
        ({"SPOTHOP_URL": "https://elsewhere"}, None),
        ({"SPOTHOP_URL": "https://elsewhere", "SPOTHOP_TOKEN": " mine\n"}, "mine"),
    ],
)
def test_the_local_masters_token_goes_to_this_machine_only(
    home: Path, environment: dict[str, str], token: str | None
) -> None:
    assert read_settings({"SPOTHOP_HOME": str(home), **environment}).token == token


def test_no_local_master_means_no_token(tmp_path: Path) -> None:
    settings = read_settings({"SPOTHOP_HOME": str(tmp_path)})
    assert (settings.url, settings.token) == (DEFAULT_URL, None)
    assert settings.master_home == tmp_path / "master"


def test_a_master_home_of_its_own_is_where_the_token_is(home: Path) -> None:
    settings = read_settings({"SPOTHOP_MASTER_HOME": str(home / "master")})
    assert settings.token == "local-token"


def test_the_token_is_not_printed_with_the_settings(home: Path) -> None:
    assert "local-token" not in repr(read_settings({"SPOTHOP_HOME": str(home)}))


@pytest.mark.parametrize("name", ["SPOTHOP_HOME", "SPOTHOP_MASTER_HOME"])
def test_the_home_of_a_user_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ClientError, match=f"{name}: '~no such user/x'"):
        read_settings({name: "~no such user/x"})
