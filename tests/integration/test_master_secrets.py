"""Who sees what of a job's environment, and what strangers may make the master do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from fakes.http_master import HttpMaster
from spothop_master.security import Role

pytestmark = pytest.mark.databases

ENV = {
    "WANDB_API_KEY": "wandb-secret",
    "EPOCHS": "12345",
    "DB": "postgres://me:hunter2@db/x",
}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        (None, {"WANDB_API_KEY": "***", "EPOCHS": "12345", "DB": "postgres://***@db/x"}),
        (Role.ADMIN, {"WANDB_API_KEY": "***", "EPOCHS": "12345", "DB": "postgres://***@db/x"}),
        (Role.VIEWER, dict.fromkeys(ENV, "***")),
    ],
    ids=["owner", "admin", "viewer"],
)
def test_who_sees_the_values_of_the_environment(
    master: HttpMaster, role: Role | None, shown: dict[str, str]
) -> None:
    owner = master.user("owner")
    job = master.submit(token=owner, env=ENV)
    for _ in range(4):
        master.look(1.0)
    token = owner if role is None else master.user("other", role)
    detail = master.get(f"/api/v1/jobs/{job['id']}", token=token).json()
    assert detail["spec"]["env"] == shown
    hidden = [value for name, value in ENV.items() if shown[name] != value]
    for path in ("", f"/{job['id']}", f"/{job['id']}/events", f"/{job['id']}/logs"):
        answer = master.get(f"/api/v1/jobs{path}", token=token)
        assert answer.status_code == 200
        assert not [value for value in (*hidden, "hunter2") if value in answer.text]
    vms = master.get("/api/v1/vms", token=token)
    assert not [value for value in hidden if value in vms.text]


def test_an_agent_gets_the_true_values(master: HttpMaster) -> None:
    agent = master.joined(env=ENV)
    assert agent.join()["assignment"]["env"] == ENV


def test_a_stranger_who_joins_takes_no_write_lock(master: HttpMaster) -> None:
    asked: list[str] = []

    def note(*args: Any) -> None:
        asked.append(args[2])

    event.listen(master.services.db.engine, "before_cursor_execute", note)
    body = {"token": "guessed", "agent_version": "1"}
    assert master.post("/agent/v1/join", json=body, token="").status_code == 401
    assert asked
    assert not [query for query in asked if query.startswith(("BEGIN IMMEDIATE", "UPDATE"))]
