"""The local cloud's configuration, and the small pure rules beside it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spothop.wire import Dialect
from spothop_master.clouds import registry
from spothop_master.clouds.base import CloudVmState
from spothop_master.clouds.configuration import ConfigError
from spothop_master.clouds.local.config import Delay, built_in, load
from spothop_master.clouds.local.disk import VmFolder, _remove_groups, locked, read_json, write_json
from spothop_master.clouds.local.driver import handed_on
from spothop_master.clouds.local.init import LONGEST_PAUSE_S, pause_before_restart
from spothop_master.clouds.local.vm_processes import master_address
from spothop_master.clouds.registry import UnknownCloud, make_clouds
from spothop_master.core.evidence import EndCause

POOL = "region: r, zone: z, vm: small, dialect: gcp, price: 0.2, on_demand_price: 0.6, grace_s: 5"


def test_the_built_in_cloud_has_one_zone_per_dialect(tmp_path: Path) -> None:
    config = load(None, default_directory=tmp_path / "cloud")
    found = [(pool.zone, pool.dialect, pool.grace_s) for pool in config.pools]
    assert found == [
        ("local-1a", Dialect.AWS, 120.0),
        ("local-1b", Dialect.AZURE, 30.0),
        ("local-1c", Dialect.GCP, 30.0),
    ]
    assert all(pool.price < pool.on_demand_price for pool in config.pools)


def write(folder: Path, text: str) -> Path:
    file = folder / "cloud.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_sets_delays_scripts_and_a_directory_beside_itself(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        f"directory: vms-here\npools: [{{{POOL}, boot_s: [0.1, 0.2], capacity: 1, "
        "preemptions: [{launch: 2, after_s: 8, notice_s: 0}]}]\n",
    )
    config = load(file, default_directory=Path("/unused"))
    assert config.directory == tmp_path / "vms-here"
    [pool] = config.pools
    assert pool.boot_s == Delay(low=0.1, high=0.2)
    assert pool.capacity == 1
    assert pool.preemptions[0].notice_s == 0


def test_a_file_may_say_the_isolation_only(tmp_path: Path) -> None:
    """What the README tells a newcomer to write."""
    config = load(write(tmp_path, "isolation: processes\n"), default_directory=tmp_path / "vms")
    assert config.isolation == "processes"
    assert config == built_in(tmp_path / "vms").model_copy(update={"isolation": "processes"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a list", "expected keys and values"),
        ("pools: [", "while parsing"),
        ("pools: []", "pools: .*at least 1 item"),
        (f"pools: [{{{POOL}, graces: 3}}]", r"pools\.0\.graces: .*\(it is 3\)"),
        (f"pools: [{{{POOL}, capacity: 2026-05-01}}]", r"capacity: .*\(it is 2026-05-01\)"),
        (f"pools: [{{{POOL}, capacity: -1}}]", r"pools\.0\.capacity: .*\(it is -1\)"),
        (f"pools: [{{{POOL}, boot_s: [2, 1]}}]", r"pools\.0\.boot_s: .*low is greater than high"),
        (f"pools: [{{{POOL}, boot_s: [2]}}]", r"pools\.0\.boot_s: .*expected \[low, high\]"),
        (f"pools: [{{{POOL}}}, {{{POOL}}}]", "two pools for z/small"),
        (
            f"pools: [{{{POOL}, preemptions: [{{launch: 1, after_s: 1}}, "
            "{launch: 1, after_s: 2}]}]",
            "two preemptions of the same launch",
        ),
        (f"isolation: total\npools: [{{{POOL}}}]", r"isolation: .*\(it is 'total'\)"),
    ],
)
def test_mistakes_name_field_and_value(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)cloud.yaml: .*{complaint}"):
        load(write(tmp_path, text), default_directory=tmp_path)


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.yaml", default_directory=tmp_path)


def test_an_unknown_cloud_is_refused_by_name(tmp_path: Path) -> None:
    assert make_clouds(home=tmp_path, master_url="http://127.0.0.1:9")["local"].name == "local"
    with pytest.raises(UnknownCloud, match="'oracle' is not supported; supported: local, aws"):
        make_clouds(["oracle"], home=tmp_path, master_url="http://127.0.0.1:9")


def test_a_cloud_whose_sdk_is_missing_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sdk in ("an_sdk_that_nobody_has", "a_folder_that_nobody_has.sdk"):
        aws = replace(registry.PROVIDERS["aws"], sdk=sdk)
        monkeypatch.setattr(registry, "PROVIDERS", {"aws": aws})
        with pytest.raises(UnknownCloud, match=r"pip install 'spothop\[aws\]'"):
            make_clouds(["aws"], home=tmp_path, master_url="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8900", ("127.0.0.1", 8900)),
        ("http://localhost:1234/x", ("127.0.0.1", 1234)),
        ("https://10.0.0.7", ("10.0.0.7", 443)),
        ("http://master.example", None),
        ("http://[::1]:80", None),
    ],
)
def test_where_the_master_listens(url: str, address: tuple[str, int] | None) -> None:
    assert master_address(url) == address


def test_pauses_before_restarts_grow_to_a_limit() -> None:
    pauses = [pause_before_restart(failures) for failures in range(1, 40)]
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


def test_the_supervisors_words_are_those_of_the_protocol() -> None:
    """The supervisor does not import them: that would import pydantic."""
    assert {state.value for state in CloudVmState} == {
        "pending",
        "running",
        "stopping",
        "terminated",
    }
    assert {"preempted", "terminated", "failed"} <= {cause.value for cause in EndCause}


def test_a_lock_excludes_even_within_one_process(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as held:
        assert held is not None
        with locked(tmp_path / "lock", wait=False) as second:
            assert second is None
    with locked(tmp_path / "lock", wait=False) as free:
        assert free is not None


def test_state_keeps_earlier_facts_and_files_are_private(tmp_path: Path) -> None:
    folder = VmFolder(tmp_path)
    folder.write_state("running", running_at="then")
    folder.write_state("terminated", cause="failed")
    assert read_json(folder.state) == {
        "state": "terminated",
        "running_at": "then",
        "cause": "failed",
    }
    write_json(folder.spec, {"token": "t"})
    assert folder.spec.stat().st_mode & 0o077 == 0


def test_wiping_removes_closed_directories_but_nothing_behind_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = VmFolder(tmp_path / "vm")
    closed = folder.disk / "closed" / "deeper"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    (folder.disk / "link").symlink_to(outside)
    closed.chmod(0o500)
    closed.parent.chmod(0)
    folder.wipe()
    assert not folder.disk.exists()
    assert (outside / "kept").exists()
    folder.wipe()


def test_a_wiped_disk_leaves_no_control_group_of_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And touches nothing that is none, whatever the VM wrote down."""
    removed: list[str] = []
    monkeypatch.setattr(os, "rmdir", lambda path, **_: removed.append(str(path)))
    group, other = tmp_path / "spothop-0123", tmp_path / "other"
    for folder in (group / "below", other):
        folder.mkdir(parents=True)
        (folder.parent if folder.name == "below" else folder).joinpath("cgroup.procs").touch()
    vm = VmFolder(tmp_path / "vm")
    for number, text in enumerate(
        [f'{{"group": "{group}"}}', f'{{"group": "{other}"}}', '{"group": ""}', "{", "[]", "{}"]
    ):
        run = vm.disk / f"agent/attempts/{number}/run"
        run.mkdir(parents=True)
        (run / "group.json").write_text(text)
    _remove_groups(vm.disk)
    assert removed == [str(group / "below"), str(group)]


