"""Who may call which route: every route of the real application, asked by everyone.

The table is the specification. Routes are found in the application, so one that is not in the table
fails here, as does a line whose route is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import select
from starlette.routing import Mount

from fakes.http_master import HttpAgent, HttpMaster
from spothop.wire import Problem
from spothop_master.security import Role
from spothop_master.store.schema import Base

# Where `{job}`, `{vm}` and the log belong to user `owner`, and `vm` is the session of that VM:
#
# nobody      without a token, with a wrong, revoked, expired or disabled user's one, a browser that
#             logged out: each of them is asked
# other       another user;  vm2  the session of that user's VM
# page        a browser in which `owner` logged in;  page2  one of `other`
#
# A cell is the answer: 2xx may (or 409, where another one who may was first), `login` is sent to
# the log-in page.
TABLE = """
route                                  nobody admin owner other viewer   vm   vm2   page page2
GET    /healthz                           200   200   200   200   200   200   200   200   200
GET    /api/v1/healthz                    200   200   200   200   200   200   200   200   200
GET    /readyz                            200   200   200   200   200   200   200   200   200
GET    /openapi.json                      200   200   200   200   200   200   200   200   200
GET    /static                            200   200   200   200   200   200   200   200   200

GET    /api/v1/ca                         200   200   200   200   200   200   200   200   200
GET    /api/v1/me                         401   200   200   200   200   401   401   401   401
GET    /api/v1/disk                       401   200   200   200   200   401   401   401   401
GET    /api/v1/pools                      401   200   200   200   200   401   401   401   401
POST   /api/v1/plan                       401   200   200   200   200   401   401   401   401
HEAD   /api/v1/bundles/{sha256}           401   404   200   404   404   401   401   401   401
PUT    /api/v1/bundles/{sha256}           401   201   200   201   403   401   401   401   401

GET    /api/v1/jobs                       401   200   200   200   200   401   401   401   401
POST   /api/v1/jobs                       401   201   201   201   403   401   401   401   401
GET    /api/v1/jobs/{ref}                 401   200   200   404   200   401   401   401   401
GET    /api/v1/jobs/{ref}/checkpoints     401   200   200   404   200   401   401   401   401
GET    /api/v1/jobs/{ref}/news            401   200   200   404   200   401   401   401   401
GET    /api/v1/jobs/{ref}/events          401   200   200   404   200   401   401   401   401
GET    /api/v1/jobs/{ref}/logs            401   200   200   404   200   401   401   401   401
POST   /api/v1/jobs/{ref}/injection       401   201   201   404   403   401   401   401   401
DELETE /api/v1/jobs/{ref}/injection       401   200   200   404   403   401   401   401   401
POST   /api/v1/jobs/{ref}/preempt         401   200   200   404   403   401   401   401   401
POST   /api/v1/jobs/{ref}/pause           401   200   200   404   403   401   401   401   401
POST   /api/v1/jobs/{ref}/resume          401   200   200   404   403   401   401   401   401
POST   /api/v1/pauses                     401   200   200   200   403   401   401   401   401
POST   /api/v1/resumptions                401   200   200   200   403   401   401   401   401
POST   /api/v1/cancellations              401   200   200   200   403   401   401   401   401
POST   /api/v1/jobs/{ref}/cancel          401   200   200   404   403   401   401   401   401

GET    /api/v1/vms                        401   200   200   200   200   401   401   401   401
POST   /api/v1/vms/{vm_id}/injection      401   201   201   404   403   401   401   401   401
DELETE /api/v1/vms/{vm_id}/injection      401   200   200   404   403   401   401   401   401
POST   /api/v1/vms/{vm_id}/preempt        401   200   200   404   403   401   401   401   401

GET    /api/v1/users                      401   200   403   403   403   401   401   401   401
POST   /api/v1/users                      401   201   403   403   403   401   401   401   401
POST   /api/v1/users/{name}/disable       401   200   403   403   403   401   401   401   401
POST   /api/v1/users/{name}/enable        401   200   403   403   403   401   401   401   401
PATCH  /api/v1/users/{name}/quota         401   200   403   403   403   401   401   401   401
GET    /api/v1/tokens                     401   200   403   403   403   401   401   401   401
POST   /api/v1/tokens                     401   201   403   403   403   401   401   401   401
DELETE /api/v1/tokens/{token_id}          401   200   403   403   403   401   401   401   401
GET    /api/v1/checks                     401   200   403   403   403   401   401   401   401
GET    /api/v1/strays                     401   200   403   403   403   401   401   401   401
POST   /api/v1/strays/end                 401   200   403   403   403   401   401   401   401
GET    /api/v1/inventory                  401   200   403   403   403   401   401   401   401
POST   /api/v1/inventory/{cloud}/end      401   422   403   403   403   401   401   401   401

