"""The users' REST over the real application: every route, errors, roles, idempotence."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from fakes import sample_rows
from fakes.http_master import BUNDLE, BUNDLE_SHA256, HttpMaster, problem
from spothop.storage import StorageUnsupported
from spothop.wire import (
    EventView,
    JobDetail,
    JobView,
    PlanReply,
    Problem,
    StorageSpec,
    VmView,
)
from spothop_master.bundles import Bundles
from spothop_master.security import Role
from spothop_master.store import users
from spothop_master.store.schema import BundleUpload

pytestmark = pytest.mark.databases

JOBS = "/api/v1/jobs"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path) as master:
        yield master


# --- who may ------------------------------------------------------------------------------------


def test_first_start_writes_a_token_that_only_its_user_reads(master: HttpMaster) -> None:
    mode = (master.settings.home / "admin.token").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert master.get("/api/v1/me").json() == {"name": "admin", "role": "admin"}


def test_second_start_keeps_the_token(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as first:
        token = first.admin
    with HttpMaster(tmp_path) as second:
        assert second.admin == token
        assert second.get("/api/v1/me").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/me"),
        ("POST", "/api/v1/plan"),
        ("PUT", f"/api/v1/bundles/{BUNDLE_SHA256}"),
        ("GET", JOBS),
        ("POST", JOBS),
        ("GET", f"{JOBS}/j"),
        ("GET", f"{JOBS}/j/events"),
        ("GET", f"{JOBS}/j/logs"),
        ("POST", f"{JOBS}/j/cancel"),
        ("POST", f"{JOBS}/j/preempt"),
        ("GET", "/api/v1/vms"),
        ("POST", "/api/v1/vms/v/preempt"),
    ],
)
def test_no_route_answers_without_a_token(master: HttpMaster, method: str, path: str) -> None:
    problem(master.call(method, path, token="", json={"spec": {}}), 401, "no_token")
    answer = master.call(method, path, token="wrong", json={"spec": {}})
    problem(answer, 401, "bad_token")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_health_needs_no_token(master: HttpMaster) -> None:
    for path in ("/healthz", "/api/v1/healthz"):
        answer = master.get(path, token="")
        assert answer.json()["status"] == "ok"


def test_readiness_says_which_loop_runs_where(master: HttpMaster) -> None:
    master.hears_others()
    found = master.get("/readyz", token="").json()
    assert (found["status"], found["masters"]) == ("ok", [found["master"]])
    assert {who["master"] for who in found["loops"].values()} == {found["master"]}
    assert sorted(found["loops"]) == [
        "alarms",
        "inject",
        "prices",
        "retention",
        "supervise",
        "sweep",
    ]


def test_a_revoked_token_is_no_token(master: HttpMaster) -> None:
    ann = master.user("ann")
    assert master.get("/api/v1/me", token=ann).json()["name"] == "ann"
    with master.services.db.begin() as session:
        token = next(token for token, user in users.tokens(session) if user.name == "ann")
        users.revoke(session, token, now=master.clock())
    problem(master.get("/api/v1/me", token=ann), 401, "bad_token")


def test_users_see_their_own_jobs_admins_all_viewers_only_look(master: HttpMaster) -> None:
    ann, bob, eve = master.user("ann"), master.user("bob"), master.user("eve", Role.VIEWER)
    job = master.submit(token=ann)["id"]
    assert [j["id"] for j in master.get(JOBS, token=ann).json()["jobs"]] == [job]
    assert master.get(JOBS, token=bob).json()["jobs"] == []
    problem(master.get(f"{JOBS}/{job}", token=bob), 404, "no_such_job")
    problem(master.post(f"{JOBS}/{job}/cancel", token=bob), 404, "no_such_job")
    assert [j["owner"] for j in master.get(JOBS).json()["jobs"]] == ["ann"]
    assert master.get(f"{JOBS}/{job}", token=eve).status_code == 200
    problem(master.post(f"{JOBS}/{job}/cancel", token=eve), 403, "read_only")
    problem(master.post(JOBS, token=eve, json={}), 403, "read_only")


def test_vms_of_others_do_not_exist(master: HttpMaster) -> None:
    agent = master.joined()
    bob = master.user("bob")
    assert master.get("/api/v1/vms", token=bob).json()["vms"] == []
    problem(master.post(f"/api/v1/vms/{agent.vm}/preempt", token=bob), 404, "no_such_vm")


# --- bundles ------------------------------------------------------------------------------------


def test_a_bundle_is_kept_by_its_content(master: HttpMaster) -> None:
    path = f"/api/v1/bundles/{BUNDLE_SHA256}"
    assert master.call("HEAD", path).status_code == 404
    assert master.call("PUT", path, content=BUNDLE).status_code == 201
    assert master.call("PUT", path, content=BUNDLE).status_code == 200
    answer = master.call("HEAD", path)
    assert (answer.status_code, answer.headers["Content-Length"]) == (200, str(len(BUNDLE)))


def test_the_hash_of_anothers_bundle_tells_and_runs_nothing(master: HttpMaster) -> None:
    path = f"/api/v1/bundles/{BUNDLE_SHA256}"
    ann, eve = master.user("ann"), master.user("eve")
    master.submit(token=ann)
    body = {"spec": {"name": "a", "run": "x"}, "bundle": BUNDLE_SHA256, "token": "eve"}
    for _ in range(2):
        assert master.call("HEAD", path, token=eve).status_code == 404
        problem(master.post(JOBS, json=body, token=eve), 404, "no_such_bundle")
    assert master.call("HEAD", path).status_code == 404  # nor an admin, who may have it anyhow
    assert master.call("PUT", path, content=BUNDLE, token=eve).status_code == 201
    assert master.call("HEAD", path, token=eve).status_code == 200
    assert master.post(JOBS, json=body, token=eve).status_code == 201


def test_a_bundle_from_before_uploads_were_written_down_is_its_jobs_owners(
    master: HttpMaster,
) -> None:
    ann = master.user("ann")
    master.submit(token=ann)
    with master.services.db.begin() as session:
        session.execute(delete(BundleUpload))
    assert master.call("HEAD", f"/api/v1/bundles/{BUNDLE_SHA256}", token=ann).status_code == 200


def test_a_bundle_that_is_not_its_name_is_refused_and_leaves_nothing(master: HttpMaster) -> None:
    answer = master.call("PUT", f"/api/v1/bundles/{'0' * 64}", content=BUNDLE)
    problem(answer, 422, "bundle_mismatch")
    problem(master.call("PUT", "/api/v1/bundles/..%2Fx", content=BUNDLE), 404, "no_such_route")
    problem(master.call("PUT", "/api/v1/bundles/ABC", content=BUNDLE), 422, "bad_bundle_name")
    assert list((master.settings.home / "bundles").iterdir()) == []


def test_a_bundle_over_the_limit_is_refused(master: HttpMaster) -> None:
    big = b"x" * 1001
    path = f"/api/v1/bundles/{hashlib.sha256(big).hexdigest()}"
    problem(master.call("PUT", path, content=big), 413, "bundle_too_large")
    assert list((master.settings.home / "bundles").iterdir()) == []


# --- submitting ---------------------------------------------------------------------------------


def test_submit_makes_one_job_per_token(master: HttpMaster) -> None:
    master.upload()
    body = {"spec": {"name": "a", "run": "x"}, "bundle": BUNDLE_SHA256, "token": "once"}
    first, again = master.post(JOBS, json=body), master.post(JOBS, json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    view = JobView.model_validate(first.json())
    assert (view.state, view.owner, view.attempt) == ("queued", "admin", 0)
    assert view.storage.url == master.settings.storage_url
    assert len(master.get(JOBS).json()["jobs"]) == 1


def test_a_submit_that_is_sent_again_finds_its_job_whatever_its_storage_says(
    master: HttpMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was lost. To hear that the storage cannot be used would hide a job that runs."""
    tried: list[StorageSpec] = []

    def try_out(spec: StorageSpec) -> None:
        tried.append(spec)
        if len(tried) > 1:
            raise StorageUnsupported("it has no conditional create", hint="use another one")

    monkeypatch.setattr(master.services.probes, "_try_out", try_out)
    master.upload()
    spec = {"name": "a", "run": "x", "checkpoint": {"storage": "s3://bucket/path"}}
    body = {"spec": spec, "bundle": BUNDLE_SHA256, "token": "once"}
    first, again = master.post(JOBS, json=body), master.post(JOBS, json=body)
    assert (first.status_code, again.status_code) == (201, 200), again.text
    assert again.json()["id"] == first.json()["id"]
    other = {**body, "token": "another"}
    problem(master.post(JOBS, json=other), 422, "bad_storage")


