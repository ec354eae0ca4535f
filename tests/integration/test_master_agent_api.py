"""The agents' REST over the real application: joining, syncing, bundles, logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from fakes.http_master import BUNDLE, BUNDLE_SHA256, HttpAgent, HttpMaster
from spothop.wire import LOGS_RIDE, Assignment, LogChunk, Problem, SyncReply
from spothop_master.store.schema import Job, Place

pytestmark = pytest.mark.databases(gate=True)

JOBS = "/api/v1/jobs"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


def error(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    return Problem.model_validate(answer.json()).error


def test_join_gives_session_and_assignment(master: HttpMaster) -> None:
    agent = master.joined()
    reply = agent.join()  # the answer got lost: before the first report it may ask again
    assignment = Assignment.model_validate(reply["assignment"])
    assert (assignment.attempt, assignment.bundle) == (1, BUNDLE_SHA256)
    assert assignment.fence_now
    assert reply["sync_every_s"] == master.settings.sync_every_s


def test_a_session_from_a_lost_answer_ends_at_the_second_join(master: HttpMaster) -> None:
    agent = master.joined()
    lost = agent.session
    agent.sync()
    agent.join()
    body = {"vm": agent.vm, "attempt": 1}
    assert error(master.post("/agent/v1/sync", json=body, token=lost), 401) == "no_session"
    assert agent.sync().status_code == 200


def test_nothing_is_remembered_of_a_vm_that_ended_without_another_word(master: HttpMaster) -> None:
    """A preempted VM hardly ever speaks again, and a master sees many of them."""
    agent, sessions = master.joined(), master.services.sessions
    agent.sync()
    agent.post_log(b"x", offset=0)
    assert sessions.remembered(agent.session) is not None
    assert (sessions.acked(agent.vm), sessions.node_of(agent.vm, 1)) == (0, 0)
    master.post(f"{JOBS}/{agent.job}/preempt", json={"notice_s": 0})
    for _ in range(4):
        master.look(1.0)
    assert sessions.remembered(agent.session) is None
    assert (sessions.acked(agent.vm), sessions.node_of(agent.vm, 1)) == (None, None)
    assert master.services.heartbeats.last_contact(agent.vm) is None


def test_a_vm_is_told_how_long_its_job_may_still_take(master: HttpMaster) -> None:
    agent = master.joined(max_duration="1h")
    agent.session = ""
    reply = agent.join()  # a repeated one: the answer before got lost
    left_s = Assignment.model_validate(reply["assignment"]).ends_in_s
    assert left_s is not None
    assert 3500.0 < left_s < 3600.0


def test_join_tokens_work_once(master: HttpMaster) -> None:
    agent = master.joined()
    agent.sync(agent.envelope(kind="prepared"))
    body = {"token": agent.join_token, "agent_version": "1"}
    assert error(master.post("/agent/v1/join", json=body, token=""), 401) == "bad_join_token"


def test_a_newer_protocol_is_told_which_one_we_speak(master: HttpMaster) -> None:
    body = {"protocol": 3, "token": "t", "of_the_future": True}
    answer = master.post("/agent/v1/join", json=body, token="")
    assert error(answer, 400) == "wrong_protocol"
    assert "protocol 3-3, this master 1-2" in answer.json()["message"]
    assert "upgrade the master" in answer.json()["hint"]


def test_malformed_messages_name_the_field(master: HttpMaster) -> None:
    agent = master.joined()
    assert error(agent.sync(heartbaet={}), 422) == "invalid_request"
    answer = agent.sync({"age_s": 0, "attempt": 1, "report": {"kind": "prepared"}})
    assert error(answer, 422) == "invalid_request"
    assert "reports.0 has no number" in answer.json()["message"]
    raw = master.post("/agent/v1/sync", content=b"not json", token=agent.session)
    assert error(raw, 422) == "invalid_request"
    nested = master.post("/agent/v1/sync", content=b"[" * 100_000, token=agent.session)
    assert error(nested, 422) == "invalid_request"


def test_a_session_is_for_its_own_vm_alone(master: HttpMaster) -> None:
    agent = master.joined()
    answer = agent.sync(vm="vm-of-somebody-else")
    assert error(answer, 403) == "wrong_vm"
    body = {"vm": agent.vm, "attempt": 1}
    assert error(master.post("/agent/v1/sync", json=body, token="x"), 401) == "no_session"
    assert error(master.post("/agent/v1/sync", json=body), 401) == "no_session"
    assert error(master.get(JOBS, token=agent.session), 401) == "bad_token"


def test_replayed_reports_are_harmless(master: HttpMaster) -> None:
    agent = master.joined()
    report = agent.envelope(kind="message", text="hello")
    first, again = agent.sync(report), agent.sync(report)
    assert (first.json()["ack_seq"], again.json()["ack_seq"]) == (1, 1)
    told = master.get(f"{JOBS}/mnist/events").json()
    assert [e["text"] for e in told].count("hello") == 1


def test_a_gap_is_not_acknowledged(master: HttpMaster) -> None:
    agent = master.joined()
    first = agent.envelope(kind="message", text="one")
    agent.envelope(kind="message", text="lost")
    third = agent.envelope(kind="message", text="three")
    assert agent.sync(first, third).json()["ack_seq"] == 1


def test_plain_heartbeats_ask_the_database_nothing(master: HttpMaster) -> None:
    agent = master.joined()
    told = agent.envelope(kind="message", text="hello")
    before = SyncReply.model_validate(agent.sync(told).json())
    asked: list[str] = []
    engine = master.services.db.engine
    event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    master.clock.advance(1)
    heartbeat = {"step": 3, "pending_saves": 0, "trainer_alive": True}
    assert SyncReply.model_validate(agent.sync(heartbeat=heartbeat).json()) == before
    assert asked == []
    assert master.services.heartbeats.last_contact(agent.vm) == master.clock()


def test_what_happens_to_one_job_costs_the_heartbeats_of_another_no_query(
    master: HttpMaster,
) -> None:
    one, other = master.joined(name="one"), master.joined(name="other")
    one.sync(one.envelope(kind="message", text="hello"))
    other.sync(other.envelope(kind="message", text="hello"))
    asked: list[str] = []
    engine = master.services.db.engine
    event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    one.sync()
    assert asked == []
    other.sync()
    assert asked == []


def test_an_agent_that_waits_for_its_fence_asks_again_soon(master: HttpMaster) -> None:
    agent = master.joined()
    at_work = SyncReply.model_validate(agent.sync().json())
    waits = SyncReply.model_validate(agent.sync(agent.envelope(kind="prepared")).json())
    assert waits.next_delay_s < at_work.next_delay_s == master.services.settings.sync_every_s


def test_heartbeats_never_write(master: HttpMaster) -> None:
    agent = master.joined()
    asked: list[str] = []
    engine = master.services.db.engine
    event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    for _ in range(3):
        master.clock.advance(60)
        agent.sync()
    assert asked
    assert not [q for q in asked if q.startswith(("BEGIN IMMEDIATE", "UPDATE", "INSERT"))]


@pytest.mark.parametrize(("kind", "wakes"), [("prepared", True), ("message", False)])
def test_urgent_reports_wake_the_loop(master: HttpMaster, kind: str, wakes: bool) -> None:
    agent = master.joined()
    master.services.supervisor.wake.clear()
    agent.sync(agent.envelope(kind=kind, **({"text": "x"} if kind == "message" else {})))
    assert master.services.supervisor.wake.is_set() is wakes


def test_a_stop_reaches_the_agent_at_its_next_heartbeat(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    assert agent.sync().json()["directives"][-1]["kind"] == "insurance"
    master.post(f"{JOBS}/{agent.job}/cancel")
    master.look()
    assert [d["kind"] for d in agent.sync().json()["directives"]] == ["stop"]


def steps(agent: HttpAgent, step: int) -> list[dict[str, Any]]:
    """A sync as nearly all are: steps and metrics; the directives of its answer."""
    told = agent.sync(
        agent.envelope(kind="steps", step=step, count=5, step_s=0.5, load_s=0.0),
        agent.envelope(kind="metrics", step=step, values={"loss": 1.0}),
    ).json()
    assert told["ack_seq"] == agent.seq
    found: list[dict[str, Any]] = told["directives"]
    return found


def test_progress_alone_reads_no_directive_anew(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    before = steps(agent, 15)
    asked: list[str] = []
    engine = master.services.db.engine
    event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    assert steps(agent, 20) == before
    assert [query for query in asked if "INSERT INTO metrics" in query]
    assert not [query for query in asked if "checkpoints" in query or "observations" in query]


def test_a_stop_reaches_an_agent_that_reports_progress(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    assert [d["kind"] for d in steps(agent, 15)] == ["insurance"]
    master.post(f"{JOBS}/{agent.job}/cancel")
    master.look()
    assert [d["kind"] for d in steps(agent, 20)] == ["stop"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("UPDATE attempts SET stop_wanted = 'paused'", "stop"),
        ("UPDATE vms SET state = 'terminating'", "release"),
    ],
)
def test_what_another_master_wants_reaches_an_agent_that_reports_progress(
    master: HttpMaster, change: str, expected: str
) -> None:
    """It is told to nobody here, and the answer in memory may be several syncs old."""
    master.services.db.single_master = False  # as on PostgreSQL
    agent = master.joined()
    agent.train(10)
    steps(agent, 15)
    with master.services.db.begin() as session:
        session.connection().exec_driver_sql(change)
    assert expected in [d["kind"] for d in steps(agent, 20)]


def test_what_another_master_wants_reaches_an_agent_with_nothing_to_report(
    master: HttpMaster,
) -> None:
    """Its steps take longer than the time between two syncs."""
    master.services.db.single_master = False
    agent = master.joined()
    agent.train(10)
    steps(agent, 15)
    agent.sync()
    with master.services.db.begin() as session:
        session.connection().exec_driver_sql("UPDATE attempts SET stop_wanted = 'paused'")
    master.clock.advance(5)
    assert [d["kind"] for d in agent.sync().json()["directives"]] == ["stop"]


def test_the_first_steps_bring_the_insurance_with_their_own_answer(master: HttpMaster) -> None:
    agent = master.joined()
    agent.sync(
        agent.envelope(kind="prepared"),
        agent.envelope(kind="fenced_in", n=1),
        agent.envelope(kind="restored", step=0),
        agent.envelope(kind="started", pid=7),
    )
    agent.sync()
    assert [d["kind"] for d in steps(agent, 5)] == ["insurance"]


def test_a_vm_that_the_cloud_ended_is_told_to_stop(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    master.post(f"{JOBS}/{agent.job}/preempt", json={"notice_s": 0})
    for _ in range(3):
        master.look(2.0)
    assert error(agent.sync(), 410) == "vm_is_over"
    assert error(agent.sync(agent.envelope(kind="prepared")), 410) == "vm_is_over"
    assert error(agent.post_log(b"x", offset=0), 410) == "vm_is_over"


def test_sessions_survive_a_restart_of_the_master(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as first:
        agent = first.joined()
        agent.sync(agent.envelope(kind="message", text="before"))
    with HttpMaster(tmp_path) as second:
        agent.master = second
        assert agent.sync().json()["ack_seq"] == 1
        assert agent.sync(agent.envelope(kind="message", text="after")).json()["ack_seq"] == 2


def test_the_agent_gets_its_own_jobs_bundle_and_no_other(master: HttpMaster) -> None:
    agent = master.joined()
    path = f"/agent/v1/bundles/{BUNDLE_SHA256}"
    answer = master.get(path, token=agent.session)
    assert (answer.status_code, answer.content) == (200, BUNDLE)
    other = master.get(f"/agent/v1/bundles/{'0' * 64}", token=agent.session)
    assert error(other, 404) == "no_such_bundle"
    assert error(master.get(path, token=""), 401) == "no_token"


def test_the_bundle_of_another_job_is_as_if_it_were_not_there(master: HttpMaster) -> None:
    """The master has it, and its hash is known: it still is none of this VM's affair."""
    agent = master.joined()
    other = b"the code of somebody else"
    sha256 = hashlib.sha256(other).hexdigest()
    master.call("PUT", f"/api/v1/bundles/{sha256}", content=other).raise_for_status()
    body = {"spec": {"name": "other", "run": "true"}, "bundle": sha256, "token": "t"}
    assert master.post(JOBS, json=body).status_code == 201
    answer = master.get(f"/agent/v1/bundles/{sha256}", token=agent.session)
    assert error(answer, 404) == "no_such_bundle"