@pytest.mark.parametrize("name", ["A-B", "", "*", "A*B", "A=b", "A b"])
def test_a_name_that_no_variable_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.0"):
        load(write(tmp_path, f"environment: ['{name}']\n"), default_directory=tmp_path / "vms")


def test_what_is_the_masters_own_reaches_no_vm_whatever_is_named() -> None:
    environ = {"SPOTHOP_MASTER_X": "1", "SPOTHOP_TOKEN": "2", "SPOTHOP_CHAOS": "3", "LC_ALL": "C"}
    assert handed_on(environ, []) == {"LC_ALL": "C"}
    assert handed_on(environ, ["SPOTHOP_*"]) == {"LC_ALL": "C", "SPOTHOP_CHAOS": "3"}


@pytest.mark.parametrize("trap", ["deep", "closed", "pipe", "device", "nested"])
def test_nothing_that_a_job_leaves_keeps_its_disk(tmp_path: Path, trap: str) -> None:
    """What stays would keep the VM from ever being terminated, and the listing from its answer."""
    folder = VmFolder(tmp_path)
    run = folder.disk / "agent" / "attempts" / "1" / "run"
    run.mkdir(parents=True)
    if trap == "deep":
        _nest(folder.disk, 1_500)
    elif trap == "closed":
        (run / "in" / "it").mkdir(parents=True)
        run.chmod(0)
    elif trap == "pipe":
        os.mkfifo(run / "group.json")
    elif trap == "device":
        (run / "group.json").symlink_to("/dev/zero")
    else:
        (run / "group.json").write_text("[" * 60_000)
    try:
        folder.wipe()
        assert not folder.disk.exists()
    finally:  # pytest could not remove it either
        subprocess.run(["rm", "-rf", str(folder.disk)], check=True)


def _nest(folder: Path, levels: int) -> None:
    """Deeper than any path can say."""
    above = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