def test_another_users_submit_token_is_refused(master: HttpMaster) -> None:
    ann = master.user("ann")
    master.upload(token=ann)
    body = {"spec": {"name": "a", "run": "x"}, "bundle": BUNDLE_SHA256, "token": "once"}
    assert master.post(JOBS, json=body, token=ann).status_code == 201
    problem(master.post(JOBS, json=body, token=master.user("bob")), 409, "token_taken")


def test_submit_says_what_is_wrong_with_the_job_file(master: HttpMaster) -> None:
    master.upload()
    spec = {"name": "a", "run": "x", "resorces": {}}
    body = {"spec": spec, "bundle": BUNDLE_SHA256, "token": "t"}
    found = problem(master.post(JOBS, json=body), 422, "bad_job_file")
    assert found.field == "resorces"
    assert "resources" in found.hint


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"checkpoint": {"storage": "s3://[my-bucket]/x"}}, "checkpoint.storage"),
        ({"checkpoint": {"storage": "file:///tmp/%00x"}}, "checkpoint.storage"),
        ({"checkpoint": {"storage": "foo://x"}}, "checkpoint.storage"),
        ({"checkpoint": {"init_from": "s3://[my-bucket]/x"}}, "checkpoint.init_from"),
        ({"checkpoint": {"init_from": "foo://x"}}, "checkpoint.init_from"),
        ({"data": {"a": "file:///tmp/%00x"}}, "data.a"),
        ({"data": {"a": "file://relative/x"}}, "data.a"),
        ({"data": {"a": "foo://x"}}, "data.a"),
    ],
)
def test_urls_that_name_nothing_are_refused_with_their_field(
    master: HttpMaster, spec: dict[str, Any], field: str
) -> None:
    master.upload()
    spec = {"name": "a", "run": "x", **spec}
    body = {"spec": spec, "bundle": BUNDLE_SHA256, "token": "t"}
    for answer in (master.post(JOBS, json=body), master.post("/api/v1/plan", json={"spec": spec})):
        assert answer.status_code == 422, answer.text
        found = Problem.model_validate(answer.json())
        assert found.field == field
        assert field in found.message
        assert "s3://bucket/path" in found.hint


