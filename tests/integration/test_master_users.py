"""Users and their tokens over HTTP: who may make them, what they may do, and when they end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.http_master import BUNDLE_SHA256, HttpMaster
from spothop_master.security import Role

pytestmark = pytest.mark.databases

DAY_S = 86400.0


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


def made(master: HttpMaster, **body: Any) -> dict[str, Any]:
    path = "/api/v1/tokens" if "user" in body else "/api/v1/users"
    answer = master.post(path, json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def status(master: HttpMaster, token: str) -> int:
    return master.get("/api/v1/me", token=token).status_code


def test_a_new_user_has_a_token_at_once(master: HttpMaster) -> None:
    token = made(master, name="ann", role="viewer")["token"]
    assert master.get("/api/v1/me", token=token).json() == {"name": "ann", "role": "viewer"}
    shown = master.get("/api/v1/users").json()
    assert [(user["name"], user["role"], user["tokens"]) for user in shown] == [
        ("admin", "admin", 1),
        ("ann", "viewer", 1),
    ]
    assert token not in master.get("/api/v1/tokens", params={"all": True}).text


@pytest.mark.parametrize("role", [Role.USER, Role.VIEWER])
def test_only_admins_see_and_make_users(master: HttpMaster, role: Role) -> None:
    token = master.user("bob", role)
    calls = [
        ("GET", "/users"),
        ("POST", "/users"),
        ("POST", "/users/admin/disable"),
        ("POST", "/users/admin/enable"),
        ("GET", "/tokens"),
        ("POST", "/tokens"),
        ("DELETE", "/tokens/1"),
    ]
    for method, path in calls:
        body = {"name": "eve"} if path == "/users" else {"user": "bob"}
        more = {"json": body} if method == "POST" else {}
        answer = master.call(method, f"/api/v1{path}", token=token, **more)
        assert (answer.status_code, answer.json()["error"]) == (403, "admins_only"), path
        assert master.call(method, f"/api/v1{path}", token="", **more).status_code == 401


def test_a_token_may_do_less_than_its_user_and_never_more(master: HttpMaster) -> None:
    narrow = made(master, user="admin", name="wall", role="viewer")
    assert (narrow["view"]["role"], narrow["view"]["name"]) == ("viewer", "wall")
    assert master.get("/api/v1/me", token=narrow["token"]).json()["role"] == "viewer"
    assert master.get("/api/v1/users", token=narrow["token"]).status_code == 403
    made(master, name="ann", role="viewer")
    wide = made(master, user="ann", role="admin")
    assert wide["view"]["role"] == "viewer"
    assert master.get("/api/v1/me", token=wide["token"]).json()["role"] == "viewer"


def test_a_token_ends_when_it_expires_or_is_revoked(master: HttpMaster) -> None:
    short = made(master, user="admin", expires_in_s=DAY_S)
    other = made(master, user="admin")
    master.clock.advance(DAY_S - 1)
    assert status(master, short["token"]) == 200
    master.clock.advance(1)
    assert status(master, short["token"]) == 401
    for _ in range(2):  # again changes nothing
        gone = master.call("DELETE", f"/api/v1/tokens/{other['view']['id']}")
        assert gone.json()["revoked_at"] is not None
        assert status(master, other["token"]) == 401
    counting = [token["id"] for token in master.get("/api/v1/tokens").json()]
    all_ = [t["id"] for t in master.get("/api/v1/tokens", params={"all": True}).json()]
    assert counting == [1]
    assert all_ == sorted(all_, reverse=True)
    assert len(all_) == 3


def test_a_disabled_user_is_out_and_comes_back_with_the_same_tokens(master: HttpMaster) -> None:
    token = made(master, name="ann")["token"]
    job = master.submit(token=token)["id"]
    disabled = master.post("/api/v1/users/ann/disable").json()
    assert (disabled["tokens"], disabled["disabled_at"] is not None) == (0, True)
    assert status(master, token) == 401
    assert master.get(f"/api/v1/jobs/{job}").json()["wanted"] == "running"  # it trains on
    assert master.post("/api/v1/users/ann/enable").json()["disabled_at"] is None
    assert status(master, token) == 200


def test_who_is_enabled_again_has_to_log_in_again(master: HttpMaster) -> None:
    token = made(master, name="ann")["token"]
    cookie = master.cookie(token)
    assert master.get("/vms", token="", headers=cookie).status_code == 200
    master.post("/api/v1/users/ann/disable")
    master.post("/api/v1/users/ann/enable")
    assert master.get("/vms", token="", headers=cookie).status_code == 303
    assert status(master, token) == 200


def test_there_is_always_an_admin(master: HttpMaster) -> None:
    made(master, user="admin", role="user")  # neither this
    made(master, user="admin", expires_in_s=DAY_S)  # nor this counts
    for method, path in (("DELETE", "/tokens/1"), ("POST", "/users/admin/disable")):
        answer = master.call(method, f"/api/v1{path}")
        assert (answer.status_code, answer.json()["error"]) == (409, "last_admin")
        assert status(master, master.admin) == 200
    new = made(master, user="admin", name="second")
    assert master.call("DELETE", "/api/v1/tokens/1").status_code == 200
    assert (status(master, master.admin), status(master, new["token"])) == (401, 200)
    assert not (master.settings.home / "admin.token").exists()


@pytest.mark.parametrize(
    ("path", "body", "code", "field"),
    [
        ("/users", {"name": "admin"}, 409, "name"),
        ("/users", {"name": "An n"}, 422, "name"),
        ("/users", {"name": "x" * 65}, 422, "name"),
        ("/users", {"name": "ann", "role": "boss"}, 422, "role"),
        ("/tokens", {"user": "nobody"}, 404, "user"),
        ("/tokens", {"user": "admin", "expires_in_s": 0}, 422, "expires_in_s"),
        ("/tokens", {"user": "admin", "expires_in_s": 1e300}, 422, "expires_in_s"),
        ("/tokens", {"user": "admin", "name": "x" * 65}, 422, "name"),
    ],
)
def test_what_does_not_fit_is_told_by_its_field(
    master: HttpMaster, path: str, body: dict[str, Any], code: int, field: str
) -> None:
    answer = master.post(f"/api/v1{path}", json=body)
    assert (answer.status_code, answer.json()["field"]) == (code, field), answer.text
    assert answer.json()["hint"]


@pytest.mark.parametrize("path", ["/tokens/99", f"/tokens/{2**63}", "/tokens/x"])
def test_an_unknown_token_is_said_in_words(master: HttpMaster, path: str) -> None:
    assert master.call("DELETE", f"/api/v1{path}").status_code in (404, 422)


# --- a cloud whose VMs run as the master's user ---------------------------------------------------


def test_no_second_user_where_jobs_run_as_the_masters_user(master: HttpMaster) -> None:
    master.cloud.separates_users = False
    refused = master.post("/api/v1/users", json={"name": "eve"})
    assert (refused.status_code, refused.json()["error"]) == (409, "users_not_separated")
    assert "SPOTHOP_MASTER_ALLOW_SHARED_LOCAL_CLOUD" in refused.json()["hint"]
    made(master, name="vic", role="viewer")  # who may not submit


def test_a_user_that_was_there_before_does_not_submit_to_it(master: HttpMaster) -> None:
    eve = master.user("eve")
    master.cloud.separates_users = False
    master.submit()
    master.upload(token=eve)
    body = {"spec": {"name": "a", "run": "b"}, "bundle": BUNDLE_SHA256, "token": "t" * 16}
    refused = master.post("/api/v1/jobs", json=body, token=eve)
    assert (refused.status_code, refused.json()["error"]) == (403, "users_not_separated")


def test_a_setting_allows_it(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, allow_shared_local_cloud=True) as master:
        master.cloud.separates_users = False
        token = made(master, name="eve")["token"]
        master.submit(token=token)
