"""VMs of the local cloud under another user: what a job sees of the master's machine."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from spothop.wire import AgentConfig, Dialect
from spothop_master.clouds.base import OWNER_TAG, LaunchSpec
from spothop_master.clouds.configuration import ConfigError
from spothop_master.clouds.local import isolation
from spothop_master.clouds.local.config import LocalConfig
from spothop_master.clouds.local.driver import LocalCloud
from support.require import missing
from support.waiting import until

MASTER = "http://127.0.0.1:9"
LOOK = """
import json, os, pathlib, subprocess, sys, tempfile
import spothop_agent.program
home, own, other, data, sentinel = map(pathlib.Path, sys.argv[1:6])
config = pathlib.Path(sys.argv[7])

def fails(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return ""

status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
seen = {
    "uid": os.getuid(),
    "rights": [status[name].strip() for name in ("CapEff", "CapPrm", "NoNewPrivs")],
    "token": fails((home / "admin.token").read_text),
    "cloud": sorted(path.name for path in config.parents[2].iterdir()),
    "jobs": sorted(path.name for path in own.parent.iterdir()),
    "other": (other / "x").read_text(),
    "write other": fails(lambda: (other / "y").write_text("")),
    "data": (data / "x").read_text(),
    "sentinel": sentinel.exists(),
    "shm": os.path.exists(f"/dev/shm/{sentinel.name}"),
    "home": os.environ["HOME"],
    "temporary": tempfile.gettempdir(),
    "config": json.loads(config.read_text())["vm"],
    "program": fails(lambda: pathlib.Path(spothop_agent.program.__file__).open("a")),
}
pathlib.Path(os.environ["HOME"], "cache").write_text("")
pathlib.Path("/tmp/mine").write_text("")
aside = own / "aside"
aside.write_text(json.dumps(seen))
aside.rename(own / "seen.json")
"""


def configured(folder: Path, **more: Any) -> LocalConfig:
    pool = {"region": "r", "zone": "z", "vm": "small", "dialect": "gcp", "grace_s": 5}
    prices = {"price": 0.2, "on_demand_price": 0.6, "allocation_s": [0, 0], "boot_s": [0, 0]}
    return LocalConfig.model_validate(
        {"directory": folder / "cloud", "pools": [pool | prices], **more}
    )


def need_users(folder: Path) -> None:
    decision = isolation.decide(configured(folder), master_url=MASTER)
    if decision.isolation != "users":
        missing(f"a VM under another user ({decision.why})", hint="run the tests as root")


def test_a_job_sees_what_is_its_own_and_nothing_else(tmp_path: Path) -> None:
    need_users(tmp_path)
    home, jobs, data = tmp_path / "home", tmp_path / "home" / "storage" / "jobs", tmp_path / "data"
    own, other = jobs / "mine-1", jobs / "theirs-1"
    for path in (home / "admin.token", other / "x", jobs / "hidden-1" / "x", data / "x"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
        path.chmod(0o666)  # its mode alone would let anybody read it
    own.mkdir()
    (own / "from an older attempt").write_text("")  # by a VM under the master's user
    with tempfile.NamedTemporaryFile(dir="/tmp") as sentinel:
        in_memory = Path("/dev/shm", Path(sentinel.name).name)
        in_memory.touch()
        command = [sys.executable, "-c", LOOK, *map(str, (home, own, other, data, sentinel.name))]
        config = configured(tmp_path, isolation="users", agent_command=command)
        cloud = LocalCloud(config, hidden=[home])
        user_data = AgentConfig(
            master=MASTER, token="join", vm="vm-1", dialect=Dialect.AWS, directory="/unset"
        )
        spec = LaunchSpec(
            pool=cloud.pools()[0].pool,
            user_data=user_data,
            tags={OWNER_TAG: "tests"},
            reads=[str(other), str(data)],
            writes=[str(own)],
        )
        vm = cloud.launch(spec, f"users-{os.getpid()}")
        disk = tmp_path / "cloud" / "vms" / vm.id / "disk"
        try:
            until(
                (own / "seen.json").exists,
                what="the job has looked",
                details=(disk.parent / "console.log").read_text,
            )
            assert not Path("/tmp/mine").exists()
        finally:
            in_memory.unlink()
            cloud.terminate(vm.id)
            until(lambda: all(v.ended_at for v in cloud.list("tests")), what="the VM is over")
    assert json.loads((own / "seen.json").read_text()) == {
        "uid": config.uid,
        "rights": ["0000000000000000", "0000000000000000", "1"],
        "token": "FileNotFoundError",
        "cloud": [disk.parent.name],
        "jobs": ["mine-1", "theirs-1"],
        "other": "content",
        "write other": "OSError",  # a read-only file system, whatever the modes say
        "data": "content",
        "sentinel": False,
        "shm": False,
        "home": str(disk / "home"),
        "temporary": str(disk / "tmp"),
        "config": "vm-1",
        "program": "PermissionError",
    }
    assert {path.stat().st_uid for path in (own, *own.iterdir())} == {config.uid}
    assert not disk.exists()


def test_a_link_of_a_job_shows_nothing(tmp_path: Path) -> None:
    """Its folder is its own, so a link in it may lead anywhere."""
    need_users(tmp_path)
    from spothop_master.clouds.local import view

    (tmp_path / "private").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "private")
    assert view._open_plain(tmp_path / "link") is None
    assert view._open_plain(tmp_path / "link" / ".." / "private") is None
    fd = view._open_plain(tmp_path / "private")
    assert fd is not None
    os.close(fd)


def test_what_has_been_given_is_not_followed_again(tmp_path: Path) -> None:
    need_users(tmp_path)
    from spothop_master.clouds.local import view

    (tmp_path / "secret").write_text("")
    view.give(tmp_path / "own", 61_184)
    (tmp_path / "own" / "link").symlink_to(tmp_path / "secret")
    view.give(tmp_path / "own", 61_184)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(tmp_path / "secret")
    view.give(tmp_path / "other", 61_184)
    assert (tmp_path / "other" / "link").lstat().st_uid == 61_184
    assert (tmp_path / "secret").stat().st_uid == os.getuid()


def test_no_link_of_a_job_leads_to_the_folder_that_is_given(tmp_path: Path) -> None:
    """A job may make one, and name what is behind it as the storage of its next one."""
    need_users(tmp_path)
    from spothop_master.clouds.local import view

    uid = 61_184
    (tmp_path / "theirs" / "jobs" / "mine-2").mkdir(parents=True)
    view.give(tmp_path / "mine-1", uid)
    link = tmp_path / "mine-1" / "link"
    link.symlink_to(tmp_path / "theirs")
    os.lchown(link, uid, uid)
    with pytest.raises(OSError, match="a link that a job has made"):
        view.give(link / "jobs" / "mine-2", uid)
    assert (tmp_path / "theirs" / "jobs" / "mine-2").stat().st_uid == os.getuid()


def test_who_is_not_root_is_told_that_nothing_is_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    decision = isolation.decide(configured(tmp_path), master_url=MASTER)
    assert decision.isolation == "processes"
    told = isolation.warning(decision)
    assert told is not None
    assert "every submitter is this master's user" in told
    assert "does not run as root" in told
    with pytest.raises(ConfigError, match=r"isolation: users is not possible here: .*as root"):
        isolation.decide(configured(tmp_path, isolation="users"), master_url=MASTER)
    with pytest.raises(ConfigError, match="isolation: namespaces needs root"):
        isolation.decide(configured(tmp_path, isolation="namespaces"), master_url=MASTER)


@pytest.mark.parametrize("wanted", ["namespaces", "processes"])
def test_a_configuration_that_asks_for_less_is_told_what_that_means(
    tmp_path: Path, wanted: str
) -> None:
    need_users(tmp_path)
    decision = isolation.decide(configured(tmp_path, isolation=wanted), master_url=MASTER)
    assert decision.isolation == wanted
    assert f"isolation: {wanted}" in (isolation.warning(decision) or "")


def test_a_master_that_vms_reach_by_name_only_has_no_namespaces(tmp_path: Path) -> None:
    decision = isolation.decide(configured(tmp_path), master_url="https://master.example.com")
    assert decision.isolation == "processes"
    assert "https://master.example.com names no IPv4 address" in decision.why