def test_inputs_need_not_be_there_yet(master: HttpMaster, tmp_path: Path) -> None:
    missing = (tmp_path / "later").as_uri()
    master.submit(data={"a": "s3://bucket/x"}, checkpoint={"init_from": missing})
    assert not (tmp_path / "later").exists()


def test_submit_without_its_bundle_is_refused(master: HttpMaster) -> None:
    for bundle in ("0" * 64, "../../etc/passwd"):
        body = {"spec": {"name": "a", "run": "x"}, "bundle": bundle, "token": "t"}
        assert problem(master.post(JOBS, json=body), 404, "no_such_bundle").field == "bundle"


def test_a_job_that_no_pool_matches_is_refused_at_once(master: HttpMaster) -> None:
    master.upload()
    spec = {"name": "a", "run": "x", "resources": {"any_of": [{"zone": "mars"}]}}
    body = {"spec": spec, "bundle": BUNDLE_SHA256, "token": "t"}
    problem(master.post(JOBS, json=body), 422, "no_pool")


def test_a_price_that_is_too_high_today_is_no_reason_to_refuse(master: HttpMaster) -> None:
    assert master.submit(resources={"max_price": 0.1})["state"] == "queued"


def test_init_from_reads_only_jobs_that_the_user_sees(master: HttpMaster) -> None:
    ann, bob = master.user("ann"), master.user("bob")
    job = master.submit(token=ann)["id"]
    master.upload(token=bob)
    spec = {"name": "b", "run": "x", "checkpoint": {"init_from": f"job:{job}"}}
    body = {"spec": spec, "bundle": BUNDLE_SHA256, "token": "t"}
    found = problem(master.post(JOBS, json=body, token=bob), 422, "no_such_job")
    assert found.field == "checkpoint.init_from"
    assert master.post(JOBS, json=body, token=ann).status_code == 201


