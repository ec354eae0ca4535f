"""Which places in storage a job may name, and who may make the master touch them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.http_master import BUNDLE_SHA256, HttpMaster
from spothop.storage import open_store
from spothop.wire import StorageSpec
from spothop_master.api.places import Place
from spothop_master.security import Role
from spothop_master.settings import SettingsError, read_settings

pytestmark = pytest.mark.databases


@pytest.fixture
def master(tmp_path: Path) -> Iterator[HttpMaster]:
    with HttpMaster(tmp_path, storage_roots=[tmp_path / "sets", tmp_path / "home/storage"]) as made:
        yield made


def sent(master: HttpMaster, path: str, token: str | None = None, **spec: Any) -> httpx.Response:
    spec = {"name": "a", "run": "x", **spec}
    if path == "jobs":
        master.upload(token=token)
    body: dict[str, Any] = {"spec": spec, "bundle": BUNDLE_SHA256, "token": uuid.uuid4().hex}
    return master.post(
        f"/api/v1/{path}", token=token, json=body if path == "jobs" else {"spec": spec}
    )


def refused(master: HttpMaster, token: str | None = None, **spec: Any) -> str:
    """The same answer to plan and submit."""
    answers = [sent(master, path, token, **spec) for path in ("plan", "jobs")]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]) == (422, "bad_storage"), answer.text
    assert answers[0].json() == answers[1].json()
    return str(answers[0].json()["message"])


def test_the_plan_of_a_viewer_touches_no_disk(master: HttpMaster, tmp_path: Path) -> None:
    folder = tmp_path / "sets" / "new"
    spec = {"checkpoint": {"storage": folder.as_uri()}, "resources": {"any_of": []}}
    viewer = master.user("vic", Role.VIEWER)
    assert sent(master, "plan", viewer, **spec).status_code == 200
    assert not folder.parent.exists()


def test_a_folder_is_below_a_root_and_the_refusal_names_the_setting(
    master: HttpMaster, tmp_path: Path
) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "link").symlink_to(tmp_path)
    outside = (tmp_path / "other").as_uri()
    through = f"{(tmp_path / 'sets').as_uri()}/%2e%2e/other"
    linked = f"{(tmp_path / 'sets').as_uri()}/link/other"
    for url in (outside, through, linked, "file:///", f"{tmp_path.as_uri()}/setsx"):
        for spec in (
            {"checkpoint": {"storage": url}},
            {"checkpoint": {"init_from": url}},
            {"data": {"d": url}},
        ):
            answer = sent(master, "plan", **spec)
            assert answer.status_code == 422, url
            assert "SPOTHOP_MASTER_STORAGE_ROOTS" in answer.json()["hint"]
    assert not (tmp_path / "other").exists()
    fine = (tmp_path / "sets" / "own").as_uri()
    assert sent(master, "plan", data={"d": fine}).status_code == 200


def test_the_masters_home_is_refused_whatever_the_roots_are(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, storage_roots=["/"]) as master:
        for place in ("home", "home/bundles", "home/storage/../logs", "."):
            url = f"{tmp_path.as_uri()}/{place}"
            assert "master's own folder" in refused(master, data={"d": url})
            assert "master's own folder" in refused(master, checkpoint={"storage": url})
        refused(master, checkpoint={"init_from": "file:///"})
        assert sent(master, "plan", data={"d": f"{tmp_path.as_uri()}/x"}).status_code == 200


def test_another_users_job_is_read_by_nobody_else(master: HttpMaster, tmp_path: Path) -> None:
    ann, eve = master.user("ann"), master.user("eve")
    sets, home = (tmp_path / "sets").as_uri(), (tmp_path / "home/storage").as_uri()
    plain = master.submit(token=ann)["id"]
    own = master.submit(token=ann, checkpoint={"storage": f"{sets}/ann"})["id"]
    for url in (
        f"{home}/jobs/{plain}/data",
        f"{home}/jobs/{plain}",
        f"{home}/jobs",
        f"{home}/jobs/never-was",
        home,
        f"{sets}/ann/jobs/{own}/outputs",
        f"{sets}/ann/jobs",
        f"{sets}/ann",
        sets,
    ):
        refused(master, eve, data={"d": url})
        refused(master, eve, checkpoint={"init_from": url})
    for url in (f"{sets}/ann/jobs/{own}/outputs", f"{home}/jobs/{plain}", f"{sets}/other"):
        assert sent(master, "plan", ann, data={"d": url}).status_code == 200
    assert sent(master, "plan", data={"d": sets}).status_code == 200  # an admin sees all jobs
    for token in (ann, eve, None):
        refused(master, token, checkpoint={"storage": f"{home}/jobs/{plain}"})
        refused(master, token, checkpoint={"storage": f"{sets}/ann/jobs/{own}/x"})


def test_each_storage_of_a_list_is_looked_at(master: HttpMaster, tmp_path: Path) -> None:
    ann, eve = master.user("ann"), master.user("eve")
    sets = (tmp_path / "sets").as_uri()
    places = [{"url": f"{sets}/first", "cloud": "local"}, f"{sets}/near"]
    job = master.submit(token=ann, checkpoint={"storage": places})["id"]
    shown = master.get(f"/api/v1/jobs/{job}", token=ann).json()
    assert [each["url"] for each in (shown["storage"], *shown["other_storages"])] == [
        *(f"{sets}/first", f"{sets}/near")
    ]
    for name in ("first", "near"):
        refused(master, eve, data={"d": f"{sets}/{name}/jobs"})
        refused(master, eve, data={"d": f"{sets}/{name}"})
    outside = (tmp_path / "other").as_uri()
    answer = refused(master, ann, checkpoint={"storage": [f"{sets}/mine", outside]})
    assert answer.startswith("checkpoint.storage[1]: ")
    inside = f"{sets}/near/jobs/{job}/data"
    refused(master, ann, checkpoint={"storage": [f"{sets}/mine", inside]})


def test_a_link_in_a_jobs_folder_is_no_storage(master: HttpMaster, tmp_path: Path) -> None:
    """It leads to a fine folder now, and to any other one when the VM is made."""
    eve = master.user("eve")
    folder = tmp_path / "home/storage/jobs" / master.submit(token=eve)["id"]
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "sets")
    for url in (f"{folder.as_uri()}/link", f"{folder.as_uri()}/link/below"):
        assert "inside a job's folder" in refused(master, eve, checkpoint={"storage": url})


def test_what_is_checked_by_name_is_what_is_opened(tmp_path: Path) -> None:
    """`..` means the same to both, whatever a link says."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    url = f"{(tmp_path / 'sets').as_uri()}/link/../new"
    store = open_store(StorageSpec(url=url))
    store.create("key", b"")
    assert not (tmp_path / "elsewhere" / "new").exists()
    assert (tmp_path / "sets" / "new" / "key").exists()
    assert Place.of(url) == Place.of_folder(tmp_path / "sets" / "new")


