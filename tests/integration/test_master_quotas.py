"""Quotas of users: what is refused, what waits, what is cut, and who may change them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.http_master import HttpMaster
from spothop_master.agents import log_quotas
from spothop_master.settings import read_settings

pytestmark = pytest.mark.databases

Start = Callable[..., HttpMaster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(**settings: Any) -> HttpMaster:
            return stack.enter_context(HttpMaster(tmp_path, **settings))

        yield start


def limit(master: HttpMaster, user: str, **quota: int | None) -> dict[str, Any]:
    answer = master.call("PATCH", f"/api/v1/users/{user}/quota", json=quota)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["quota"]
    return found


def submit(master: HttpMaster, token: str, **spec: Any) -> httpx.Response:
    body = {
        "spec": {"name": "j", "run": "true", **spec},
        "bundle": master.upload(token=token),
        "token": uuid.uuid4().hex,
    }
    return master.post("/api/v1/jobs", json=body, token=token)


def reason(master: HttpMaster, job: str) -> str:
    return str(master.get(f"/api/v1/jobs/{job}").json()["reason"])


def events(master: HttpMaster, job: str) -> list[str]:
    return [each["text"] for each in master.get(f"/api/v1/jobs/{job}/events").json()]


def test_a_job_over_the_quota_is_refused_until_another_has_ended(start: Start) -> None:
    master = start(quota={"jobs": 1})
    ann, bob = master.user("ann"), master.user("bob")
    first = submit(master, ann)
    refused = submit(master, ann)
    assert (refused.status_code, refused.json()["error"]) == (409, "quota_exceeded")
    assert refused.json()["field"] == "jobs"
    assert refused.json()["message"] == (
        "jobs: 2 jobs at once is over the quota of user 'ann', which is 1"
    )
    assert "spothop user quota ann --jobs" in refused.json()["hint"]
    assert submit(master, bob).status_code == 201
    limit(master, "ann", jobs=2)
    assert submit(master, ann).status_code == 201
    limit(master, "ann", jobs=None)
    master.post(f"/api/v1/jobs/{first.json()['id']}/cancel", token=ann)
    assert submit(master, ann).status_code == 409


def test_a_gang_that_never_fits_is_refused_at_once(start: Start) -> None:
    master = start(quota={"vms": 0})
    refused = submit(master, master.user("ann"))
    assert (refused.status_code, refused.json()["field"]) == (409, "nodes")


def test_a_vm_over_the_quota_waits_with_its_reason_and_is_launched_when_one_has_gone(
    start: Start,
) -> None:
    master = start()
    ann = master.user("ann")
    limit(master, "ann", vms=1)
    one = submit(master, ann).json()["id"]
    master.look(1.0)
    two = submit(master, ann).json()["id"]
    other = submit(master, master.user("bob")).json()["id"]
    for _ in range(30):
        master.look(2.0)
    launched = [spec.tags["spothop-job"] for spec in master.cloud.launches]
    assert sorted(launched) == sorted([one, other])
    assert reason(master, two).startswith("user 'ann' may have 1 VMs at once and has 1; next look")
    waits = [text for text in events(master, two) if "may have" in text]
    assert len(waits) == 1, "told once"
    master.post(f"/api/v1/jobs/{one}/cancel", token=ann)
    for _ in range(20):
        master.look(2.0)
    assert [spec.tags["spothop-job"] for spec in master.cloud.launches][-1] == two


def test_jobs_that_are_decided_together_do_not_go_over_the_quota(start: Start) -> None:
    master = start(quota={"vms": 2})
    for _ in range(4):
        master.submit()
    for _ in range(4):
        master.look(1.0)
    assert len(master.cloud.launches) == 2


def test_the_vm_that_replaces_one_with_a_notice_is_no_further_one(start: Start) -> None:
    master = start(quota={"vms": 1})
    agent = master.joined()
    agent.train(5)
    agent.sync(agent.envelope(kind="notice", event="e-1", deadline_in_s=30.0))
    for _ in range(3):
        master.look(0.5)
    assert len(master.cloud.launches) == 2


def test_a_bundle_over_the_quota_is_refused(start: Start) -> None:
    master = start(max_bundle_bytes=1000)
    ann = master.user("ann")
    limit(master, "ann", bundle_bytes=150)

    def put(content: bytes) -> httpx.Response:
        name = hashlib.sha256(content).hexdigest()
        return master.call("PUT", f"/api/v1/bundles/{name}", content=content, token=ann)

    assert put(b"a" * 100).status_code == 201
    refused = put(b"b" * 51)
    assert (refused.status_code, refused.json()["field"]) == (409, "bundle_bytes")
    assert "beside the 100 B that are there is over the quota" in refused.json()["message"]
    assert put(b"a" * 100).status_code == 200, "the same one takes no further room"
    assert put(b"b" * 50).status_code == 201
    assert put(b"c" * 1001).status_code == 409
    limit(master, "ann", bundle_bytes=5000)
    assert put(b"c" * 1001).status_code == 413


def test_a_log_over_the_quota_loses_its_oldest_lines_and_the_job_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_quotas, "FLOOR", 20_000)
    master = start(quota={"log_bytes": 100_000})
    agent = master.joined()
    agent.train(1)
    logs = master.services.logs
    offset = 0
    for _ in range(40):
        chunk = b"".join(b"%09d\n" % (offset + at) for at in range(0, 10_000, 10))
        answer = agent.post_log(chunk, offset=offset)
        offset += len(chunk)
        assert answer.json() == {"next_offset": offset}, answer.text
        assert logs.bytes_of(agent.job) <= 110_000
    told = [text for text in events(master, agent.job) if "their quota of 100 kB" in text]
    assert len(told) == 1, events(master, agent.job)
    text = logs.read(agent.job, 1, offset=0).data.decode()
    assert "bytes of output are not kept any more" in text
    assert logs.tail(agent.job, 1, lines=1) == f"{offset - 10:09d}"
    assert master.get(f"/api/v1/jobs/{agent.job}").json()["state"] == "running"


def test_the_newest_of_a_log_stays_whatever_the_quota_is(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_quotas, "FLOOR", 40_000)
    master = start(quota={"log_bytes": 1000})
    agent = master.joined()
    agent.train(1)
    for offset in range(0, 200_000, 10_000):
        agent.post_log(b"x" * 10_000, offset=offset)
        assert master.services.logs.bytes_of(agent.job) >= min(offset + 10_000, 40_000)


def test_only_the_owners_logs_count(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_quotas, "FLOOR", 1000)
    master = start()
    master.user("ann")
    limit(master, "ann", log_bytes=1000)
    agent = master.joined()  # the admin's
    agent.train(1)
    agent.post_log(b"x" * 100_000, offset=0)
    agent.post_log(b"x" * 100_000, offset=100_000)
    assert master.services.logs.bytes_of(agent.job) >= 200_000


def test_users_are_listed_with_what_they_take(start: Start) -> None:
    master = start(quota={"jobs": 7, "log_bytes": 10**9})
    ann = master.user("ann")
    limit(master, "ann", vms=3)
    agent = master.joined(token=ann, bundle=b"b" * 77)
    agent.train(1)
    agent.post_log(b"x" * 5000, offset=0)
    found = {user["name"]: user["quota"] for user in master.get("/api/v1/users").json()}
    assert found["admin"]["vms"] == {"used": 0, "limit": None}
    assert found["ann"]["jobs"] == {"used": 1, "limit": 7}
    assert found["ann"]["vms"] == {"used": 1, "limit": 3}
    assert found["ann"]["bundle_bytes"] == {"used": 77, "limit": None}
    assert found["ann"]["log_bytes"]["used"] >= 5000
    assert found["ann"]["log_bytes"]["limit"] == 10**9


@pytest.mark.parametrize("body", [{"jobs": -1}, {"jobs": 2**31}, {"wishes": 3}, {"vms": "3"}])
def test_what_is_no_quota_is_refused(start: Start, body: dict[str, Any]) -> None:
    master = start()
    answer = master.call("PATCH", "/api/v1/users/admin/quota", json=body)
    assert answer.status_code == 422


def test_the_default_comes_from_the_environment(tmp_path: Path) -> None:
    environ = {"SPOTHOP_MASTER_QUOTA": "jobs=5,log_bytes=1000000"}
    quota = read_settings(environ, {"home": tmp_path}).quota
    assert (quota.jobs, quota.vms, quota.log_bytes) == (5, None, 1_000_000)