# --- looking ------------------------------------------------------------------------------------


def test_plan_gives_pools_in_order_with_their_figures(master: HttpMaster) -> None:
    spec = {"name": "a", "run": "x", "resources": {"any_of": [{"zone": "b"}, {"zone": "a"}]}}
    reply = PlanReply.model_validate(master.post("/api/v1/plan", json={"spec": spec}).json())
    assert [plan.pool.zone for plan in reply.pools] == ["b", "a"]
    first = reply.pools[0]
    assert (first.spot_price, first.on_demand_price, first.grace_s) == (1.1, 3.0, 30.0)
    assert (first.mttp_s, first.lives, first.restart_s) == (10800, 0, 120)
    assert reply.storage == master.settings.storage_url


def test_a_training_job_from_all_sides(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(40)
    commit = {"kind": "committed", "n": 2, "step": 40, "save": "periodic", "bytes": 10}
    agent.sync(agent.envelope(**commit, delta_s=0.1, beta_s=0.2))
    master.clock.advance(1800)
    detail = JobDetail.model_validate(master.get(f"{JOBS}/mnist").json())
    assert (detail.state, detail.step, detail.attempt) == ("running", 40, 1)
    assert detail.metrics == {"loss": 1.25}
    assert detail.saves == {"periodic": 1}
    assert detail.useful_s == 20.0
    assert detail.cost == pytest.approx(0.5, rel=0.01)  # half an hour at 1 USD
    # 20 s in useful steps, and 1 s from running to the first one, at 3 USD.
    assert detail.on_demand_cost == pytest.approx(21 * 3 / 3600)
    assert detail.vm == agent.vm
    assert [c.n for c in detail.checkpoints] == [2]
    assert [a.last_step for a in detail.attempts] == [40]
    vms = [VmView.model_validate(vm) for vm in master.get("/api/v1/vms").json()["vms"]]
    assert [(vm.id, vm.attempt, vm.price) for vm in vms] == [(agent.vm, 1, 1.0)]


def test_events_come_in_order_and_after_an_id(master: HttpMaster) -> None:
    job = master.submit()["id"]
    master.look()
    seen = [EventView.model_validate(e) for e in master.get(f"{JOBS}/{job}/events").json()]
    assert seen[0].kind == "submitted"
    assert [e.id for e in seen] == sorted(e.id for e in seen)
    answer = master.get(f"{JOBS}/{job}/events", params={"after": seen[0].id})
    assert [e["id"] for e in answer.json()] == [e.id for e in seen[1:]]


def test_a_long_poll_answers_at_once_when_the_master_ends(master: HttpMaster) -> None:
    job = master.submit()["id"]
    master.services.stopping.set()
    answer = master.get(f"{JOBS}/{job}/events", params={"after": 10**6, "wait_s": 30})
    assert answer.json() == []


def test_a_name_stands_for_its_only_unfinished_job(master: HttpMaster) -> None:
    first, second = master.submit()["id"], master.submit()["id"]
    found = problem(master.get(f"{JOBS}/mnist"), 409, "ambiguous_name")
    assert first in found.message
    master.post(f"{JOBS}/{first}/cancel")
    master.look()
    assert master.get(f"{JOBS}/mnist").json()["id"] == second
    assert master.get(f"{JOBS}/{first}").json()["state"] == "cancelled"
    problem(master.get(f"{JOBS}/none"), 404, "no_such_job")


def test_a_name_of_several_ended_jobs_stands_for_the_newest(master: HttpMaster) -> None:
    ids = []
    for _ in range(3):
        ids.append(master.submit()["id"])
        master.post(f"{JOBS}/{ids[-1]}/cancel")
        master.look(1.0)
    assert master.get(f"{JOBS}/mnist").json()["id"] == ids[-1]
    assert master.get(f"{JOBS}/mnist/events").status_code == 200
    again = master.submit()["id"]
    assert master.get(f"{JOBS}/mnist").json()["id"] == again


def test_vms_name_their_job_and_are_filtered(master: HttpMaster) -> None:
    agent = master.joined(name="one")
    other = master.submit(name="two")["id"]
    master.look(1.0)

    def ids(**params: str) -> list[str]:
        return [vm["id"] for vm in master.get("/api/v1/vms", params=params).json()["vms"]]

    new, old = master.get("/api/v1/vms").json()["vms"]
    assert (new["job"], old["job"], old["id"]) == (other, agent.job, agent.vm)
    assert ids(job="one") == ids(job=agent.job) == ids(state=old["state"]) == [agent.vm]
    assert ids(cloud="fake") == [new["id"], old["id"]]
    assert ids(cloud="aws") == ids(job="one", state="terminated") == []
    problem(master.get("/api/v1/vms", params={"job": "none"}), 404, "no_such_job")
    found = problem(master.get("/api/v1/vms", params={"state": "up"}), 422, "invalid_request")
    assert (found.field, "requested, booting, ready" in found.hint) == ("state", True)
    bob = master.user("bob")
    problem(master.get("/api/v1/vms", params={"job": "one"}, token=bob), 404, "no_such_job")


def test_jobs_that_ended_long_ago_are_listed_on_demand(master: HttpMaster) -> None:
    old = master.submit()["id"]
    master.post(f"{JOBS}/{old}/cancel")
    master.look()
    master.clock.advance(2 * 86400)
    new = master.submit(name="new")["id"]
    assert [j["id"] for j in master.get(JOBS).json()["jobs"]] == [new]
    assert [j["id"] for j in master.get(JOBS, params={"all": "true"}).json()["jobs"]] == [new, old]
    answer = master.get(JOBS, params={"state": "cancelled"})
    assert [j["id"] for j in answer.json()["jobs"]] == [old]


@pytest.mark.parametrize("state", ["nonsense", "Running", ""])
def test_a_state_that_no_job_can_have_is_refused(master: HttpMaster, state: str) -> None:
    found = problem(master.get(JOBS, params={"state": state}), 422, "invalid_request")
    assert found.field == "state"
    assert repr(state) in found.message
    assert "queued, allocating, preparing, running" in found.hint
    assert master.get(JOBS, params={"state": "running"}).json()["jobs"] == []


def test_the_list_takes_as_many_queries_for_many_jobs_as_for_one(master: HttpMaster) -> None:
    from sqlalchemy import event

    counted: list[str] = []
    event.listen(
        master.services.db.engine,
        "before_cursor_execute",
        lambda *args: counted.append(args[2]),
    )
    master.submit()
    master.look()  # it has an attempt, as the others have
    counted.clear()
    master.get(JOBS, params={"all": "true"})
    alone = len(counted)
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    counted.clear()
    assert len(master.get(JOBS, params={"all": "true"}).json()["jobs"]) == 5
    assert len(counted) == alone


# --- acting -------------------------------------------------------------------------------------


def test_cancel_wakes_the_loop_and_may_be_repeated(master: HttpMaster) -> None:
    job = master.submit()["id"]
    master.services.supervisor.wake.clear()
    assert master.post(f"{JOBS}/{job}/cancel").json()["wanted"] == "cancelled"
    assert master.services.supervisor.wake.is_set()
    master.look()
    assert master.post(f"{JOBS}/{job}/cancel").json()["state"] == "cancelled"


def test_a_job_that_succeeded_cannot_be_cancelled(master: HttpMaster) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    problem(master.post(f"{JOBS}/mnist-b77e01/cancel"), 409, "job_is_over")


@pytest.mark.parametrize(
    ("job", "fact"),
    [
        ("mnist-b77e01", "'mnist-b77e01' has succeeded"),
        ("whisper-ft-c0ffee", "'whisper-ft-c0ffee' has failed"),
    ],
)
def test_a_job_that_is_over_cannot_be_preempted(master: HttpMaster, job: str, fact: str) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    found = problem(master.post(f"{JOBS}/{job}/preempt"), 409, "job_is_over")
    assert fact in found.message
    assert "spothop jobs" in found.hint


def test_a_vm_that_is_over_cannot_be_preempted(master: HttpMaster) -> None:
    with master.services.db.begin() as session:
        sample_rows.tell(session, owner_id=1)
    found = problem(master.post("/api/v1/vms/vm-1001/preempt"), 409, "vm_is_over")
    assert "wait" not in found.hint


def test_preempt_asks_the_cloud_for_the_vm_that_trains(master: HttpMaster) -> None:
    agent = master.joined()
    agent.train(10)
    answer = master.post(f"{JOBS}/mnist/preempt", json={"notice_s": 5})
    assert VmView.model_validate(answer.json()).id == agent.vm
    machine = next(iter(master.cloud.machines.values()))
    assert machine.deadline_at is not None
    assert (machine.deadline_at - master.clock()).total_seconds() == 5


def test_preempt_without_a_body_is_the_promised_notice(master: HttpMaster) -> None:
    agent = master.joined()
    assert master.post(f"/api/v1/vms/{agent.vm}/preempt").status_code == 200
    machine = next(iter(master.cloud.machines.values()))
    assert machine.deadline_at is not None
    assert (machine.deadline_at - master.clock()).total_seconds() == master.cloud.grace_s


def test_preempt_refuses_what_makes_no_sense(master: HttpMaster) -> None:
    job = master.submit()["id"]
    problem(master.post(f"{JOBS}/{job}/preempt"), 409, "no_running_vm")
    problem(master.post("/api/v1/vms/vm-0/preempt"), 404, "no_such_vm")
    agent = master.joined(name="other")
    answer = master.post(f"/api/v1/vms/{agent.vm}/preempt", json={"notice_s": -1})
    assert problem(answer, 422, "invalid_request").field == "notice_s"
    answer = master.post(f"/api/v1/vms/{agent.vm}/preempt", json={"notice_s": 1e300})
    assert problem(answer, 422, "invalid_request").field == "notice_s"


def test_disk_tells_the_totals_and_names_only_jobs_that_one_sees(master: HttpMaster) -> None:
    ann, bob = master.user("ann"), master.user("bob")
    job = master.submit(token=ann)["id"]
    master.services.logs.append(job, 1, offset=0, data=b"x" * 10)
    seen = {name: master.get("/api/v1/disk", token=name).json() for name in (ann, bob)}
    assert seen[ann]["largest"] == [{"job": job, "log_bytes": 10}]
    assert seen[bob]["largest"] == []
    for told in seen.values():
        assert (told["logs"], told["bundles"]) == (10, len(BUNDLE))
        assert told["database"] > told["database_free"] >= 0
    assert master.get(f"{JOBS}/{job}", token=ann).json()["log_bytes"] == 10


def test_a_bundle_that_goes_while_it_is_asked_for_is_not_there(
    master: HttpMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention runs beside everything."""
    master.upload()

    def gone(bundles: Bundles, sha256: str) -> bool:
        path = bundles.path(sha256)
        assert path is not None
        path.unlink()
        return False

    monkeypatch.setattr(Bundles, "use", gone)
    assert master.call("HEAD", f"/api/v1/bundles/{BUNDLE_SHA256}").status_code == 404
    monkeypatch.undo()
    master.upload()
    assert master.call("HEAD", f"/api/v1/bundles/{BUNDLE_SHA256}").status_code == 200
