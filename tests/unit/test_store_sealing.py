"""Secrets of job files in the database: encrypted, bound to their row, and renewed at the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fakes.http_master import HttpMaster
from fakes.old_database import NOW, fill
from spothop.jobspec import JobSpec
from spothop_master import program, rekeying
from spothop_master.app import create_app
from spothop_master.first_start import encrypt_with_newest
from spothop_master.home import HomeError, prepare
from spothop_master.keys import KeyFileError, Keys, key_id
from spothop_master.settings import MasterSettings
from spothop_master.store import jobs, sealing
from spothop_master.store.db import Database
from spothop_master.store.schema import Job, User
from support.database import write_migrated

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
SECRETS = ("sec-env", "sec-key", "sec-user", "sec-sign", "sec-pass")
SPEC: dict[str, Any] = {
    "name": "j",
    "run": "true",
    "env": {"TOKEN": "sec-env", "EPOCHS": "sec-env", "A_B": "c"},
    "data": {"train": "https://sec-user@host/x", "plain": "s3://b/d"},
    "checkpoint": {
        "storage": {
            "url": "s3://sec-user:sec-pass@bucket/runs",
            "options": {"secret_access_key": "sec-key", "region": "here"},
        },
        "init_from": "https://a.blob.core.windows.net/c?X-Amz-Signature=sec-sign&v=1",
    },
}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = with_keys(tmp_path, ONE)
    with db.begin() as session:
        session.add(User(id=1, name="u", role="user", created_at=NOW))
    yield db
    db.close()


def with_keys(folder: Path, *masters: bytes) -> Database:
    path = folder / "sealed.db"
    if not path.exists():
        write_migrated(path)
    return Database(f"sqlite:///{path}", Keys.of(*masters))


def add(db: Database, job_id: str = "j-1", spec: dict[str, Any] = SPEC) -> None:
    with db.begin() as session:
        shown, sealed = sealing.seal(session, job_id, spec)
        _add(session, job_id, shown, sealed)


def _add(session: Any, job_id: str, spec: dict[str, Any], sealed: str | None) -> None:
    more = {"bundle": "0" * 64, "state": "queued", "submitted_at": NOW, "submit_token": job_id}
    session.add(Job(id=job_id, name="j", owner_id=1, spec=spec, sealed=sealed, **more))


def whole(db: Database, job_id: str = "j-1") -> dict[str, Any]:
    with db.read() as session:
        return sealing.whole(session, session.get_one(Job, job_id))


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.db*")))


def assert_nothing_secret(content: bytes) -> None:
    assert not [secret for secret in SECRETS if secret.encode() in content]


def test_the_database_holds_no_secret_and_gives_the_whole_file_back(
    db: Database, tmp_path: Path
) -> None:
    add(db)
    assert_nothing_secret(files(tmp_path))
    assert b"here" in files(tmp_path)
    assert whole(db) == SPEC
    with db.read() as session:
        job = session.get_one(Job, "j-1")
        assert jobs.spec_of(job).env["TOKEN"] == "***"
        assert jobs.whole_spec_of(session, job) == JobSpec.of_accepted(SPEC)


def test_what_keeps_nothing_secret_needs_no_key(tmp_path: Path) -> None:
    db = with_keys(tmp_path)
    spec = {"name": "j", "run": "true", "data": {}}
    with db.begin() as session:
        session.add(User(id=1, name="u", role="user", created_at=NOW))
    add(db, spec=spec)
    assert whole(db) == spec
    with pytest.raises(KeyFileError, match="not read yet"):
        add(db, "j-2")
    db.close()


def test_the_same_value_is_never_the_same_text(db: Database) -> None:
    add(db)
    add(db, "j-2")
    with db.read() as session:
        one, two = session.scalars(sa.select(Job.sealed))
    assert one is not None
    assert one.rpartition(".")[0] == f"1.{key_id(ONE)}"
    assert one[-30:] != (two or "")[-30:]


def test_a_value_of_another_row_is_refused(db: Database) -> None:
    add(db)
    with db.begin() as session:
        victim = session.get_one(Job, "j-1")
        _add(session, "thief-1", {"env": {}}, victim.sealed)
    with pytest.raises(sealing.Unreadable, match="job thief-1 are damaged, or of another row"):
        whole(db, "thief-1")


@pytest.mark.parametrize("at", [12, -2, 30])
def test_a_changed_value_is_an_error_and_no_garbage(db: Database, at: int) -> None:
    add(db)
    with db.begin() as session:
        job = session.get_one(Job, "j-1")
        text = list(job.sealed or "")
        text[at] = "A" if text[at] != "A" else "B"
        job.sealed = "".join(text)
    with pytest.raises(sealing.Unreadable, match="submit it again"):
        whole(db)


def test_another_key_is_an_error_that_names_the_right_one(db: Database, tmp_path: Path) -> None:
    add(db)
    other = with_keys(tmp_path, TWO)
    with pytest.raises(sealing.Unreadable, match=f"encrypted with key {key_id(ONE)}, which is not"):
        whole(other)
    other.close()


def test_rows_of_an_older_key_are_encrypted_anew_a_portion_at_a_time(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "_AT_ONCE", 2)
    for n in range(5):
        add(db, f"j-{n}")
    both = with_keys(tmp_path, TWO, ONE)
    assert encrypt_with_newest(both) == 5
    assert encrypt_with_newest(both) == 0
    both.close()
    alone = with_keys(tmp_path, TWO)
    assert [whole(alone, f"j-{n}") for n in range(5)] == [SPEC] * 5
    with alone.read() as session:
        assert sealing.keys_in_use(session) == [key_id(TWO)]
    alone.close()


# --- the start of a master ----------------------------------------------------------------------


def test_what_an_older_release_wrote_is_encrypted_at_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    path = home / "master.db"
    write_migrated(path, "0015")
    old = Database(f"sqlite:///{path}")
    user = {"id": 1, "name": "admin", "role": "admin"}
    row = {"id": "j-1", "owner_id": 1, "submit_token": "t", "state": "queued", "spec": SPEC}
    fill(old, {"users": [user], "jobs": [row, {**row, "id": "j-2", "submit_token": "u"}]})
    old.close()
    settings = MasterSettings(home=home)
    services = create_app(settings, {}).state.services
    program.open_database(settings, services)
    assert whole(services.db) == whole(services.db, "j-2") == SPEC
    services.db.close()
    (copy,) = home.glob("master.db.before-*")
    kept = copy.rename(tmp_path / copy.name)
    assert b"sec-env" in kept.read_bytes(), "the way back is as it was"
    assert_nothing_secret(files(home))


def test_a_lost_key_file_stops_the_start_until_it_is_given_up(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as master:
        job = master.submit(env={"A": "sec-env"})["id"]
        (used,) = master.services.keys.ids
    settings = master.settings
    settings.key_file.unlink()
    services = create_app(settings, {}).state.services
    with pytest.raises(program.CannotStart, match=f"--forget-key {used}"):
        program.open_database(settings, services)
    assert not settings.key_file.exists()
    with pytest.raises(KeyFileError, match=f"no key 'f00'.*: {used}"):
        rekeying.forget(settings, "f00")
    assert f"the secrets of 1 jobs: {job}." in rekeying.forget(settings, used)
    with HttpMaster(tmp_path) as again:
        token = (settings.home / "admin.token").read_text().strip()
        shown = again.get(f"/api/v1/jobs/{job}", token=token)
        assert shown.json()["spec"]["env"] == {"A": "***"}
        for _ in range(4):
            again.look(1.0)
        join = {"token": again.cloud.launches[-1].user_data.token, "agent_version": "1"}
        refused = again.post("/agent/v1/join", json=join, token="")
        assert (refused.status_code, refused.json()["error"]) == (409, "secrets_unreadable")
        assert used in refused.json()["message"]
        for _ in range(4):
            again.look(1.0)
        told = again.get(f"/api/v1/jobs/{job}", token=token).json()
        assert told["state"] == "paused", "each further VM would be paid for and told the same"
        events = again.get(f"/api/v1/jobs/{job}/events", token=token).json()
        assert any("put it back there" in event["text"] for event in events)


def test_a_rotation_encrypts_anew_and_leaves_one_key(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as master:
        job = master.submit(env={"A": "sec-env"})["id"]
        (old,) = master.services.keys.ids
    settings = master.settings
    assert "the secrets of 1 jobs were encrypted with it" in rekeying.rotate(settings)
    keys = Keys(settings.key_file)
    keys.open()
    assert len(keys.ids) == 1
    assert old not in keys.ids
    with HttpMaster(tmp_path) as again:
        assert whole(again.services.db, job)["env"] == {"A": "sec-env"}


def test_a_rotation_is_refused_while_a_master_runs(tmp_path: Path) -> None:
    settings = MasterSettings(home=tmp_path)
    with prepare(tmp_path), pytest.raises(HomeError, match="another master"):
        rekeying.rotate(settings)
