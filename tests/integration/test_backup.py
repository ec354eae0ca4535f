"""A back-up of a master: what is in it, and what becomes of jobs and VMs when it is restored."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from fakes.master_harness import MasterHarness
from fakes.scripted_agent import ScriptedAgent
from spothop_master import archive
from spothop_master.archive import BackupError
from spothop_master.clouds.base import EndCause
from spothop_master.settings import MasterSettings
from spothop_master.store.schema import Stray
from support.database import empty, open_database, url_of

pytestmark = pytest.mark.databases(gate=True)


def settings_of(home: Path, database: Path) -> MasterSettings:
    return MasterSettings.model_validate({"home": home, "database_url": url_of(database)})


def fill(home: Path) -> dict[str, bytes]:
    """Files of a master's home, by name, and some that are not to be kept."""
    files = {
        "master.key": b"key",
        "owner": b"owner-1\n",
        "admin.token": b"token\n",
        "tls/ca.pem": b"pem",
        f"bundles/{'a' * 64}": b"code",
        "logs/job-1/1-0.log": b"line\n",
    }
    for name, content in (files | {"master.lock": b"1", "bundles/.half": b"x"}).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    return files


def test_a_restored_home_has_all_that_was_there_for_its_owner_alone(tmp_path: Path) -> None:
    harness = MasterHarness(tmp_path)
    harness.submit()
    home, there = tmp_path / "home", tmp_path / "there"
    files = fill(home)
    made = settings_of(home, tmp_path / "harness-0.db")
    saved = tmp_path / "backup.zip"
    assert archive.save(made, saved) == saved.stat().st_size
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    with pytest.raises(BackupError, match="is there; name a file that is not"):
        archive.save(made, saved)

    new = settings_of(there, empty(there / "master.db"))
    assert archive.restore(new, saved) == len(files) + 1
    found = {n: (there / n).read_bytes() for n in files}
    assert found == files
    assert {stat.S_IMODE((there / n).stat().st_mode) for n in files} == {0o600}
    assert not (there / "master.lock").exists()
    with pytest.raises(BackupError, match="has rows, and nothing in it was changed"):
        archive.restore(new, saved)


def test_what_is_no_back_up_changes_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"
    new = settings_of(there, empty(there / "master.db"))
    with pytest.raises(BackupError, match=r"cannot be read: .*; name a file of `backup`"):
        archive.restore(new, tmp_path / "nowhere.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("../../evil", b"x")
        other.writestr("owner", b"x")
    with pytest.raises(BackupError, match="holds none, and database_url is one of"):
        archive.restore(new, tmp_path / "other.zip")
    assert not (there / "owner").exists()


def until_joined(harness: MasterHarness, number: int) -> ScriptedAgent:
    """The agent of this attempt of job 1, prepared."""
    for _ in range(120):
        if harness.attempt().number >= number and harness.machine().is_up(harness.clock.now):
            break
        harness.tick()
    harness.tick()
    agent = harness.join(number)
    harness.tick()
    agent.prepare()
    harness.tick()
    agent.obey()
    return agent


def test_yesterdays_database_loses_no_job_and_ends_no_vm(tmp_path: Path) -> None:
    """Since then job 1 went to another VM and made a checkpoint, and job 2 came. No row knows these
    two VMs: they are held. Job 1 goes on from the checkpoint that only the storage knows."""
    before = MasterHarness(tmp_path)
    before.training().save()
    home, there = tmp_path / "home", tmp_path / "there"
    home.mkdir()
    saved = tmp_path / "backup.zip"
    archive.save(settings_of(home, tmp_path / "harness-0.db"), saved)

    before.clock.advance(3600)
    before.cloud.kill(before.machine().id, EndCause.PREEMPTED)
    second = until_joined(before, 2)
    second.train(40)
    second.save()
    before.submit("job-2")
    before.look()
    before.settle(5)
    unknown = {machine.id for machine in before.cloud.alive()}
    assert len(unknown) == 2

    restored = MasterHarness(tmp_path, seed=1, clock=before.clock, cloud=before.cloud)
    archive.restore(settings_of(there, empty(there / "master.db")), saved)
    restored.db = open_database(there / "master.db")
    restored.db.clock = restored.clock
    restored.chains, restored._tokens = before.chains, before._tokens
    restored.clock.advance(60)
    restored.restart()
    agent = until_joined(restored, 2)
    assert agent.step == second.step == 50
    for _ in range(6):
        restored.sweep.run_once()
        restored.tick(6)
        agent.train(1)
    assert unknown < {machine.id for machine in restored.cloud.alive()}, "held, not ended"
    assert {row.cloud_id for row in restored.rows(Stray)} == unknown
    assert "was it restored from a backup" in restored.events("strays")[0].text
    agent.exit(0)
    restored.settle(5)
    assert restored.job().state == "succeeded"
