"""The users' REST over the real application: what it refuses, and how it says so."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from fakes.http_master import BUNDLE, BUNDLE_SHA256, HttpMaster, problem

pytestmark = pytest.mark.databases


JOBS = "/api/v1/jobs"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


def test_validation_errors_name_field_value_and_hint(master: HttpMaster) -> None:
    found = problem(master.post("/api/v1/plan", json={"spec": 3}), 422, "invalid_request")
    assert found.field == "spec"
    assert "3" in found.message
    missing = problem(master.post(JOBS, json={"spec": {}}), 422, "invalid_request")
    assert missing.field == "bundle"
    extra = {"spec": {}, "bundle": "b", "token": "t", "bundel": 1}
    assert problem(master.post(JOBS, json=extra), 422, "invalid_request").field == "bundel"
    answer = master.get(f"{JOBS}/x/events", params={"after": -1})
    assert problem(answer, 422, "invalid_request").field == "after"
    broken = master.post(JOBS, content=b"{", headers={"content-type": "application/json"})
    assert "JSON" in problem(broken, 422, "invalid_request").message


@pytest.mark.parametrize("number", [10**20 - 1, 2**63])
@pytest.mark.parametrize(
    ("route", "field"), [("events", "after"), ("logs", "offset"), ("logs", "attempt")]
)
def test_numbers_that_nothing_counts_up_to_are_refused(
    master: HttpMaster, route: str, field: str, number: int
) -> None:
    job = master.submit()["id"]
    answer = master.get(f"{JOBS}/{job}/{route}", params={field: number})
    found = problem(answer, 422, "invalid_request")
    assert found.field == field
    assert str(number) in found.message


def test_the_greatest_numbers_are_beyond_the_end(master: HttpMaster) -> None:
    agent = master.joined()
    agent.post_log(b"epoch 1", offset=0)
    most = 2**63 - 1
    assert master.get(f"{JOBS}/mnist/events", params={"after": most}).json() == []
    answer = master.get(f"{JOBS}/mnist/logs", params={"offset": most})
    assert (answer.content, answer.headers["X-Next-Offset"]) == (b"", str(most))
    assert agent.post_log(b"x", offset=most).json() == {"next_offset": 7}
    problem(agent.post_log(b"x", offset=most + 1), 422, "invalid_request")
    problem(agent.post_log(b"x", offset=0, attempt=most + 1), 422, "invalid_request")


@pytest.mark.parametrize(
    ("field", "value"),
    [("token", "\ud800"), ("token", "a\0"), ("token", "x" * 65), ("bundle", "\ud800")],
)
def test_what_no_database_can_hold_is_refused(master: HttpMaster, field: str, value: str) -> None:
    master.upload()
    spec = {"name": "a", "run": "x"}
    body = json.dumps({"spec": spec, "bundle": BUNDLE_SHA256, "token": "t", field: value})
    answer = master.post(JOBS, content=body, headers={"content-type": "application/json"})
    assert problem(answer, 422, "invalid_request").field == field


def test_unknown_routes_and_methods_are_problems_too(master: HttpMaster) -> None:
    problem(master.get("/api/v1/nothing"), 404, "no_such_route")
    problem(master.call("DELETE", JOBS), 405, "wrong_method")


def test_what_we_did_not_foresee_has_a_trace_in_the_log(
    master: HttpMaster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(master.services.watcher, "ask_offers", broken)
    with caplog.at_level(logging.ERROR):
        answer = master.post("/api/v1/plan", json={"spec": {"name": "a", "run": "x"}})
    found = problem(answer, 500, "internal")
    assert "secret detail" not in answer.text
    trace = found.message.rpartition("trace ")[2].rstrip(")")
    assert any(trace in record.getMessage() and record.exc_info for record in caplog.records)


@pytest.mark.parametrize("path", [f"/api/v1/bundles/{BUNDLE_SHA256}", JOBS, "/agent/v1/join"])
def test_a_client_that_goes_away_in_the_middle_is_no_failure(
    master: HttpMaster, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    coming = [
        {"type": "http.request", "body": BUNDLE[:5], "more_body": True},
        {"type": "http.disconnect"},
    ]
    headers = {"authorization": f"Bearer {master.admin}", "content-type": "application/json"}
    scope = {
        "type": "http", "method": "PUT" if "bundles" in path else "POST", "path": path,
        "query_string": b"", "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
    }  # fmt: skip
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    with caplog.at_level(logging.INFO):
        asyncio.run(master.app(scope, receive, send))
    assert coming == []
    assert [message["status"] for message in sent if "status" in message] in ([], [400])
    assert caplog.records == []
    assert list((master.settings.home / "bundles").iterdir()) == []


def test_bodies_have_a_limit(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, max_body_bytes=100) as master:
        problem(master.post(JOBS, json={"spec": "x" * 200}), 413, "body_too_large")


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(
    ("path", "limit"),
    [
        (JOBS, 1024 * 1024),
        ("/agent/v1/join", 64 * 1024),
        ("/agent/v1/sync", 8 * 1024 * 1024),
        ("/login", 64 * 1024),
        ("/nothing", 64 * 1024),
    ],
)
def test_each_route_has_a_limit_of_its_own(
    master: HttpMaster, path: str, limit: int, announced: bool
) -> None:
    session = master.joined().session if path.endswith("sync") else None

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * (limit + 1)

    content = b"x" * (limit + 1) if announced else parts()
    answer = master.post(path, content=content, token=session)
    if path == "/nothing" and not announced:
        assert answer.status_code == 404  # nobody reads it
    else:
        problem(answer, 413, "body_too_large")


@pytest.mark.parametrize("path", [JOBS, "/api/v1/plan", "/agent/v1/sync"])
@pytest.mark.parametrize("token", ["", "wrong"])
def test_nothing_is_read_of_strangers(master: HttpMaster, path: str, token: str) -> None:
    read = False

    async def parts() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b"{}"

    assert master.post(path, content=parts(), token=token).status_code == 401
    assert not read