def test_logs_are_written_by_offset(master: HttpMaster) -> None:
    agent = master.joined()
    assert agent.post_log(b"hello ", offset=0).json() == {"next_offset": 6}
    assert agent.post_log(b"hello world", offset=0).json() == {"next_offset": 11}
    assert agent.post_log(b"late", offset=50).json() == {"next_offset": 11}
    answer = master.get(f"{JOBS}/mnist/logs")
    assert answer.text == "hello world"
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["X-Next-Offset"] == "11"
    assert answer.headers["X-Attempt"] == "1"
    assert answer.headers["X-Complete"] == "false"
    rest = master.get(f"{JOBS}/mnist/logs", params={"offset": 6, "attempt": 1})
    assert rest.text == "world"
    assert master.get(f"{JOBS}/mnist").json()["log_tail"] == "hello world"


def test_a_log_of_an_attempt_of_another_vm_is_refused(master: HttpMaster) -> None:
    agent = master.joined()
    assert error(agent.post_log(b"x", offset=0, attempt=2), 403) == "wrong_attempt"


def test_each_node_writes_and_shows_a_log_of_its_own(master: HttpMaster) -> None:
    agent = master.joined()
    with master.services.db.begin() as session:
        (place,) = session.scalars(select(Place))
        assert place.address, "the agent's, as the join came from it"
        place.node = 1
    assert agent.post_log(b"one", offset=0).json() == {"next_offset": 3}
    url, of_node_1 = f"{JOBS}/mnist/logs", {"attempt": 1, "node": 1}
    assert master.get(url, params=of_node_1).text == "one"
    assert master.get(url, params={"node": 1}).headers["X-Attempt"] == "1"
    answer = master.get(url, params={"attempt": 1, "node": 2})
    assert error(answer, 404) == "no_such_attempt"
    assert "no node 2 in attempt 1" in answer.json()["message"]