def test_buckets_are_compared_by_what_they_name(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, storage_url="s3://bucket/runs") as master:
        eve = master.user("eve")
        job = master.submit()["id"]
        for url in (
            f"s3://bucket/runs/jobs/{job}/data",
            f"s3a://bucket/runs//jobs/{job}",
            f"s3://bucket/%72uns/jobs/{job}",
            f"s3://bucket/sets/../runs/jobs/./{job}",
            "s3://bucket/sets/%2e%2e/runs/jobs",
            "s3://eve@bucket/runs",
            "s3://bucket:443/runs",
            "s3://bucket/runs",
            "s3://bucket",
        ):
            refused(master, eve, data={"d": url})
        for url in ("s3://bucket/runs2", "s3://bucket/sets", "s3://other"):
            assert sent(master, "plan", eve, data={"d": url}).status_code == 200, url


def test_the_plan_shows_no_secret_of_the_masters_storage(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, storage_url="s3://key:hidden@bucket/runs") as master:
        answer = sent(master, "plan", master.user("vic", Role.VIEWER))
        assert answer.json()["storage"] == "s3://***@bucket/runs"


def test_roots_come_as_paths_with_colons(tmp_path: Path) -> None:
    environ = {"SPOTHOP_MASTER_STORAGE_ROOTS": "/a:/b/c", "SPOTHOP_MASTER_HOME": str(tmp_path)}
    assert read_settings(environ, {}).storage_roots == (Path("/a"), Path("/b/c"))
    default = read_settings({"SPOTHOP_MASTER_STORAGE_URL": "file:///x"}, {"home": tmp_path})
    assert default.storage_roots == (tmp_path / "storage", Path("/x"))
    with pytest.raises(SettingsError, match="no absolute path"):
        read_settings({"SPOTHOP_MASTER_STORAGE_ROOTS": "relative"}, {})
