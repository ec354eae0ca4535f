"""Lists over HTTP: pages that follow each other, numbers by state, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes import sample_rows
from fakes.http_master import HttpMaster
from spothop_master.security import Role
from spothop_master.store import summaries
from spothop_master.store.schema import Checkpoint, Job, Summary
from support.lists import assert_light_is_full

pytestmark = pytest.mark.databases

JOBS = "/api/v1/jobs"


@pytest.fixture(name="master")
def _master(tmp_path: Path) -> Any:
    with HttpMaster(tmp_path) as master:
        master.clock.now = sample_rows.NOW
        yield master


def fill(master: HttpMaster, count: int, *, state: str = "queued", owner_id: int = 1) -> list[str]:
    """Newest first; three of each moment, so that the id decides among those."""
    rows = [
        sample_rows.job(f"{state}-{number:03d}", state, -(number // 3), owner_id)
        for number in range(count)
    ]
    with master.services.db.begin() as session:
        session.add_all(rows)
    rows.sort(key=lambda row: (row.submitted_at, row.id), reverse=True)
    return [row.id for row in rows]


def ids(body: dict[str, Any]) -> list[str]:
    return [job["id"] for job in body["jobs"]]


def test_pages_hold_each_job_once_forwards_and_back(master: HttpMaster) -> None:
    all_ids = fill(master, 23)
    cursor, pages = None, []
    while True:
        params = {"limit": 5} | ({"cursor": cursor} if cursor else {})
        pages.append(master.get(JOBS, params=params).json())
        assert (pages[-1]["previous"] is None) == (len(pages) == 1)
        assert pages[-1]["total"] == 23
        cursor = pages[-1]["next"]
        if cursor is None:
            break
    assert [ids(page) for page in pages] == [all_ids[i : i + 5] for i in range(0, 23, 5)]
    cursor = pages[-1]["previous"]
    for expected in reversed(pages[:-1]):
        page = master.get(JOBS, params={"limit": 5, "cursor": cursor}).json()
        assert ids(page) == ids(expected)
        assert page["next"] == expected["next"]
        cursor = page["previous"]
    assert cursor is None


def test_a_page_neither_repeats_nor_skips_what_comes_and_ends_meanwhile(
    master: HttpMaster,
) -> None:
    all_ids = fill(master, 9)
    first = master.get(JOBS, params={"limit": 4}).json()
    with master.services.db.begin() as session:
        session.add(sample_rows.job("newer-1", "queued", -60, 1))
    second = master.get(JOBS, params={"limit": 4, "cursor": first["next"]}).json()
    assert ids(second) == all_ids[4:8]
    newest = master.get(JOBS, params={"limit": 4, "cursor": second["previous"]}).json()
    assert ids(newest) == all_ids[:4]
    assert newest["previous"] is not None


def test_jobs_are_counted_by_state_and_asked_for_by_it_by_name_and_by_owner(
    master: HttpMaster,
) -> None:
    master.user("ann")
    fill(master, 3, state="queued")
    fill(master, 2, state="paused", owner_id=2)
    found = master.get(JOBS, params={"limit": 1}).json()
    assert (found["counts"], found["total"]) == ({"queued": 3, "paused": 2}, 5)
    found = master.get(JOBS, params={"state": "paused"}).json()
    assert ids(found) == ["paused-001", "paused-000"]
    assert (found["counts"], found["total"]) == ({"queued": 3, "paused": 2}, 2)
    assert master.get(JOBS, params={"name": "que"}).json()["total"] == 3
    assert master.get(JOBS, params={"name": "ueue"}).json() == {
        "jobs": [],
        "next": None,
        "previous": None,
        "counts": {},
        "total": 0,
    }
    assert master.get(JOBS, params={"owner": "ann"}).json()["counts"] == {"paused": 2}
    assert master.get(JOBS, params={"owner": "nobody"}).json()["total"] == 0


@pytest.mark.parametrize(
    "cursor", ["x", "1.", ".x", "-", "--1.a", "9" * 30 + ".a", "1." + "a" * 300, "\u0661.a"]
)
def test_a_cursor_that_no_page_gave_is_refused(master: HttpMaster, cursor: str) -> None:
    for path in (JOBS, "/api/v1/vms"):
        answer = master.get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["error"]) == (422, "bad_cursor")
        assert "`next`" in answer.json()["hint"]


@pytest.mark.parametrize("limit", [0, -1, 501])
def test_a_page_has_its_limits(master: HttpMaster, limit: int) -> None:
    assert master.get(JOBS, params={"limit": limit}).status_code == 422


def test_vms_and_checkpoints_come_in_pages(master: HttpMaster) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    whole = master.get("/api/v1/vms").json()
    assert whole["next"] is None
    first = master.get("/api/v1/vms", params={"limit": 2}).json()
    rest = master.get("/api/v1/vms", params={"cursor": first["next"]}).json()
    assert first["vms"] + rest["vms"] == whole["vms"]
    assert len(first["vms"]) == 2
    path = f"{JOBS}/{sample_rows.GPT}/checkpoints"
    numbers: list[int] = []
    cursor: dict[str, Any] = {}
    while True:
        page = master.get(path, params={"limit": 4, **cursor}).json()
        numbers += [each["n"] for each in page["checkpoints"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    detail = master.get(f"{JOBS}/{sample_rows.GPT}").json()
    assert numbers == [each["n"] for each in detail["checkpoints"]][::-1]


def test_a_job_of_thousands_of_checkpoints_shows_the_newest_and_counts_all(
    master: HttpMaster,
) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
        session.add_all(
            sample_rows.checkpoint(sample_rows.GPT, n, n, "periodic", -1) for n in range(100, 400)
        )
    detail = master.get(f"{JOBS}/{sample_rows.GPT}").json()
    assert [each["n"] for each in detail["checkpoints"]] == [*range(200, 400)]
    assert detail["saves"]["periodic"] == 304
    listed = master.get(JOBS, params={"name": "gpt"}).json()["jobs"]
    assert listed[0]["saves"] == detail["saves"]


def test_a_list_reads_no_attempts_vms_metrics_or_events(
    master: HttpMaster, statements: Callable[[], list[str]]
) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    statements().clear()
    assert master.get(JOBS, params={"all": "true"}).json()["total"] == 4
    said = statements()
    assert not any("FROM vms" in text or "FROM metrics" in text for text in said)
    assert not any("FROM events" in text or "FROM attempts" in text for text in said)
    assert sum("attempts" in text for text in said) == 1, "the newest steps, by one join"


@pytest.fixture(name="statements")
def _statements(master: HttpMaster) -> Callable[[], list[str]]:
    told: list[str] = []
    sa.event.listen(
        master.services.db.engine, "before_cursor_execute", lambda *args: told.append(args[2])
    )
    return lambda: told


@pytest.mark.databases(only="sqlite")  # reads its plans
@pytest.mark.parametrize(
    ("params", "index"),
    [
        ({"all": "true"}, "ix_jobs_submitted_at_id"),
        ({}, "ix_jobs_ended_at_submitted_at_id"),
        ({"state": "queued"}, "ix_jobs_state_submitted_at_id"),
    ],
)
def test_a_page_is_found_by_an_index_and_needs_no_sorting(
    master: HttpMaster,
    statements: Callable[[], list[str]],
    params: dict[str, str],
    index: str,
) -> None:
    fill(master, 9)
    cursor = master.get(JOBS, params={**params, "limit": 2}).json()["next"]
    statements().clear()
    master.get(JOBS, params={**params, "cursor": cursor})
    keys = next(text for text in statements() if "ORDER BY jobs.submitted_at" in text)
    with master.services.db.read() as session:
        values = {f"p{i}": "1" for i in range(keys.count("?"))}
        for name in values:
            keys = keys.replace("?", f":{name}", 1)
        plan = session.execute(sa.text(f"EXPLAIN QUERY PLAN {keys}"), values).all()
    told = " ".join(str(row[-1]) for row in plan)
    assert index in told
    assert "TEMP B-TREE" not in told


def test_the_summaries_of_an_older_master_are_made_up_for(master: HttpMaster) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    with master.services.db.begin() as session:
        session.execute(sa.delete(Summary))
    with master.services.db.begin() as session:
        assert summaries.fill(session) == 2
        assert summaries.fill(session) == 0
    with master.services.db.read() as session:
        for job_id in session.scalars(sa.select(Job.id)):
            assert_light_is_full(session, job_id, now=sample_rows.NOW)


def test_a_save_that_a_savepoint_takes_back_is_not_counted(master: HttpMaster) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    with master.services.db.begin() as session:
        nested = session.begin_nested()
        session.add(sample_rows.checkpoint(sample_rows.GPT, 90, 1, "periodic", -1))
        session.flush()
        nested.rollback()
        session.add(sample_rows.checkpoint(sample_rows.GPT, 90, 1, "insurance", -1))
    with master.services.db.read() as session:
        assert session.scalar(sa.select(sa.func.count()).where(Checkpoint.n == 90)) == 1
        assert_light_is_full(session, sample_rows.GPT, now=sample_rows.NOW + timedelta(hours=1))


# --- cancelling many ----------------------------------------------------------------------------


def test_many_are_cancelled_in_few_requests(master: HttpMaster) -> None:
    agent = master.joined(name="trains")
    fill(master, 7)
    fill(master, 2, state="paused")
    reply = master.post("/api/v1/cancellations", json={"state": "queued", "limit": 4}).json()
    assert reply == {"cancelled": 4, "left": 3}
    reply = master.post("/api/v1/cancellations", json={"state": "queued"}).json()
    assert reply == {"cancelled": 3, "left": 0}
    found = master.get(JOBS).json()["counts"]
    assert found == {"cancelled": 7, "paused": 2, "preparing": 1}
    assert master.post("/api/v1/cancellations", json={"name": "tra"}).json()["cancelled"] == 1
    assert master.get(f"{JOBS}/{agent.job}").json()["wanted"] == "cancelled"
    assert master.post("/api/v1/cancellations", json={"owner": "nobody"}).json()["cancelled"] == 0
    assert master.post("/api/v1/cancellations", json={}).json() == {"cancelled": 2, "left": 0}
    master.look()
    assert master.get(JOBS).json()["counts"]["cancelled"] == 9
    assert master.post("/api/v1/cancellations", json={}).json() == {"cancelled": 0, "left": 0}


def test_many_are_paused_and_resumed_in_few_requests(master: HttpMaster) -> None:
    agent = master.joined(name="trains")
    fill(master, 5)
    reply = master.post("/api/v1/pauses", json={"limit": 4}).json()
    assert reply == {"changed": 4, "left": 2}
    assert master.post("/api/v1/pauses", json={"why": "prices"}).json() == {"changed": 2, "left": 0}
    assert master.post("/api/v1/pauses", json={}).json() == {"changed": 0, "left": 0}
    assert master.get(JOBS).json()["counts"] == {"paused": 5, "preparing": 1}
    found = master.get(f"{JOBS}/{agent.job}").json()
    assert (found["wanted"], found["state"]) == ("paused", "preparing")
    idle = master.get(JOBS, params={"state": "paused"}).json()["jobs"]
    assert {job["reason"] for job in idle} <= {"paused by admin", "paused by admin: prices"}
    assert all(job["paused_at"] for job in idle)
    assert master.post("/api/v1/resumptions", json={}).json() == {"changed": 6, "left": 0}
    assert master.post("/api/v1/resumptions", json={}).json() == {"changed": 0, "left": 0}
    master.look()
    assert "paused" not in master.get(JOBS).json()["counts"]


def test_one_of_many_is_paused_as_it_is_by_itself(master: HttpMaster) -> None:
    alone = master.submit(name="alone")["id"]
    master.post(f"{JOBS}/{alone}/pause")
    master.look()
    of_many = master.submit(name="many")["id"]
    master.post("/api/v1/pauses", json={"name": "many"})

    def told(job: str) -> Any:
        view = master.get(f"{JOBS}/{job}").json()
        last = master.get(f"{JOBS}/{job}/events").json()[-1]
        return view["state"], view["reason"], bool(view["paused_at"]), last["kind"], last["text"]

    assert told(of_many) == told(alone)


def test_many_that_are_being_cancelled_are_hurried(master: HttpMaster) -> None:
    agent = master.joined(name="trains")
    cancel = "/api/v1/cancellations"
    assert master.post(cancel, json={}).json() == {"cancelled": 1, "left": 0}
    assert master.post(cancel, json={"now": True}).json() == {"cancelled": 1, "left": 0}
    assert master.post(cancel, json={"now": True}).json() == {"cancelled": 0, "left": 0}
    texts = [event["text"] for event in master.get(f"{JOBS}/{agent.job}/events").json()]
    wish = "the user wants it cancelled, without another save: cancelled by admin"
    assert wish in texts


@pytest.mark.parametrize("wish", ["pause", "resume"])
def test_what_has_ended_is_neither_paused_nor_resumed(master: HttpMaster, wish: str) -> None:
    job = master.submit()["id"]
    master.post(f"{JOBS}/{job}/cancel")
    assert master.post(f"{JOBS}/{job}/{wish}").status_code == 409, "it is being cancelled"
    master.look()
    answer = master.post(f"{JOBS}/{job}/{wish}")
    assert (answer.status_code, answer.json()["error"]) == (409, "job_is_over")


def test_one_of_many_is_cancelled_as_it_is_by_itself(master: HttpMaster) -> None:
    """The same rows and the same events, in fewer statements."""
    alone = master.submit()["id"]
    master.post(f"{JOBS}/{alone}/cancel")
    master.look()
    (of_many,) = fill(master, 1)
    master.post("/api/v1/cancellations", json={"name": "queued"})

    def told(job: str) -> Any:
        view = master.get(f"{JOBS}/{job}").json()
        events = master.get(f"{JOBS}/{job}/events").json()
        last = events[-1]
        return view["state"], view["reason"], bool(view["ended_at"]), last["kind"], last["data"]

    assert told(of_many) == told(alone)


def test_users_cancel_many_of_their_own_and_viewers_none(master: HttpMaster) -> None:
    ann, eve = master.user("ann"), master.user("eve", Role.VIEWER)
    fill(master, 2)
    master.submit(token=ann)
    assert master.post("/api/v1/cancellations", json={}, token=ann).json()["cancelled"] == 1
    assert master.post("/api/v1/cancellations", json={}, token=eve).status_code == 403
    assert master.get(JOBS).json()["counts"] == {"queued": 2, "cancelled": 1}
    assert master.post("/api/v1/cancellations", json={"state": "nonsense"}).status_code == 422


def test_what_comes_to_run_meanwhile_is_not_lost_by_cancelling(master: HttpMaster) -> None:
    """A job that is queued by its state and has an attempt already is left to the loop."""
    job = master.submit()["id"]
    for _ in range(2):
        master.look(1.0)
    with master.services.db.begin() as session:
        session.execute(sa.update(Job).where(Job.id == job).values(state="queued"))
    assert master.post("/api/v1/cancellations", json={}).json()["cancelled"] == 1
    found = master.get(f"{JOBS}/{job}").json()
    assert (found["wanted"], found["state"]) == ("cancelled", "queued")