def test_a_log_is_complete_when_nothing_more_can_come(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    agent.post_log(b"bye", offset=0)
    agent.sync(agent.envelope(kind="exited", code=0, done=True, step=10))
    master.look(1.0)
    assert master.get(f"{JOBS}/mnist").json()["state"] == "succeeded"
    for _ in range(3):
        master.look(5.0)
    answer = master.get(f"{JOBS}/mnist/logs", params={"offset": 3})
    assert (answer.text, answer.headers["X-Complete"]) == ("", "true")


def test_a_job_without_attempts_has_an_empty_log(master: HttpMaster) -> None:
    job = master.submit()["id"]
    answer = master.get(f"{JOBS}/{job}/logs", params={"attempt": 0})
    assert (answer.text, answer.headers["X-Attempt"]) == ("", "0")
    assert answer.headers["X-Complete"] == "false"
    assert error(master.get(f"{JOBS}/{job}/logs", params={"attempt": 7}), 404)
    master.post(f"{JOBS}/{job}/cancel")
    master.look()
    assert master.get(f"{JOBS}/{job}/logs").headers["X-Complete"] == "true"


RIDES = {LOGS_RIDE: "1"}


def ride(agent: HttpAgent, offset: int, text: bytes, *reports: dict[str, Any]) -> dict[str, Any]:
    body = agent.body(*reports, log=LogChunk.of(1, offset, text).model_dump())
    answer = agent.master.post("/agent/v1/sync", json=body, token=agent.session, headers=RIDES)
    found: dict[str, Any] = answer.json()
    SyncReply.model_validate(found)
    return found


def test_a_log_rides_in_a_sync(master: HttpMaster) -> None:
    agent = master.joined()
    assert ride(agent, 0, b"")["log"]["next_offset"] == 0
    hello = agent.envelope(kind="message", text="hello")
    told = ride(agent, 0, b"one\n", hello)
    assert (told["ack_seq"], told["log"]["next_offset"]) == (1, 4)
    assert ride(agent, 0, b"one\ntwo\n")["log"]["next_offset"] == 8  # a lost answer
    assert ride(agent, 99, b"later")["log"]["next_offset"] == 8  # would leave a gap
    assert master.get(f"{JOBS}/{agent.job}/logs").text == "one\ntwo\n"


def test_the_logs_of_a_users_other_jobs_cost_no_query(master: HttpMaster) -> None:
    one, other = master.joined(), master.joined()
    for agent in (one, other):
        agent.train(10)
        agent.sync()
    ride(one, 0, b"of one\n")  # whose quota it is
    asked: list[str] = []
    engine = master.services.db.engine
    event.listen(engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    assert ride(other, 0, b"of another\n")["log"]["next_offset"] == 11
    assert asked == []


def test_a_log_that_cannot_be_kept_costs_no_report(
    master: HttpMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = master.joined()

    def full(*_arguments: object, **_more: object) -> int:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(master.services.logs, "append", full)
    told = ride(agent, 0, b"one\n", agent.envelope(kind="message", text="hello"))
    assert (told["ack_seq"], told["log"]["next_offset"]) == (1, None)


def test_an_agent_hears_that_somebody_reads_along(master: HttpMaster) -> None:
    agent = master.joined()
    assert ride(agent, 0, b"one\n")["log"]["follow"] is False
    master.get(f"{JOBS}/{agent.job}/logs")
    assert ride(agent, 4, b"two\n")["log"]["follow"] is True
    master.clock.advance(60)
    assert ride(agent, 8, b"three\n")["log"]["follow"] is False


def test_an_older_agent_is_told_nothing_of_its_log(master: HttpMaster) -> None:
    agent = master.joined()
    assert "log" not in agent.sync().json()
    assert "log" not in agent.sync().json()  # from memory


def test_a_fresh_answer_to_progress_writes_only_what_is_new(
    master: HttpMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = master.joined()
    agent.train(10)
    steps(agent, 15)
    before = [e["text"] for e in master.get(f"{JOBS}/{agent.job}/events").json()]
    master.clock.advance(1000)  # no answer is kept for so long
    asked: list[str] = []
    db, written = master.services.db, list[bool]()
    event.listen(db.engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
    begin = db.begin

    def counted(*, urgent: bool = False) -> AbstractContextManager[Session]:
        written.append(urgent)
        return begin(urgent=urgent)

    monkeypatch.setattr(db, "begin", counted)
    assert steps(agent, 20)
    assert [query for query in asked if "checkpoints" in query]
    assert not [query for query in asked if "UPDATE jobs" in query]
    assert len(written) == 1
    assert [e["text"] for e in master.get(f"{JOBS}/{agent.job}/events").json()] == before


def test_an_insurance_that_became_quite_another_is_noted_at_once(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    with master.services.db.begin() as session:
        told = session.scalars(select(Job)).one()
        assert told.insurance is not None
        told.insurance = {**told.insurance, "tau_s": told.insurance["tau_s"] * 10}
    due = steps(agent, 15)[0]["insurance"]
    with master.services.db.read() as session:
        assert session.scalars(select(Job)).one().insurance == due


# --- a port of their own ------------------------------------------------------------------------


def test_on_their_own_port_agents_alone_are_answered(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, agents_port=8901) as master:
        agent = master.joined()
        assert master.cloud.launches[-1].user_data.master == "http://127.0.0.1:8901"
        there = "http://master:8901"
        body = agent.body()
        synced = master.post(f"{there}/agent/v1/sync", json=body, token=agent.session)
        assert synced.status_code == 200
        assert master.get(f"{there}/healthz", token="").status_code == 200
        for path in ("/api/v1/jobs", "/", "/login", "/api/v1/users", "/static/style.css"):
            refused = master.get(f"{there}{path}")
            assert (refused.status_code, refused.json()["error"]) == (404, "agents_only")
            assert refused.headers["x-content-type-options"] == "nosniff"
        assert master.get("/api/v1/jobs").status_code == 200
        assert agent.sync().status_code == 200, "VMs that were launched before go on"
