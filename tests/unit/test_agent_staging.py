"""Data comes once to a VM that stays, is told while it comes, and is never an old one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fakes.s3_server import S3Server
from spothop.checkpoints import Staged, fetch_tree
from spothop.storage import open_store
from spothop.wire import StorageSpec
from spothop_agent import staging
from spothop_agent.paths import AgentPaths
from spothop_agent.staging import Pace


class Vm:
    """A VM whose attempts fetch one data set, and then files of `init_from`."""

    def __init__(self, root: Path, source: StorageSpec) -> None:
        self.paths = AgentPaths(root / "vm")
        self.source = source
        self.number = 0
        self.bytes = 0

    @property
    def work(self) -> Path:
        return self.paths.attempt(self.number).work

    def attempt(self, folder: str = "data/x") -> Staged:
        """The one before is over; its directory is deleted as the agent does."""
        if self.number:
            staging.set_aside(self.paths, self.paths.attempt(self.number))
        self.number += 1
        self.work.mkdir(parents=True)
        return self.fetch(folder)

    def fetch(self, folder: str = "data/x") -> Staged:
        staged = staging.of_attempt(self.paths, self.paths.attempt(self.number))
        pace = Pace("data", lambda text: None, clock=lambda: 0.0)
        staging.with_room(
            self.paths,
            lambda: fetch_tree(self.source, self.work / folder, on_progress=pace, staged=staged),
        )
        self.bytes = pace.done - staged.reused_bytes
        return staged


@pytest.fixture
def data(tmp_path: Path) -> Path:
    found = tmp_path / "data"
    (found / "deep").mkdir(parents=True)
    (found / "a").write_text("a")
    (found / "deep" / "b").write_text("bb")
    return found


@pytest.fixture
def vm(tmp_path: Path, data: Path) -> Vm:
    return Vm(tmp_path, StorageSpec(url=data.as_uri()))


def test_what_did_not_change_is_not_fetched_again(vm: Vm) -> None:
    assert vm.attempt().reused_files == 0
    assert vm.bytes == 3
    for _ in range(2):
        staged = vm.attempt()
        assert (staged.reused_files, staged.reused_bytes, vm.bytes) == (2, 3, 0)
        assert (vm.work / "data/x/deep/b").read_text() == "bb"
        staging.discard(vm.paths)
        assert not vm.paths.staged.exists()


def test_what_changed_in_the_store_is_fetched(vm: Vm, data: Path) -> None:
    vm.attempt()
    aside = data / "new"
    aside.write_text("c")  # of the same size
    aside.rename(data / "a")
    assert vm.attempt().reused_files == 1
    assert (vm.work / "data/x/a").read_text() == "c"


@pytest.mark.parametrize("how", ["written", "replaced", "link", "gone"])
def test_what_a_script_did_to_its_data_is_not_handed_on(vm: Vm, tmp_path: Path, how: str) -> None:
    vm.attempt()
    file = vm.work / "data/x/a"
    if how == "written":
        file.write_text("z")
        os.utime(file, ns=(1, 1))
    else:
        file.unlink()
        (tmp_path / "mine").write_text("z")
        if how == "replaced":
            (tmp_path / "mine").rename(file)
        elif how == "link":
            file.symlink_to(tmp_path / "mine")
    assert vm.attempt().reused_files == 1
    assert not file.is_symlink()
    assert (vm.work / "data/x/a").read_text() == "a"


def test_a_data_folder_that_became_a_link_is_left_alone(vm: Vm, tmp_path: Path) -> None:
    vm.attempt()
    (vm.work / "data").rename(tmp_path / "elsewhere")
    (vm.work / "data").symlink_to(tmp_path / "elsewhere")
    assert vm.attempt().reused_files == 0
    assert (tmp_path / "elsewhere/x/a").read_text() == "a"


def test_an_agent_that_was_killed_in_between_loses_no_more_than_time(vm: Vm) -> None:
    vm.attempt()
    attempt = vm.paths.attempt(vm.number)
    staging.set_aside(vm.paths, attempt)
    staging.set_aside(vm.paths, attempt)  # the next agent, before the next attempt was noted
    notes = vm.paths.staged / staging.NOTES
    notes.write_text(notes.read_text() + '{"object": "torn')
    assert vm.attempt().reused_files == 2
    (vm.work / "data/x/a").unlink()
    assert vm.fetch().reused_files == 0  # of this very attempt: only what is missing comes
    assert (vm.work / "data/x/a").read_text() == "a"


def test_files_of_init_from_are_kept_like_data(vm: Vm) -> None:
    vm.attempt(staging.INIT)
    assert vm.attempt(staging.INIT).reused_files == 2
    assert vm.attempt("data/other").reused_files == 2  # an object is what counts, not its folder


def test_a_full_disk_takes_what_was_set_aside(vm: Vm) -> None:
    vm.attempt()
    staging.set_aside(vm.paths, vm.paths.attempt(vm.number))
    tried: list[bool] = []

    def fetch() -> str:
        tried.append(vm.paths.staged.exists())
        if vm.paths.staged.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return "fetched"

    assert staging.with_room(vm.paths, fetch) == "fetched"
    assert tried == [True, False]

    def fails() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        staging.with_room(vm.paths, fails)


def test_objects_of_a_bucket_are_known_by_their_tag(tmp_path: Path) -> None:
    with S3Server() as s3:
        spec = s3.spec("s3://bucket/set")
        bucket = open_store(spec)
        for key, text in (("a", b"one"), ("b", b"two")):
            bucket.put(key, text)
        vm = Vm(tmp_path, spec)
        vm.attempt()
        assert vm.attempt().reused_files == 2
        bucket.put("a", b"eno")
        assert vm.attempt().reused_files == 1
        assert (vm.work / "data/x/a").read_bytes() == b"eno"
        alone = Vm(tmp_path / "alone", s3.spec("s3://bucket/set/b"))
        alone.attempt()
        assert alone.attempt().reused_files == 1


def test_the_pace_is_told_from_time_to_time_and_in_the_end(tmp_path: Path) -> None:
    now = [0.0]
    told: list[str] = []
    pace = Pace("data/x", told.append, clock=lambda: now[0])
    for second in range(0, 31, 5):
        now[0] = second
        pace(second * 1_000_000, 100_000_000)
    assert told == [
        *(f"data/x: {done} MB of 100 MB, 1 MB/s" for done in (10, 20, 30)),
    ]
    staged = Staged(tmp_path, tmp_path / "notes")
    assert pace.told(staged) == "30 MB fetched in 30.0 s (1 MB/s)"
    staged.reused_files, staged.reused_bytes = 3, 15_000_000
    assert pace.told(staged) == (
        "15 MB fetched in 30.0 s (500 kB/s), 3 files with 15 MB were on this VM already"
    )
    assert pace.is_long