POST   /agent/v1/join                     200   200   200   200   200   200   200   200   200
POST   /agent/v1/sync                     401   401   401   401   401   200   403   401   401
GET    /agent/v1/bundles/{sha256}         401   401   401   401   401   200   404   401   401
GET    /agent/v1/zips/{sha256}            200   200   200   200   200   200   200   200   200
POST   /agent/v1/logs                     401   401   401   401   401   200   200   401   401

GET    /                                login login login login login login login   200   200
GET    /jobs/{ref}                      login login login login login login login   200   404
GET    /live/{ref}                      login login login login login login login   200   404
GET    /vms                             login login login login login login login   200   200
GET    /pools                           login login login login login login login   200   200
GET    /login                             200   200   200   200   200   200   200   200   200
POST   /login                             303   303   303   303   303   303   303   303   303
POST   /logout                          login login login login login login login login login
"""
# `/agent/v1/join` is for whoever has the one-time token in its body; what `/agent/v1/zips` gives is
# public, and a VM that boots has nothing to show; `/agent/v1/logs` writes into
# the log of the session's own VM; of `/vms` and `/jobs` everyone sees their own.

NOBODY = ("no token", "wrong token", "revoked", "expired", "disabled", "logged out")

CODE_OF_OWNER = b"the code of the owner's job"


@dataclass(frozen=True)
class Row:
    method: str
    path: str
    answers: dict[str, str]
    """By who asks."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def rows() -> list[Row]:
    header, *lines = (line.split() for line in TABLE.splitlines() if line)
    return [Row(line[0], line[1], dict(zip(header[1:], line[2:], strict=True))) for line in lines]


class World:
    """Everyone who may ask, and what they ask for."""

    def __init__(self, master: HttpMaster) -> None:
        self.master = master
        self.tokens = {"no token": "", "wrong token": "spothop_wrong", "admin": master.admin}
        for name, role in (
            ("owner", Role.USER),
            ("other", Role.USER),
            ("viewer", Role.VIEWER),
            ("disabled", Role.ADMIN),
        ):
            self.tokens[name] = master.user(name, role)
        revoked, expired = self.token(), self.token(expires_in_s=1.0)
        self.call("DELETE", f"/tokens/{revoked['view']['id']}")
        self.call("POST", "/users/disabled/disable")
        master.clock.advance(1.0)
        self.tokens |= {"revoked": revoked["token"], "expired": expired["token"]}
        self.agent = master.joined(token=self.tokens["owner"], bundle=CODE_OF_OWNER)
        self.agent.train(1)
        agent2 = master.joined(token=self.tokens["other"], name="of-other")
        self.tokens |= {"vm": self.agent.session, "vm2": agent2.session}
        self.waiting = self.vm_that_has_not_joined()
        self.idle_job = master.submit(token=self.tokens["owner"], name="idle")["id"]
        self.spare_token = self.token()["view"]["id"]
        self.spare_user = "spare"
        master.user(self.spare_user)
        self.log_in()
        self.values = {
            "{ref}": self.agent.job,
            "{vm_id}": self.agent.vm,
            "{sha256}": master.upload(CODE_OF_OWNER, token=self.tokens["owner"]),
            "{name}": self.spare_user,
            "{cloud}": "no-such-cloud",  # the end of a real one would end what others here use
            "{token_id}": str(self.spare_token),
        }
        agents = master.settings.home / "agents"
        agents.mkdir()
        (agents / f"{self.values['{sha256}']}.zip").write_bytes(b"an agent")

    def call(self, method: str, path: str, **more: Any) -> Any:
        return self.master.call(method, f"/api/v1{path}", **more).raise_for_status().json()

    def call_as(self, who: str, method: str, path: str, **more: Any) -> None:
        token = self.tokens[who]
        self.master.call(method, f"/api/v1{path}", token=token, **more).raise_for_status()

    def token(self, **more: object) -> Any:
        return self.call("POST", "/tokens", json={"user": "admin", "name": "test", **more})

    def vm_that_has_not_joined(self) -> HttpAgent:
        self.master.submit(name="joins")
        for _ in range(4):
            self.master.look(1.0)
        return HttpAgent(self.master, self.master.cloud.launches[-1].user_data.token)

    def log_in(self) -> None:
        self.browsers = {
            who: self.master.cookie(self.tokens["other" if who == "page2" else "owner"])
            for who in ("page", "page2", "logged out")
        }
        self.master.post("/logout", token="", headers=self.browsers["logged out"])

    def request(self, row: Row, who: str) -> httpx.Response:
        """What `who` is answered."""
        path = row.path
        for name, value in self.values.items():
            path = path.replace(name, value)
        if row.path.endswith(("/cancel", "/pause", "/resume")):
            path = path.replace(self.agent.job, self.idle_job)
        if str(row) == "GET /static":
            path += "/style.css"
        if str(row) == "POST /api/v1/jobs" and who in ("admin", "other"):
            path_of_code = f"/bundles/{self.values['{sha256}']}"  # the hash alone runs nothing
            self.call_as(who, "PUT", path_of_code, content=CODE_OF_OWNER)
        more = self.body(str(row))
        return self.master.call(
            row.method,
            path,
            token=self.tokens.get(who, ""),
            headers=self.browsers.get(who, {}),
            **more,
        )

    def body(self, route: str) -> dict[str, Any]:
        spec = {"name": "x", "run": "true"}
        vm = {"vm": self.agent.vm, "attempt": 1}
        bodies: dict[str, dict[str, Any]] = {
            "POST /api/v1/plan": {"spec": spec},
            "POST /api/v1/jobs": {"spec": spec, "bundle": self.values["{sha256}"]},
            "POST /api/v1/pauses": {"name": "idle"},
            "POST /api/v1/resumptions": {"name": "idle"},
            "POST /api/v1/cancellations": {"name": "idle"},
            "POST /api/v1/jobs/{ref}/injection": {"mttp_s": [1e6]},
            "POST /api/v1/vms/{vm_id}/injection": {"mttp_s": [1e6]},
            "POST /api/v1/users": {"name": "new"},
            "PATCH /api/v1/users/{name}/quota": {"jobs": 100},
            "POST /api/v1/tokens": {"user": "admin"},
            "POST /agent/v1/join": {"token": self.waiting.join_token, "agent_version": "1"},
            "POST /agent/v1/sync": {**vm, "reports": []},
        }
        others: dict[str, dict[str, Any]] = {
            "PUT /api/v1/bundles/{sha256}": {"content": CODE_OF_OWNER},
            "POST /agent/v1/logs": {"content": b"", "params": {"attempt": 1, "offset": 0}},
            "POST /login": {"data": {"token": self.master.admin}},
        }
        if route == "POST /api/v1/jobs":  # each user's own
            bodies[route]["token"] = f"t{self.master.clock().timestamp()}"
            self.master.clock.advance(0.001)
        return {"json": bodies[route]} if route in bodies else others.get(route, {})

    def rows_of_database(self) -> str:
        """Everything in it, but for the browsers that logged in."""
        with self.master.services.db.read() as session:
            return "\n".join(
                f"{table.name} {row}"
                for table in Base.metadata.sorted_tables
                if table.name != "logins"
                for row in session.execute(select(table))
            )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with HttpMaster(tmp_path_factory.mktemp("master"), ca="a certificate") as master:
        master.hears_others()
        yield World(master)


def test_every_route_stands_in_the_table(world: World) -> None:
    there = set()
    for context in iter_route_contexts(world.master.app.routes):
        mounted = isinstance(context.original_route, Mount)
        methods = {"GET"} if mounted else set(context.methods or ())
        if "GET" in methods:
            methods.discard("HEAD")  # the same without a body
        there |= {f"{method} {context.path}" for method in methods}
    assert there == {str(row) for row in rows()}


@pytest.mark.parametrize("row", rows(), ids=str)
def test_who_may_call_it(world: World, row: Row) -> None:
    """Who may not comes first, and changes nothing."""
    asked = [(who, row.answers["nobody"]) for who in NOBODY]
    asked += [(who, answer) for who, answer in row.answers.items() if who != "nobody"]
    refused = [(who, answer) for who, answer in asked if answer[0] == "4"]
    granted = [(who, answer) for who, answer in asked if answer[0] != "4"]
    before = world.rows_of_database()
    told = {who: answered(row, world.request(row, who)) for who, _ in refused}
    assert world.rows_of_database() == before
    told |= {who: answered(row, world.request(row, who)) for who, _ in granted}
    first_was_another = {who for who, answer in granted if answer[0] == "2" and told[who] == "409"}
    assert len(first_was_another) < len(granted) or not granted
    if row.path == "/logout":
        world.log_in()
    expected = {who: "409" if who in first_was_another else answer for who, answer in asked}
    assert told == expected


def answered(row: Row, answer: httpx.Response) -> str:
    """A cell of the table."""
    if answer.status_code == 303 and answer.headers["location"] == "/login":
        return "login"
    if answer.status_code >= 400 and answer.content and row.path.startswith(("/api", "/agent")):
        Problem.model_validate(answer.json())
    assert (answer.status_code == 401) == ("www-authenticate" in answer.headers)
    return str(answer.status_code)
